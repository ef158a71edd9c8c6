"""Lower bounds on the cost of every placement of a task, by linear programs: `lower_bound_ms`.

Five things make them tighter than the `bounds` of a cost model, which need no solver:

- **Lane levels.** With n_l devices of lane level l, a table is spread over the levels that its width allows, and the
  devices of a level share its load evenly. The smallest of these linear programs over all (n_l) is a bound. They are
  searched best first: a box of counts is bounded by its largest counts, so most boxes are never split.
- **Whole tables.** Of the j largest loads, some device has ceil(j / D) or more.
- **Receivers.** Where the last host is smaller, what its devices receive from all others bounds the all-to-all.
- **Constraints.** Tables that are kept to some devices are whole tables on these alone (few_devices.py).
- **Joint phases.** One spread must serve both phases of compute, the all-to-all and the memory; and what a device
  reads from its host counts in both phases (host_bounds.py).

No number of the solver is trusted: it proposes multipliers of the rows, and the bound is the Lagrangian of these, which
is valid for any that are not negative. Wrong multipliers would give a low bound, never an invalid one. (Only where the
solver says that no spread fits into the memory, it is believed.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import missing_extra
from shard_gym.cost_models.base import AdditiveCostModel, LinearCosts
from shard_gym.cost_models.base.linear import Line
from shard_gym.cost_models.bounds.few_devices import Crowd, crowds_of, with_mates
from shard_gym.cost_models.bounds.host_bounds import HostCuts
from shard_gym.cost_models.bounds.lane_counts import Counts, best_first
from shard_gym.hardware import Topology
from shard_gym.plans.constraints import Constraints
from shard_gym.tables import Tables

ROUNDING = 1e-12  # share by which a bound is lowered, for the rounding errors of the costs that it is compared with
PARTS_OF_BYTE = 1024  # the unit of bytes of outputs, as `to_parts_of_bytes` rounds them
MAX_PROGRAMS = 300  # linear programs solved for one task; then the bound of the best box is taken as it is

# The variables behind the shares: ms of both phases, the largest outputs of a device in means, ms of an exchange; and
# with host memory the ms that the mean device of each group of levels reads.
FORWARD, BACKWARD, OUTPUTS, EXCHANGE = range(4)
OTHERS = 4


def lower_bound_ms(
    tables: Tables, topology: Topology, model: AdditiveCostModel, limits: Constraints | None = None
) -> float:
    """Ms that no placement of the tables, under `limits`, costs less than; at least that of `bounds`, but for rounding.

    It is that for a model without `linear_costs`. Raises MissingExtraError if scipy is not installed.
    """
    simple = model.bounds(model.loads(tables, topology), topology)[0] * (1.0 - ROUNDING)
    costs = model.linear_costs(tables, topology)
    if costs is None:
        return simple
    return max(simple, next(regions(costs, tables.memory_bytes, topology.memory_cap_bytes, limits)).bound_ms)


@dataclass(frozen=True)
class Region:
    """A part of the placements of a task, and a lower bound on the cost of all in it.

    Attributes:
        bound_ms: the bound; infinity if there are none.
        counts: the number of devices of each lane level, or of a higher one that no table of theirs needs; None if the
            region holds the placements with any counts.
        lines: the line of each link that is the lower one for its largest message.
    """

    bound_ms: float
    counts: tuple[int, ...] | None
    lines: tuple[Line, ...]


def regions(
    costs: LinearCosts, memory: NDArray[np.int64], caps: NDArray[np.int64], limits: Constraints | None = None
) -> Iterator[Region]:
    """Regions that together hold all placements under `limits`, the lowest bound first; solved as they are asked for.

    `memory` are the (T,) bytes of the tables, and `caps` the (D,) bytes that they may use on each device. Raises
    MissingExtraError if scipy is not installed.
    """
    relaxation = _Relaxation(costs, memory, caps, limits)
    for bound, counts, lines in best_first(relaxation, MAX_PROGRAMS):
        yield Region(bound, counts.low if counts.is_point else None, lines)


def whole_tables(loads: FloatArray, devices: int) -> float:
    """A lower bound on the largest sum of `loads` on a device, for (T,) loads of tables that are not split.

    It is the mean, or more: for any j, some device has at least k = ceil(j / D) of the j largest loads, so at least as
    much as the k smallest of these.
    """
    largest_first = np.sort(loads)[::-1]
    sums = np.concatenate([[0.0], np.cumsum(largest_first)])
    j = np.arange(1, len(loads) + 1)
    return float(max(sums[-1] / devices, (sums[j] - sums[j - -(-j // devices)]).max()))


def whole_outputs(outputs: FloatArray, devices: int) -> float:
    """`whole_tables` of (T,) bytes in whole 1,024ths, rounded up to a multiple of their greatest common divisor.

    Those of sequence tables are no whole numbers (`to_parts_of_bytes`).
    """
    parts = np.floor(outputs * PARTS_OF_BYTE).astype(np.int64)
    divisor = max(int(np.gcd.reduce(parts)), 1)
    return float(divisor * np.ceil(whole_tables((parts // divisor).astype(np.float64), devices)) / PARTS_OF_BYTE)


class _Relaxation:
    """The linear programs of a task, `solved` of them so far."""

    def __init__(
        self, costs: LinearCosts, memory: NDArray[np.int64], caps: NDArray[np.int64], limits: Constraints | None
    ) -> None:
        costs = with_mates(costs, np.arange(len(memory)), limits)
        self._crowds = crowds_of(limits)
        self._costs, self._memory = costs, memory / caps.max()
        self.solved = 0
        self._devices = min(len(memory), len(caps))
        compute = [self._least_ms(phase) for phase in (0, 1)]
        self._unit = float(costs.outputs.sum() / self._devices)
        outputs = [whole_outputs(costs.outputs, self._devices)]
        outputs += [whole_outputs(costs.outputs[tables], devices) for tables, devices in self._crowds]
        self._low = np.array([*compute, max(outputs) / self._unit, 0.0])
        self._most_read = 0.0 if costs.host is None else float(costs.host.read_ms(costs.host.ms.sum(axis=1)))
        most = costs.ms[:, -1].sum(axis=-1).max(axis=-1)
        if costs.host is not None:
            most += costs.host.times * self._most_read
        exchange = sum(link.ms(link.shares.max() * costs.outputs.sum()) for link in costs.links)
        self._high = np.array([*most, float(self._devices), exchange]) * (1.0 + ROUNDING)
        self._constant = float(costs.fixed_ms.sum() + 2.0 * costs.latency_ms)
        self._allowed = np.arange(len(costs.lane_shares))[:, None] >= costs.levels  # (L, T)
        self._cuts = None
        if costs.host is not None:
            ms = np.tile(costs.host.ms, len(self._allowed))
            self._cuts = HostCuts(replace(costs.host, ms=ms), costs.host.ms.sum(axis=1) / self._devices)

    def _least_ms(self, phase: int) -> float:
        """A bound on a phase: that of whole tables, for each piece and each threshold of host memory."""
        costs, every = self._costs, np.arange(len(self._memory))
        pieces = costs.ms[phase, costs.levels, :, every].T  # (P, T), at the levels that the tables need
        crowds = [Crowd(np.ones(len(every), np.bool_), self._devices), *self._crowds]
        least = max(whole_tables(loads[tables], devices) for loads in pieces for tables, devices in crowds)
        if costs.host is None:
            return least
        hosts = zip(costs.host.times[phase] * costs.host.ms, costs.host.times[phase] * costs.host.hbm_ms, strict=True)
        reads = [(ms, hbm, loads) for ms, hbm in hosts for loads in pieces]
        each = (whole_tables((loads + ms)[of], devices) - hbm for ms, hbm, loads in reads for of, devices in crowds)
        return float(max(least, *each))

    def cases(self) -> Iterator[tuple[Line, ...]]:
        """The choices of a line for each link, without those that no message needs."""
        needed = []
        for link in self._costs.links:
            least = max(link.sent.min() * self._low[2] * self._unit, link.least_bytes(self._costs.outputs.sum()))
            most = link.shares.sum(axis=1).max() * self._costs.outputs.sum()
            lines = link.lines if most > link.knee_bytes else link.lines[1:] or link.lines
            needed.append(lines if least < link.knee_bytes else lines[:1])
        yield from product(*needed)

    def all_counts(self) -> Counts:
        """All numbers of devices of the levels. A device of level l > 0 needs a table of it; empty devices have 0."""
        tables = np.bincount(self._costs.levels, minlength=len(self._allowed)).tolist()
        high = [self._devices, *(min(number, self._devices) for number in tables[1:])]
        low = [0] * len(high)
        low[-1] = 1
        return Counts(tuple(low), tuple(high), self._devices).tightened()

    def bound_ms(self, box: Counts, lines: tuple[Line, ...]) -> float:
        """A lower bound in ms for the placements whose numbers of devices are in `box` and whose links use `lines`."""
        tables = self._allowed.shape[1]
        usable = self._allowed & (np.array(box.high) > 0)[:, None]
        groups = (np.isin(range(len(usable)), chosen)[:, None] / box.most(chosen) for chosen in box.groups())
        spreads = np.stack([np.broadcast_to(group, usable.shape).ravel() for group in groups])
        total, least = self._costs.outputs.sum(), self._low.copy()
        for link, line in zip(self._costs.links, lines, strict=True):
            least[EXCHANGE] = max(least[EXCHANGE], line.slope * link.least_bytes(total) + line.offset)
        reads = np.full(0 if self._cuts is None else len(spreads), self._most_read)
        low = np.concatenate([np.zeros(usable.size), least, np.zeros(len(reads))])
        high = np.concatenate([usable.ravel().astype(float), self._high, reads])
        objective = np.zeros(len(low))
        objective[usable.size :][:OTHERS] = 1.0, 1.0, 0.0, 2.0
        table = np.tile(np.arange(tables), len(usable))
        whole = np.pad(np.tile(np.eye(tables), len(usable)), ((0, 0), (0, OTHERS + len(reads))))
        while True:
            self.solved += 1
            rows, limits = self._rows(spreads, lines)
            ends = np.stack([low, high], axis=1)
            result = linprog()(objective, rows, limits, whole, np.ones(tables), ends, "highs")
            if result.status == 2 and "infeasible" in result.message:
                return float("inf")
            if self._cuts is None or result.x is None or not self._cuts.add(spreads, result.x):
                return lagrangian_ms(result, objective, (rows, limits), table, (low, high), self._constant)

    def _rows(self, spreads: FloatArray, lines: tuple[Line, ...]) -> tuple[FloatArray, FloatArray]:
        """The rows and limits; `spreads` are (N, L T), what the mean device of each group has of each share."""
        costs, rows, limits = self._costs, [], []
        shares = spreads.shape[1]
        host = None if self._cuts is None else costs.host

        def add(per_share: FloatArray | float, others: dict[int, float], limit: float = 0.0) -> None:
            row = np.zeros(shares + OTHERS + (0 if host is None else len(spreads)))
            row[:shares] = per_share
            for variable, factor in others.items():
                row[shares + variable] = factor
            rows.append(row)
            limits.append(limit)

        for group, spread in enumerate(spreads):
            read = OTHERS + group
            for phase in (FORWARD, BACKWARD):
                reads = {} if host is None else {read: float(host.times[phase])}
                for piece in range(costs.ms.shape[2]):
                    add(costs.ms[phase, :, piece].ravel() * spread, {phase: -1.0, **reads})
            add(np.tile(costs.outputs / self._unit, len(self._allowed)) * spread, {OUTPUTS: -1.0})
            add(np.tile(self._memory, len(self._allowed)) * spread, {}, 1.0)
            for ms, hbm_ms in () if self._cuts is None else self._cuts.rows(spread):
                add(ms, {read: -1.0}, hbm_ms)
        for link, line in zip(costs.links, lines, strict=True):
            add(0.0, {OUTPUTS: line.slope * link.sent.min() * self._unit, EXCHANGE: -1.0}, -line.offset)
        return np.array(rows), np.array(limits)


def lagrangian_ms(
    result: Any,
    objective: FloatArray,
    inequalities: tuple[Any, FloatArray],
    table: NDArray[np.int64],
    limits: tuple[FloatArray, FloatArray],
    constant: float,
) -> float:
    """A lower bound in ms from the multipliers that a solver proposes, whatever they are.

    The first N variables are shares of tables, which sum to 1 for each table; behind them are M others.

    Args:
        result: of `linprog`.
        objective: (N + M,) what is minimised.
        inequalities: the (I, N + M) matrix, dense or sparse, and its (I,) right side.
        table: (N,) the table of each share.
        limits: (N + M,) lowest and highest values, not negative.
        constant: ms that are added to every value of the objective.
    """
    (rows, right), (low, high) = inequalities, limits
    solved = result.ineqlin is not None and result.ineqlin.marginals is not None
    multipliers = np.maximum(-result.ineqlin.marginals, 0.0) if solved else np.zeros(len(right))
    # A sum of n terms is off by at most n roundings of the sum of their sizes, which may dwarf the bound.
    rounding = np.finfo(float).eps * (len(right) + len(objective))
    reduced = objective + multipliers @ rows - rounding * (objective + multipliers @ abs(rows))
    shares = np.full(int(table.max()) + 1, np.inf)
    count = len(table)
    usable = high[:count] > 0
    np.minimum.at(shares, table[usable], reduced[:count][usable])
    rest = np.where(reduced > 0, reduced * low, reduced * high)[count:]
    sizes = np.abs(shares).sum() + np.abs(rest).sum() + multipliers @ np.abs(right) + constant
    bound = shares.sum() + rest.sum() - multipliers @ right + constant - rounding * sizes
    return max(float(bound) * (1.0 - ROUNDING), 0.0)


def linprog() -> Any:
    """scipy's solver of linear programs, HiGHS; raises MissingExtraError if scipy is not installed."""
    try:
        from scipy.optimize import linprog as solve
    except ImportError as error:
        raise missing_extra("scipy", "exact", "A lower bound by linear programs") from error
    return solve
