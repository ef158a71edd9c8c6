"""The linear programs of lower bounds on plans: `PlanProgram`, and the parts of all plans that they are of, `Node`.

Variables are the shares of each table that have each form: whole or in column shards of any width, in blocks of rows on
all devices or on a host, data-parallel. Others are the numbers of devices n_l of each lane level, the ms of each phase,
and what devices of each level read from their hosts. A plan gives a solution that costs no more than the plan:

- A phase of compute is a maximum of linear functions once the lane share of a device is known (`linear_costs_of`). So
  N devices of a group of levels, together, have at most N times the ms of the phase. Blocks on all devices and replicas
  are on each of them, and none is on a device of a lower level than theirs.
- N times the ms is a product of two variables. With both in intervals it is at most two planes (McCormick 1976), which
  meet it where either is at an end, so they are closer to it by the product of the lengths of the intervals.
- A device that has a part takes at least what that part takes and what all devices have, and of a table in several
  forms at least the mean of these.
- With host memory, a group of N devices reads at least what its loads exceed N times each threshold (`HostReads`).
- An exchange takes at least what its collectives take on one link, of the mean device of a group, or of a device of the
  smallest host, which receives the outputs of all others. Whether there is a collective, and whether its messages are
  above the knee of the link, is part of a node; where it is open, it has no latency, and the chord of its knee. Of the
  slower kind of link the knees are left out.
- An exposed exchange of indices takes at least what those of the mean device of a group take at the full bandwidth, and
  its latencies unless all tables are data-parallel.
- Averaging waits for the fullest device of a group of devices, which has no fewer bytes than the mean one.
- All shards together fit the memory of their devices.
- Constraints leave forms out, and the devices that tables are kept to are a group, too (few_devices.py).

Bounds are of plans that cost less than some `below_ms`, which limits the ms of each phase. Any such number is valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.cost_models.analytical import AnalyticalShardingModel
from shard_gym.cost_models.analytical.grouped import sync_ms_per_byte
from shard_gym.cost_models.analytical.index_exchange import latencies_ms, links_of_indices
from shard_gym.cost_models.analytical.model import OUTPUT_BYTES_SENT
from shard_gym.cost_models.analytical.sharding import GRADIENT_BYTES, HOST_PARTIAL_BYTES, OWN_LOADS, PARTIAL_BYTES
from shard_gym.cost_models.base.host_rows import host_read_ms
from shard_gym.cost_models.base.linear import links_of
from shard_gym.cost_models.bounds.few_devices import crowds_of, with_mates
from shard_gym.cost_models.bounds.lane_counts import Counts
from shard_gym.cost_models.bounds.plan_forms import forms_of
from shard_gym.cost_models.bounds.plan_nodes import (
    ABOVE,
    ABSENT,
    ALL_REDUCE,
    ALL_TO_ALL,
    AVERAGING,
    BACK,
    BACKWARD,
    BELOW,
    EXCHANGE,
    FORWARD,
    HOST_SCATTER,
    INDICES,
    KINDS,
    MS,
    OPEN,
    PHASES,
    SCATTER,
    Node,
)
from shard_gym.hardware import Topology
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.plan import DATA_PARALLEL, ROW_WISE
from shard_gym.tables import Tables

ROUNDING = 1e-12  # share by which a bound is lowered, for the rounding errors of the costs that it is compared with

WIDE_SHARDS = (1, 2, 3)  # of how many shards of a table programs know how wide they may be


class Inequality(NamedTuple):
    """Let shares times loads, and other variables times numbers, be at most a limit."""

    key: int
    loads: dict[int, float]  # by row of the loads
    others: dict[int, float]  # by variable behind the shares
    limit: float
    scale: float = 1.0  # how much a unit of slack adds


class _Link(NamedTuple):
    """Ms of b bytes: (b + extra min(b, knee)) / bytes_per_ms."""

    bytes_per_ms: float
    knee: float
    extra: float

    @property
    def offset(self) -> float:
        return self.extra * self.knee / self.bytes_per_ms

    @property
    def knee_ms(self) -> float:
        return (1.0 + self.extra) * self.knee / self.bytes_per_ms

    def line(self, state: int) -> tuple[float, float]:
        """Ms per byte and ms besides, of messages on one side of the knee."""
        slope = 1.0 / self.bytes_per_ms
        return (slope * (1.0 + self.extra), 0.0) if state == BELOW else (slope, self.offset)

    def chord(self, state: int, most_ms: float) -> float:
        """Ms per byte of messages that take at most `most_ms`, at least."""
        slope = 1.0 / self.bytes_per_ms
        if state == BELOW or most_ms <= self.knee_ms:
            return slope * (1.0 + self.extra)
        return slope * most_ms / (most_ms - self.offset) if np.isfinite(most_ms) else slope


class PlanProgram:
    """The linear programs of the plans of a task that cost less than `below_ms`; V variables are for shares.

    Args:
        tables, topology, model, limits: of the task, or of one of its groups of devices.
        below_ms: any number; a node without such plans may have any bound above it.
    """

    def __init__(
        self,
        tables: Tables,
        topology: Topology,
        model: AnalyticalShardingModel,
        limits: Constraints | None,
        below_ms: float = np.inf,
    ) -> None:
        self.sync_ms = sync_ms_per_byte(topology)
        topology = replace(topology, replicas=None)
        kinds, which, parts, loads, memory = (
            np.concatenate(each) for each in zip(*forms_of(tables, topology, model, limits), strict=True)
        )
        named = model.least(loads)[:, model.first_load :]
        costs = model.linear_costs_of(named[:, [*OWN_LOADS, *range(OWN_LOADS[-1] + 1, named.shape[1])]])
        costs = with_mates(costs, which, limits)
        everywhere = np.isin(kinds, (ROW_WISE, DATA_PARALLEL))
        # A form on all devices has one variable, at its own level; others have one for each level that is as wide.
        levels = np.arange(len(costs.lane_shares))[:, None]
        self.level, form = np.nonzero((levels == costs.levels) | ((levels > costs.levels) & ~everywhere))
        self.table, self.everywhere, self.parts = which[form], everywhere[form], parts[form]
        self.kind = np.array([KINDS[kind] for kind in kinds])[form]
        self.num_shares, self.num_levels, self.num_tables = len(form), len(costs.lane_shares), len(tables)
        self.devices, self.training = topology.num_devices, model.exchanges == 2
        self._cluster = topology.cluster()
        self._links = links_of(self._cluster)
        self._caps = topology.memory_cap_bytes.astype(np.float64)
        bytes_of = named[form][:, [OUTPUT_BYTES_SENT, PARTIAL_BYTES, HOST_PARTIAL_BYTES, GRADIENT_BYTES]].T
        if not self._links:
            bytes_of = np.zeros_like(bytes_of)
        self.uses = bytes_of > 0  # (4, V), the collectives of each form
        self._far_share = model.sent_bytes / model.summed_bytes  # of partial sums, in the all-to-all across hosts
        self._exposed = bool(model.first_load) and self.devices > 1
        self._indices_ms = float(latencies_ms(self._cluster)) if self._exposed else 0.0
        self.fixed_ms = float(costs.fixed_ms[: model.exchanges].sum())
        self._latency_ms = float(self._cluster.latency_ms) if self.devices > 1 else 0.0
        exchanges = model.exchanges
        self._latencies = np.array([exchanges, exchanges, 2 * exchanges, 1]) * self._latency_ms
        self.host = None if costs.host is None else replace(costs.host, ms=costs.host.ms[:, form])
        alone = np.zeros(len(form)) if self.host is None else self.host.read_ms(self.host.ms.T)
        read_alone = (np.ones(2) if self.host is None else self.host.times) * alone[:, None]  # (V, 2)

        ms = costs.ms[..., form]  # (2, L, P, V) of a part
        self.pieces = ms.shape[2]
        every = np.arange(len(form))
        own = ms[:, self.level, :, every]  # (V, 2, P)
        self._build_loads(ms, memory[form], bytes_of, loads[form, 0] if self._exposed else None)
        # Only tables that may take longer alone than the mean device takes anyhow can decide.
        least = np.full((len(tables), *own.shape[1:]), np.inf)
        np.minimum.at(least, self.table, own * self.parts[:, None, None])
        self.mean_ms = least.sum(axis=0).max(axis=1) / self.devices * (1.0 - ROUNDING)  # of both phases, at least
        self._alone = own.max(axis=2) + read_alone  # (V, 2), of a device that has one part
        self._own, self._bytes = own, bytes_of
        crowd_tables = crowds_of(limits)
        self._crowds = [(each.tables[self.table] * self.parts, float(each.devices)) for each in crowd_tables]
        self._add_crowds(memory[form], bytes_of)

        most = np.zeros((len(tables), loads.shape[1]))
        np.maximum.at(most, which, loads * parts[:, None])
        worst = most.sum(axis=0)
        worst[model.maxima] = loads[:, model.maxima].max(axis=0)
        averaging = self.sync_ms * float(tables.memory_bytes.sum()) * self.devices
        self.most_ms = float(model.costs(np.tile(worst, (self.devices, 1)), self._cluster)[1]) + averaging
        self._most_read = float(host_read_ms(worst[model.num_loads :])) * 1.001 if self.host is not None else 0.0
        self.below_ms = min(below_ms, self.most_ms * 1.001)
        links = [
            _Link(float(c[0]), float(c[1]), float(c[2]))
            for c in (
                (self._cluster.intra_bytes_per_ms, self._cluster.intra_knee_bytes, self._cluster.intra_knee_extra),
                (self._cluster.inter_bytes_per_ms, self._cluster.inter_knee_bytes, self._cluster.inter_knee_extra),
            )
        ]
        self._inside, self._across = links
        self._main = self._across if self._cluster.crosses_domains else self._inside
        ratio = float(self._cluster.cross_host_ratio) if self._cluster.crosses_domains else 1.0
        self._gradient_link = _Link(self._main.bytes_per_ms * ratio, self._main.knee * ratio, self._main.extra)
        self.num_others = MS + self.num_levels + (0 if self.host is None else self._num_groups)
        self._last: tuple[Node, list[tuple[float, float]]] | None = None
        self._extra: dict[int, int] = {}

    # Loads: each is a row of numbers, one for each share. Groups and rows are sums of them.

    def _build_loads(
        self, ms: FloatArray, memory: FloatArray, bytes_of: FloatArray, indices: FloatArray | None
    ) -> None:
        """The loads that all devices of a level have together, and those that are on each device of a level."""
        from scipy.sparse import csr_array

        names: list[tuple[Any, ...]] = []
        values: list[FloatArray] = []
        for phase in (FORWARD, BACKWARD):
            for piece in range(self.pieces):
                names.append(("ms", phase, piece))
                values.append(ms[phase, :, piece])  # (L, V)
        every_level = np.ones((self.num_levels, 1))
        names += [("memory",), ("outputs",), ("partial",), ("host partial",), ("gradient",)]
        values += [every_level * memory / self._caps.max(), *(every_level * each for each in bytes_of)]
        if indices is not None:
            names.append(("indices",))
            values.append(every_level * indices)
        if self.host is not None:
            for threshold, each in enumerate(self.host.ms):
                names.append(("host", threshold))
                values.append(every_level * each)
        self._number = {name: number for number, name in enumerate(names)}
        self._loads = len(names)
        here = np.arange(self.num_shares)
        blocks, spread = [], ~self.everywhere
        for level in range(self.num_levels):
            on = spread & (self.level == level)
            blocks += [np.where(on, each[level] * self.parts, 0.0) for each in values]
        for level in range(self.num_levels):
            at = np.maximum(self.level, level)
            blocks += [np.where(self.everywhere, each[at, here], 0.0) for each in values]
        # All outputs, wherever they are, the partial sums and gradients of each device, and all partial sums on hosts.
        blocks += [bytes_of[0] * self.parts, bytes_of[1], bytes_of[3], bytes_of[2] * self.parts]
        self.base = csr_array(np.array(blocks))

    def _of_level(self, name: tuple[Any, ...], level: int) -> int:
        return level * self._loads + self._number[name]

    def _on_each(self, name: tuple[Any, ...], level: int) -> int:
        return (self.num_levels + level) * self._loads + self._number[name]

    @property
    def _of_all(self) -> tuple[int, int, int, int]:
        """All outputs, the partial sums and the gradients that each device has, and all partial sums on hosts."""
        first = 2 * self.num_levels * self._loads
        return first, first + 1, first + 2, first + 3

    def _shared_load(self, name: str, level: int) -> int:
        """What each device has of a load, or all devices together."""
        of_all = {"all outputs": self._of_all[0], "all host partial": self._of_all[3]}
        return of_all[name] if name in of_all else self._on_each((name,), level)

    def _add_crowds(self, memory: FloatArray, bytes_of: FloatArray) -> None:
        """Loads of the tables that are kept to few devices, at the levels of their own."""
        from scipy.sparse import csr_array, vstack

        self._crowd_loads: list[list[int]] = []
        for share, _ in self._crowds:
            rows = [self._own[:, phase, piece] * share for phase in (0, 1) for piece in range(self.pieces)]
            rows += [memory / self._caps.max() * share, bytes_of[0] * share]
            begin = self.base.shape[0]
            self._crowd_loads.append(list(range(begin, begin + len(rows))))
            self.base = vstack([self.base, csr_array(np.array(rows))], format="csr")
        self._fixed_rows = self.base.shape[0]

    @property
    def _num_groups(self) -> int:
        return int(2**self.num_levels) - 1

    # Nodes

    def below(self, ms: float) -> PlanProgram:
        """The program of the plans that cost less than `ms`."""
        other = copy(self)
        other.below_ms = min(ms, self.most_ms * 1.001)
        other._last, other._extra, other.base = None, {}, self.base[: self._fixed_rows]
        return other

    def root(self) -> Node:
        """The node of all plans; empty devices have the lowest level."""
        counts = Counts((0,) * self.num_levels, (self.devices,) * self.num_levels, self.devices)
        states = [OPEN if uses.any() else ABSENT for uses in self.uses]
        backward = (float(self.mean_ms[1]), np.inf) if self.training else (0.0, 0.0)
        ends = [(float(self.mean_ms[0]), np.inf), backward, (0.0, np.inf)]
        return Node(counts.tightened(), tuple(ends), tuple(states))

    def constant_ms(self, node: Node) -> float:
        """Ms of every plan of a node, whatever its shares: fixed costs and latencies."""
        there = [state >= BELOW for state in node.states]
        return self.fixed_ms + float(self._latencies @ there) + (self._indices_ms if any(there[:ALL_REDUCE]) else 0.0)

    def _ends(self, node: Node) -> list[tuple[float, float]]:
        if self._last is None or self._last[0] is not node:
            self._last = node, self.ends(node)
        return self._last[1]

    def ends(self, node: Node) -> list[tuple[float, float]]:
        """The least and the most ms of each phase in the plans of a node that cost less than `below_ms`."""
        lows, highs = (list(each) for each in zip(*node.ms, strict=True))
        knees = [self._main.knee_ms if state == ABOVE else 0.0 for state in node.states]
        if not self._cluster.crosses_domains:
            knees[HOST_SCATTER] = 0.0  # its two steps are on one link
        exchange = max(knees[ALL_TO_ALL], knees[HOST_SCATTER]) + knees[SCATTER]
        lows[EXCHANGE] = max(lows[EXCHANGE], exchange * (1.0 - ROUNDING))
        times = [1.0, 1.0, 2.0] if self.training else [1.0, 0.0, 1.0]
        room = self.below_ms * (1.0 + ROUNDING) - self.constant_ms(node)
        for phase in PHASES:
            others = sum(times[each] * lows[each] for each in PHASES if each != phase)
            if times[phase]:  # no backward in serving
                highs[phase] = min(highs[phase], (room - others) / times[phase])
        return list(zip(lows, highs, strict=True))

    def is_empty(self, node: Node) -> bool:
        """Whether it has no plans that cost less than `below_ms`, because of the least ms of its phases, or none with
        messages below a knee because the link has no knee.
        """
        if BELOW in node.states and self._main.knee == 0:
            return True
        return any(low > high * (1.0 + 1e-9) for low, high in self._ends(node))

    def usable(self, node: Node) -> NDArray[np.bool_]:
        """(V,) bool, which shares may be above 0 in plans of a node."""
        lower = np.array([0, *np.cumsum(node.counts.low)])[self.level]  # devices of lower levels, at least
        usable = np.where(self.everywhere, lower == 0, np.array(node.counts.high)[self.level] > 0)
        for collective, state in enumerate(node.states):
            if state == ABSENT:
                usable &= ~self.uses[collective]
        for table, kind in node.banned:
            usable &= (self.table != table) | (self.kind != kind)
        return usable

    def others(self, node: Node) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The objective, and the lowest and highest values of the variables behind the shares."""
        ends = self._ends(node)
        objective, low, high = np.zeros((3, self.num_others))
        objective[[FORWARD, EXCHANGE, INDICES, AVERAGING]] = 1.0
        high[:MS] = self.below_ms * 1.001
        low[: len(PHASES)], high[: len(PHASES)] = np.array(ends).T
        high = np.maximum(high, low)
        if self.training:
            objective[[BACKWARD, BACK]] = 1.0
        numbers = slice(MS, MS + self.num_levels)
        low[numbers], high[numbers] = node.counts.low, node.counts.high
        # A device reads for no longer than its forward takes.
        high[MS + self.num_levels :] = min(self._most_read, float(high[FORWARD])) * self.devices
        return objective, low, high

    # Rows

    def rows(self, node: Node, added: Iterable[int]) -> list[Inequality]:
        """The rows of a node; `added` are the keys of those that `violated` found, and others, of no added row."""
        thresholds = 0 if self.host is None else len(self.host.hbm_ms)
        end = self.ADDED + self._of_parts + thresholds * self._num_groups
        return [*self._rows(node), *self._added_rows(node, [key for key in added if self.ADDED <= key < end])]

    def _rows(self, node: Node) -> Iterator[Inequality]:
        key = -1

        def row(
            loads: Mapping[int, float],
            others: Mapping[int, float],
            limit: float = 0.0,
            scale: float = 1.0,
            more: int = 0,
        ) -> Inequality:
            nonlocal key
            key += not more
            return Inequality(4 * key + more, dict(loads), dict(others), limit, scale)

        ends, counts = self._ends(node), node.counts
        numbers = [MS + level for level in range(self.num_levels)]
        yield row({}, dict.fromkeys(numbers, 1.0), float(self.devices))
        yield row({}, dict.fromkeys(numbers, -1.0), -float(self.devices))
        masks = range(1, 2**self.num_levels)
        for mask in masks:
            group = [level for level in range(self.num_levels) if mask >> level & 1]
            least, most = float(counts.least(group)), float(counts.most(group))
            key = 1000 * mask
            if not most:
                continue

            def products(
                phase: int,
                loads: Mapping[int, float],
                each: Mapping[int, float],
                besides: float = 0.0,
                reads: Mapping[int, float] | None = None,
                group: list[int] = group,
                least: float = least,
                most: float = most,
            ) -> Iterator[Inequality]:
                """N devices have `loads`, and `each` has those of each and ms besides, in N times the ms of a phase."""
                low, high = ends[phase] if phase < len(PHASES) else (0.0, self.below_ms * 1.001)
                nonlocal key
                key += 1
                members = [MS + level for level in group]
                if least == most:
                    some = {**loads, **{load: least * number for load, number in each.items()}}
                    yield row(some, {phase: -least, **(reads or {})}, -besides * least, least, 1)
                    return
                if least:  # what a device has besides is at most the ms of the phase
                    some = {**loads, **{load: most * number for load, number in each.items()}}
                    yield row(some, {phase: -most, **(reads or {})}, -besides * most, most, 1)
                some = {**loads, **{load: least * number for load, number in each.items()}}
                for more, times, end in ((2, most, low), (3, least, high)):
                    if np.isfinite(end):
                        others = dict.fromkeys(members, besides - end)
                        yield row(some, {phase: -times, **others, **(reads or {})}, -times * end, most, more)

            def of(name: tuple[Any, ...], times: float = 1.0, group: list[int] = group) -> dict[int, float]:
                return {self._of_level(name, level): times for level in group}

            def on(name: tuple[Any, ...], times: float = 1.0, group: list[int] = group) -> dict[int, float]:
                return {self._on_each(name, group[0]): times}

            read = MS + self.num_levels + mask - 1
            for phase in (FORWARD, BACKWARD)[: 2 if self.training else 1]:
                reads = {} if self.host is None else {read: float(self.host.times[phase])}
                for piece in range(self.pieces):
                    name = ("ms", phase, piece)
                    yield from products(phase, of(name), on(name), 0.0, reads)
            members = [MS + level for level in group]
            memory = {**of(("memory",)), **on(("memory",), least)}
            yield row(memory, dict.fromkeys(members, -1.0), 0.0, most)
            if self.sync_ms:
                times = self.sync_ms * float(self._caps.max())
                yield from products(AVERAGING, of(("memory",), times), on(("memory",), times))
            for loads, each, besides in self._exchanges(node, ends[EXCHANGE][1]):
                spread, all_of = {}, {}
                for sent, times in loads.items():
                    spread.update(of((sent,), times))
                    all_of.update(on((sent,), times))
                for shared, times in each.items():
                    load = self._shared_load(shared, group[0])
                    all_of[load] = all_of.get(load, 0.0) + times
                yield from products(EXCHANGE, spread, all_of, besides)
            if node.states[ALL_TO_ALL] == BELOW:
                times = self._sent
                below = {**of(("outputs",), times), **on(("outputs",), times * least)}
                knee = self._main.knee
                yield row({load: each / knee for load, each in below.items()}, dict.fromkeys(members, -1.0), 0.0, most)
            if self._exposed:
                for link in links_of(links_of_indices(self._cluster)):
                    times = float(link.sent.min() / link.bytes_per_ms)
                    yield from products(INDICES, of(("indices",), times), on(("indices",), times))
        key = 1000 * (self._num_groups + 1)
        yield from self._rows_of_all(node, row)
        yield from self._rows_of_crowds(node, row)

    @property
    def _peers(self) -> FloatArray:
        return np.asarray(self._cluster.num_peers) + 1.0  # the devices of the domain of each

    @property
    def _sent(self) -> float:
        """Bytes on the main link for each byte of outputs of a device."""
        domains = self._peers
        if self._cluster.crosses_domains:
            return float((self.devices - domains.max()) / self.devices)
        return float((domains.min() - 1.0) / self.devices)

    def _exchanges(self, node: Node, most_ms: float) -> Iterator[tuple[dict[str, float], dict[str, float], float]]:
        """Ms per byte of what devices send, and of partial sums that each has, and ms besides, at most the exchange."""
        if not self._links:
            return
        cluster, sent, states = self._cluster, self._sent, node.states
        host, inside, across = float(cluster.host_size), self._inside.bytes_per_ms, self._across.bytes_per_ms
        peers = float(self._peers.min()) - 1.0
        scatter, scatter_besides = self._line(node, SCATTER, most_ms)
        parts = {"partial": scatter * sent} if states[SCATTER] != ABSENT else {}
        slope, besides = self._line(node, ALL_TO_ALL, most_ms)
        of_outputs, of_sums = self._shared(node, most_ms)
        yield {"outputs": slope * sent}, {**parts, **of_sums}, besides + scatter_besides
        near = {"outputs": peers / self.devices / inside}
        near_parts = {"partial": peers / self.devices / inside}
        if states[HOST_SCATTER] == ABSENT:
            if cluster.crosses_domains:
                yield near, near_parts, 0.0
            return
        chord, of_host = self._chords(node, most_ms)
        yield {"outputs": chord * sent, "host partial": of_host}, parts, scatter_besides
        if not cluster.crosses_domains:
            return
        summed, far = (host - 1.0) / host / inside, self._far_share / host
        slope, besides = self._line(node, HOST_SCATTER, most_ms)
        yield {"host partial": summed + slope * far * sent}, {**parts, **of_outputs}, besides + scatter_besides
        yield {**near, "host partial": summed + far * sent / across}, near_parts, 0.0

    def _shared(self, node: Node, most_ms: float) -> tuple[dict[str, float], dict[str, float]]:
        """Ms per byte of all outputs that some device of every host takes at least, and of all partial sums on hosts
        that every device takes at least.

        A host that sends less than the mean receives as much as it: it is the larger of both that counts. So it is
        where hosts are domains of one size.
        """
        domains, host = self._peers, float(self._cluster.host_size)
        if not self._cluster.crosses_domains or domains.min() < domains.max() or domains.max() != host:
            return {}, {}
        outputs = self._main.chord(node.states[ALL_TO_ALL], most_ms) * self._sent / self.devices
        sums = self._main.chord(node.states[HOST_SCATTER], most_ms) * self._far_share / host * self._sent / self.devices
        return (
            {"all outputs": outputs} if node.states[ALL_TO_ALL] != ABSENT else {},
            {"all host partial": sums} if node.states[HOST_SCATTER] != ABSENT else {},
        )

    def _line(self, node: Node, collective: int, most_ms: float) -> tuple[float, float]:
        """Ms per byte and ms besides of a collective on the main link; of one that is open, its chord."""
        state = node.states[collective]
        link = self._gradient_link if collective == ALL_REDUCE else self._main
        if state == OPEN:
            return link.chord(OPEN, most_ms), 0.0
        if state == ABSENT:
            return 1.0 / link.bytes_per_ms, 0.0
        if collective == HOST_SCATTER and not self._cluster.crosses_domains:
            return 1.0 / link.bytes_per_ms, 0.0
        return link.line(state)

    def _rows_of_all(self, node: Node, row: Any) -> Iterator[Inequality]:
        """Memory of all devices, messages below the knee, all-reduces, and what a device of the smallest host gets."""
        memory = {self._of_level(("memory",), level): 1.0 for level in range(self.num_levels)}
        share = self._caps.sum() / self._caps.max()
        yield row({**memory, self._on_each(("memory",), 0): float(self.devices)}, {}, float(share), float(share))
        if not self._links:
            return
        _, partial, gradient, _ = self._of_all
        domains, states = self._peers, node.states
        reduce = max(self.below_ms - self.constant_ms(node) - sum(low for low, _ in self.ends(node)), 0.0)
        slope, besides = self._line(node, ALL_REDUCE, reduce)
        if states[ALL_REDUCE] == ABSENT:
            besides = 0.0
        peers, others = float(domains.min()) - 1.0, float((self.devices - domains.max()) / self.devices)
        crosses = bool(self._cluster.crosses_domains)
        near = 2.0 * peers / float(domains.min())
        far = 2.0 * others / float(domains.max())
        of_main = far if crosses else near
        if states[SCATTER] == BELOW:
            yield row({partial: self._sent / self._main.knee}, {}, 1.0)
        if states[ALL_REDUCE] == BELOW:
            yield row({gradient: of_main / self._gradient_link.knee}, {}, 1.0)
        if not self.training:
            return
        yield row({gradient: slope * of_main}, {EXCHANGE: 1.0, BACK: -1.0}, -besides)
        if not crosses:
            return
        yield row({gradient: near / self._inside.bytes_per_ms}, {EXCHANGE: 1.0, BACK: -1.0})

    def _rows_of_crowds(self, node: Node, row: Any) -> Iterator[Inequality]:
        most = self._ends(node)[EXCHANGE][1]
        if self._links and self._cluster.crosses_domains:
            outputs, partial, gradient, _ = self._of_all
            slope, besides = self._line(node, ALL_TO_ALL, most)
            chord = self._main.chord(node.states[ALL_TO_ALL], most)
            scatter, of_scatter = self._line(node, SCATTER, most)
            for each in self._links[-1].received:
                own = self._links[-1].sent[each == 0]  # of the devices of a receiver's domain, which is the smallest
                # Weights of these devices, and of one as a receiver, with which all outputs count the same.
                weight = float(1.0 / ((1.0 / own).sum() + 1.0 / each[each > 0].min()))
                # The busiest device may be elsewhere, and have fewer partial sums than these.
                yield row(
                    {outputs: slope * weight, partial: scatter * self._sent}, {EXCHANGE: -1.0}, -besides - of_scatter
                )
                sent = scatter * float(own.min())
                if node.states[SCATTER] == BELOW:  # on the device that sends least, so perhaps not on these
                    sent = max(float(own.min()) / self._main.bytes_per_ms, scatter * self._sent)
                received = {outputs: chord * weight, partial: sent}
                yield row(received, {EXCHANGE: -1.0}, -of_scatter)
                if self.training:
                    reduced = 2.0 * float(own.min()) / len(own) / self._gradient_link.bytes_per_ms
                    yield row({**received, gradient: reduced}, {BACK: -1.0}, -of_scatter)
        slope, besides = self._line(node, ALL_TO_ALL, most)
        for (_, devices), numbers in zip(self._crowds, self._crowd_loads, strict=True):
            for phase in (FORWARD, BACKWARD)[: 2 if self.training else 1]:
                for piece in range(self.pieces):
                    yield row({numbers[phase * self.pieces + piece]: 1.0}, {phase: -devices}, 0.0, devices)
            yield row({numbers[-2]: 1.0}, {}, devices, devices)
            if self._links and node.states[ALL_TO_ALL] != ABSENT:
                yield row({numbers[-1]: slope * self._sent}, {EXCHANGE: -devices}, -besides * devices, devices)

    def mixed_kinds(self, shares: FloatArray) -> tuple[float, int, int]:
        """About how many ms it makes that a table has several kinds, the table where it is most, and its main kind."""
        kinds = np.zeros((self.num_tables, len(set(KINDS.values()))))
        np.add.at(kinds, (self.table, self.kind), shares)
        ms = np.bincount(self.table, self._own.max(axis=2).sum(axis=1) * self.parts * shares, self.num_tables)
        mixed = (1.0 - kinds.max(axis=1)) * ms / self.devices
        table = int(mixed.argmax())
        return float(mixed[table]), table, int(kinds[table].argmax())

    def phase_ms(self, level: int, phase: int, devices: float, shares: FloatArray) -> float:
        """Ms of the mean of so many devices of a level; 0 if they have no parts of their own."""
        found = 0.0
        for piece in range(self.pieces):
            name = ("ms", phase, piece)
            loads = self.base[[self._of_level(name, level), self._on_each(name, level)]] @ shares
            if loads[0] > 1e-9:
                found = max(found, float(loads[0]) / max(devices, 1e-6) + float(loads[1]))
        return found

    def left_out_ms(self, collective: int, shares: FloatArray) -> float:
        """Ms of a collective, its latencies and its knee, that a program leaves out where it is open."""
        if collective == ALL_TO_ALL:
            number = float((self.base[[self._of_all[0]]] @ shares)[0]) / self.devices * self._sent
        elif collective == HOST_SCATTER:
            loads = [self._of_level(("host partial",), level) for level in range(self.num_levels)]
            number = float((self.base[loads] @ shares).sum()) / self.devices * self._sent
        else:
            number = float((self.base[[self._of_all[1 if collective == SCATTER else 2]]] @ shares)[0]) * self._sent
        if number <= 0:
            return 0.0
        link = self._gradient_link if collective == ALL_REDUCE else self._main
        times = (2.0 if self.training else 1.0) if collective != ALL_REDUCE else 1.0
        return float(self._latencies[collective]) + times * link.extra * min(number, link.knee) / link.bytes_per_ms

    # Rows that few programs need: of thresholds of host memory, and of devices that have one part of a table.

    NUMBERS = (0, 4)  # the keys of the rows that say how many devices there are
    ADDED = 10**6  # the first key of them

    def _added_rows(self, node: Node, keys: list[int]) -> Iterator[Inequality]:
        for key in keys:
            number = key - self.ADDED
            if number < self._of_parts:
                yield self._row_of_part(node, key)
                continue
            assert self.host is not None
            threshold, mask = divmod(number - self._of_parts, self._num_groups)
            group = [level for level in range(self.num_levels) if (mask + 1) >> level & 1]
            least, most = node.counts.least(group), node.counts.most(group)
            if not most:
                continue
            name = ("host", threshold)
            loads = {self._of_level(name, level): 1.0 for level in group}
            loads[self._on_each(name, group[0])] = float(least)
            hbm = float(self.host.hbm_ms[threshold])
            others = {MS + level: -hbm for level in group}
            yield Inequality(key, loads, {**others, MS + self.num_levels + mask: -1.0}, 0.0, float(most))

    @property
    def _sorts(self) -> int:
        """Rows of a table: of pieces and all of both phases, and two of the exchange, of a device that has one part;
        and of the numbers of its wide shards.
        """
        return 2 * (int(self.pieces) + 1) + 2 + len(WIDE_SHARDS)

    @property
    def _of_parts(self) -> int:
        return self.num_tables * self._sorts

    def _row_of_part(self, node: Node, key: int) -> Inequality:
        """The parts of a table alone, in the mean of its forms, beside what each device has."""
        table, sort = divmod(key - self.ADDED, self._sorts)
        own = np.flatnonzero((self.table == table) & ~self.everywhere)
        phase, piece = divmod(sort, self.pieces + 1)
        if phase < EXCHANGE:
            if piece == self.pieces:
                own = np.flatnonzero(self.table == table)
                return Inequality(key, {self._with_base(key, own, self._alone[own, phase]): 1.0}, {phase: -1.0}, 0.0)
            each = self._on_each(("ms", phase, piece), 0)
            return Inequality(
                key, {self._with_base(key, own, self._own[own, phase, piece]): 1.0, each: 1.0}, {phase: -1.0}, 0.0
            )
        if phase > EXCHANGE or piece > 1:  # at most k shards are wider than a (k + 1)-th of the table
            most_shards = WIDE_SHARDS[sort - 2 * (self.pieces + 1) - 2]
            own = own[(self.kind[own] == 0) & (self.parts[own] < most_shards + 1)]
            return Inequality(key, {self._with_base(key, own, self.parts[own]): 1.0}, {}, float(most_shards))
        most = self._ends(node)[EXCHANGE][1]
        scatter, besides = self._line(node, SCATTER, most)
        partial = self._on_each(("partial",), 0)
        outputs = self._with_base(key, own, self._bytes[0, own])
        loads = {partial: scatter * self._sent}
        of_outputs, of_sums = self._shared(node, most)
        if piece == 0:  # the busiest in the all-to-all has no fewer outputs
            slope, more = self._line(node, ALL_TO_ALL, most)
            loads |= {outputs: slope * self._sent, self._on_each(("outputs",), 0): slope * self._sent}
            loads |= {self._shared_load(name, 0): times for name, times in of_sums.items()}
            return Inequality(key, loads, {EXCHANGE: -1.0}, -besides - more)
        of_host = self._with_base(-key, own, self._bytes[2, own])
        if of_outputs:  # the busiest in the exchange of partial sums on hosts, too
            slope, more = self._line(node, HOST_SCATTER, most)
            near = (float(self._cluster.host_size) - 1.0) / float(self._cluster.host_size) / self._inside.bytes_per_ms
            times = near + slope * self._far_share / float(self._cluster.host_size) * self._sent
            loads |= {of_host: times}
            loads |= {self._shared_load(name, 0): times for name, times in of_outputs.items()}
            return Inequality(key, loads, {EXCHANGE: -1.0}, -besides - more)
        chord, times = self._chords(node, most)
        return Inequality(key, loads | {outputs: chord * self._sent, of_host: times}, {EXCHANGE: -1.0}, -besides)

    def _chords(self, node: Node, most_ms: float) -> tuple[float, float]:
        """Ms per byte on the main link of outputs, and of partial sums on a host with both of their steps, at least."""
        host, inside = float(self._cluster.host_size), self._inside.bytes_per_ms
        summed, far = (host - 1.0) / host / inside, self._far_share / host
        outputs = self._main.chord(node.states[ALL_TO_ALL], most_ms)
        if not self._cluster.crosses_domains:
            return outputs, summed + far * (self.devices - host) / self.devices / inside
        return outputs, summed + self._main.chord(node.states[HOST_SCATTER], most_ms) * far * self._sent

    def _with_base(self, key: int, shares: NDArray[np.int64], values: FloatArray) -> int:
        """The number of a load that few rows need; it is added if there is none of this key."""
        from scipy.sparse import csr_array, vstack

        if key not in self._extra:
            new = csr_array((values, (np.zeros(len(shares), np.int64), shares)), (1, self.num_shares))
            self._extra[key] = int(self.base.shape[0])
            self.base = vstack([self.base, new], format="csr")
        return int(self._extra[key])

    def violated(self, node: Node, shares: FloatArray, others: FloatArray, most: int = 60) -> list[int]:
        """Keys of added rows that a solution violates most, of each sort."""
        found: list[tuple[float, int]] = []
        of_all = self.base[: self._fixed_rows] @ shares
        own_shares = np.where(self.everywhere, 0.0, shares)

        def of_tables(values: FloatArray) -> FloatArray:
            return np.bincount(self.table, values, self.num_tables).astype(np.float64)

        above: dict[int, FloatArray] = {}
        for phase in (FORWARD, BACKWARD)[: 2 if self.training else 1]:
            for piece in range(self.pieces):
                each = of_all[self._on_each(("ms", phase, piece), 0)]
                own = of_tables(self._own[:, phase, piece] * own_shares)
                above[phase * (self.pieces + 1) + piece] = own + each - others[phase]
            above[phase * (self.pieces + 1) + self.pieces] = of_tables(self._alone[:, phase] * shares) - others[phase]
        if self._links:
            most_ms = self._ends(node)[EXCHANGE][1]
            scatter, besides = self._line(node, SCATTER, most_ms)
            partial = scatter * self._sent * of_all[self._on_each(("partial",), 0)] + besides
            slope, more = self._line(node, ALL_TO_ALL, most_ms)
            outputs, sums = of_tables(self._bytes[0] * own_shares), of_tables(self._bytes[2] * own_shares)
            of_outputs, of_sums = (
                sum(times * of_all[self._shared_load(name, 0)] for name, times in each.items())
                for each in self._shared(node, most_ms)
            )
            each = slope * self._sent * of_all[self._on_each(("outputs",), 0)] + of_sums + partial + more
            first = EXCHANGE * (self.pieces + 1)
            above[first] = slope * self._sent * outputs + each - others[EXCHANGE]
            if self._shared(node, most_ms)[0]:
                slope, more = self._line(node, HOST_SCATTER, most_ms)
                host = float(self._cluster.host_size)
                times = (host - 1.0) / host / self._inside.bytes_per_ms + slope * self._far_share / host * self._sent
                above[first + 1] = times * sums + of_outputs + partial + more - others[EXCHANGE]
            else:
                chord, times = self._chords(node, most_ms)
                above[first + 1] = chord * self._sent * outputs + times * sums + partial - others[EXCHANGE]
        column_shares = np.where(self.kind == 0, self.parts * shares, 0.0)
        for number, most_shards in enumerate(WIDE_SHARDS):
            wide = of_tables(np.where(self.parts < most_shards + 1, column_shares, 0.0)) - most_shards
            above[2 * (self.pieces + 1) + 2 + number] = wide * self.below_ms * 0.01
        sorts, worst = list(above), np.stack(list(above.values()))
        for number, tables in enumerate(worst > 5e-4 * max(self.below_ms, 1e-9)):
            for table in np.flatnonzero(tables):
                found.append((float(worst[number, table]), self.ADDED + int(table) * self._sorts + sorts[number]))
        found = sorted(found, reverse=True)[:most]
        if self.host is not None:
            first = self.ADDED + self._of_parts
            for mask in range(self._num_groups):
                group = [level for level in range(self.num_levels) if (mask + 1) >> level & 1]
                least, most_devices = node.counts.least(group), node.counts.most(group)
                if not most_devices:
                    continue
                number = others[[MS + level for level in group]].sum()
                begin = [self._of_level(("host", 0), level) for level in group]
                span = len(self.host.ms)
                loads = sum(of_all[each : each + span] for each in begin)
                each = self._on_each(("host", 0), group[0])
                loads = loads + least * of_all[each : each + span] - number * self.host.hbm_ms
                threshold = int(np.argmax(loads))
                above_ms = float(loads[threshold]) - float(others[MS + self.num_levels + mask])
                if above_ms > 1e-6 * max(float(loads[threshold]), self.below_ms):
                    found.append((above_ms, first + threshold * self._num_groups + mask))
        return [key for _, key in found]
