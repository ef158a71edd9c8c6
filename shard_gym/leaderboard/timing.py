"""Raw timings of an entry of the measured track, taken here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from shard_gym.errors import InvalidOptionError
from shard_gym.evaluation import Evaluation
from shard_gym.leaderboard.write import rows_json
from shard_gym.placement import check_placement
from shard_gym.tasks import TaskSuite

if TYPE_CHECKING:
    from shard_gym.cost_models.measured.model import MeasuredCostModel

NANOSECONDS = 6
"""Decimals of a time in ms; no clock knows more."""

OnMeasured = Callable[[int, int], None]
"""Called with the number of placements done and of all."""


def measured_timings(
    model: MeasuredCostModel,
    suite: TaskSuite,
    evaluations: Sequence[Evaluation],
    seeds: Sequence[int],
    on_measured: OnMeasured = lambda done, total: None,
) -> bytes:
    """The content of `timings.json`: every placement of the evaluations executed.

    Args:
        model: executes them.
        suite: the test tasks.
        evaluations: one for each seed, of all tasks in the suite's order.
        seeds: theirs.
        on_measured: called after each placement.

    Raises:
        InvalidOptionError: an evaluation is not of these tasks; or there are fewer GPUs than a task has devices, and
            the layout is `each`.
        InvalidPlacementError: a placement is not valid.
        MeasurementError: a placement could not be executed; nothing is left out.
    """
    names, total = [task.name for task in suite], len(seeds) * len(suite)
    for evaluation in evaluations:
        if [result.task for result in evaluation.tasks] != names:
            raise InvalidOptionError(
                f"An evaluation lists {len(evaluation.tasks)} tasks, which are not the {len(names)} test tasks of "
                f"{suite.name!r} in their order. Evaluate the whole suite."
            )
    rows: list[dict[str, Any]] = []
    for seed, evaluation in zip(seeds, evaluations, strict=True):
        for task, result in zip(suite, evaluation.tasks, strict=True):
            phases = None
            if result.placement is not None:
                placement = check_placement(result.placement, task.tables, task.topology)
                found = model.estimate(placement, task.tables, task.topology)
                phases = found.iterations_ms.round(NANOSECONDS).tolist()
            rows.append({"task": result.task, "seed": seed, "phases_ms": phases})
            on_measured(len(rows), total)
    return rows_json(rows)
