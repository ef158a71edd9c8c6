"""The presets of DreamShard and their options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shard_gym.agents.base import MAX_QUERIES
from shard_gym.agents.presets import preset_options
from shard_gym.checks import checked_count, checked_learning_rate, checked_positive
from shard_gym.cost_models.neural.storage import network_named
from shard_gym.errors import InvalidOptionError


@dataclass(frozen=True, kw_only=True)
class DreamShardOptions:
    """Options of both presets.

    Attributes:
        iterations: how often placements are measured and the surrogate is trained on all measurements so far.
        measurements: true costs evaluated in each iteration.
        network: architecture of the surrogate.
        cost_updates: batches the surrogate is trained on in each iteration.
        cost_batch: placements in each batch.
        learning_rate: of Adam.

    Raises:
        UnknownNameError: there is no such network.
        InvalidOptionError: an option has an impossible value.
    """

    iterations: int
    measurements: int
    network: str
    cost_updates: int
    cost_batch: int = 64
    learning_rate: float

    def __post_init__(self) -> None:
        for name in ("iterations", "measurements", "cost_updates", "cost_batch"):
            checked_count(name, getattr(self, name))
        checked_learning_rate(self.learning_rate)
        network_named(self.network)


@dataclass(frozen=True, kw_only=True)
class SearchOptions(DreamShardOptions):
    """`dream-search`: a surrogate trained on few measurements, and local search under it. There is no policy.

    The first iteration measures random loads, the later ones the agent's own placements. The learning rate falls to 0
    within each iteration.

    Attributes:
        queries: surrogate evaluations of the search that places a task.
    """

    iterations: int = 5
    measurements: int = 20
    network: str = "pooled"
    cost_updates: int = 600
    learning_rate: float = 6e-3
    queries: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_count("queries", self.queries, most=MAX_QUERIES)


@dataclass(frozen=True, kw_only=True)
class PaperOptions(DreamShardOptions):
    """`paper`: DreamShard as described by Zha et al. (NeurIPS 2022), with the defaults of daochenzha/dreamshard.

    Every measured placement is an episode of the policy, and the policy is trained on episodes under the surrogate. The
    learning rate of both falls linearly over the iterations. Three details differ from the authors' code: the softmax
    is masked in training, too; an empty device has latents of 0; and table features are normalized over the training
    tables.

    Attributes:
        policy_updates: steps of REINFORCE in each iteration.
        episodes: episodes in each step, all of one task.
        entropy: weight of the entropy bonus.
        cost_features: whether the policy sees the estimated costs.
    """

    iterations: int = 10
    measurements: int = 10
    network: str = "dreamshard"
    cost_updates: int = 300
    learning_rate: float = 5e-4
    policy_updates: int = 10
    episodes: int = 10
    entropy: float = 1e-3
    cost_features: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_count("policy_updates", self.policy_updates, least=0)
        checked_count("episodes", self.episodes, least=2)
        if self.entropy != 0:
            checked_positive("entropy", self.entropy)
        if not isinstance(self.cost_features, bool):
            raise InvalidOptionError(f"cost_features must be True or False, not {self.cost_features!r}.")


PRESETS: dict[str, type[SearchOptions] | type[PaperOptions]] = {"dream-search": SearchOptions, "paper": PaperOptions}
"""The options of each preset; their defaults are the preset."""


def dreamshard_options(preset: str, **changes: Any) -> SearchOptions | PaperOptions:
    """The options of `preset`, with `changes`.

    Raises:
        UnknownNameError: there is no such preset or network, or the preset has no such option.
        InvalidOptionError: an option has an impossible value.
    """
    options: SearchOptions | PaperOptions = preset_options(PRESETS, preset, **changes)
    return options
