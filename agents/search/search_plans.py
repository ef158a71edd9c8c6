"""`search_plans`: the search of all agents that search under a cost model, from plans to start from."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np

from shard_gym.agents.search.descent import BATCH, Budget, Descent
from shard_gym.agents.search.pairs import PAIRED_FROM, PairSearch
from shard_gym.agents.search.rebuild import Rebuilder
from shard_gym.agents.search.reforms import Reformer
from shard_gym.agents.search.splits import SplitTables

SHARE_OF_STARTS, SHARE_OF_ROUND, SHARE_OF_REBUILDING = 0.5, 0.08, 0.01
"""Shares of the evaluations: after the first no start is made, the second is for each round of starts, the third for
rebuilding between two descents. Half of the plans are left after a round, so a start that is not the cheapest may win.
"""

MAX_STARTS = 16  # the cheapest of them are taken
ACCEPTED = 0.002  # the share by which a rebuilt plan may cost more and be taken, at first, on average; it falls to 0
MAX_FRUITLESS = 50  # rebuilds in a row in which no plan has a new cost: then all plans in reach are known
TRIED_AT_PRICES = 6  # reforms that are tried at the prices of one plan
DIGITS = 9  # after which equal costs differ by rounding
GAIN = 1e-7  # share of a sharp norm that a reform gains at least
REBUILT_SHARE = 0.1  # of the changes of plans on many devices; the others are reforms


def search_plans(
    found: Iterable[SplitTables], rng: np.random.Generator, budget: Budget, batch: int = BATCH
) -> SplitTables:
    """The cheapest plan found from the plans `found`, one at least.

    On fewer than `PAIRED_FROM` devices a plan is rebuilt (`Rebuilder`) and descends (`Descent`); on more it is balanced
    (`PairSearch`), and reformed (`Reformer`) and balanced again: descents would take all evaluations before they end.
    The cheapest starts are improved in rounds, and the cheaper half stays in. The last one is improved on, over and
    over, and what does not cost more is kept. The search ends when the budget is spent, or when rebuilding brings
    nothing new. With a `batch` of 1, for costs that take long, no plan is rebuilt, because that asks for the costs of
    parts of plans, and the cheapest start alone descends.
    """
    searches: list[_Balanced | _Rebuilt] = []
    for start in found:
        if not searches or batch > 1 or not budget.spent():
            paired = batch > 1 and start.options.task.num_devices >= PAIRED_FROM
            searches.append((_Balanced if paired else _Rebuilt)(start, rng, budget, batch))
    searches.sort(key=lambda search: search.best.rank)
    searches = searches[: MAX_STARTS if batch > 1 else 1]
    while len(searches) > 1 and not budget.spent():
        for search in searches:
            search.improve(budget.share + SHARE_OF_ROUND / len(searches))
        searches.sort(key=lambda search: search.best.rank)
        searches = searches[: len(searches) // 2]
    searches[0].run()
    return searches[0].best.found


class _Balanced(Descent):
    """A plan on many devices; `split` is the one with the lowest sharp norm."""

    def __init__(self, start: SplitTables, rng: np.random.Generator, budget: Budget, batch: int) -> None:
        super().__init__(start, rng, budget, batch)
        self._reformer: Reformer | None = None
        self._norm = np.inf
        self._balance(start)

    def _balance(self, split: SplitTables) -> bool:
        """Go on from `split`, balanced, if its sharp norm is lower than that of the plan; whether it is."""
        search = PairSearch(split.items(), split.device, self._rng, self.holds_in(split))
        search.run(self._spent)
        self.keep(split.moved(search.best.found), search.best.cost)
        lower = search.norm < self._norm * (1.0 - GAIN)
        if lower:
            self.split, self._norm = split.moved(search.placement), search.norm
        return lower

    def improve(self, until: float) -> None:
        """Change the forms of some tables, or rebuild, and balance, over and over."""
        self._until = until
        reformer = self._reformer = self._reformer or Reformer(self.split.options, self._rng)
        while not self._spent():
            if not reformer.has_forms or self._rng.random() < REBUILT_SHARE:
                self._rebuild()
                continue
            prices, tried = reformer.prices(self.split), 0
            while tried < TRIED_AT_PRICES and not self._spent():
                changed = reformer.changed(self.split, prices)
                tried += 1
                if changed is not None and self._balance(changed):
                    break

    def _rebuild(self) -> None:
        """Rebuild the plan, and balance it."""
        items = self.split.items()
        phases, _ = items.model.costs(items.device_loads(self.split.device), items.cluster)
        rebuilt = Rebuilder(self.split, phases, self._rng).rebuild(self._spent)
        best = int(rebuilt.costs.smoothed.argmin())
        if np.isfinite(rebuilt.costs.smoothed[best]):
            self._balance(rebuilt.plan(best))

    def run(self) -> None:
        """See `improve`."""
        self.improve(1.0)


class _Rebuilt(Descent):
    """A plan on a few devices."""

    def __init__(self, start: SplitTables, rng: np.random.Generator, budget: Budget, batch: int) -> None:
        super().__init__(start, rng, budget, batch)
        self._rebuilds, self._seen, self._fruitless = batch > 1, set[float](), 0

    def improve(self, until: float) -> None:
        """See `rebuild`."""
        self.rebuild(until)

    def run(self) -> None:
        """Descend; then change the plan, descend, and return if nothing better was found, until the budget is spent."""
        self.descend()
        while not self.budget.spent() and self._fruitless < MAX_FRUITLESS:
            before, cost = self.split, self.current.costs.smoothed
            if self._rebuilds and self._rng.random() < 0.5:
                self.rebuild(self.budget.share + SHARE_OF_REBUILDING)
            elif not self.perturb() and not self._rebuilds:
                return
            self.descend()
            if self.current.costs.smoothed > cost:
                self.take(before)

    def rebuild(self, until: float) -> None:
        """Rebuild the plan until that share of the budget is spent; take what costs less, or little more."""
        self._until = until
        split, phases, cost = self.split, self.current.phases_ms, float(self.current.costs.smoothed)
        while not self._spent() and self._fruitless < MAX_FRUITLESS:
            rebuilt = Rebuilder(split, phases, self._rng).rebuild(lambda: self.budget.share >= 1.0)
            costs = rebuilt.costs
            lowest = int(costs.exact.argmin())
            self.best.offer(float(costs.exact[lowest]), partial(rebuilt.plan, lowest))
            new = set(map(_rounded, costs.smoothed[np.isfinite(costs.smoothed)].tolist())) - self._seen
            self._seen |= new
            self._fruitless = 0 if new else self._fruitless + 1
            best = int(costs.smoothed.argmin())
            worse = ACCEPTED * max(0.0, 1.0 - self.budget.share) * self._rng.exponential()
            if costs.smoothed[best] < cost * (1.0 + worse):
                split, cost = rebuilt.plan(best), float(costs.smoothed[best])
                options = split.options
                phases, _ = options.model.costs(split.items().device_loads(split.device), options.cluster)
        self.take(split)


def _rounded(cost: float) -> float:
    return float(f"{cost:.{DIGITS}e}")
