"""Local search under a cost model: the reference that other agents are compared with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
from typing_extensions import override

from shard_gym.agents.base import MAX_QUERIES, CostGuidedAgent, task_rng
from shard_gym.agents.heuristics import CostGreedyAgent, lane_placements, paper_heuristics
from shard_gym.agents.items import Items
from shard_gym.agents.neighbourhood import Costs, Moves, Neighbourhood
from shard_gym.checks import checked_count, checked_positive, checked_seed
from shard_gym.cost_models import CostModel, CountedCostModel, CountedEstimates, additive_estimate
from shard_gym.errors import InvalidPlacementError, NoPlacementFoundError
from shard_gym.placement import Placement, check_placement
from shard_gym.tasks import Task, pack_by_memory

MIN_GAIN_MS = 1e-9  # a smaller gain is rounding error
LISTED = 4096  # moves listed at once

BATCH = 384
"""Moves costed at once. Larger batches have less overhead, but find the first gain later. With 512, the arrays of a
16-device task are so large that each is requested from the system, and the search runs at two thirds of the speed."""


MAX_IDLE = 1_000  # looks at the budget, about one for each placement that is tried, in which no cost was asked for

STARTS = 4
"""Placements from which the search descends before it goes on from the cheapest. The first ten test tasks of mixdim-4
cost 2.5% more than the best known from one start, 0.3% more from four."""


class Budget:
    """The evaluations of `cost_model`, and the seconds if limited, that a search has for one task from here on."""

    def __init__(
        self, cost_model: CountedCostModel | CountedEstimates, max_queries: int, max_seconds: float | None = None
    ) -> None:
        self._cost_model, self._max_queries = cost_model, max_queries
        self._first = self._last = cost_model.queries
        self._deadline = time.perf_counter() + max_seconds if max_seconds else float("inf")
        self._idle = 0

    def spent(self) -> bool:
        """Whether it is spent, or nothing was asked for long: the costs of all placements that are tried are known."""
        self._idle = self._idle + 1 if self._last == self._cost_model.queries else 0
        self._last = self._cost_model.queries
        return self.share >= 1.0 or self._idle >= MAX_IDLE or time.perf_counter() >= self._deadline

    @property
    def share(self) -> float:
        """The share of the evaluations that is spent."""
        return (self._cost_model.queries - self._first) / self._max_queries


class LocalSearchAgent(CostGuidedAgent):
    """Descent over moves and swaps from the best greedy placements, then from random perturbations of the cheapest.

    Among the starts are `lane_placements`: wide tables come together only by many moves at once, each of which makes a
    placement worse.

    Under a cost model that is not additive, such as a measured one, moves are estimated one by one, and the
    greedy agent by cost uses the analytical one.

    The descent follows the smoothed cost (see `neighbourhood.Costs`) and keeps the placement with the lowest exact one.

    Args:
        cost_model: the model to search under, or its name.
        max_queries: cost-model evaluations for each task, at most ten million. The last batch may exceed it, and so may
            the starts: T (D + 1) evaluations of an additive model for T tables on D devices, and about 40 more.
        max_seconds: wall-clock limit for each task; None for no limit. With a limit, results depend on the machine.
        seed: of the order in which moves are tried, and of the perturbations. Equal seeds give equal placements
            (without `max_seconds`).
    """

    name = "local-search"

    def __init__(
        self,
        cost_model: str | CostModel = "analytical",
        max_queries: int = 50_000,
        max_seconds: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(cost_model)
        if max_seconds is not None:
            checked_positive("max_seconds", max_seconds)
        self.max_queries = checked_count("max_queries", max_queries, most=MAX_QUERIES)
        self.max_seconds = max_seconds
        self.seed = checked_seed(seed)

    @property
    @override
    def search_budget(self) -> int:
        return self.max_queries

    @override
    def place(self, task: Task) -> Placement:
        budget = Budget(self.cost_model, self.max_queries, self.max_seconds)  # the starts count
        rng = task_rng(self.seed, task)
        model = self.additive_model(task)
        items = Items.of_tables(task, model)
        additive = model is self.cost_model
        starts: list[tuple[float, Neighbourhood]] = []
        for placement in self._starts(task):
            if additive or not starts or not budget.spent():  # a measured cost takes seconds
                start = Neighbourhood(items, placement)
                starts.append((float(start.costs.exact), start))
        starts.sort(key=lambda each: each[0])
        batch = BATCH if additive else 1
        half = budget.share + 0.5
        searches: list[Search] = []
        for _, start in starts[:STARTS]:
            if not searches or budget.share < half:
                searches.append(Search(start, rng, budget.spent, batch))
                searches[-1].descend()
        search = min(searches, key=lambda each: each.best_cost)
        search.run()
        return search.best

    def _starts(self, task: Task) -> list[Placement]:
        """Different placements: of all greedy agents that find one, by lanes, and packed by memory if that fits."""
        starts = []
        for agent in (CostGreedyAgent(additive_estimate(self.cost_model)), *paper_heuristics()):
            try:
                starts.append(agent.place(task))
            except NoPlacementFoundError as error:
                failure = error
        with suppress(NoPlacementFoundError):
            starts += [placement for _, placement in lane_placements(task)]
        try:
            starts.append(check_placement(pack_by_memory(task.tables, task.num_devices), task.tables, task.topology))
        except InvalidPlacementError:
            if not starts:
                raise failure from None
        return list({placement.tobytes(): placement for placement in starts}.values())


class Search:
    """One search over the placements of one task; `best` is the cheapest placement found, `best_cost` its cost."""

    def __init__(self, current: Neighbourhood, rng: np.random.Generator, spent: Callable[[], bool], batch: int) -> None:
        self._current = current
        self._batch = batch
        self._rng = rng
        self._spent = spent
        self.best = current.placement
        self.best_cost = float(current.costs.exact)

    def run(self) -> None:
        """After a descent: perturb, descend, and return if nothing better was found, until the budget is spent."""
        while not self._spent():
            local_optimum, cost = self._current.placement, self._current.costs.smoothed
            if not self._perturb():
                return
            self.descend()
            if self._current.costs.smoothed > cost:
                self._current.set_placement(local_optimum)

    def descend(self) -> None:
        """Apply moves that lower the cost until none does."""
        while not self._spent() and self._improve():
            pass

    def _improve(self) -> bool:
        """Apply the best move of the first batch, in random order, that has one with a gain; False if none has."""
        for batch in self._batches():
            costs = self._current.costs_after(batch)
            self._keep_best(batch, costs)
            best = int(costs.smoothed.argmin())
            if costs.smoothed[best] < self._current.costs.smoothed - MIN_GAIN_MS:
                self._current.set_placement(self._current.placement_after(batch, best))
                return True
            if self._spent():
                return False
        return False

    def _batches(self) -> Iterator[Moves]:
        """All moves of the critical tables, listed a few tables at a time: a large task rarely needs all of them."""
        items = self._current.items
        tables = self._rng.permutation(self._current.critical_tables())
        at_once = max(1, LISTED // (len(items) + items.num_devices))
        for first in range(0, len(tables), at_once):
            moves = self._current.moves(tables[first : first + at_once])
            shuffled = self._rng.permutation(len(moves))
            for start in range(0, len(moves), self._batch):
                yield moves.take(shuffled[start : start + self._batch])

    def _keep_best(self, batch: Moves, costs: Costs) -> None:
        """Keep the cheapest placement found, also where the smoothed cost leads elsewhere."""
        cheapest = int(costs.exact.argmin())
        if costs.exact[cheapest] < self.best_cost - MIN_GAIN_MS:
            self.best = self._current.placement_after(batch, cheapest)
            self.best_cost = float(costs.exact[cheapest])

    def _perturb(self) -> bool:
        """Apply two to four random moves to leave the local optimum; False if no move fits the memory."""
        tables = self._rng.permutation(len(self._current.items))
        wanted = int(self._rng.integers(2, 5))
        made = 0
        for table in tables:
            moves = self._current.moves(np.array([table]))
            if len(moves):
                which = int(self._rng.integers(len(moves)))
                self._current.set_placement(self._current.placement_after(moves, which))
                made += 1
            if made == wanted:
                break
        return made > 0
