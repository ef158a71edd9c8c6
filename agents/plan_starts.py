"""The plans from which `plan-search` descends: of whole tables, of narrow parts, and of forms chosen by price."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import combinations_with_replacement
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.heuristics import MAX_COUNTS
from shard_gym.agents.items import NoRoomError, put_where_cheapest, put_where_emptiest
from shard_gym.agents.priced_forms import classes_of, shapes_by_price
from shard_gym.agents.rebuild import AT_ONCE, put_at_once
from shard_gym.agents.splits import NOT_SPREAD, SplitOptions, SplitTables
from shard_gym.cost_models.analytical import lane_share
from shard_gym.cost_models.base import IntArray
from shard_gym.sharding.column_levels import NONE
from shard_gym.sharding.plan import DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE
from shard_gym.table_features import MAX_DIM

FEWEST = 8  # devices that are tried for a part at least, where there are so many
MEMORY_HALVINGS = 6  # where memory is short, parts are halved until they need this power of two less than a device has
PUT_BY_PRICE = 2  # times the evaluations that the prices take, for putting the parts of their shapes
LARGE = 0.2  # of the memory of a device
BY_PRICE = 6  # sets of parts at most that are chosen by price
# The first start takes this share of the evaluations, others that, where not even it could try all devices.
OF_MANY = 0.5, 0.125

WIDTHS = (MAX_DIM, 64, 32)
"""Parts are no wider than these in the first starts: of whole tables, and of narrow parts, for which FBGEMM has thread
groups that are smaller than a warp if no part of a device is wider."""


def starts(options: SplitOptions, most_queries: int, spent: Callable[[], bool]) -> Iterator[SplitTables]:
    """Plans of whole tables, of tables halved to narrow parts, and of forms chosen by price; one at least.

    Whole tables come first. Each plan takes an evaluation for each part and device, but not more than `most_queries`,
    or `FEWEST` for each part. After the first, a plan is made only while `spent` says no. Those without prices are put
    on devices by lanes, too. With more tables times devices than `most_queries`, each takes a part of these.
    """
    many = options.task.num_tables * options.task.num_devices > most_queries
    most_of_first, most = (int(most_queries * part) if many else most_queries for part in OF_MANY)
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
    yield from (split for _, split in found)
    for _, split in sorted(found, key=itemgetter(0)):
        if not spent():
            yield from by_lanes(split, most_queries // (2 * len(found)))


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
    at_most = most_queries // max(1, 2 * devices * len(split.table))
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
                left -= options.task.num_devices * len(split.table)
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
    tables, nothing = options.task.tables, np.zeros(options.task.num_tables, np.int64)
    if tables.pooled.all():
        return
    rows = _cheapest_spread(options, (ROW_WISE, DATA_PARALLEL))
    if (rows == NOT_SPREAD).all():
        return
    spread = np.where(tables.pooled, NOT_SPREAD, rows)
    yield SplitTables.in_parts(options, spread, nothing)
    on_hosts = _cheapest_spread(options, (TABLE_ROW_WISE, DATA_PARALLEL))
    spread = np.where(tables.pooled, on_hosts, spread)
    hosts = [number for number, way in enumerate(options.spreads) if way.sharding_type == TABLE_ROW_WISE]
    held = np.zeros(len(hosts))
    for table in np.argsort(-options.part_ms[:, 0], kind="stable").tolist():
        if spread[table] in hosts:
            emptiest = int(held.argmin())
            spread[table] = hosts[emptiest]
            held[emptiest] += options.part_ms[table, 0]
    yield SplitTables.in_parts(options, spread, nothing)


def _replicated(options: SplitOptions) -> Iterator[SplitTables]:
    """For serving, where replicas exchange nothing: as many tables as fit are replicated, then half and a quarter.

    Those come first that cost most for their bytes. The others are whole, and need an even part of each device.
    """
    kinds = [way.sharding_type for way in options.spreads]
    if options.model.exchanges != 1 or DATA_PARALLEL not in kinds:
        return
    number, task = kinds.index(DATA_PARALLEL), options.task
    memory, nothing = options.memory[:, options.spreads[number].variant], np.zeros(task.num_tables, np.int64)
    order = np.argsort(-options.part_ms[:, 0] / memory, kind="stable")
    held = np.cumsum(memory[order])
    left = (memory.sum() - held) / task.num_devices
    most = int((held + left <= task.topology.memory_cap_bytes.min()).sum())
    for count in dict.fromkeys((most, most // 2, most // 4)):
        spread = np.full(task.num_tables, NOT_SPREAD)
        spread[order[:count]] = number
        yield SplitTables.in_parts(options, spread, nothing)


def _cheapest_spread(options: SplitOptions, kinds: tuple[str, ...]) -> IntArray:
    """(T,) int64, of the spreads of these types the cheapest of each table alone; NOT_SPREAD if it has none."""
    best, least = np.full(options.task.num_tables, NOT_SPREAD), np.full(options.task.num_tables, np.inf)
    for kind in kinds:
        number = next((n for n, way in enumerate(options.spreads) if way.sharding_type == kind), None)
        if number is not None:
            _, variant, devices, _ = options.spreads[number]
            alone = np.zeros((len(best), options.task.num_devices, options.loads.shape[-1]))
            alone[:, devices] = options.loads[:, variant, None]
            cost = np.where(options.legal[:, variant], options.model.costs(alone, options.cluster)[1], np.inf)
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
    """(T,) of the spreads over all devices the one of least bytes, NOT_SPREAD if none is legal; (T,) these bytes."""
    numbers = [n for n, spread in enumerate(options.spreads) if len(spread.devices) == options.task.num_devices]
    most = np.iinfo(np.int64).max
    best, least = np.full(options.task.num_tables, NOT_SPREAD), np.full(options.task.num_tables, most)
    for number in numbers:
        variant = options.spreads[number].variant
        smaller = options.legal[:, variant] & (options.memory[:, variant] < least)
        best, least = np.where(smaller, number, best), np.where(smaller, options.memory[:, variant], least)
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
