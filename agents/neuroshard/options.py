"""The presets of NeuroShard and their options."""

from __future__ import annotations

from dataclasses import dataclass

from shard_gym.agents.dreamshard.options import SearchOptions
from shard_gym.agents.presets import CostNetworkOptions
from shard_gym.checks import checked_count
from shard_gym.sharding.variants import checked_max_shards


@dataclass(frozen=True, kw_only=True)
class PaperOptions(CostNetworkOptions):
    """`paper`: networks trained on random loads as the paper draws them, and its beam search over column splits.

    Half of the measurements are of up to 15 tables on one device, the others of 10 to 59 tables on all devices. The
    authors' code draws 100,000 of each and trains 1,000 epochs; the defaults here are smaller, and the networks are
    those of `NeuroShardCostModel`, which says how they differ.

    Attributes:
        max_shards: column shards of a table at most, a power of two.
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
        checked_max_shards(self.max_shards)
        for name in ("width", "candidates", "limits"):
            checked_count(name, getattr(self, name))
        checked_count("max_splits", self.max_splits, 0)


PRESETS: dict[str, type[SearchOptions] | type[PaperOptions]] = {"search": SearchOptions, "paper": PaperOptions}
"""The options of each preset; their defaults are the preset. `search` is `dream-search` by another name."""
