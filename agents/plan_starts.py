"""The plans from which `plan-search` descends: greedy ones, with tables spread and parts halved in several ways."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from itertools import combinations_with_replacement

import numpy as np

from shard_gym.agents.heuristics import MAX_COUNTS
from shard_gym.agents.items import NoRoomError, put_where_cheapest, put_where_emptiest
from shard_gym.agents.priced_forms import classes_of, shapes_by_price
from shard_gym.agents.rebuild import AT_ONCE, put_at_once
from shard_gym.agents.splits import NOT_SPREAD, SplitOptions, SplitTables
from shard_gym.cost_models.analytical import lane_share
from shard_gym.cost_models.base import MAX_NUMBERS, FloatArray, IntArray

SHARE_SPLIT = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Halvings of the costliest parts in the starts of the search, for each table."""

SHARE_OF_ROOM = 0.7
"""The share that spread tables may take in the starts of the bytes that evenly spread tables leave on a device, and of
the smallest device."""

MAX_SHARES = (0.5, 0.0, 1.0, 1.5, 2.0)
"""Tables are spread if a copy more costs all devices at most these shares of a D-th of what it costs one."""

FEWEST = 8  # devices that are tried for a part at least, where there are so many

MEMORY_HALVINGS = 6  # where memory is short, parts are halved until they need this power of two less than a device has
SLOWEST = (1, 2, 4)  # tables of which the parts make devices slow, that are spread in further starts
BEST_SETS = 2  # sets of spread tables with which the others are halved more and more
BY_PRICE = 6
PRICED_QUERIES = 8
SHAPES = 1
BY_LANES = 6  # of the cheapest, that are put on devices by lanes, too

NARROW = (32, 64)
"""Widths of the thread groups of FBGEMM below that of a whole warp: narrow tables are faster with no wider ones."""


def starts(options: SplitOptions, most_queries: int, spent: Callable[[], bool]) -> Iterator[SplitTables]:
    """Plans with tables on all devices or none, of whole tables, and with costly parts halved; one at least.

    Those of few parts come first. Each takes an evaluation for each part and device, but not more than `most_queries`,
    or `FEWEST` for each part. After the first, a plan is made only while `spent` says no. Then the cheapest are put on
    devices by lanes, too.
    """
    found: list[tuple[float, SplitTables]] = []
    has_forms = options.max_halvings > 0 or bool(options.spreads)
    shapes = {shape.key: shape for shape in _shapes(options)}
    for split in sorted(
        shapes.values(),
        key=lambda shape: (shape.spread != NOT_SPREAD).any() + len(shape.table) if not SHAPES else len(shape.table),
    ):
        if not found or not spent():
            found += _placed([split], most_queries)
    if not found:
        found += _placed(_smaller_and_smaller(options), most_queries)
    found.sort(key=lambda each: each[0])
    yield from (split for _, split in found)
    if has_forms and BY_PRICE:
        yield from _by_price(options, most_queries // PRICED_QUERIES)
    best = found[:BY_LANES]
    for _, split in best:
        if not spent():
            yield from by_lanes(split, most_queries // (2 * len(best)))


def _shapes(options: SplitOptions) -> Iterator[SplitTables]:
    """Sets of parts, none of which has a device yet (all are on 0)."""
    if SHAPES < 1:
        nothing = np.full(options.task.num_tables, NOT_SPREAD)
        yield _unsplit(options, nothing)
        yield from (_no_wider(options, nothing, width) for width in NARROW)
        return
    spreads = _spread_sets(options)
    for spread in spreads:
        yield _unsplit(options, spread)
        yield from (_no_wider(options, spread, width) for width in NARROW)
    for spread in spreads[:BEST_SETS]:
        yield from _halved_more_and_more(options, spread)


def by_lanes(split: SplitTables, most_queries: int) -> list[SplitTables]:
    """The parts of `split` on other devices, those of a class of width on the first devices alone.

    FBGEMM gives every table of a device the thread groups of the widest one, so wide parts belong together, and they
    come together only by many moves at once, each of which makes a plan worse. There is a plan for each choice of how
    many devices may hold parts of the widest class, how many those of the two widest, and so on, or for as many choices
    as `most_queries` evaluations are enough for: two for each part and device. Each part goes where the plan so far
    costs least, the costliest first over all or within a class, whichever is cheaper.
    """
    options, devices = split.options, split.options.task.num_devices
    widths = options.task.tables.embedding_dim[split.table] >> split.level
    _, of_part = np.unique(-lane_share(widths), return_inverse=True)  # 0 is the widest class
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


def _by_price(options: SplitOptions, most_queries: int) -> Iterator[SplitTables]:
    """Plans of the forms of `priced_forms`, the parts of a class on the devices that its forms were chosen for."""
    for split, limits in shapes_by_price(options, most_queries, BY_PRICE):
        of_part = classes_of(options, options.task.tables.embedding_dim[split.table] >> split.level)
        alone, memory = (-each[split.table, split.level] for each in (options.part_ms, options.memory))
        orders = [np.argsort(alone, kind="stable"), np.lexsort((alone, of_part)), np.argsort(memory, kind="stable")]
        yield from (moved for _, moved in _within(split, of_part, limits[None], orders))


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


def _unsplit(options: SplitOptions, spread: IntArray) -> SplitTables:
    """The tables that are not spread, whole, or in as few equal parts as fit a device."""
    least = _least_halvings(options, options.task.topology.memory_cap_bytes.max())
    return SplitTables.in_parts(options, spread, np.maximum(least, 0))


def _spread_sets(options: SplitOptions) -> list[IntArray]:
    """(T,) int64 sets: no table is spread; those that cost all devices little more than a D-th of them saves."""
    task, model = options.task, options.model
    numbers = [n for n, spread in enumerate(options.spreads) if len(spread.devices) == task.num_devices]
    if not numbers or task.num_devices == 1:
        return [np.full(task.num_tables, NOT_SPREAD)]
    variants = [options.spreads[number].variant for number in numbers]
    parts = _no_wider(options, np.full(task.num_tables, NOT_SPREAD), NARROW[0])
    more, less = _marginal_ms(options, parts, variants)
    more[~options.legal[:, variants]] = np.inf
    best, share = more.argmin(axis=1), more.min(axis=1) / np.maximum(less, 1e-12)
    too_large = _least_halvings(options, task.topology.memory_cap_bytes.max()) < 0
    # What a spread table takes from every device beyond a D-th of its bytes must be free on the mean device, and what
    # it takes must fit the smallest one.
    own = options.memory[np.arange(task.num_tables), np.array(variants)[best]]
    extra = own - options.memory[:, 0] / task.num_devices
    room = (task.topology.memory_cap_bytes.sum() - options.memory[:, 0].sum()) / task.num_devices
    smallest = task.topology.memory_cap_bytes.min()
    order = np.argsort(np.where(too_large, -1.0, share), kind="stable")
    fits = np.zeros(task.num_tables, np.bool_)
    fits[order] = np.cumsum(extra[order]) <= SHARE_OF_ROOM * room
    fits[order] &= np.cumsum(own[order]) <= SHARE_OF_ROOM * smallest
    legal = options.legal[:, variants].any(axis=1)
    fits, too_large = fits & legal, too_large & legal
    sets = [np.where((share < most) & fits | too_large, np.array(numbers)[best], NOT_SPREAD) for most in MAX_SHARES]
    # A table of which even a part makes a device slow, and how much less slow if it is spread.
    slow = np.zeros(task.num_tables)
    slow[parts.table] = options.part_ms[parts.table, parts.level]
    alone = options.loads[np.arange(task.num_tables), np.array(variants)[best]]
    slow -= model.single_table_costs(alone, task.topology)
    order = np.argsort(-np.where(fits, slow, -np.inf), kind="stable")
    for count in SLOWEST:
        sets.append(np.where(too_large, np.array(numbers)[best], NOT_SPREAD))
        slowest = order[:count][fits[order[:count]]]
        sets[-1][slowest] = np.array(numbers)[best[slowest]]
    found = list({each.tobytes(): each for each in sets}.values())
    return [found[number] for number in np.argsort(_balanced_ms(options, found), kind="stable")]


def _balanced_ms(options: SplitOptions, spreads: list[IntArray]) -> FloatArray:
    """(S,) ms of sets of spread tables, if all devices have even loads of narrow parts of the other tables.

    At least what the costliest of those parts costs alone.
    """
    split, even, largest = options.model.num_sum_loads, [], []
    for spread in spreads:
        parts, tables = _no_wider(options, spread, NARROW[0]), np.flatnonzero(spread != NOT_SPREAD)
        variants = np.array([options.spreads[number].variant for number in spread[tables]], np.int64)
        loads = np.concatenate([options.loads[parts.table, parts.level], options.loads[tables, variants]])
        loads[: len(parts.table), :split] /= options.task.num_devices
        largest.append(options.part_ms[parts.table, parts.level].max(initial=0.0))
        even.append(np.concatenate([loads[:, :split].sum(axis=0), loads[:, split:].max(axis=0)]))
    return np.maximum(_even_ms(options, np.stack(even)), largest)


def _marginal_ms(options: SplitOptions, parts: SplitTables, variants: list[int]) -> tuple[FloatArray, FloatArray]:
    """(T, n) ms that tables add to even loads of `parts` in n variants; (T,) ms that a D-th of their parts saves."""
    model, split = options.model, options.model.num_sum_loads
    loads = options.loads[parts.table, parts.level]
    share = np.zeros((options.task.num_tables, split))
    np.add.at(share, parts.table, loads[:, :split] / options.task.num_devices)
    even = np.concatenate([share.sum(axis=0), loads[:, split:].max(axis=0)])
    without = np.repeat(even[None], len(share), axis=0)
    without[:, :split] -= share

    spread = options.loads[:, variants]
    once = model.add(even, spread)
    more = _even_ms(options, model.add(once, spread)) - _even_ms(options, once)
    return more, _even_ms(options, even) - _even_ms(options, without)


def _even_ms(options: SplitOptions, loads: FloatArray) -> FloatArray:
    """(...) ms if every device has the (..., K) loads."""
    model, devices = options.model, options.task.num_devices

    def piece_ms(loads: FloatArray) -> FloatArray:
        shares = model.device_phases(loads), loads[:, model.shared_loads]
        phases, shared = (np.repeat(each[:, None], devices, axis=1) for each in shares)
        model.fill_communication(phases, shared, options.cluster)
        return model.iteration_cost(phases, shared, options.cluster)

    flat = loads.reshape(-1, loads.shape[-1])
    at_once = max(1, MAX_NUMBERS // (devices * loads.shape[-1]))
    pieces = [piece_ms(flat[first : first + at_once]) for first in range(0, len(flat), at_once)]
    return np.concatenate(pieces).reshape(loads.shape[:-1])


def _least_halvings(options: SplitOptions, most_bytes: int) -> IntArray:
    """(T,) int64, how often each table is halved at least so that a part has so many bytes at most; -1 if it cannot."""
    levels = slice(options.max_halvings + 1)
    fits = options.legal[:, levels] & (options.memory[:, levels] <= most_bytes)
    return np.where(fits.any(axis=1), fits.argmax(axis=1), -1)


def _no_wider(options: SplitOptions, spread: IntArray, width: int) -> SplitTables:
    """The tables that are not spread, halved until no part is wider than `width`, where that is possible."""
    level = np.maximum(_least_halvings(options, options.task.topology.memory_cap_bytes.max()), 0)
    dims = options.task.tables.embedding_dim
    every = np.arange(options.task.num_tables)
    while (halve := (dims >> level > width) & options.can_halve(every, level)).any():
        level = level + halve
    return SplitTables.in_parts(options, spread, level)


def _smaller_and_smaller(options: SplitOptions) -> Iterator[SplitTables]:
    """For short memory: parts of a half, a quarter, ... of a device; tables with larger ones are spread if it helps."""
    task = options.task
    levels = slice(options.max_halvings + 1)
    memory = np.where(options.legal, options.memory, np.iinfo(np.int64).max)
    every = np.arange(task.num_tables)
    spreads = [n for n, spread in enumerate(options.spreads) if len(spread.devices) == task.num_devices]
    for halvings in range(1, MEMORY_HALVINGS + 1):
        most = int(task.topology.memory_cap_bytes.max()) >> halvings
        least = _least_halvings(options, most)
        level = np.where(least < 0, memory[:, levels].argmin(axis=1), least)
        spread = np.full(task.num_tables, NOT_SPREAD)
        if spreads:
            variants = np.array([options.spreads[number].variant for number in spreads])
            best = memory[:, variants].argmin(axis=1)
            smaller = memory[every, variants[best]] < memory[every, level]
            spread = np.where((least < 0) & smaller, np.array(spreads)[best], NOT_SPREAD)
        yield SplitTables.in_parts(options, spread, level)


def _halved_more_and_more(options: SplitOptions, spread: IntArray) -> Iterator[SplitTables]:
    """The tables that are not spread, with the costliest parts halved; no part has a device yet (all are on 0)."""
    parts = _unsplit(options, spread)
    table, level = parts.table.tolist(), parts.level.tolist()
    tables, levels = np.ogrid[: options.task.num_tables, : options.max_halvings + 1]
    may_be_halved = options.can_halve(tables, levels)
    costliest: list[tuple[float, int]] = []  # a heap of parts that can be halved

    def offer(part: int) -> None:
        if may_be_halved[table[part], level[part]]:
            heappush(costliest, (-options.part_ms[table[part], level[part]], part))

    for part in range(len(table)):
        offer(part)
    halved = 0
    for share in SHARE_SPLIT:
        wanted = int(share * options.task.num_tables)
        while halved < wanted:
            if not costliest:
                return
            _, part = heappop(costliest)
            level[part] += 1
            table.append(table[part])
            level.append(level[part])
            offer(part)
            offer(len(table) - 1)
            halved += 1
        nowhere = np.zeros(len(table), np.int64)
        yield SplitTables(options, np.array(table, np.int64), np.array(level, np.int64), nowhere, spread)
