"""Local search under a cost model: the placement every other agent is measured against."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from shard_gym.agents.base import CostGuidedAgent
from shard_gym.agents.heuristics import CostGreedyAgent, paper_heuristics
from shard_gym.agents.neighbourhood import Changes, Costs, Neighbourhood
from shard_gym.checks import checked_seed
from shard_gym.cost_models import AdditiveCostModel, CountedCostModel
from shard_gym.errors import InvalidOptionError, InvalidPlacementError, NoPlacementFoundError
from shard_gym.placement import Placement, check_placement
from shard_gym.tasks import Task, pack_by_memory

MIN_GAIN_MS = 1e-9
"""A change that gains less is rounding error."""

FEW_CHANGES = 4096
"""Changes listed at once."""

BATCH = 384
"""Candidates costed at once: enough to make the arrays worth their while, few enough to move on early, and to keep the
arrays of a 16-device task small enough that the allocator need not ask the system for each (512 ran at two thirds)."""


class LocalSearchAgent(CostGuidedAgent):
    """Descent over moves and swaps from the best greedy placement, again and again from random kicks.

    The descent follows the smoothed cost (see `neighbourhood.Costs`) and keeps the placement with the lowest exact one.

    Args:
        cost_model: the model to search under, or its name.
        max_queries: placements to ask the model about, for each task; overrun by one batch at most.
        max_seconds: wall-clock limit for each task; None for none. With a limit, results depend on the machine.
        seed: of the order in which changes are tried, and of the kicks. Equal seeds, equal placements (without
            `max_seconds`).
    """

    name = "local-search"

    def __init__(
        self,
        cost_model: str | AdditiveCostModel = "analytical",
        max_queries: int = 50_000,
        max_seconds: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(cost_model)
        if max_queries < 1 or (max_seconds is not None and max_seconds <= 0):
            raise InvalidOptionError(
                f"max_queries must be at least 1 and max_seconds above 0; got {max_queries} and {max_seconds}."
            )
        self.max_queries = max_queries
        self.max_seconds = max_seconds
        self.seed = checked_seed(seed)

    @property
    def search_budget(self) -> int:
        """See `Agent`."""
        return self.max_queries

    def place(self, task: Task) -> Placement:
        """See `Agent`."""
        budget = self._budget()  # now: what the starts ask counts
        return self._searched(task, self.starts(task), budget)

    def improve(self, task: Task, starts: Sequence[Placement]) -> Placement:
        """The best placement met on the way from the cheapest of `starts` (valid, at least one)."""
        return self._searched(task, starts, self._budget())

    def _budget(self) -> _Budget:
        return _Budget(self.cost_model, self.max_queries, self.max_seconds)

    def _searched(self, task: Task, starts: Sequence[Placement], budget: _Budget) -> Placement:
        rng = np.random.default_rng([self.seed, zlib.crc32(task.name.encode())])
        around = [Neighbourhood(task, self.cost_model, placement) for placement in starts]
        search = _Search(min(around, key=lambda start: float(start.costs.exact)), rng, budget)
        search.run()
        return search.best

    def starts(self, task: Task) -> list[Placement]:
        """The placements of all greedy agents that find one, and the one packed by memory if it fits.

        Raises:
            NoPlacementFoundError: none of them does.
        """
        starts = []
        for agent in (CostGreedyAgent(self.cost_model), *paper_heuristics()):
            try:
                starts.append(agent.place(task))
            except NoPlacementFoundError as stranded:
                failure = stranded
        try:
            starts.append(check_placement(pack_by_memory(task.tables, task.num_devices), task.tables, task.topology))
        except InvalidPlacementError:
            if not starts:
                raise failure from None
        return starts


class _Budget:
    """How long one search may go on."""

    def __init__(self, model: CountedCostModel, max_queries: int, max_seconds: float | None) -> None:
        self._model = model
        self._last_query = model.queries + max_queries
        self._deadline = time.perf_counter() + max_seconds if max_seconds else float("inf")

    def spent(self) -> bool:
        return self._model.queries >= self._last_query or time.perf_counter() >= self._deadline


class _Search:
    """One search over the placements of one task; `best` is the cheapest placement met."""

    def __init__(self, around: Neighbourhood, rng: np.random.Generator, budget: _Budget) -> None:
        self._around = around
        self._rng = rng
        self._budget = budget
        self.best = around.placement
        self._best_cost = float(around.costs.exact)

    def run(self) -> None:
        """Descend, kick, and go back if the kick led nowhere, until the budget is spent."""
        self._descend()
        while not self._budget.spent():
            home, home_cost = self._around.placement, self._around.costs.smoothed
            if not self._kick():
                return
            self._descend()
            if self._around.costs.smoothed > home_cost:
                self._around.set_placement(home)

    def _descend(self) -> None:
        """Apply changes that gain until none does."""
        while not self._budget.spent() and self._improve():
            pass

    def _improve(self) -> bool:
        """Apply the best change of the first batch, in random order, that has one that gains; False if none has."""
        for batch in self._batches():
            costs = self._around.costs_after(batch)
            self._remember(batch, costs)
            best = int(costs.smoothed.argmin())
            if costs.smoothed[best] < self._around.costs.smoothed - MIN_GAIN_MS:
                self._around.set_placement(self._around.placement_after(batch, best))
                return True
            if self._budget.spent():
                return False
        return False

    def _batches(self) -> Iterator[Changes]:
        """All changes of the critical tables, a few tables at a time, for most are never looked at on a large task."""
        task = self._around.task
        tables = self._rng.permutation(self._around.critical_tables())
        at_once = max(1, FEW_CHANGES // (task.num_tables + task.num_devices))
        for first in range(0, len(tables), at_once):
            changes = self._around.around(tables[first : first + at_once])
            shuffled = self._rng.permutation(len(changes))
            for start in range(0, len(changes), BATCH):
                yield changes.take(shuffled[start : start + BATCH])

    def _remember(self, batch: Changes, costs: Costs) -> None:
        """Keep the cheapest placement met, also where the smoothed cost leads elsewhere."""
        cheapest = int(costs.exact.argmin())
        if costs.exact[cheapest] < self._best_cost - MIN_GAIN_MS:
            self.best = self._around.placement_after(batch, cheapest)
            self._best_cost = float(costs.exact[cheapest])

    def _kick(self) -> bool:
        """A few random changes, good or bad, to leave the local optimum; False if no change fits the memory."""
        everyone = self._rng.permutation(self._around.task.num_tables)
        wanted = int(self._rng.integers(2, 5))
        made = 0
        for table in everyone:
            changes = self._around.around(np.array([table]))
            if len(changes):
                which = int(self._rng.integers(len(changes)))
                self._around.set_placement(self._around.placement_after(changes, which))
                made += 1
            if made == wanted:
                break
        return made > 0
