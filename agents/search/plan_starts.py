"""The plans from which `plan-search` descends: of whole tables, of narrow parts, and of forms chosen by price."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import combinations_with_replacement
from math import comb
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.search.heuristics import MAX_COUNTS
from shard_gym.agents.search.items import NoRoomError, counted_bytes, put_where_cheapest, put_where_emptiest
from shard_gym.agents.search.moldable import Moldable
from shard_gym.agents.search.own_times import OwnTimes
from shard_gym.agents.search.pairs import PAIRED_FROM
from shard_gym.agents.search.rebuild import AT_ONCE, put_at_once
from shard_gym.agents.search.splits import NO_ROOM_BYTES, NOT_SPREAD, SplitOptions, SplitTables, on_emptiest
from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.cost_models.analytical.model import lane_share
from shard_gym.cost_models.base import COMPUTE
from shard_gym.cost_models.base.model import MAX_NUMBERS
from shard_gym.plans import plan_of_placement
from shard_gym.plans.column_levels import NONE
from shard_gym.plans.placement import pack_tightly
from shard_gym.plans.plan import DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE
from shard_gym.tables import MAX_DIM

ROUNDS = 40  # in which every table takes its cheapest form, and the prices follow
STEP = 0.2  # the share of the newest loads in those from which the prices are made
PRICE_STEP = 0.5  # the exponent with which the price of a group of devices follows its time
PROBE = 0.02  # the share of a load that is added to see what it costs
FEW, MORE_SPREAD = 2, 2.0
"""Up to so many tables a device do not balance like sand: then there are also shapes for which the scores of parts are
multiplied by the second number, so more tables are spread."""

LARGEST_PART, LARGEST_SPREAD, LARGEST_SUM = 0.85, 0.5, 0.9  # shares of the memory of devices that are filled at most


def shapes_by_price(options: SplitOptions, most_queries: int, most: int) -> list[tuple[SplitTables, IntArray]]:
    """Up to `most` sets of parts, best first, none of which has a device yet, and how many devices each is made for.

    As in `plan_starts.by_lanes`, the numbers are (C,), of devices that may hold parts of the widest class, of the two
    widest, and so on. For each choice of them, or as many as `most_queries` evaluations are enough for, tables are
    given forms as if parts were as fine as sand: those of a form share their load evenly over a group of devices, the
    ones between two of these numbers. No cost is below that of the costliest part alone. Every load of a group has a
    price: what more of it costs, times the weight of the group, which grows while it is the slowest. Each table takes
    the form that costs least. Then the loads are summed, and there are new prices; the cheapest sum of all rounds
    counts. This is the subgradient method on the linear program behind `cost_models.plan_bounds`, for any cost model.
    """
    devices = options.task.num_devices
    if not options.levels.legal.any():
        return []  # constraints permit no part of any table
    classes = classes_of(options, options.levels.width)
    count = int(classes[options.levels.legal].max()) + 1
    forms = count * int(options.levels.is_form.any(axis=0).sum()) + len({way.variant for way in options.spreads})
    at_most = min(
        most_queries // (ROUNDS * (len(np.delete(np.arange(options.loads.shape[-1]), options.model.maxima)) + 2)),
        MAX_NUMBERS // (options.task.num_tables * forms),
    )
    values = [n for n in range(2, devices + 2) if comb(n + count - 2, count - 1) <= at_most]
    if not values:
        return []
    numbers = np.unique(np.linspace(0, devices, values[-1]).round().astype(int)).tolist()
    limits = np.array([(*choice, devices) for choice in combinations_with_replacement(numbers, count - 1)])
    best, found = _Prices(options, classes, limits).shapes(most)
    if options.task.num_tables <= FEW * devices:
        found += _Prices(options, classes, best, MORE_SPREAD).shapes(most)[1]
    return found


def classes_of(options: SplitOptions, widths: IntArray) -> IntArray:
    """The class of each width, of those that parts can have; 0 is the widest."""
    possible = options.levels.width[options.levels.legal]
    return np.searchsorted(np.unique(-lane_share(possible)), -lane_share(widths))


class _Prices:
    """N choices of G groups of devices: the last axis of `limits`, (N, G). There are F forms: parts in groups, spreads.

    A spread over the devices of a host is one form for all hosts: its tables share their load over all devices. Loads
    have K + 1 columns, those that the model sums and the bytes.
    """

    def __init__(self, options: SplitOptions, classes: IntArray, limits: IntArray, dearer: float = 1.0) -> None:
        self._options, self._limits = options, limits
        task, model = options.task, options.model
        self._sums = sums = np.delete(np.arange(options.loads.shape[-1]), model.maxima)
        devices, groups, levels = task.num_devices, limits.shape[1], options.levels
        stand_for = np.flatnonzero(levels.is_form.any(axis=0))  # the levels whose parts stand for a form
        ways = {way.variant: number for number, way in enumerate(options.spreads)}  # the last host stands for all
        self._spread = np.array([NOT_SPREAD] * (len(stand_for) * groups) + [*ways.values()])
        is_part = self._spread == NOT_SPREAD
        self._weight = np.where(is_part, dearer, 1.0)  # of the scores of forms
        variant = np.array([*np.repeat(stand_for, groups), *ways])
        self._level = np.where(is_part, variant, 0)
        group = np.where(is_part, np.arange(len(variant)) % groups, 0)
        loads = np.concatenate([options.loads[..., sums], options.memory[..., None]], axis=-1)
        wider, narrower = np.where(is_part[:, None], levels.counts[:, self._level], (1, 0)).transpose(2, 0, 1)  # (T, F)
        self._loads = loads[:, variant] * wider[..., None]  # (T, F, K + 1)
        if narrower.any():
            self._loads += loads[:, levels.narrower[self._level]] * narrower[..., None]
        self._alone = model.device_phases(options.loads).sum(axis=-1)[:, variant]  # (T, F)

        self._group = (np.arange(devices)[:, None, None] >= limits).sum(axis=-1).T  # (N, D), of each device
        self._sizes = np.diff(limits, axis=1, prepend=0)
        member = self._group[..., None] == np.arange(groups)  # (N, D, G)
        caps = np.where(member, task.topology.memory_cap_bytes[:, None], 0)
        self._room = LARGEST_SUM * caps.sum(axis=1) / np.maximum(self._sizes, 1)  # (N, G), of the mean device
        even = (np.arange(groups) == group[:, None]) / np.maximum(self._sizes, 1)[:, None]
        hosts = [1.0] * (len(stand_for) * groups) + [len(options.spreads[n].devices) / devices for n in ways.values()]
        self._share = np.where(is_part[:, None], even, np.array(hosts)[:, None])  # (N, F, G), of a form on a device
        # A group has no wider parts than its class, so a spread table may not be wider than the narrowest group.
        least = np.where(is_part, group, self._group[:, -1:])  # (N, F)
        largest = np.where(
            is_part, LARGEST_PART * caps.max(axis=1)[:, group], LARGEST_SPREAD * task.topology.memory_cap_bytes.min()
        )
        self._legal = np.where(is_part, levels.is_form[:, self._level], options.legal[:, variant])
        self._legal = self._legal & (classes[:, self._level] >= least[:, None])
        self._legal &= options.memory[:, variant] <= largest[:, None]
        self._legal &= ~(is_part & (self._sizes[:, group] == 0))[:, None]
        parts = options.loads[:, : len(levels)]
        of_class = [parts[levels.legal & (classes >= g)][:, model.maxima] for g in range(groups)]
        self._maxima = np.stack([loads.max(axis=0, initial=0.0) for loads in of_class])  # (G, maxima)

    def shapes(self, most: int) -> tuple[IntArray, list[tuple[SplitTables, IntArray]]]:
        """The `most` cheapest choices, and the shapes of those that fit."""
        costs, chosen = self._chosen()
        best = np.argsort(costs, kind="stable")[:most]
        return self._limits[best], [
            (SplitTables.in_parts(self._options, self._on_hosts(forms), self._level[forms]), self._limits[which])
            for which, forms in zip(best.tolist(), chosen[best], strict=True)
            if np.isfinite(costs[which])
        ]

    def _on_hosts(self, forms: IntArray) -> IntArray:
        """(T,) the spreads of the (T,) `forms`; the tables of one host each, costliest first, on the emptiest host."""
        spread, alone = self._spread[forms], self._alone[np.arange(len(forms)), forms]
        for variant in {self._options.spreads[number].variant for number in spread[spread != NOT_SPREAD].tolist()}:
            ways = [number for number, way in enumerate(self._options.spreads) if way.variant == variant]
            tables = np.flatnonzero(np.isin(spread, ways))
            on_emptiest(self._options, spread, ways, tables, alone)
        return spread

    def _chosen(self) -> tuple[FloatArray, IntArray]:
        """(N,) ms of the best loads found, inf if none fit, and the (N, T) forms."""
        loads, share, legal, used = self._loads, self._share, self._legal, self._sizes > 0
        (count, tables, _), every = legal.shape, np.arange(len(legal))
        sums, first = loads.shape[-1] - 1, np.minimum(self._limits - self._sizes, self._group.shape[1] - 1)
        mix = legal / np.maximum(legal.sum(axis=2, keepdims=True), 1)
        mean = np.einsum("ntf,tfk,nfg->ngk", mix, loads, share, optimize=True)
        scale = np.maximum(
            loads[:, 0, :sums].sum(axis=0) / self._group.shape[1], 0.05 * loads[..., :sums].max(axis=(0, 1))
        )
        scale = PROBE * np.where(scale > 0, scale, 1.0)
        probes = np.concatenate([np.zeros((1, sums)), np.diag(scale)])
        shortest = np.where(legal, self._alone, np.inf).min(axis=2, keepdims=True)
        weight = np.repeat((self._sizes / self._sizes.sum(axis=1, keepdims=True))[..., None], 4, axis=2)  # (N, G, 4)
        memory_price = np.zeros(used.shape)
        best, forms = np.full(count, np.inf), np.zeros((count, tables), np.int64)
        possible = legal.any(axis=2).all(axis=-1)
        for _ in range(ROUNDS):
            phases = self._phases(mean[..., :sums] + probes[:, None, None])  # (1 + K, N, D, 4)
            slowest = phases[0].max(axis=1)
            of_group = np.where(used[..., None], phases[:, every[:, None], first], 0.0)  # (1 + K, N, G, 4)
            weight = weight * (of_group[0] / np.maximum(of_group[0].max(axis=1, keepdims=True), 1e-12)) ** PRICE_STEP
            weight = np.where(used[..., None], np.maximum(weight, 1e-3), 0.0)
            weight /= weight.sum(axis=1, keepdims=True)
            filled = mean[..., sums] / np.maximum(self._room, 1.0) - 1.0
            memory_price = np.maximum(0.0, memory_price + 0.3 * used * filled * slowest.sum(axis=1)[:, None])
            more = np.maximum(of_group[1:] - of_group[0], 0.0) / scale[:, None, None, None]
            price = np.einsum("kngp,ngp->ngk", more, weight)
            price = np.concatenate([price, (memory_price / np.maximum(self._room, 1.0))[..., None]], axis=-1)
            score = np.einsum("nfg,ngk,tfk->ntf", share, price, loads, optimize=True)
            alone = np.maximum(1.01 * shortest, slowest[:, COMPUTE].sum(axis=1)[:, None, None])
            chosen = np.where(legal & (self._alone <= alone), score * self._weight, np.inf).argmin(axis=2)
            total = np.einsum(
                "ntk,ntg->ngk", loads[np.arange(tables), chosen], share[every[:, None], chosen], optimize=True
            )
            slowest = self._phases(total[None, ..., :sums])[0].max(axis=1)
            compute = slowest[:, COMPUTE].sum(axis=1)
            largest = self._alone[np.arange(tables), chosen].max(axis=1)  # it is no sand: one device has it
            cost = slowest.sum(axis=1) + np.maximum(0.0, largest - compute)
            held = np.cumsum(total[..., sums] * self._sizes, axis=1)  # narrow parts may fill devices of wide ones
            fits = possible & (held <= 1.05 * np.cumsum(self._room * self._sizes, axis=1)).all(axis=1)
            better = fits & (cost < best)
            best, forms[better] = np.where(better, cost, best), chosen[better]
            mean += STEP * (total - mean)
        return best, forms

    def _phases(self, sums: FloatArray) -> FloatArray:
        """(M, N, D, 4) ms if the devices of a group have the (M, N, G, K) loads."""
        model, every = self._options.model, np.arange(len(self._group))[:, None]
        loads = np.empty((*sums.shape[:-1], self._options.loads.shape[-1]))
        loads[..., self._sums], loads[..., model.maxima] = sums, self._maxima
        phases = model.device_phases(loads)[:, every, self._group]
        model.fill_communication(phases, loads[..., model.shared_loads][:, every, self._group], self._options.cluster)
        return phases


FEWEST = 8  # devices that are tried for a part at least, where there are so many
MEMORY_HALVINGS = 6  # where memory is short, parts are halved until they need this power of two less than a device has
PUT_BY_PRICE = 2  # times the evaluations that the prices take, for putting the parts of their shapes
LARGE = 0.2  # of the memory of a device
SHARES_OF_DEVICE = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05)  # that a part may fill in the starts of fewest bytes
BY_RULE = 8  # plans of the rule at most
BY_PRICE = 6  # sets of parts at most that are chosen by price
# The first start takes this share of the evaluations, others that, where not even it could try all devices.
OF_MANY = 0.5, 0.125

WIDTHS = (MAX_DIM, 64, 32)
"""Parts are no wider than these in the first starts: of whole tables, and of narrow parts, for which FBGEMM has thread
groups that are smaller than a warp if no part of a device is wider."""


def starts(options: SplitOptions, most_queries: int, spent: Callable[[], bool]) -> Iterator[SplitTables]:
    """Plans of whole tables, of tables halved to narrow parts, and of forms chosen by price; one at least.

    Whole tables come first. Each plan takes an evaluation for each part and device, but not more than `most_queries`,
    or `FEWEST` for each part; on `PAIRED_FROM` devices or more that many, because what they leave uneven is soon
    balanced. After the first, a plan is made only while `spent` says no. On fewer devices those without prices are put
    on devices by lanes, too. With more tables times devices than `most_queries`, each takes a part of these.
    """
    many = options.task.num_tables * options.task.num_devices > most_queries
    most_of_first, most = (int(most_queries * part) if many else most_queries for part in OF_MANY)
    if options.task.num_devices >= PAIRED_FROM:
        most_of_first = most = 0  # so the fewest
    shapes = {shape.key: shape for shape in (_no_wider(options, width) for width in WIDTHS)}
    whole, *narrow = shapes.values()
    found = list(_placed([whole], most_of_first))
    yield from (split for _, split in found)
    for others in (_in_rows(options), _replicated(options)):
        yield from (split for _, split in _placed(others, most))
    if (len(options.levels) > 1 or options.spreads) and not spent():
        yield from _by_price(options, most_queries // 6, spent)
    for split in narrow:
        if not spent():
            found += _placed([split], most)
    if not found:
        for split in _smaller_and_smaller(options):
            if not found or not spent():
                found += _placed([split], most)
    for split in _spread_more_and_more(options):
        if not found:
            found += _placed([split], most)
    if options.task.constraints is not None:
        for split in _least_bytes(options):
            if not found:
                found += _placed([split], most)
    yield from (split for _, split in found)
    for _, split in sorted(found, key=itemgetter(0)) if options.task.num_devices < PAIRED_FROM else ():
        if not spent():
            yield from by_lanes(split, most_queries // (2 * len(found)))


def packed(options: SplitOptions) -> list[SplitTables]:
    """A plan of whole tables, which may fill memories to the last byte; none if it is not found."""
    task = options.origin
    limits, sizes = task.constraints, counted_bytes(task)
    open_to = np.ones((task.num_tables, task.num_devices), np.bool_) if limits is None else limits.devices
    if task.topology.replicas is not None or (limits is not None and not limits.may_be_whole.all()):
        return []
    placement = pack_tightly(sizes, task.topology.memory_cap_bytes, open_to)
    if placement is None:
        return []
    if limits is not None and limits.problem_of(plan_of_placement(placement, task.tables), task.tables):
        return []
    return [SplitTables.whole(options, placement)]


def _devices_tried(options: SplitOptions) -> int:
    """How many devices are tried for a part."""
    devices = options.task.num_devices
    return devices if devices < PAIRED_FROM else FEWEST


def by_rule(options: SplitOptions) -> list[SplitTables]:
    """The plans that the rule `moldable` estimates to cost least, whatever the model of the options."""
    task = options.origin
    model = OwnTimes(task.tables, task.topology)
    own = SplitOptions(task, model, options.sharding_types, options.max_shards, options.every_count)
    return [replace(split, options=options) for _, split in Moldable(own, model).plans()[:BY_RULE]]


def by_lanes(split: SplitTables, most_queries: int) -> list[SplitTables]:
    """The parts of `split` on other devices, those of a class of width on the first devices alone.

    FBGEMM gives every table of a device the thread groups of the widest one, so wide parts belong together, and they
    come together only by many moves at once, each of which makes a plan worse. There is a plan for each choice of how
    many devices may hold parts of the widest class, how many those of the two widest, and so on, or for as many choices
    as `most_queries` evaluations are enough for: two for each part and device. Each part goes where the plan so far
    costs least, the costliest first over all or within a class, whichever is cheaper.
    """
    options, devices = split.options, split.options.task.num_devices
    _, of_part = np.unique(-lane_share(split.widths), return_inverse=True)  # 0 is the widest class
    at_most = most_queries // max(1, 2 * _devices_tried(options) * len(split.table))
    if not at_most:
        return []
    counts = np.unique(np.linspace(1, devices, min(devices, MAX_COUNTS)).astype(int)).tolist()
    choices = list(combinations_with_replacement(counts, int(of_part.max(initial=0))))
    chosen = np.unique(np.linspace(0, len(choices) - 1, min(at_most, len(choices))).astype(int))
    alone = -options.part_ms[split.table, split.level]
    orders = np.argsort(alone, kind="stable"), np.lexsort((alone, of_part))
    limits = np.array([(*choices[choice], devices) for choice in chosen])
    return [moved for _, moved in _within(split, of_part, limits, orders)]


def _by_price(options: SplitOptions, most_queries: int, spent: Callable[[], bool]) -> Iterator[SplitTables]:
    """Plans of the forms of `priced_forms`, the parts of a class on the devices that its forms were chosen for.

    Of each shape the widest parts come first, then the costliest, and in both, where that does not fit, those that fill
    `LARGE` of a device before all, until `PUT_BY_PRICE` times `most_queries` evaluations would be exceeded.
    """
    large = LARGE * options.task.topology.memory_cap_bytes.mean()
    left, shapes = PUT_BY_PRICE * most_queries, shapes_by_price(options, most_queries, BY_PRICE)
    for by_width in (True, False):
        for split, limits in shapes:
            of_part = classes_of(options, split.widths)
            alone, memory = options.part_ms[split.table, split.level], options.memory[split.table, split.level]
            keys = (-alone, of_part) if by_width else (-alone,)
            for first in ((), (-np.where(memory > large, memory, 0),)):
                left -= _devices_tried(options) * len(split.table)
                if left < 0 or spent():
                    return
                moved = [each for _, each in _within(split, of_part, limits[None], [np.lexsort((*keys, *first))])]
                yield from moved
                if moved:
                    break


def _within(
    split: SplitTables, of_part: IntArray, limits: IntArray, orders: Iterable[IntArray]
) -> Iterable[tuple[float, SplitTables]]:
    """The cheapest plan that fits for each of the (N, C) `limits`, with its cost; the parts are put in these orders."""
    options, devices = split.options, split.options.task.num_devices
    found: dict[int, tuple[float, SplitTables]] = {}
    if devices >= PAIRED_FROM:
        items = split.items()
        if items.free.min() < 0:
            return []
        for order in orders:
            for which, limit in enumerate(limits):
                with suppress(NoRoomError):
                    moved = split.moved(put_where_cheapest(items, order, FEWEST, limit[of_part]))
                    cost = items.cost_ms(moved.device)
                    if which not in found or cost < found[which][0]:
                        found[which] = cost, moved
        return found.values()
    for order in orders:
        at_once = max(1, AT_ONCE // devices)
        for first in range(0, len(limits), at_once):
            some = limits[first : first + at_once]
            allowed = np.arange(devices)[:, None] < some.T[of_part[order]][:, None]
            put = np.repeat(np.stack([split.table, split.level], axis=-1)[order][None], len(some), axis=0)
            fixed, left = split.fixed()
            held, free = np.repeat(fixed[:, None], len(some), axis=1), np.repeat(left[:, None], len(some), axis=1)
            device, costs = put_at_once(options, held, free, put, allowed)
            for which in np.flatnonzero(np.isfinite(costs.exact)).tolist():
                cost = float(costs.exact[which])
                if first + which not in found or cost < found[first + which][0]:
                    found[first + which] = cost, split.moved(device[which][np.argsort(order)])
    return found.values()


def _placed(splits: Iterable[SplitTables], most_queries: int) -> Iterator[tuple[float, SplitTables]]:
    """Those of `splits` that fit, with costs: each part where the plan so far costs least, or else by memory alone."""
    for split in splits:
        items = split.items()
        if items.free.min() < 0:
            continue
        order = np.argsort(-split.options.part_ms[split.table, split.level], kind="stable")
        most_devices = max(FEWEST, most_queries // max(1, len(items)))
        for put in (partial(put_where_cheapest, items, order, most_devices), partial(put_where_emptiest, items)):
            with suppress(NoRoomError):
                placement = put()
                yield items.cost_ms(placement), split.moved(placement)
                break


def _in_rows(options: SplitOptions) -> Iterator[SplitTables]:
    """For sequence tables: those are row-wise or replicated, and others are whole, or row-wise on a host or replicated.

    Rows are read evenly, so that the exchange, which sequences make long, is even: what single moves from a plan of
    parts, of which each leaves one device with most, do not find. Of two spreads a table gets the one that costs less
    where it is the only table.
    """
    tables, (nothing, instead) = options.task.tables, _first_forms(options)
    if tables.pooled.all():
        return
    rows = _cheapest_spread(options, (ROW_WISE, DATA_PARALLEL))
    if (rows == NOT_SPREAD).all():
        return
    rows = np.where(rows == NOT_SPREAD, instead, rows)
    spread = np.where(tables.pooled, instead, rows)
    yield SplitTables.in_parts(options, spread, nothing)
    on_hosts = _cheapest_spread(options, (TABLE_ROW_WISE, DATA_PARALLEL))
    on_hosts = np.where(on_hosts == NOT_SPREAD, instead, on_hosts)
    spread = np.where(tables.pooled, on_hosts, spread)
    hosts = [number for number, way in enumerate(options.spreads) if way.sharding_type == TABLE_ROW_WISE]
    on_emptiest(options, spread, hosts, np.flatnonzero(np.isin(spread, hosts)), options.part_ms[:, 0])
    yield SplitTables.in_parts(options, spread, nothing)


def _replicated(options: SplitOptions) -> Iterator[SplitTables]:
    """For serving, where replicas exchange nothing: as many tables as fit are replicated, then half and a quarter.

    Those come first that cost most for their bytes. The others are whole, and need an even part of each device.
    """
    kinds = [way.sharding_type for way in options.spreads]
    if options.model.exchanges != 1 or DATA_PARALLEL not in kinds:
        return
    number, task = kinds.index(DATA_PARALLEL), options.task
    memory, (nothing, instead) = options.memory[:, options.spreads[number].variant], _first_forms(options)
    order = np.argsort(-options.part_ms[:, 0] / memory, kind="stable")
    held = np.cumsum(memory[order])
    left = (memory.sum() - held) / task.num_devices
    most = int((held + left <= task.topology.memory_cap_bytes.min()).sum())
    for count in dict.fromkeys((most, most // 2, most // 4)):
        spread = instead.copy()
        spread[order[:count]] = number
        yield SplitTables.in_parts(options, spread, nothing)


def _first_forms(options: SplitOptions) -> tuple[IntArray, IntArray]:
    """(T,) levels and (T,) spreads: all tables whole, or where constraints do not permit that, in as few parts as they
    do, or spread.
    """
    count = options.task.num_tables
    if options.task.constraints is None:
        return np.zeros(count, np.int64), np.full(count, NOT_SPREAD)
    fewest = _fewest_parts(options, int(options.task.topology.memory_cap_bytes.max()))
    return np.where(fewest == NONE, 0, fewest), np.where(fewest == NONE, _smallest_spread(options)[0], NOT_SPREAD)


def _cheapest_spread(options: SplitOptions, kinds: tuple[str, ...]) -> IntArray:
    """(T,) int64, of the spreads of these types the cheapest of each table alone; NOT_SPREAD if it has none."""
    best, least = np.full(options.task.num_tables, NOT_SPREAD), np.full(options.task.num_tables, np.inf)
    for kind in kinds:
        number = next((n for n, way in enumerate(options.spreads) if way.sharding_type == kind), None)
        if number is not None:
            _, variant, devices, _ = options.spreads[number]
            alone = np.zeros((len(best), options.task.num_devices, options.loads.shape[-1]))
            alone[:, devices] = options.loads[:, variant, None]
            cost = np.where(options.may_spread[:, number], options.model.costs(alone, options.cluster)[1], np.inf)
            best, least = np.where(cost < least, number, best), np.minimum(cost, least)
    return best


def _fewest_parts(options: SplitOptions, most_bytes: int) -> IntArray:
    """(T,) int64, the level of the fewest parts of each table that have so many bytes at most, or NONE."""
    return options.levels.fewest_parts(options.memory[:, : len(options.levels)] <= most_bytes)


def _no_wider(options: SplitOptions, width: int) -> SplitTables:
    """All tables in parts that fit a device, halved until none is wider than `width`, where that is possible.

    Tables of which no part fits are spread.
    """
    fewest = _fewest_parts(options, options.task.topology.memory_cap_bytes.max())
    level, every = np.where(fewest == NONE, 0, fewest), np.arange(options.task.num_tables)
    while (halve := (options.levels.width[every, level] > width) & options.can_halve(every, level)).any():
        level = np.where(halve, options.levels.halves[every, level, 0], level)
    return SplitTables.in_parts(options, np.where(fewest == NONE, _smallest_spread(options)[0], NOT_SPREAD), level)


def _smallest_spread(options: SplitOptions) -> tuple[IntArray, IntArray]:
    """(T,) of the spreads over all devices the one of least bytes, NOT_SPREAD if none is legal; (T,) these bytes.

    Tables that constraints keep from all these, and from whole devices, are spread on hosts if they may be.
    """
    numbers = [n for n, spread in enumerate(options.spreads) if len(spread.devices) == options.task.num_devices]
    most = np.iinfo(np.int64).max
    best, least = np.full(options.task.num_tables, NOT_SPREAD), np.full(options.task.num_tables, most)
    for number in numbers:
        variant = options.spreads[number].variant
        smaller = options.legal[:, variant] & (options.memory[:, variant] < least)
        best, least = np.where(smaller, number, best), np.where(smaller, options.memory[:, variant], least)
    if options.task.constraints is not None:
        hosts = [n for n in range(len(options.spreads)) if n not in numbers]
        left = np.flatnonzero((best == NOT_SPREAD) & options.may_spread[:, hosts].any(axis=1))
        left = left[~options.levels.is_form[left].any(axis=1)]
        if len(left):
            variant = options.spreads[hosts[0]].variant
            on_emptiest(options, best, hosts, left, options.memory[:, variant].astype(float))
            least[left] = options.memory[left, variant]
    return best, least


def _smaller_and_smaller(options: SplitOptions) -> Iterator[SplitTables]:
    """For short memory: parts of a half, a quarter, ... of a device; tables with larger ones are spread if it helps."""
    best, bytes_spread = _smallest_spread(options)
    for level, num_bytes, small in _halved(options):
        yield SplitTables.in_parts(options, np.where(~small & (bytes_spread < num_bytes), best, NOT_SPREAD), level)


def _spread_more_and_more(options: SplitOptions) -> Iterator[SplitTables]:
    """For memory that no halving fits: parts as above, and the 1, 2, 4, ... largest tables spread over all devices."""
    best = _smallest_spread(options)[0]
    largest = np.argsort(-options.task.tables.memory_bytes, kind="stable")
    largest = largest[best[largest] != NOT_SPREAD]
    for level, _, _ in _halved(options):
        for doublings in range(len(largest).bit_length() + 1 if len(largest) else 0):
            spread = np.full(options.task.num_tables, NOT_SPREAD)
            spread[largest[: 1 << doublings]] = best[largest[: 1 << doublings]]
            yield SplitTables.in_parts(options, spread, level)


def _least_bytes(options: SplitOptions) -> Iterator[SplitTables]:
    """For constraints that nothing above meets: each table in the form with the fewest bytes on all devices together of
    those of which a device holds at most some share of its memory; in that of the smallest part if there is none.
    """
    count, levels = options.task.num_tables, options.levels
    least = int(options.task.topology.memory_cap_bytes.min())
    parts, narrower = options.memory[:, : len(levels)], options.memory[:, levels.narrower]
    total = parts * levels.counts[..., 0] + narrower * levels.counts[..., 1]
    size = np.where(levels.is_form, parts, NO_ROOM_BYTES)
    ways: dict[int, list[int]] = {}
    for number, way in enumerate(options.spreads):
        ways.setdefault(way.variant, []).append(number)
    for variant, numbers in ways.items():
        may = options.may_spread[:, numbers].any(axis=1)
        one = np.where(may, options.memory[:, variant], NO_ROOM_BYTES)
        size = np.concatenate([size, one[:, None]], axis=1)
        total = np.concatenate([total, one[:, None] * len(options.spreads[numbers[0]].devices)], axis=1)
    for share in SHARES_OF_DEVICE:
        small = size <= share * least
        form = np.where(small.any(axis=1), np.where(small, total, 2**62).argmin(axis=1), size.argmin(axis=1))
        spread = np.full(count, NOT_SPREAD)
        for which, (variant, numbers) in enumerate(ways.items(), start=len(levels)):
            chosen = np.flatnonzero(form == which)
            on_emptiest(options, spread, numbers, chosen, options.memory[:, variant].astype(float))
        yield SplitTables.in_parts(options, spread, np.where(form < len(levels), form, 0))


def _halved(options: SplitOptions) -> Iterator[tuple[IntArray, IntArray, NDArray[np.bool_]]]:
    """Tables in parts of at most a half, a quarter, ... of the bytes of a device, or of as few as they can have.

    Each is the (T,) level of each table, the (T,) bytes of its parts, and whether (T,) they are that small.
    """
    levels, most = options.levels, int(options.task.topology.memory_cap_bytes.max())
    memory = np.where(levels.is_form, options.memory[:, : len(levels)], np.iinfo(np.int64).max)
    for halvings in range(1, MEMORY_HALVINGS + 1):
        fewest = _fewest_parts(options, most >> halvings)
        level = np.where(fewest == NONE, memory.argmin(axis=1), fewest)
        yield level, np.take_along_axis(memory, level[:, None], axis=1)[:, 0], fewest != NONE
