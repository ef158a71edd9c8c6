"""Changes of form of many tables at once, those first that cost least by the prices of loads: `Reformer`."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.search.items import NoRoomError, put_where_cheapest
from shard_gym.agents.search.splits import NOT_SPREAD, SplitOptions, SplitTables, on_emptiest
from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.cost_models.analytical.model import lane_share

PROBE = 0.02  # the share of the mean load of a device that is added to see what it costs
MOST = 64  # tables that change at once, at most; few are as likely as many
SLOWEST_SHARE = 0.4  # of the changes, those of one or two of the costliest tables on slowest devices
NOISY_SHARE = 0.7
NOISE = 0.2  # the mean, in shares of what a table costs, of random numbers that change the order
LEAST_BUSY = 8  # devices that are tried for a new part


class Prices(NamedTuple):
    """What forms of the tables of a plan cost by the prices of its loads, ms."""

    more: FloatArray  # (T, F) that each form costs more than what the table is; inf if it may not be chosen
    own: FloatArray  # (T,) that this costs


class Reformer:
    """Makes plans in which many tables have another form than in a plan.

    The price of a load is what more of it costs on all devices alike, so the price of a form is what it would cost if
    parts were as fine as sand. Tables whose other form costs little more, or less, change together, and their parts go
    to devices that are least busy. Such a plan is worth its cost once it is balanced (`PairSearch`).
    """

    def __init__(self, options: SplitOptions, rng: np.random.Generator) -> None:
        self._options, self._rng = options, rng
        levels, task = options.levels, options.task
        self._stand_for = np.flatnonzero(levels.is_form.any(axis=0))  # the levels whose parts stand for a form
        self._ways: list[list[int]] = []  # the spreads of each further form
        for variant in dict.fromkeys(way.variant for way in options.spreads):
            self._ways.append([number for number, way in enumerate(options.spreads) if way.variant == variant])
        stand_for, loads = self._stand_for, options.loads
        counts = levels.counts[:, stand_for, :, None]
        of_forms = [loads[:, stand_for] * counts[:, :, 0] + loads[:, levels.narrower[stand_for]] * counts[:, :, 1]]
        legal = [levels.is_form[:, stand_for]]
        for ways in self._ways:
            way = options.spreads[ways[0]]
            of_forms.append(loads[:, way.variant, None] * len(way.devices))
            legal.append(np.asarray(options.may_spread[:, ways].any(axis=1))[:, None])
        self._loads = np.concatenate(of_forms, axis=1)  # (T, F, K) of all parts
        self._legal = np.concatenate(legal, axis=1)  # (T, F)
        width = np.where(levels.is_form, levels.width, 0)[:, self._stand_for]
        dims = np.repeat(task.tables.embedding_dim[:, None], len(self._ways), axis=1)
        self._lanes = lane_share(np.concatenate([width, dims], axis=1))  # (T, F)

    @property
    def has_forms(self) -> bool:
        """Whether any table may change its form: it has two, and constraints keep no tables apart.

        Parts are put on devices without regard for what others there must be apart from.
        """
        limits = self._options.task.constraints
        return bool((self._legal.sum(axis=1) > 1).any()) and (limits is None or limits.conflicts is None)

    def prices(self, split: SplitTables) -> Prices:
        """What the forms cost that the tables of `split` do not have.

        Parts wider than those of all devices may not be chosen, and no spreads wider than those of some: what they cost
        follows from the lanes that they take from other tables, which no price says.
        """
        items, number = split.items(), np.arange(self._options.task.num_tables)
        price = self._of_loads(items.device_loads(split.device))
        cost = self._loads @ price
        own = np.zeros(len(cost))
        np.add.at(own, split.table, items.loads @ price)
        form = self._forms(split)
        spread = split.spread != NOT_SPREAD
        own[spread] = cost[number[spread], form[spread]]
        lanes = np.zeros(len(items.free))
        np.maximum.at(lanes, split.device, lane_share(split.widths))
        if spread.any():
            lanes = np.maximum(lanes, lane_share(self._options.task.tables.embedding_dim[spread]).max())
        parts = np.arange(self._legal.shape[1]) < len(self._stand_for)
        legal = self._legal & (self._lanes <= np.where(parts, lanes.max(), lanes.min()))
        legal[number[form >= 0], form[form >= 0]] = False
        return Prices(np.where(legal, cost - own[:, None], np.inf), own)

    def _of_loads(self, held: FloatArray) -> FloatArray:
        """(K,) ms that one more of each load on all devices together costs the mean device; 0 of maxima."""
        options, model = self._options, self._options.model
        mean = held.mean(axis=0)
        some = options.loads.max(axis=(0, 1)) / len(held)
        step = PROBE * np.where(mean > 0.0, mean, some)
        step[model.maxima] = 0.0
        which = np.flatnonzero(step)
        probes = np.repeat(held[None], len(which) + 1, axis=0)
        probes[np.arange(len(which)), :, which] += step[which, None]
        phases, _ = model.costs(probes, options.cluster)
        took = phases.mean(axis=-2).sum(axis=-1)
        price = np.zeros(len(mean))
        price[which] = (took[:-1] - took[-1]) / (step[which] * len(held))
        return price

    def _forms(self, split: SplitTables) -> IntArray:
        """(T,) the form that each table has, or -1 if its parts are of several levels."""
        form = np.full(len(split.spread), -1)
        for number, ways in enumerate(self._ways, start=len(self._stand_for)):
            form[np.isin(split.spread, ways)] = number
        wide, count = np.full(len(form), -1), np.bincount(split.table, minlength=len(form))
        for number, level in enumerate(self._stand_for.tolist()):
            of_level = np.isin(split.level, [level, self._options.levels.narrower[level]])
            own = np.bincount(split.table[of_level], minlength=len(form))
            wide[(own == count) & (count > 0)] = number
        return np.where(form >= 0, form, wide)

    def changed(self, split: SplitTables, prices: Prices) -> SplitTables | None:
        """`split` with another form, the same one, of some tables at random; None if it does not fit the memory."""
        more, own = prices
        rng, number = self._rng, int(self._rng.integers(more.shape[1]))
        order, count = more[:, number], int(2.0 ** rng.uniform(0.0, np.log2(MOST)))
        if rng.random() < SLOWEST_SHARE:
            order, count = np.where(np.isfinite(order) & self._on_slowest(split), -own, np.inf), int(rng.integers(1, 3))
        if rng.random() < NOISY_SHARE:
            order = order + NOISE * own * rng.exponential(size=len(own))
        possible = np.flatnonzero(np.isfinite(order))
        if not len(possible):
            return None
        return self._put(*self._in_form(split, possible[np.argsort(order[possible], kind="stable")[:count]], number))

    def _on_slowest(self, split: SplitTables) -> NDArray[np.bool_]:
        """(T,) whether a table has a part on one of the devices, one to three, that are slowest in a phase."""
        items = split.items()
        phases, _ = items.model.costs(items.device_loads(split.device), items.cluster)
        phase = phases[:, int(self._rng.integers(phases.shape[1]))]
        slowest = np.argsort(-phase, kind="stable")[: int(self._rng.integers(1, 4))]
        on = np.zeros(len(split.spread), np.bool_)
        on[split.table[np.isin(split.device, slowest)]] = True
        return on

    def _in_form(self, split: SplitTables, tables: IntArray, number: int) -> tuple[SplitTables, IntArray]:
        """The plan with `tables` in a form, and the numbers of their parts, which have no device yet."""
        options, keep, spread = self._options, ~np.isin(split.table, tables), split.spread.copy()
        table, level, device = split.table[keep], split.level[keep], split.device[keep]
        spread[tables] = NOT_SPREAD
        new = np.zeros((2, 0), np.int64)
        if number < len(self._stand_for):
            new = np.stack(options.levels.in_form(tables, np.full(len(tables), self._stand_for[number])))
        else:
            ways = self._ways[number - len(self._stand_for)]
            held = options.model.device_phases(split.items().device_loads(split.device)).sum(axis=-1)
            of_ways = np.array([held[options.spreads[way].devices].mean() for way in ways])
            alone = options.part_ms[:, 0] / len(options.spreads[ways[0]].devices)
            on_emptiest(options, spread, ways, tables, alone, of_ways)
        numbers = len(table) + np.arange(new.shape[1])
        device = np.concatenate([device, np.zeros(new.shape[1], np.int64)])
        table, level = np.concatenate([table, new[0]]), np.concatenate([level, new[1]])
        return SplitTables(options, table, level, device, spread), numbers

    def _put(self, split: SplitTables, new: IntArray) -> SplitTables | None:
        """The plan with the parts `new` where they cost least of the least busy devices, the others where they are."""
        items, device = split.items(), split.device.copy()
        stays = np.ones(len(device), np.bool_)
        stays[new] = False
        held = items.model.reduce(items.loads[stays], device[stays], items.num_devices)
        free = items.free.copy()
        np.subtract.at(free, device[stays], items.memory[stays])
        if free.min() < 0:
            return None
        if not len(new):
            return split
        of_new = replace(
            items,
            loads=items.loads[new],
            memory=items.memory[new],
            free=free,
            fixed=held if items.fixed is None else items.model.add(items.fixed, held),
            table=split.table[new],
        )
        order = np.argsort(-self._options.part_ms[split.table[new], split.level[new]], kind="stable")
        try:
            device[new] = put_where_cheapest(of_new, order, LEAST_BUSY)
        except NoRoomError:
            return None
        return split.moved(device)
