"""Exact placement under the analytical cost model, by OR-Tools' CP-SAT: a placement, and a proven lower bound.

With the lane levels of the devices given, the cost is a sum of maxima of linear functions of the placement
(`cost_models/base/linear.py`). So each of the regions of `cost_models/bounds/placements.py` is an integer linear
program: a Boolean for each table and device, and three numbers to be minimized, the slowest forward, backward and
exchange; with host memory two numbers more for each device, what its reads and updates take at least. Devices of a
level are interchangeable, so they are ordered. Regions are solved from the lowest bound on, until the bound of what is
left reaches the best placement.

Why the bound is valid: CP-SAT computes with integers, so every coefficient in ms is multiplied by `scale` and rounded
down, and so is every offset, which is below 0 for HBM. Coefficients and Booleans are not negative. So the integer cost
of any placement is at most its true cost times `scale`, and a lower bound on the integer cost, divided by `scale`, is
one on the true cost. The memory is exact: bytes are integers.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.agents.base import CostGuidedAgent, require_whole
from shard_gym.agents.search.local_search import LocalSearchAgent
from shard_gym.common.checks import checked_count, checked_positive, checked_seed, is_not_negative
from shard_gym.common.errors import (
    InvalidOptionError,
    NoPlacementFoundError,
    StatesExceedHbmError,
    missing_extra,
    short_repr,
)
from shard_gym.cost_models import AdditiveCostModel, CostModel
from shard_gym.cost_models.base import LinearCosts
from shard_gym.cost_models.bounds.placements import ROUNDING, Region, regions
from shard_gym.plans.caps import rooms_of_kept, states_of_rows
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.placement import Placement, check_placement
from shard_gym.tables.tables import IN_HOST
from shard_gym.tasks import Task

RESOLUTION = 2.0**26
"""Integer cost of the best placement known. Rounding down loses less than one for each table and each of three maxima,
so a bound is up to 3 T / 2**26 too low: 2e-6 of the cost for 50 tables, and a quarter of that on four devices."""

ROOM = 1000  # where no placement is known, integer costs may be this multiple of `RESOLUTION`
LEAST_SHARE = 0.02  # the least share of the work for a task that a region is tried again with


@dataclass(frozen=True, eq=False)
class Solution:
    """What is known of a task after a search."""

    placement: Placement  # (T,) int64, the best placement found
    cost_ms: float  # its cost
    lower_bound_ms: float  # no placement costs less
    proven: bool  # whether no placement is better by more than the share `gap` of the agent


class ExactAgent(CostGuidedAgent):
    """The best placement of a small task, with a proof; of a larger one the best found, and a lower bound.

    It starts from local search. `solve` returns the bound with the placement; after `place`, `last_bound_ms` has it.

    Args:
        cost_model: the model, or its name; it must know its `linear_costs`, as the analytical one does.
        max_work: limit for each task in CP-SAT's deterministic time, which is about seconds on a fast core.
        max_seconds: wall-clock limit for each task; None for no limit. Local search and the linear programs count, but
            only CP-SAT is cut short. With a limit, or with several workers, results depend on the machine.
        workers: threads of CP-SAT.
        gap: a placement within this share of the lower bound counts as proven; solvers of integer programs commonly use
            1e-4. Much less than 1e-6 is below the rounding of the coefficients.
        max_queries: cost-model evaluations of the local search that it starts from.
        seed: of local search and of CP-SAT. Equal seeds give equal placements and bounds with one worker and the same
            version of OR-Tools.
    """

    name = "exact"

    def __init__(
        self,
        cost_model: str | CostModel = "analytical",
        max_work: float = 30.0,
        max_seconds: float | None = None,
        workers: int = 1,
        gap: float = 1e-4,
        max_queries: int = 10_000,
        seed: int = 0,
    ) -> None:
        super().__init__(cost_model)
        if max_seconds is not None:
            checked_positive("max_seconds", max_seconds)
        if not is_not_negative(gap) or gap >= 1:
            raise InvalidOptionError(f"gap must be a number from 0 to below 1, not {short_repr(gap)}.")
        self.max_work, self.max_seconds, self.gap = checked_positive("max_work", max_work), max_seconds, gap
        self.workers = checked_count("workers", workers, most=1024)
        self.seed = checked_seed(seed)
        self._start = LocalSearchAgent(self.cost_model, max_queries=max_queries, seed=seed)
        self._cp_model = _cp_model()

    @property
    def search_budget(self) -> int:
        """Queries of local search; CP-SAT's own search is not counted."""
        return self._start.search_budget

    @override
    def place(self, task: Task) -> Placement:
        return self.solve(task).placement

    def solve(self, task: Task, start: Placement | None = None) -> Solution:
        """The best placement found, and the lower bound.

        Args:
            task: the task.
            start: (T,) int64, a valid placement to improve on; that of local search if there is none.

        Raises:
            InvalidOptionError: the cost model is not known as linear functions.
            NoPlacementFoundError: neither local search nor CP-SAT found a placement.
        """
        model = self.cost_model
        costs = model.linear_costs(task.tables, task.topology) if isinstance(model, AdditiveCostModel) else None
        if costs is None:
            raise InvalidOptionError(
                f"Agent 'exact' needs a cost model of linear pieces, and {self.cost_model.name!r} is none. "
                "Use the cost model 'analytical', or the agent 'local-search'."
            )
        self.last_bound_ms = None
        require_whole(task)
        search = _Search(self, task, costs)
        if start is not None:
            start = check_placement(start, task.tables, task.topology)
            task.require_constraints(start)
        search.run(self.start(task) if start is None else start)
        if search.best is None:
            raise NoPlacementFoundError(
                f"Task {task.name!r} has no valid placement, which is proven: give the devices more memory"
                + ("." if task.constraints is None else ", or relax its constraints.")
                if search.bound_ms == float("inf")
                else f"No placement of task {task.name!r} was found within the limits. Raise max_work or max_seconds."
            )
        assert isinstance(model, AdditiveCostModel)  # it has linear costs
        simple = model.bounds(model.loads(task.tables, task.topology), task.topology)[0] * (1.0 - ROUNDING)
        self.last_bound_ms = bound = max(search.bound_ms, min(simple, search.best_ms))
        return Solution(search.best, search.best_ms, bound, bound >= search.limit_ms)

    def start(self, task: Task) -> Placement | None:
        """The placement of local search; None if its starts find none."""
        try:
            return check_placement(self._start.place(task), task.tables, task.topology)
        except (NoPlacementFoundError, StatesExceedHbmError):
            return None


def cutoff_ms(best_ms: float, gap: float) -> float:
    """Ms that a bound must reach to end a search: a little more than the gap asks for, which rounding may take."""
    return best_ms / (1.0 + 0.999 * gap) * (1.0 - ROUNDING)


class _Search:
    """The search for one task: the `best` placement so far, its cost `best_ms`, and the lower bound `bound_ms`."""

    def __init__(self, agent: ExactAgent, task: Task, costs: LinearCosts) -> None:
        self._agent, self._task, self._costs = agent, task, costs
        self._work = agent.max_work
        self._deadline = time.perf_counter() + agent.max_seconds if agent.max_seconds else float("inf")
        caps = task.topology.memory_cap_bytes
        equal = bool((caps == caps[0]).all()) and (task.constraints is None or bool(task.constraints.devices.all()))
        self._interchangeable = costs.interchangeable and equal
        self.best: Placement | None = None
        self.best_ms = float("inf")
        self.bound_ms = 0.0

    def run(self, start: Placement | None) -> None:
        """Solve regions, the lowest bound first, until the bound reaches the best placement or the work is spent."""
        if start is not None:
            self._keep(start)
        order = count()
        fresh = self._regions()
        following = next(fresh, None)
        heap: list[tuple[float, int, Region]] = []  # those tried already, with the bounds reached
        while heap or following is not None:
            if following is not None and (not heap or following.bound_ms <= heap[0][0]):
                bound, region, following = following.bound_ms, following, next(fresh, None)
            else:
                bound, _, region = heapq.heappop(heap)
            self.bound_ms = min(bound, self.best_ms)
            if bound > self.limit_ms or self._spent():
                return
            others = [ms for ms, *_ in heap] + ([following.bound_ms] if following is not None else [])
            work = self._work / 2 if min(others, default=float("inf")) <= self.limit_ms else self._work
            bound = max(bound, self._solve(region, work))
            heapq.heappush(heap, (bound, next(order), region))
        self.bound_ms = self.best_ms

    @property
    def limit_ms(self) -> float:
        """A region with a higher bound cannot improve the best placement by more than the gap."""
        return cutoff_ms(self.best_ms, self._agent.gap) * (1.0 - ROUNDING)

    def _regions(self) -> Iterator[Region]:
        """The regions; where devices differ, one for each choice of lines, because then no device has a fixed level."""
        seen = set()
        memory, caps = self._task.tables.memory_bytes, self._task.topology.memory_cap_bytes
        for region in regions(self._costs, memory, caps, self._task.constraints):
            if self._interchangeable and region.counts is not None:
                yield region
            elif region.lines not in seen:
                seen.add(region.lines)
                yield Region(region.bound_ms, None, region.lines)

    def _spent(self) -> bool:
        return self._work <= LEAST_SHARE * self._agent.max_work or time.perf_counter() >= self._deadline

    def _keep(self, placement: Placement) -> None:
        task = self._task
        cost = self._agent.cost_model.estimate(placement, task.tables, task.topology).total_ms
        if cost < self.best_ms:
            self.best, self.best_ms = placement, cost

    def _solve(self, region: Region, work: float) -> float:
        """Search a region for a better placement, with so much work, and return the bound reached, in ms."""
        cp_model, agent = self._agent._cp_model, self._agent
        program = _Program(cp_model, self._task, self._costs, region, self.best_ms, agent.gap)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = agent.workers
        solver.parameters.random_seed = agent.seed % 2**31
        solver.parameters.max_deterministic_time = work
        solver.parameters.max_time_in_seconds = min(self._deadline - time.perf_counter(), 1e9)
        status = solver.solve(program.model)
        self._work -= max(solver.response_proto.deterministic_time, 0.005 * agent.max_work)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            chosen = np.array([[solver.boolean_value(each) for each in row] for row in program.there])
            placement = check_placement(chosen.argmax(axis=1), self._task.tables, self._task.topology)
            self._task.require_constraints(placement)
            self._keep(placement)
        if status == cp_model.INFEASIBLE:
            return program.cutoff_ms
        return min(program.ms(solver.best_objective_bound), program.cutoff_ms)


class _Program:
    """The integer program of a region: its placements that cost less than the best so far by more than the gap."""

    def __init__(
        self, cp_model: Any, task: Task, costs: LinearCosts, region: Region, best_ms: float, gap: float
    ) -> None:
        self.model = cp_model.CpModel()
        self._cp_model, self._task, self._costs = cp_model, task, costs
        self.there = [[self.model.new_bool_var("") for _ in range(task.num_devices)] for _ in range(task.num_tables)]
        self._constant = float(costs.fixed_ms.sum() + 2.0 * costs.latency_ms)
        self._scale = RESOLUTION / (best_ms if best_ms < float("inf") else _largest_ms(costs))
        self._most = int(RESOLUTION) if best_ms < float("inf") else int(ROOM * RESOLUTION)
        self._add_memory()
        if task.constraints is not None:
            self._add_constraints(task.constraints)
        levels = self._levels(region)
        maxima = [self._compute(phase, levels) for phase in (0, 1)]
        if costs.links:
            maxima.append(self._exchange(region))
        objective = sum(maxima)
        self.cutoff_ms = cutoff_ms(best_ms, gap)
        if best_ms < float("inf"):
            self.model.add(objective <= int(np.floor((self.cutoff_ms - self._constant) * self._scale)))
        self.model.minimize(objective)

    def ms(self, integer_cost: float) -> float:
        return (integer_cost / self._scale + self._constant) * (1.0 - ROUNDING)

    def _scaled(self, ms: NDArray[np.float64]) -> list[int]:
        return [int(each) for each in np.floor(ms * self._scale)]

    def _sum(self, table_ms: NDArray[np.float64], device: int) -> Any:
        column = [row[device] for row in self.there]
        return self._cp_model.LinearExpr.weighted_sum(column, self._scaled(table_ms))

    def _add_memory(self) -> None:
        sizes = self._task.tables.memory_bytes
        divisor = int(np.gcd.reduce(sizes))
        units = [int(size) // divisor for size in sizes]
        for row in self.there:
            self.model.add_exactly_one(row)
        for device, cap in enumerate(self._task.topology.memory_cap_bytes.tolist()):
            if cap // divisor < sum(units):
                column = [row[device] for row in self.there]
                self.model.add(self._cp_model.LinearExpr.weighted_sum(column, units) <= cap // divisor)
        if self._task.tables.rows_in is not None:
            self._add_rooms_of_kept()

    def _add_rooms_of_kept(self) -> None:
        """Keep tables in HBM, and those in host memory, within what each device has of it."""
        tables = self._task.tables
        for where, rooms in rooms_of_kept(self._task.topology).items():
            kept = np.flatnonzero(tables.are_in(where))
            sizes = tables.memory_bytes - (states_of_rows(tables) if where == IN_HOST else 0)
            divisor = int(np.gcd.reduce(sizes[kept])) if len(kept) else 1
            own = (sizes[kept] // divisor).tolist()
            for device, room in enumerate(rooms.tolist() if own else ()):
                column = [self.there[table][device] for table in kept.tolist()]
                self.model.add(self._cp_model.LinearExpr.weighted_sum(column, own) <= room // divisor)

    def _add_constraints(self, limits: Constraints) -> None:
        for table, device in np.argwhere(~limits.devices).tolist():
            self.model.add(self.there[table][device] == 0)
        for members in limits.together:
            for device, first in enumerate(self.there[members[0]]):
                for member in members[1:]:
                    self.model.add(self.there[member][device] == first)
        for members in limits.apart:
            for device in range(self._task.num_devices):
                self.model.add_at_most_one([self.there[member][device] for member in members])

    def _levels(self, region: Region) -> list[list[Any]]:
        """For each device, what must be true for each level to apply: True, False or a Boolean."""
        costs, devices = self._costs, self._task.num_devices
        number = len(costs.lane_shares)
        if region.counts is None:
            at_least = [[True, *(self.model.new_bool_var("") for _ in range(number - 1))] for _ in range(devices)]
            for row, level in zip(self.there, costs.levels.tolist(), strict=True):
                for device in range(devices):
                    for below in range(1, level + 1):
                        self.model.add_implication(row[device], at_least[device][below])
            return at_least
        highest = [level for level in reversed(range(number)) for _ in range(region.counts[level])]
        highest += [0] * (devices - len(highest))
        for row, level in zip(self.there, costs.levels.tolist(), strict=True):
            for device in range(devices):
                if highest[device] < level:
                    self.model.add(row[device] == 0)
        self._order(highest)
        return [[level == own for level in range(number)] for own in highest]

    def _order(self, highest: list[int]) -> None:
        """Order the devices of each level by their backward compute: others are the same but for their numbers."""
        for device in range(1, len(highest)):
            if highest[device] == highest[device - 1]:
                table_ms = self._costs.ms[1, highest[device], 0]
                self.model.add(self._sum(table_ms, device - 1) >= self._sum(table_ms, device))

    def _compute(self, phase: int, levels: list[list[Any]]) -> Any:
        slowest = self.model.new_int_var(0, self._most, "")
        for device, applies in enumerate(levels):
            host = self._host(phase, device)
            for level, condition in enumerate(applies):
                if condition is False:
                    continue
                for table_ms in self._costs.ms[phase, level]:
                    constraint = self.model.add(slowest >= self._sum(table_ms, device) + host)
                    if condition is not True:
                        constraint.only_enforce_if(condition)
        return slowest

    def _host(self, phase: int, device: int) -> Any:
        """What a device reads from or updates in its host in a phase, at least."""
        host = self._costs.host
        if host is None:
            return 0
        took = self.model.new_int_var(0, self._most, "")
        for ms, hbm_ms in zip(host.times[phase] * host.ms, host.times[phase] * host.hbm_ms, strict=True):
            self.model.add(took >= self._sum(ms, device) + self._scaled(np.array([-hbm_ms]))[0])
        return took

    def _exchange(self, region: Region) -> Any:
        """Both all-to-alls, without latency."""
        slowest = self.model.new_int_var(0, self._most, "")
        for link, line in zip(self._costs.links, region.lines, strict=True):
            offset = self._scaled(np.array([2.0 * line.offset]))[0]
            for shares in link.shares:
                terms = [
                    self._sum(2.0 * line.slope * share * self._costs.outputs, device)
                    for device, share in enumerate(shares.tolist())
                    if share > 0
                ]
                self.model.add(slowest >= sum(terms) + offset)
        return slowest


def _largest_ms(costs: LinearCosts) -> float:
    """Ms that compute does not exceed, and that a `ROOM`-th of both all-to-alls does not, on any placement."""
    total = costs.outputs.sum()
    lines = [(line, link.shares.max() * total) for link in costs.links for line in link.lines]
    exchange = max((2.0 * (line.slope * most + line.offset) for line, most in lines), default=0.0)
    compute = costs.ms[:, -1].sum(axis=-1).max(axis=-1)
    if costs.host is not None:
        compute += costs.host.times * costs.host.read_ms(costs.host.ms.sum(axis=1))
    return float(max(compute.sum(), exchange / ROOM))


def _cp_model() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise missing_extra("ortools", "exact", "The agent 'exact'") from error
    return cp_model
