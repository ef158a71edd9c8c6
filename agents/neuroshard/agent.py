"""The agent trained as in the paper: a beam search over column splits under its networks. It needs NumPy only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.agents.base.presets import COST, CostNetworkOptions, options_to_place
from shard_gym.agents.dreamshard import SearchOptions
from shard_gym.agents.dreamshard.agent import load_search
from shard_gym.agents.search.splits import NOT_SPREAD, SplitOptions, SplitTables
from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.common.checks import checked_count
from shard_gym.common.errors import NoPlacementFoundError
from shard_gym.common.io.arrays import Arrays, prefixed, require_arrays, under
from shard_gym.common.system import one_blas_thread
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.cost_models.base import COMPUTE
from shard_gym.cost_models.neural import NeuralCostModel
from shard_gym.plans import ShardingPlan
from shard_gym.plans.column_levels import ColumnLevels
from shard_gym.plans.placement import Placement
from shard_gym.plans.plan import TABLE_WISE
from shard_gym.plans.variants import checked_max_shards
from shard_gym.tasks import Task


@dataclass(frozen=True, kw_only=True)
class NeuroShardPaperOptions(CostNetworkOptions):
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


PRESETS: dict[str, type[SearchOptions] | type[NeuroShardPaperOptions]] = {
    "search": SearchOptions,
    "paper": NeuroShardPaperOptions,
}
"""The options of each preset; their defaults are the preset. `search` is `dream-search` by another name."""


# NeuroShard's search: a beam over column splits, and for each of them greedy placements under a grid of limits.
#
# Zha et al., *Pre-train and Search*, MLSys 2023; as in daochenzha/neuroshard, neurosharder.py.

LIMITS = (1.0, 1.5)  # ends of the grid: a device has at most so many times a D-th of the columns of all tables


@dataclass(frozen=True, eq=False)
class _Parts:
    """A set of splits: the (I,) table of each part and its level."""

    table: IntArray
    level: IntArray  # one of `SplitOptions.levels`

    @property
    def key(self) -> bytes:
        """Equal for equal sets, in whatever order the splits were made."""
        order = np.lexsort((self.level, self.table))
        return self.table[order].tobytes() + self.level[order].tobytes()

    def halved(self, part: int, levels: ColumnLevels) -> _Parts:
        """`part` becomes two, of which the narrower one is last."""
        level = self.level.copy()
        level[part], other = levels.halves[self.table[part], level[part]]
        return _Parts(np.append(self.table, self.table[part]), np.append(level, other))


@dataclass(frozen=True)
class BeamSearch:
    """The search and its numbers; the defaults are the paper's.

    Each split halves the columns of a part: of one of the `candidates` largest, or of those that cost most alone. After
    every split all parts are placed again. The `width` cheapest children go on; their parents do not. Equal sets that
    were reached by splits in another order stay apart in the beam, as in the authors' code, but are placed once.
    """

    width: int = 3  # k, sets of splits that go on
    candidates: int = 10  # n, parts by size, and parts by cost, that may be halved next
    max_splits: int = 10  # L, splits one after another
    limits: int = 11  # M, greedy placements of a set, each with another limit on the columns of a device

    def search(self, options: SplitOptions) -> SplitTables:
        """The cheapest plan of column shards found under the model of `options`; NoPlacementFoundError if none fits."""
        tables = np.arange(options.task.num_tables)
        beam = [_Parts(tables, np.zeros_like(tables))]
        cost, plan = self._cheapest(options, beam)
        best, best_plan = cost[0], plan[0]
        for _ in range(self.max_splits):
            children = [child for parts in beam for child in self._children(options, parts)]
            if not children:
                break
            cost, plan = self._cheapest(options, children)
            order = np.argsort(cost, kind="stable")
            beam = [children[child] for child in order[: self.width]]
            if cost[order[0]] < best:
                best, best_plan = cost[order[0]], plan[order[0]]
        if best_plan is None:
            raise NoPlacementFoundError(
                f"The beam search found no plan of task {options.task.name!r} that fits the memory of its devices, "
                f"with {self.max_splits} splits. Allow more (max_splits), or use plan-search."
            )
        return best_plan

    def _children(self, options: SplitOptions, parts: _Parts) -> list[_Parts]:
        by_size = np.argsort(-options.memory[parts.table, parts.level], kind="stable")[: self.candidates]
        by_cost = np.argsort(-options.part_ms[parts.table, parts.level], kind="stable")[: self.candidates]
        chosen = np.union1d(by_size, by_cost)
        chosen = chosen[options.can_halve(parts.table[chosen], parts.level[chosen])]
        return [parts.halved(int(part), options.levels) for part in chosen]

    def _cheapest(self, options: SplitOptions, sets: list[_Parts]) -> tuple[FloatArray, list[SplitTables | None]]:
        """(S,) ms of the cheapest placement of each set, inf where none fits; and the plans."""
        numbers = {parts.key: parts for parts in sets}
        devices, costs = place_greedily(options, list(numbers.values()), np.linspace(*LIMITS, self.limits))
        which = dict(zip(numbers, range(len(numbers)), strict=True))
        nothing = np.full(options.task.num_tables, NOT_SPREAD)
        cost, plans = np.empty(len(sets)), []
        for number, parts in enumerate(sets):
            row = which[parts.key]
            first = numbers[parts.key]
            best = int(costs[row].argmin())
            cost[number] = costs[row, best]
            device = devices[row, best, : len(first.table)]
            fits = bool(np.isfinite(cost[number]))
            plans.append(SplitTables(options, first.table, first.level, device, nothing) if fits else None)
        return cost, plans


def place_greedily(
    options: SplitOptions, sets: list[_Parts], limits: NDArray[np.float64]
) -> tuple[NDArray[np.int64], FloatArray]:
    """Greedy placements of S sets of parts under M limits each, all step by step together.

    Parts come by descending cost alone. Each goes to the device whose compute takes least so far, ties to the one with
    the fewest bytes, among those with room for its bytes and for its columns. Returns (S, M, I) int64, a device for
    each part, -1 beyond those of a set; and (S, M) ms, inf where a part found none.
    """
    model, task = options.model, options.task
    num_sets, most, num_devices = len(sets), max(len(parts.table) for parts in sets), task.num_devices
    tables = task.tables
    columns = options.levels.width * tables.num_features[:, None]
    order = np.full((num_sets, most), -1)
    table, level = np.zeros((2, num_sets, most), np.int64)
    for row, parts in enumerate(sets):
        by_cost = np.argsort(-options.part_ms[parts.table, parts.level], kind="stable")
        count = len(by_cost)
        order[row, :count] = by_cost
        table[row, :count], level[row, :count] = parts.table[by_cost], parts.level[by_cost]
    real = order >= 0

    runs = num_sets * len(limits)
    every, number = np.arange(runs), np.repeat(np.arange(num_sets), len(limits))
    held = np.zeros((runs, num_devices, options.loads.shape[-1]))
    busy = np.zeros((runs, num_devices))
    used = np.zeros((runs, num_devices), np.int64)
    caps = task.topology.memory_cap_bytes
    columns_left = np.repeat(
        np.tile(limits, num_sets)[:, None] * (columns[:, 0].sum() / num_devices), num_devices, axis=1
    )
    devices, alive = np.full((runs, most), -1), np.ones(runs, np.bool_)
    for step in range(most):
        parts_of = (table[number, step], level[number, step])
        needed, width = options.memory[parts_of], columns[parts_of]
        fits = (used + needed[:, None] <= caps) & (columns_left >= width[:, None])
        if task.constraints is not None:
            fits &= task.constraints.devices[parts_of[0]]
        placed = real[number, step] & alive
        cost = np.where(fits, busy, np.inf)
        tied = fits & (cost <= cost.min(axis=1, keepdims=True))
        device = np.where(tied, used, np.iinfo(np.int64).max).argmin(axis=1)
        alive &= fits.any(axis=1) | ~placed
        run = every[placed & alive]
        device = device[run]
        joined = model.add(held[run, device], options.loads[parts_of[0][run], parts_of[1][run]])
        held[run, device] = joined
        busy[run, device] = model.device_phases(joined)[..., COMPUTE].sum(axis=-1)
        used[run, device] += needed[run]
        columns_left[run, device] -= width[run]
        devices[run, order[number[run], step]] = device
    costs = np.full(runs, np.inf)
    if alive.any():
        costs[alive] = model.costs(held[alive], options.cluster)[1]
    return devices.reshape(num_sets, len(limits), most), costs.reshape(num_sets, len(limits))


class NeuroShardAgent(Agent):
    """Plans of column shards for tasks of any size under learned costs; it never evaluates the true cost.

    Args:
        name: its name.
        cost_model: the networks.
        options: of the preset `paper`.
    """

    def __init__(self, name: str, cost_model: NeuralCostModel, options: NeuroShardPaperOptions) -> None:
        self.name = name
        self.cost_model = cost_model
        self.options = options

    def place(self, task: Task) -> Placement:
        """The same search with whole tables alone."""
        return self._split(task, (TABLE_WISE,)).placement

    @override
    def plan(self, task: Task) -> ShardingPlan:
        return self._split(task, self.cost_model.sharding_types).plan()

    def _split(self, task: Task, sharding_types: tuple[str, ...]) -> SplitTables:
        options = self.options
        beam = BeamSearch(options.width, options.candidates, options.max_splits, options.limits)
        with one_blas_thread():
            return beam.search(SplitOptions(task, self.cost_model, sharding_types, options.max_shards))


def load_neuroshard(
    arrays: Arrays, about: Mapping[str, Any], cost_model: AdditiveCostModel, seed: int, **changes: Any
) -> Agent:
    """The agent of a training run; `changes` are `queries` for the preset `search`, errors those of `load_agent`."""
    options: SearchOptions | NeuroShardPaperOptions = options_to_place(PRESETS, about, changes)
    if isinstance(options, SearchOptions):
        return load_search(arrays, about, options, seed)
    network = options.architecture
    require_arrays("The agent's file", arrays, prefixed(COST, network.weights_like(under(COST, arrays))))
    return NeuroShardAgent(about["agent"], network(under(COST, arrays)), options)
