"""Local search under a cost model: the placement every other agent is measured against."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator

import numpy as np

from shard_gym.agents.base import CostGuidedAgent
from shard_gym.agents.heuristics import CostGreedyAgent
from shard_gym.agents.neighbourhood import Changes, Neighbourhood
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.cost_models.base import FloatArray
from shard_gym.errors import InvalidOptionError, InvalidPlacementError, NoPlacementFoundError
from shard_gym.placement import Placement, check_placement
from shard_gym.tasks import Task, pack_by_memory

MIN_GAIN_MS = 1e-9
"""A change that gains less is rounding error."""

BATCH = 8192
"""Candidates costed at once; bounds the memory."""


class LocalSearchAgent(CostGuidedAgent):
    """Steepest descent over moves and swaps from the cost-greedy placement, again and again from random kicks.

    Args:
        cost_model: the model to search under, or its name.
        max_queries: placements to ask the model about, for each task.
        max_seconds: wall-clock limit for each task; None for none. With a limit, results depend on the machine.
        seed: of the kicks. Equal seeds, equal placements (without `max_seconds`).
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
        self.seed = seed
        self._start = CostGreedyAgent(self.cost_model)
        self._start.cost_model = self.cost_model  # one counter for both

    def place(self, task: Task) -> Placement:
        """See `Agent`."""
        self._last_query = self.cost_model.queries + self.max_queries
        self._deadline = time.perf_counter() + self.max_seconds if self.max_seconds else float("inf")
        rng = np.random.default_rng([self.seed, zlib.crc32(task.name.encode())])
        around = Neighbourhood(task, self.cost_model, self._first_placement(task))
        self._descend(around)
        best, best_cost = around.placement, around.cost_ms
        while not self._exhausted() and task.num_devices > 1:
            self._kick(around, rng)
            self._descend(around)
            if around.cost_ms < best_cost - MIN_GAIN_MS:
                best, best_cost = around.placement, around.cost_ms
            else:
                around.set_placement(best)
        return best

    def _first_placement(self, task: Task) -> Placement:
        try:
            return self._start.place(task)
        except NoPlacementFoundError as stranded:  # the order by cost can strand a large table, by size seldom does
            try:
                return check_placement(pack_by_memory(task.tables, task.num_devices), task.tables, task.topology)
            except InvalidPlacementError:
                raise stranded from None

    def _exhausted(self) -> bool:
        return self.cost_model.queries >= self._last_query or time.perf_counter() >= self._deadline

    def _descend(self, around: Neighbourhood) -> None:
        """Apply the best change until none gains."""
        while not self._exhausted():
            changes = around.around(around.critical_tables())
            if not len(changes):
                return
            costs = np.concatenate(list(self._costs_in_batches(around, changes)))
            best = int(costs.argmin())
            if costs[best] >= around.cost_ms - MIN_GAIN_MS:
                return
            around.apply(changes, best)

    def _costs_in_batches(self, around: Neighbourhood, changes: Changes) -> Iterator[FloatArray]:
        """The cost after each change, in order, up to the batch in which the queries or the time run out."""
        for start in range(0, len(changes), BATCH):
            yield around.costs(changes.take(np.arange(start, min(start + BATCH, len(changes)))))
            if self._exhausted():
                return

    def _kick(self, around: Neighbourhood, rng: np.random.Generator) -> None:
        """A few random changes, good or bad, to leave the local optimum."""
        for _ in range(int(rng.integers(2, 5))):
            changes = around.around(rng.integers(around.task.num_tables, size=1))
            if len(changes):
                around.apply(changes, int(rng.integers(len(changes))))
