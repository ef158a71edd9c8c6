"""The learning curve of a run, as a file: what the same few tasks cost after each iteration."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from shard_gym.common.errors import DamagedFileError, short_repr
from shard_gym.common.io.files import read_json
from shard_gym.common.io.parsing import require_fields

CURVE = "curve.json"
_LEAST = {"iteration": 1, "to_reference": -1}  # of the numbers of a point; of the others 0


@dataclass(frozen=True)
class Point:
    """What the tasks cost after an iteration.

    Attributes:
        iteration: how many iterations were done.
        true_cost_queries: evaluations of the true cost in them; those of the validation are not among them.
        mean_cost_ms: mean cost of the tasks; one that failed costs its penalty.
        to_reference: mean of each task's cost / that of the reference, less 1.
        failures: tasks without a valid answer.
    """

    iteration: int
    true_cost_queries: int
    mean_cost_ms: float
    to_reference: float
    failures: int


@dataclass
class Curve:
    """The points of a run, in order, and what they are of.

    Attributes:
        agent, suite, split, cost_model: name of the agent, of the suite and its split, and what scores.
        tasks: their names.
        reference: name of the agent that the costs are compared with.
        points: one for each validated iteration.
    """

    agent: str
    suite: str
    split: str
    cost_model: str
    tasks: list[str]
    reference: str
    points: list[Point] = field(default_factory=list)

    def said(self, point: Point) -> str:
        """A point in words, such as "validation 12.3% under lookup-greedy, 1 of 5 failed"."""
        percent = round(100 * point.to_reference, 1)
        failed = f", {point.failures} of {len(self.tasks)} failed" if point.failures else ""
        return f"validation {abs(percent):.1f}% {'under' if percent < 0 else 'over'} {self.reference}{failed}"


def load_curve(path: Path) -> Curve:
    """The curve in the file of a run, or in its folder.

    Raises:
        DamagedFileError: there is none, or what the file says is no curve.
    """
    path = path / CURVE if path.is_dir() else path
    strings = {each.name: str for each in fields(Curve) if each.type == "str"}
    found = require_fields(read_json(path), {**strings, "tasks": list, "points": list}, str(path))
    kinds: dict[str, Any] = {each.name: float if each.type == "float" else int for each in fields(Point)}
    if not all(isinstance(name, str) for name in found["tasks"]):
        raise DamagedFileError(f"{path} has tasks {short_repr(found['tasks'])}, but they must be names.")
    points = list[Point]()
    for number, each in enumerate(found["points"], start=1):
        points.append(Point(**require_fields(each, kinds, f"Point {number} of {path}")))
        for name, value in each.items():
            if value < (least := _LEAST.get(name, 0)):
                raise DamagedFileError(f"Point {number} of {path} has {name} {value}, but it must be at least {least}.")
    if [each.iteration for each in points] != sorted({each.iteration for each in points}):
        raise DamagedFileError(f"The points of {path} are not in the order of their iterations.")
    return Curve(**{**found, "points": points})
