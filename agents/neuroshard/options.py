"""The presets of NeuroShard and their options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shard_gym.agents.base import MAX_QUERIES
from shard_gym.agents.presets import preset_options
from shard_gym.checks import checked_count, checked_learning_rate
from shard_gym.cost_models.neural.storage import network_named
from shard_gym.sharding.variants import checked_max_shards


@dataclass(frozen=True, kw_only=True)
class NeuroShardOptions:
    """Options of both presets.

    Attributes:
        iterations: how often costs are measured and the network is trained on all measurements so far.
        measurements: true costs evaluated in each iteration.
        network: its architecture.
        cost_updates: batches it is trained on in each iteration.
        cost_batch: measurements in each batch.
        learning_rate: of Adam; it falls to 0.
        max_shards: column shards of a table at most, a power of two.

    Raises:
        UnknownNameError: there is no such network.
        InvalidOptionError: an option has an impossible value.
    """

    iterations: int
    measurements: int
    network: str
    cost_updates: int
    cost_batch: int
    learning_rate: float
    max_shards: int

    def __post_init__(self) -> None:
        for name in ("iterations", "measurements", "cost_updates", "cost_batch"):
            checked_count(name, getattr(self, name))
        checked_max_shards(self.max_shards)
        checked_learning_rate(self.learning_rate)
        network_named(self.network)


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

    iterations: int = 3
    measurements: int = 200
    network: str = "pooled-sharding"
    cost_updates: int = 2_000
    cost_batch: int = 64
    learning_rate: float = 6e-3
    max_shards: int = 8
    queries: int = 20_000

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_count("queries", self.queries, most=MAX_QUERIES)


PRESETS: dict[str, type[SearchOptions] | type[PaperOptions]] = {"search": SearchOptions, "paper": PaperOptions}
"""The options of each preset; their defaults are the preset."""


def neuroshard_options(preset: str, **changes: Any) -> SearchOptions | PaperOptions:
    """The options of `preset`, with `changes`.

    Raises:
        UnknownNameError: there is no such preset or network, or the preset has no such option.
        InvalidOptionError: an option has an impossible value.
    """
    options: SearchOptions | PaperOptions = preset_options(PRESETS, preset, **changes)
    return options
