"""The presets of SurCo and their options."""

from __future__ import annotations

from dataclasses import dataclass

from shard_gym.agents.base import MAX_QUERIES
from shard_gym.checks import checked_count, checked_learning_rate, checked_positive
from shard_gym.cost_models.neural.storage import network_named
from shard_gym.errors import InvalidOptionError

MAX_STEPS = 100_000
"""A file that says more would keep its agent busy for hours."""


@dataclass(frozen=True, kw_only=True)
class SurCoOptions:
    """Options of all presets.

    The true cost is measured and the cost network is trained as in `dream-search`, so both can be compared at equal
    numbers of measurements.

    Attributes:
        iterations: how often placements are measured and the cost network is trained on all measurements so far.
        measurements: true costs evaluated in each iteration.
        network: architecture of the cost network.
        cost_updates: batches that it is trained on in each iteration.
        cost_batch: placements in each batch.
        learning_rate: of its Adam; it falls to 0 within each iteration.
        steps: gradient steps on the linear costs of a task when it is placed.
        samples: solved problems in each step, an even number.
        sigma: standard deviation of their noise.
        step_size: of Adam on the linear costs.
        prior_updates: steps of the network of linear costs in each iteration; 0 for linear costs of zero at the start.
        prior_tasks: tasks in each.
        prior_rate: of its Adam.
        hidden: of that network, a multiple of 4.

    Raises:
        UnknownNameError: there is no such network.
        InvalidOptionError: an option has an impossible value.
    """

    iterations: int = 5
    measurements: int = 20
    network: str = "pooled"
    cost_updates: int = 600
    cost_batch: int = 64
    learning_rate: float = 6e-3
    steps: int
    samples: int = 16
    sigma: float = 0.5
    step_size: float = 0.1
    prior_updates: int
    prior_tasks: int = 4
    prior_rate: float = 1e-3
    hidden: int = 64

    def __post_init__(self) -> None:
        for name in ("iterations", "measurements", "cost_updates", "cost_batch", "prior_tasks"):
            checked_count(name, getattr(self, name))
        for name in ("steps", "prior_updates"):
            checked_count(name, getattr(self, name), least=0, most=MAX_STEPS)
        checked_count("samples", self.samples, least=2, most=2**12)
        checked_count("hidden", self.hidden, most=2**10)
        checked_learning_rate(self.learning_rate)
        checked_learning_rate(self.prior_rate, "prior_rate")
        for name in ("sigma", "step_size"):
            checked_positive(name, getattr(self, name))
        if self.steps * self.samples > MAX_QUERIES:
            raise InvalidOptionError(
                f"steps times samples must be at most {MAX_QUERIES}, not {self.steps} times {self.samples}."
            )
        if self.samples % 2:
            raise InvalidOptionError(f"samples must be even, for they come in pairs, not {self.samples}.")
        if self.hidden % 4:
            raise InvalidOptionError(f"hidden must be a multiple of 4, not {self.hidden}.")
        if not self.steps and not self.prior_updates:
            raise InvalidOptionError("Without steps the linear costs come from the network: set prior_updates.")
        network_named(self.network)


@dataclass(frozen=True, kw_only=True)
class ZeroOptions(SurCoOptions):
    """`zero`: the linear costs of each task are found when it is placed, from zero."""

    steps: int = 60
    prior_updates: int = 0


@dataclass(frozen=True, kw_only=True)
class PriorOptions(SurCoOptions):
    """`prior`: a network gives the linear costs, and the solver places once."""

    steps: int = 0
    prior_updates: int = 100


@dataclass(frozen=True, kw_only=True)
class HybridOptions(SurCoOptions):
    """`hybrid`: the network gives linear costs to start from, and steps follow."""

    steps: int = 30
    prior_updates: int = 100


PRESETS: dict[str, type[SurCoOptions]] = {"zero": ZeroOptions, "prior": PriorOptions, "hybrid": HybridOptions}
"""The options of each preset; their defaults are the preset."""
