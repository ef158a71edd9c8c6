"""What the options of several sub-commands share: their types, and the cost model they name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from shard_gym.agents import Agent
from shard_gym.agents.named import make_placing_agent
from shard_gym.cli.console import tell
from shard_gym.common.checks import is_number
from shard_gym.common.errors import InvalidOptionError, short_repr
from shard_gym.cost_models import CostModel, InferenceCostModel, make_cost_model
from shard_gym.tasks import Suite
from shard_gym.tasks.task import cost_model_for

# With these, `--help` does not show optional arguments as `{None}|PATH ... (default: None)`.
OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="(optional)")]
OptionalInt = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="(optional)")]
OptionalFloat = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="(optional)")]
OptionalFloats = Annotated[str | None, tyro.conf.arg(metavar="FLOAT|FLOAT,FLOAT,...", help_behavior_hint="(optional)")]
OptionalDeviceType = Annotated[
    Literal["cpu", "cuda"] | None, tyro.conf.arg(metavar="{cpu,cuda}", help_behavior_hint="(optional)")
]
OptionalStr = Annotated[str | None, tyro.conf.arg(metavar="STR", help_behavior_hint="(optional)")]

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class CostModelOptions:
    """The cost model of the placements, and how it measures.

    Some agents also evaluate it while they place or train; while they place, only if it estimates.

    Attributes:
        cost_model: analytical, analytical-lru (of host memory behind a cache in HBM), analytical-inference (of
            serving; the default for tables that are served), the file of a neural cost model (.safetensors), a folder
            of shard-gym calibrate, or measured.
        device: what measured costs are measured on, cpu or cuda; cpu if not given.
        layout: of measured costs: parallel (a process for each device), sequential (one stands for all) or auto.
        batch_size: samples of an iteration that is measured, over all devices; those of the tables if not given.
        iterations: timed iterations of a measurement; 10 if not given.
        cache: file that keeps measurements, so that none is repeated.
    """

    cost_model: str = "analytical"
    device: OptionalStr = None
    layout: OptionalStr = None
    batch_size: OptionalInt = None
    iterations: OptionalInt = None
    cache: OptionalPath = None

    @property
    def measures(self) -> bool:
        """Whether costs are measured."""
        return self.cost_model == "measured"

    @property
    def training(self) -> bool | None:
        """False for a cost model of serving, so that the tables of a user are served; None leaves them as they are."""
        return False if self.cost_model == InferenceCostModel.name else None

    def make(self, cache: Path | None = None, suite: Suite[Any] | None = None) -> CostModel:
        """The cost model, of `suite` if it is for one; measurements are kept in `cache` if no option says where."""
        given = {name: value for name, value in vars(self).items() if name != "cost_model" and value is not None}
        if self.measures:
            from shard_gym.cost_models.measured import model

            return model.MeasuredCostModel(**({"cache": cache} | given))
        if given:
            raise InvalidOptionError(
                f"--{next(iter(given)).replace('_', '-')} says how costs are measured, but the cost model is "
                f"{self.cost_model!r}. Pass --cost-model measured, or leave it out"
                + ("; with --lookups it is the batch of the log." if "batch_size" in given else ".")
            )
        return make_cost_model(cost_model_for(suite, self.cost_model))

    def for_tables(self) -> str | CostModel:
        """The cost model of a user's tables; the name of the default, which is that of serving if they are served."""
        return self.cost_model if self == ANALYTICAL else self.make()


ANALYTICAL = CostModelOptions()

IndexExchange = Annotated[
    Literal["hidden", "exposed"] | None, tyro.conf.arg(metavar="{hidden,exposed}", help_behavior_hint="(optional)")
]
"""Whether a pipeline hides the exchange of the indices, or an iteration waits for it."""


def placing_agent(name: str, model: CostModel, seed: int, suite: str | None = None, /, **options: Any) -> Agent:
    """The agent that --agent names, to be scored by `model`; see `make_placing_agent`, whose notes are printed."""
    agent, notes = make_placing_agent(name, model, seed, suite, **options)
    for note in notes:
        tell(note)
    return agent


def numbers(option: str, text: str | None) -> list[float] | None:
    """The numbers of an option, with commas between them; None without it."""
    wanted = "a positive number, or one for each device with commas between them"
    return None if text is None else split_numbers(option, text, float, wanted)


def split_numbers(option: str, text: str, kind: Callable[[str], Number], wanted: str) -> list[Number]:
    """The numbers of a `kind` in `text`, with commas between them; the error says what is `wanted`."""
    found = []
    for each in text.split(","):
        try:
            found.append(kind(each))
        except ValueError:
            one = f"{short_repr(each)} in {short_repr(text)}" if text != each else short_repr(each)
            raise InvalidOptionError(f"{option} must be {wanted}, not {one}.") from None
    return found


AgentOptions = Annotated[list[str], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="KEY=VALUE")]

Option = bool | int | float | str | None

_WORDS: dict[str, Option] = {"true": True, "false": False, "none": None}
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?", re.IGNORECASE)
"""As Python writes numbers; `int` and `float` also take blanks, underscores and other digits."""

RESERVED = {
    "device": "--device",
    "name": "--agent",
    "suite": "--suite",
    "seed": "--seed",
    "cost_model": "--cost-model",
    "data": "--data",
}
"""Arguments of learners that are no options, and their flags."""


def parse_options(given: Sequence[str]) -> dict[str, Option]:
    """The options `given` as KEY=VALUE; a value is a Boolean (true, false), none, an integer, a number or a text."""
    options: dict[str, Option] = {}
    for each in given:
        key, equals, text = each.partition("=")
        if not key or not equals:
            raise InvalidOptionError(f"--option wants KEY=VALUE, such as iterations=20, not {each!r}.")
        if key in RESERVED:
            raise InvalidOptionError(f"{key} is no option of an agent; give it with {RESERVED[key]}.")
        if key in options:
            raise InvalidOptionError(f"The option {key!r} is given twice; give it once.")
        options[key] = _parsed(text)
    return options


def _parsed(text: str) -> Option:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind, form in ((int, _INTEGER), (float, _NUMBER)):
        try:
            value = kind(text) if form.fullmatch(text) else None
        except ValueError:  # an integer of thousands of digits
            continue
        if is_number(value):
            return value
    return text


def first_tasks(suite: Suite[Any], count: int) -> Suite[Any]:
    """The first `count` tasks of a suite; all of them for 0."""
    if not 0 <= count <= len(suite):
        raise InvalidOptionError(f"--tasks must be from 1 to {len(suite)}, or 0 for all; it is {count}.")
    return suite if count in (0, len(suite)) else replace(suite, tasks=suite.tasks[:count])
