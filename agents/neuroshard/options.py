"""The presets of NeuroShard and their options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shard_gym.agents.base import MAX_QUERIES
from shard_gym.agents.presets import CostNetworkOptions
from shard_gym.checks import checked_count
from shard_gym.sharding.variants import checked_max_shards


@dataclass(frozen=True, kw_only=True)
class NeuroShardOptions(CostNetworkOptions):
    """Options of both presets.

    Attributes:
        learning_rate: of Adam; it falls to 0.
        max_shards: column shards of a table at most, a power of two.
    """

    max_shards: int

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_max_shards(self.max_shards)


@dataclass(frozen=True, kw_only=True)
class PaperOptions(NeuroShardOptions):
    """`paper`: networks trained on random loads as the paper draws them, and its beam search over column splits.

    Half of the measurements are of up to 15 tables on one device, the others of 10 to 59 tables on all devices. The
    authors' code draws 100,000 of each and trains 1,000 epochs; the defaults here are smaller, and the networks are
    those of `NeuroShardCostModel`, which says how they differ.

    Attributes:
        width: k, sets of splits that go on after each split.
        candidates: n, the largest parts, and the costliest, that may be halved next.
        max_splits: L, splits one after another.
        limits: M, greedy placements of each set, with as many limits on the columns of a device.
    """

    iterations: int = 10
    measurements: int = 2_000
    network: str = "neuroshard"
    cost_updates: int = 1_000
    cost_batch: int = 512
    learning_rate: float = 1e-3
    max_shards: int = 32
    width: int = 3
    candidates: int = 10
    max_splits: int = 10
    limits: int = 11

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("width", "candidates", "limits"):
            checked_count(name, getattr(self, name))
        checked_count("max_splits", self.max_splits, 0)


@dataclass(frozen=True, kw_only=True)
class SearchOptions(NeuroShardOptions):
    """`search`: the search of `plan-search` under a network that also estimates row-wise and data-parallel shards.

    The first iteration measures random loads of shards, the later ones the agent's own plans for training tasks.

    Attributes:
        queries: estimates of the search that plans a task.
    """

    placing: ClassVar[tuple[str, ...]] = ("queries",)

    iterations: int = 3
    measurements: int = 200
    network: str = "pooled-sharding"
    cost_updates: int = 2_000
    learning_rate: float = 6e-3
    max_shards: int = 8
    queries: int = 20_000

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_count("queries", self.queries, most=MAX_QUERIES)


PRESETS: dict[str, type[SearchOptions] | type[PaperOptions]] = {"search": SearchOptions, "paper": PaperOptions}
"""The options of each preset; their defaults are the preset."""
