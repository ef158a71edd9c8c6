"""Moves and swaps between pairs of devices, in all pairs at once: `PairSearch`, which balances many devices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.search.descent import Best
from shard_gym.agents.search.items import Items
from shard_gym.agents.search.neighbourhood import NO_TABLE, TINY, Neighbourhood, smoothed_ms
from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.cost_models.base.model import MAX_NUMBERS
from shard_gym.cost_models.base.one_more import largest_of_others
from shard_gym.plans.placement import Placement

PAIRED_FROM = 32
"""Devices from which plans are balanced in pairs. On 16, descents of each plan find more."""

CHANGES = 400
"""Changes of each pair that a round tries at most, of all that there are."""

STALLED = 3
"""Rounds in a row without a gain after which a norm is done; each has other pairs."""

SQUARINGS = (6, 8)
"""Squarings of the norms of `smoothed_ms` that are lowered one after another. On 128 devices that are equally slow, a
norm with 4 is 35% above the maximum, with 6 it is 8% and with 8 2%."""

GAIN = 1e-9  # share of a norm; less is rounding
WORTH = 3e-5  # share of a norm; a round that gains less is counted as one without a gain
STEEPEST = 2.0**16  # a change counts no worse than this, so that no number overflows


class PairSearch:
    """A descent of a placement of items over changes of many devices at once.

    In each round the devices are paired, in one of three ways at random (`_pairs`). In each pair an item of one moves
    to the other, or two are exchanged, and all pairs do so at once: the placement in which each makes its change number
    k is costed for every k. What it says of two devices is nearly true of their change alone, because what a device
    takes depends little on the others. So a round takes one evaluation for each change of a pair, and not
    for each change of each pair; about n^2 with n items on a device, whatever the number of devices. Then all pairs
    make their best changes together; if that does not lower the norm, the half of them that gains most, and so on.

    Args:
        items: the items.
        placement: (I,) int64, a valid one.
        rng: pairs devices.
        holds: see `Best`.

    Attributes:
        placement: (I,) int64, the current placement.
        norm: its norm in ms; after `run` the sharpest one, whether or not that was lowered to the end.
        cost_ms: its cost.
        best: (I,) int64, the placement of the lowest cost on the way.
    """

    def __init__(
        self,
        items: Items,
        placement: Placement,
        rng: np.random.Generator,
        holds: Callable[[Placement], bool] | None = None,
    ) -> None:
        self._items, self._rng = items, rng
        self._loads = np.concatenate([items.loads, np.zeros((1, items.loads.shape[1]))])  # the last item is none
        self._memory = np.append(items.memory, 0)
        self._fixed = np.zeros((items.num_devices, items.loads.shape[1])) if items.fixed is None else items.fixed
        self._squarings = SQUARINGS[0]
        self._take(placement)
        self.best = Best(self.placement, self.cost_ms, holds)

    def _take(self, placement: Placement) -> None:
        model, cluster = self._items.model, self._items.cluster
        self.placement, self._held = placement, self._items.device_loads(placement)
        self._phases, exact = model.costs(self._held, cluster)
        self.cost_ms = float(exact)
        self.norm = float(smoothed_ms(self._phases, self._squarings))

    def run(self, spent: Callable[[], bool]) -> None:
        """Lower the norms one after another until rounds gain nothing; or until `spent` says that it has to end."""
        for self._squarings in SQUARINGS:
            self.norm, idle = float(smoothed_ms(self._phases, self._squarings)), 0
            while idle < STALLED and len(self._items) and not spent():
                before = self.norm
                self._round()
                idle = 0 if self.norm < before * (1.0 - WORTH) else idle + 1

    def _round(self) -> bool:
        """One round; whether it lowered the norm."""
        items, held, nothing = self._items, self._held, len(self._items)
        on, without = self._slots()
        slowest = np.maximum(self._phases.max(axis=0), TINY)
        power = self._power(self._phases / slowest)
        # The derivative of the norm by the power of a device.
        weight = slowest * np.maximum(power.sum(axis=0), 1.0) ** (0.5**self._squarings - 1.0)
        potential = power @ weight
        one, other = self._pairs(potential)
        slots = on.shape[1]
        i, j = (each.ravel()[:-1] for each in np.meshgrid(np.arange(slots), np.arange(slots), indexing="ij"))
        most = min(CHANGES, max(8, MAX_NUMBERS // (2 * held.size)))
        if len(i) > most:
            chosen = self._rng.choice(len(i), most, replace=False)
            i, j = i[chosen], j[chosen]
        gives, gets = on[one][:, i].T, on[other][:, j].T  # (changes, pairs)
        fits = self._fits(one, other, gives, gets)
        model, loads = items.model, np.repeat(held[None], len(i), axis=0)
        ends = (one, without[one][:, i], gets), (other, without[other][:, j], gives)
        for device, rest, joins in ends:
            joined = model.add(rest.swapaxes(0, 1), self._loads[joins])
            loads[:, device] = np.where(fits[..., None], joined, held[device])
        phases, _ = model.costs(loads, items.cluster)
        after = self._power(np.minimum(phases / slowest, STEEPEST ** (0.5**self._squarings))) @ weight
        after = np.where(fits, after[:, one] + after[:, other], np.inf)
        best = after.argmin(axis=0)
        gain = potential[one] + potential[other] - after[best, np.arange(len(one))]
        good = np.flatnonzero(gain > GAIN * potential.sum())
        good = good[np.argsort(-gain[good], kind="stable")]
        return self._make(one, other, gives[best, np.arange(len(one))], gets[best, np.arange(len(one))], good, nothing)

    def _power(self, ratio: FloatArray) -> FloatArray:
        power = ratio.copy()
        for _ in range(self._squarings):
            np.square(power, out=power)
        return power

    def _slots(self) -> tuple[IntArray, FloatArray]:
        """(D, n + 1) the items of each device, then none; and (D, n + 1, K) what it holds without each."""
        devices, nothing, maxima = self._items.num_devices, len(self._items), self._items.model.maxima
        count = np.bincount(self.placement, minlength=devices)
        order = np.argsort(self.placement, kind="stable")
        of_item = self.placement[order]
        on = np.full((devices, int(count.max()) + 1), nothing)
        on[of_item, np.arange(nothing) - (np.cumsum(count) - count)[of_item]] = order
        own = self._loads[on]
        without = np.maximum(self._held[:, None] - own, self._fixed[:, None])  # where rounding leaves less
        largest = np.concatenate([own[..., maxima], self._fixed[:, None, maxima]], axis=1).swapaxes(1, 2)
        without[..., maxima] = largest_of_others(largest).swapaxes(1, 2)[:, :-1]
        return on, without

    def _pairs(self, potential: FloatArray) -> tuple[IntArray, IntArray]:
        """The devices of each pair: the slowest with the fastest and so on, at random a slow and a fast one, or any."""
        half, kind = len(potential) // 2, self._rng.integers(3)
        order = self._rng.permutation(len(potential)) if kind == 0 else np.argsort(-potential, kind="stable")
        slow, fast = order[:half], order[::-1][:half]
        return (slow, fast) if kind < 2 else (self._rng.permutation(slow), self._rng.permutation(fast))

    def _fits(self, one: IntArray, other: IntArray, gives: IntArray, gets: IntArray) -> NDArray[np.bool_]:
        """(changes, pairs) whether memory and constraints permit what device `one` gives and gets."""
        items, nothing = self._items, len(self._items)
        free, grows = items.memory_left(self.placement), self._memory[gets] - self._memory[gives]
        fits = (free[one] >= grows) & (free[other] >= -grows) & ((gives != nothing) | (gets != nothing))
        if items.constraints is None:
            return np.asarray(fits)
        which = np.nonzero(fits)
        mover, partner, target = gives[which], gets[which], other[which[1]]
        comes = mover == nothing
        target = np.where(comes, one[which[1]], target)
        mover, partner = np.where(comes, partner, mover), np.where(comes | (partner == nothing), NO_TABLE, partner)
        fits[which] = Neighbourhood(items, self.placement).permitted(mover, target, partner)
        return np.asarray(fits)

    def _make(
        self, one: IntArray, other: IntArray, gives: IntArray, gets: IntArray, good: IntArray, nothing: int
    ) -> bool:
        """Make the changes of the pairs `good`, best first, or of the first half of them, ..; whether any were made."""
        before, norm = self.placement, self.norm
        while len(good):
            placement = np.append(before, 0)
            placement[gives[good]], placement[gets[good]] = other[good], one[good]
            self._take(placement[:nothing])
            self.best.offer(self.cost_ms, lambda: self.placement, least_gain_ms=0.0)
            if self.norm < norm * (1.0 - GAIN):
                return True
            good = good[: len(good) // 2]
        if self.placement is not before:
            self._take(before)
        return False
