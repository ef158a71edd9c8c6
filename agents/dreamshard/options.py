"""The presets of DreamShard and their options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shard_gym.agents.base import MAX_QUERIES
from shard_gym.agents.presets import CostNetworkOptions
from shard_gym.checks import checked_count, checked_positive
from shard_gym.errors import InvalidOptionError
from shard_gym.sharding.variants import checked_max_shards


@dataclass(frozen=True, kw_only=True)
class SearchOptions(CostNetworkOptions):
    """`dream-search`: a surrogate trained on few measurements, and `plan-search` under it. There is no policy.

    The first iteration measures random loads, the later ones the agent's own answers to training tasks: placements, or
    plans where tasks may be split. The learning rate falls to 0 within each iteration.

    Attributes:
        queries: surrogate evaluations of the search that answers a task.
        max_shards: column shards of a table at most, a power of two.
    """

    placing: ClassVar[tuple[str, ...]] = ("queries",)

    iterations: int = 5
    measurements: int = 20
    network: str = "pooled"
    cost_updates: int = 600
    learning_rate: float = 6e-3
    queries: int = 100_000
    max_shards: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_count("queries", self.queries, most=MAX_QUERIES)
        checked_max_shards(self.max_shards)


@dataclass(frozen=True, kw_only=True)
class PaperOptions(CostNetworkOptions):
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
