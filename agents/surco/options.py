"""The preset of SurCo and its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shard_gym.agents.base import MAX_QUERIES
from shard_gym.agents.presets import CostNetworkOptions
from shard_gym.checks import checked_count, checked_positive
from shard_gym.errors import InvalidOptionError

MAX_STEPS = 100_000  # the most steps; a file that says more would keep its agent busy for hours


@dataclass(frozen=True, kw_only=True)
class ZeroOptions(CostNetworkOptions):
    """`zero`: the linear costs of each task are found when it is placed, from zero.

    The true cost is measured and the cost network is trained as in `dream-search`, so both can be compared at equal
    numbers of measurements.

    Attributes:
        steps: gradient steps on the linear costs of a task when it is placed.
        samples: solved problems in each step, an even number.
        sigma: standard deviation of their noise.
        step_size: of Adam on the linear costs.
    """

    placing: ClassVar[tuple[str, ...]] = ("steps",)

    iterations: int = 5
    measurements: int = 20
    network: str = "pooled"
    cost_updates: int = 600
    learning_rate: float = 6e-3
    steps: int = 60
    samples: int = 16
    sigma: float = 0.5
    step_size: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_count("steps", self.steps, most=MAX_STEPS)
        checked_count("samples", self.samples, least=2, most=2**12)
        for name in ("sigma", "step_size"):
            checked_positive(name, getattr(self, name))
        if self.steps * self.samples > MAX_QUERIES:
            raise InvalidOptionError(
                f"steps times samples must be at most {MAX_QUERIES}, not {self.steps} times {self.samples}."
            )
        if self.samples % 2:
            raise InvalidOptionError(f"samples must be even, for they come in pairs, not {self.samples}.")


PRESETS: dict[str, type[ZeroOptions]] = {"zero": ZeroOptions}
"""The options of each preset; their defaults are the preset."""

REMOVED = ("prior_updates", "prior_tasks", "prior_rate", "hidden")
"""Options of presets that older versions had; files of `zero` have them, too, without effect."""
