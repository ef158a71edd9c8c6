"""What the options of several sub-commands share: their types, the cost model they name, and the command they make."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from shard_gym.cli import PROG
from shard_gym.cost_models import AdditiveCostModel, make_cost_model

# With these, `--help` does not show optional arguments as `{None}|PATH ... (default: None)`.
OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="(optional)")]
OptionalInt = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="(optional)")]
OptionalFloat = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="(optional)")]
OptionalStr = Annotated[str | None, tyro.conf.arg(metavar="STR", help_behavior_hint="(optional)")]


@dataclass(frozen=True)
class CostModelOptions:
    """The cost model of the placements; some agents also evaluate it while they place or train.

    Attributes:
        cost_model: name of a cost model, or file of a neural one (.safetensors).
    """

    cost_model: str = "analytical"

    def make(self) -> AdditiveCostModel:
        """The cost model."""
        return make_cost_model(self.cost_model)


ANALYTICAL = CostModelOptions()


def command_line(*words: object, **options: object) -> str:
    """`shard-gym` with words and options, to copy. A list repeats its option; no value, () and False leave it out."""
    parts: list[object] = [PROG, *words]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            parts.append(flag)
        elif isinstance(value, list):
            parts += [part for each in value for part in (flag, each)]
        elif isinstance(value, tuple):
            parts += [flag, *value] if value else []
        elif value is not None and value is not False:
            parts += [flag, value]
    return shlex.join(map(str, parts))
