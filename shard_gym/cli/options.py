"""Options that several commands share.

The types of optional arguments keep `--help` from showing them as `{None}|PATH ... (default: None)`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from shard_gym.cost_models import CostModel, make_cost_model
from shard_gym.errors import InvalidOptionError

OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="(optional)")]
OptionalInt = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="(optional)")]
OptionalFloat = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="(optional)")]
OptionalStr = Annotated[str | None, tyro.conf.arg(metavar="STR", help_behavior_hint="(optional)")]


@dataclass(frozen=True)
class Measuring:
    """How `--cost-model measured` measures."""

    device: OptionalStr = None
    """measured costs: on what, cpu (default) or cuda"""
    layout: OptionalStr = None
    """measured costs: parallel (a process for each device), sequential (one stands for all), or auto (default)"""
    batch_size: OptionalInt = None
    """measured costs: samples of an iteration over all devices; those of the tables if not given"""
    iterations: OptionalInt = None
    """measured costs: timed iterations of a measurement; 10 if not given"""
    cache: OptionalPath = None
    """measured costs: file that keeps measurements, so that none is repeated"""

    @property
    def flags(self) -> dict[str, str]:
        """The options that are given, as flags and values."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return {"--" + name.replace("_", "-"): str(value) for name, value in given.items()}


Measured = Annotated[Measuring, tyro.conf.OmitArgPrefixes]


def true_cost_model(name: str, measuring: Measuring, cache: Path | None = None) -> CostModel:
    """The cost model that `--cost-model` and the options of `Measuring` name.

    Args:
        name: of the cost model, or path of a neural one.
        measuring: options of "measured".
        cache: where measurements are kept if `measuring` does not say.

    Raises:
        InvalidOptionError: options of measured costs are given for another cost model; or as `make_cost_model` and
            `MeasuredCostModel`.
    """
    if name != "measured":
        if measuring.flags:
            raise InvalidOptionError(
                f"{next(iter(measuring.flags))} says how costs are measured, but the cost model is {name!r}. Pass "
                "--cost-model measured, or leave it out."
            )
        return make_cost_model(name)
    from shard_gym.cost_models.measured.model import MeasuredCostModel

    given = {key: value for key, value in asdict(measuring).items() if value is not None}
    return MeasuredCostModel(**({"cache": cache} | given))
