"""Which form each table should have, by prices of the devices' loads: the starts of `plan-search` with mixed forms."""

from __future__ import annotations

from itertools import combinations_with_replacement
from math import comb

import numpy as np

from shard_gym.agents.splits import NOT_SPREAD, SplitOptions, SplitTables
from shard_gym.cost_models.analytical import lane_share
from shard_gym.cost_models.base import COMPUTE, MAX_NUMBERS, FloatArray, IntArray

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
    classes = classes_of(options, options.levels.width)
    count = int(classes[options.levels.legal].max()) + 1
    forms = count * int(options.levels.is_form.any(axis=0).sum()) + len(options.spreads)
    at_most = min(
        most_queries // (ROUNDS * (len(options.model.sums(options.loads.shape[-1])) + 2)),
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
        self._sums = sums = model.sums(options.loads.shape[-1])
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
        self._maxima = np.stack([loads.max(axis=0) for loads in of_class])  # (G, maxima)

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
            held, tables = np.zeros(len(ways)), np.flatnonzero(np.isin(spread, ways))
            for table in tables[np.argsort(-alone[tables], kind="stable")].tolist():
                host = int(held.argmin())
                spread[table] = ways[host]
                held[host] += alone[table]
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
