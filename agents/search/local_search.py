"""Local search under a cost model: the reference that other agents are compared with."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from typing_extensions import override

from shard_gym.agents.base import CostGuidedAgent, require_whole, task_rng
from shard_gym.agents.base.agent import MAX_QUERIES
from shard_gym.agents.search.descent import BATCH, Budget
from shard_gym.agents.search.heuristics import CostGreedyAgent, lane_placements, paper_heuristics
from shard_gym.agents.search.memories import in_both_memories
from shard_gym.agents.search.plan_starts import by_lanes, packed
from shard_gym.agents.search.search_plans import SHARE_OF_STARTS, search_plans
from shard_gym.agents.search.splits import SplitOptions, SplitTables
from shard_gym.common.checks import checked_count, checked_positive, checked_seed
from shard_gym.common.errors import InvalidPlacementError, NoPlacementFoundError
from shard_gym.cost_models import AdditiveCostModel, CostModel, additive_estimate
from shard_gym.plans.placement import Placement, check_placement, pack_by_memory
from shard_gym.tasks import Task

QUERIES = 50_000
"""Evaluations for a task. The starts may take half of them; where they take more, these evaluations come on top."""


class LocalSearchAgent(CostGuidedAgent):
    """The search of `plan-search` (`search_plans`) over placements of whole tables, under any cost model.

    Its starts are those of the greedy agents, and plans that keep wide tables together (`plan_starts.by_lanes`). Under
    a cost model that is not additive, such as a measured one, moves are estimated one by one, nothing is rebuilt, and
    the greedy agent by cost uses the analytical one.

    Args:
        cost_model: the model to search under, or its name.
        max_queries: cost-model evaluations for each task, at most ten million; None for 50,000, and those of the starts
            besides where these are more than half of it. The starts are T (D + 1) evaluations of an additive model for
            T tables on D devices, and about 40 more; they may exceed it, and so may the last batch.
        max_seconds: wall-clock limit for each task; None for no limit. With a limit, results depend on the machine.
        seed: of the order in which moves are tried, and of the perturbations. Equal seeds give equal placements
            (without `max_seconds`).
    """

    name = "local-search"

    def __init__(
        self,
        cost_model: str | CostModel = "analytical",
        max_queries: int | None = None,
        max_seconds: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(cost_model)
        if max_seconds is not None:
            checked_positive("max_seconds", max_seconds)
        self.max_queries = None if max_queries is None else checked_count("max_queries", max_queries, most=MAX_QUERIES)
        self.max_seconds = max_seconds
        self.seed = checked_seed(seed)

    @property
    @override
    def search_budget(self) -> int:
        """Evaluations for a small task; see `budget_for`."""
        return self.max_queries or QUERIES

    @override
    def budget_for(self, task: Task) -> int:
        more = _start_queries(task) if _is_large(task) else 0
        return self.max_queries or min(QUERIES + more, MAX_QUERIES)

    @override
    def place(self, task: Task) -> Placement:
        require_whole(task)
        return in_both_memories(task, self._search).placement

    def _search(self, task: Task) -> SplitTables:
        queries = self.budget_for(task)
        budget = Budget(self.cost_model, queries, self.max_seconds)  # the starts count
        model = self.additive_model(task)
        options = SplitOptions(task, model)
        additive = model is self.cost_model
        try:
            found = [SplitTables.whole(options, placement) for placement in self._starts(task)]
        except NoPlacementFoundError:
            found = packed(options)
            if not found:
                raise
        if additive:
            most = int(SHARE_OF_STARTS * queries)
            found += by_lanes(SplitTables.whole(options, np.zeros(task.num_tables, np.int64)), most // 2)
        found = list({start.key: start for start in found}.values())
        return search_plans(found, task_rng(self.seed, task), budget, BATCH if additive else 1).in_order()

    def _starts(self, task: Task) -> list[Placement]:
        """Placements of all greedy agents that find one, and packed by memory if that fits."""
        starts = []
        for agent in (CostGreedyAgent(additive_estimate(self.cost_model)), *paper_heuristics()):
            try:
                starts.append(agent.place(task))
            except NoPlacementFoundError as error:
                failure = error
        if not isinstance(self.cost_model, AdditiveCostModel) or _is_large(task):  # else there are those of `by_lanes`
            with suppress(NoPlacementFoundError):
                starts += [placement for _, placement in lane_placements(task)]
        try:
            packed = check_placement(pack_by_memory(task.tables, task.num_devices), task.tables, task.topology)
            task.require_constraints(packed)
            if task.constraints is None or task.constraints.least_bytes is None:
                starts.append(packed)
        except InvalidPlacementError:
            pass
        if not starts:
            raise failure
        return list({placement.tobytes(): placement for placement in starts}.values())


def _start_queries(task: Task) -> int:
    return task.num_tables * (task.num_devices + 1)


def _is_large(task: Task) -> bool:
    """Whether the starts take more than half of the default."""
    return 2 * _start_queries(task) > QUERIES
