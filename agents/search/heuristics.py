"""Heuristics: random, the four greedy ones of the DreamShard paper, one for lanes, and one for the estimated cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations_with_replacement

import numpy as np
from typing_extensions import override

from shard_gym.agents.base import Agent, CostGuidedAgent, require_whole, task_rng
from shard_gym.agents.search.items import Items, NoRoomError, counted_bytes, put_in_order, put_where_cheapest
from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.common.checks import checked_seed
from shard_gym.common.errors import NoPlacementFoundError
from shard_gym.common.text import format_bytes
from shard_gym.cost_models.analytical.model import FULL_WARP_DIM, OUTPUT_BYTES, lane_share
from shard_gym.cost_models.base import placement_order
from shard_gym.hardware import Topology
from shard_gym.plans.placement import Placement
from shard_gym.tables import Tables
from shard_gym.tasks import Task


def _placed(task: Task, order: Iterable[int], choose: Callable[[int, np.ndarray], int]) -> Placement:
    """The tables of `task` placed in `order`, each where `choose(table, devices where it still fits)` says."""
    try:
        return put_in_order(counted_bytes(task), task.topology.memory_cap_bytes, order, choose, task.constraints)
    except NoRoomError as error:
        raise no_placement(task, error) from None


def no_placement(task: Task, error: NoRoomError) -> NoPlacementFoundError:
    """The error of an agent that placed some tables of `task` and then found no room for the next one."""
    return NoPlacementFoundError(
        f"Table {task.tables.names[error.item]} of task {task.name!r} needs "
        f"{format_bytes(task.tables.memory_bytes[error.item])}, but the emptiest device "
        f"{'has' if task.constraints is None else 'that its constraints permit has'} "
        f"{format_bytes(error.most_free)} free after the tables placed before it."
    )


class RandomAgent(Agent):
    """Places tables in random order, each on a random device where it fits. Equal seeds give equal placements."""

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self.seed = checked_seed(seed)

    @override
    def place(self, task: Task) -> Placement:
        require_whole(task)
        rng = task_rng(self.seed, task)
        return _placed(task, rng.permutation(task.num_tables), lambda _, fitting: rng.choice(fitting))


TableScore = Callable[[Tables], FloatArray]


def size_score(tables: Tables) -> FloatArray:
    """(T,) bytes of weights."""
    return (tables.num_embeddings * tables.row_bytes).astype(np.float64)


def dim_score(tables: Tables) -> FloatArray:
    """(T,) embedding_dim."""
    return tables.embedding_dim.astype(np.float64)


def lookup_score(tables: Tables) -> FloatArray:
    """(T,) embedding_dim * pooling_factor. DreamShard truncates the pooling factor to an integer; this does not."""
    return tables.embedding_dim * tables.pooling_factor


def size_lookup_score(tables: Tables) -> FloatArray:
    """(T,) embedding_dim * pooling_factor * log10(num_embeddings)."""
    return lookup_score(tables) * np.log10(tables.num_embeddings)


class GreedyAgent(Agent):
    """Places tables by descending score, each on the device with the lowest sum of scores where it fits.

    The scores are those of daochenzha/dreamshard, dreamshard/sharders.py.
    """

    def __init__(self, name: str, score: TableScore) -> None:
        self.name = name
        self.score = score

    @override
    def place(self, task: Task) -> Placement:
        require_whole(task)
        scores = self.score(task.tables)
        load = np.zeros(task.num_devices)

        def choose(table: int, fitting: np.ndarray) -> int:
            device: int = fitting[load[fitting].argmin()]
            load[device] += scores[table]
            return device

        return _placed(task, np.argsort(-scores, kind="stable"), choose)


PAPER_SCORES: Mapping[str, TableScore] = {
    "size-greedy": size_score,
    "dim-greedy": dim_score,
    "lookup-greedy": lookup_score,
    "size-lookup-greedy": size_lookup_score,
}
"""The four greedy heuristics DreamShard compares with, by name."""


def paper_heuristics() -> list[GreedyAgent]:
    """One agent for each of `PAPER_SCORES`."""
    return [GreedyAgent(name, score) for name, score in PAPER_SCORES.items()]


MAX_COUNTS = 8  # the most numbers of devices that `lane_placements` tries for the tables of a class of width


class LaneGreedyAgent(Agent):
    """Keeps wide tables together: of the numbers of devices for them, that with the least time of lanes and exchange.

    The candidates are those of `lane_placements`.
    """

    name = "lane-greedy"

    @override
    def place(self, task: Task) -> Placement:
        require_whole(task)
        return min(lane_placements(task), key=lambda each: each[0])[1]


def lane_placements(task: Task) -> list[tuple[float, Placement]]:
    """Placements that keep wide tables together, each with a rough time in ms.

    The time is the largest lane time of a device and its largest exchange time:

    - FBGEMM gives every table of a fused operator the thread groups of the widest one
      (`shard_gym.cost_models.analytical.model.lane_share`). So the lane time is that of reading vectors of 128 columns
      from DRAM, as many as the pooled rows of all tables of the device take, times the share of a warp of its widest
      table; three times, because TorchRec's planner counts the backward as two forwards.
    - The exchange time is that of sending the device's pooled outputs through the slower of its two links, and later of
      receiving their gradients.

    There is a placement for each choice of how many devices may hold tables of the widest class, and how many those of
    the two widest; choices without room are left out, and of more than eight numbers of devices eight are tried. If
    all tables are of one class, there is one placement.

    Raises:
        NoPlacementFoundError: no choice has a placement.
    """
    _, of_table = np.unique(-lane_share(task.tables.embedding_dim), return_inverse=True)  # 0 is the widest class
    counts = np.unique(np.linspace(1, task.num_devices, min(task.num_devices, MAX_COUNTS)).astype(int))
    found = []
    for limits in combinations_with_replacement(counts.tolist(), int(of_table.max())):
        try:
            found.append(_placed_by_lanes(task, of_table, (*limits, task.num_devices)))
        except NoPlacementFoundError as error:
            failure = error
    if not found:
        raise failure
    return found


def _placed_by_lanes(task: Task, of_table: IntArray, limits: Sequence[int]) -> tuple[float, Placement]:
    """The time and the placement in which tables of class c are on the first `limits[c]` devices alone."""
    tables, topology = task.tables, task.topology
    row_bytes = FULL_WARP_DIM * tables.workload.weight_bytes * np.ceil(tables.embedding_dim / FULL_WARP_DIM)
    lane_ms = 3.0 * tables.lookups_per_batch * row_bytes / (topology.device.dram_gb_per_s * 1e6)
    exchange_ms = _exchange_ms(tables, topology)
    share = lane_share(tables.embedding_dim)
    lanes, exchange, widest = (np.zeros(task.num_devices) for _ in range(3))

    def choose(table: int, fitting: np.ndarray) -> int:
        allowed = fitting[fitting < limits[of_table[table]]]
        if not len(allowed):
            raise NoPlacementFoundError("The devices that may hold the table have no room for it.")
        own = (lanes[allowed] + lane_ms[table]) * np.maximum(widest[allowed], share[table])
        sent = exchange[allowed] + exchange_ms[table]
        slowest = np.maximum(own, (lanes * widest).max()) + np.maximum(sent, exchange.max())
        device: int = allowed[np.lexsort((own + sent, slowest))[0]]
        lanes[device] += lane_ms[table]
        exchange[device] += exchange_ms[table]
        widest[device] = max(widest[device], share[table])
        return device

    placement = _placed(task, np.lexsort((-lane_ms, of_table)), choose)
    return float((lanes * widest).max() + exchange.max()), placement


def _exchange_ms(tables: Tables, topology: Topology) -> FloatArray:
    """(T,) ms in which the pooled outputs of each table pass the slower link of its device, and their gradients."""
    devices, linked = topology.num_devices, min(topology.domain_size, topology.num_devices)
    slowness = max(
        (linked - 1) / topology.links.intra_host_gb_per_s, (devices - linked) / topology.links.inter_host_gb_per_s
    )
    outputs = OUTPUT_BYTES * tables.embedding_dim * tables.outputs_per_batch
    return 2.0 * outputs * slowness / devices / 1e6


class CostGreedyAgent(CostGuidedAgent):
    """Places tables by descending single-table cost, each on the device where the placement so far costs least."""

    name = "cost-greedy"

    @override
    def place(self, task: Task) -> Placement:
        require_whole(task)
        items = Items.of_tables(task, self.additive_model(task))
        try:
            return put_where_cheapest(items, placement_order(items.loads, task.topology, items.model))
        except NoRoomError as error:
            raise no_placement(task, error) from None
