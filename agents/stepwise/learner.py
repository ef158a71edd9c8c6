"""Training of `stepwise`: constants from the costs of random plans, then weights by an evolution strategy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.agents.search.moldable import Moldable
from shard_gym.agents.search.own_times import ROUGH, OwnTimes
from shard_gym.agents.search.splits import SplitOptions, SplitTables
from shard_gym.agents.stepwise.agent import MOST_LOGARITHM, StepwiseAgent, own_constants
from shard_gym.agents.stepwise.evolution import Evolution
from shard_gym.agents.stepwise.steps import START, Built, Steps
from shard_gym.agents.training import Learner, Report
from shard_gym.agents.training.suites import suites_to_learn
from shard_gym.common.arrays import FloatArray
from shard_gym.common.checks import checked_count, checked_positive
from shard_gym.common.errors import InvalidOptionError, short_repr
from shard_gym.common.io.arrays import Arrays, prefixed, require_arrays, under
from shard_gym.common.system import one_blas_thread
from shard_gym.cost_models import AdditiveCostModel, CostEstimate, CostModel, make_cost_model
from shard_gym.plans import SHARDING_TYPES
from shard_gym.plans.plan import ONE_GROUP, TABLE_WISE
from shard_gym.tasks import Task, TaskSuite
from shard_gym.tasks.groups import task_of_group

TASKS, DRAWS, CONSTANTS, AGENT = range(4)  # purposes of random generators
FAILURE = 1.5  # a plan in which a table found no room counts as this many times the costliest one of its task
FITTED, PLANS = 8, 16  # tasks that the constants are learned from, and plans of each
CONSTANTS_SIGMA, CONSTANTS_POPULATION = 0.3, 12
ROUGH_STAYS = 3e-3  # the price of a constant that is e times the rough one, as a share of the cost
WIDER = (1.0, 0.5, 1.7, 2.6)  # times the deviations of the distribution: how far the agent's sets are drawn
REST = 0.05
"""Sets of weights are scored by how far their plans are below that of the rule `moldable`, and so much by all costs.

The agent keeps the cheapest of many plans and of those of the rule, so a set has to be good somewhere, not everywhere.
Scored by mean logarithms alone, what was learned was no better than where it began, once descents had improved the
plans; scored by how far they are below the cheapest quarter of a task, plans of 20 test tasks of mixdim-8 were 2.1%
above the best known ones, and so 1.8%, where learning began at 2.7% (two seeds, 30 November 2026)."""
MOST_SIGMA = 5.0  # of the deviations to begin with
LEAST_MS = 1e-9  # a cost model may say 0
SETS = 64  # of weights, in the agent's file
EVOLUTION = "evolution."  # prefix of its arrays in a state


@dataclass(frozen=True)
class _Ready:
    """A task of one group, ready to build plans of it."""

    task: Task
    steps: Steps
    options: SplitOptions  # with the loads of the true cost, if it is additive
    rule_ms: float  # what the rule's plan truly costs; not finite if it has none


@dataclass(frozen=True)
class _Seen:
    """Plans, and what they truly cost."""

    ready: _Ready
    built: Built
    known: NDArray[np.bool_]  # (N,)
    phases_ms: FloatArray  # (N, D, 4)
    ms: FloatArray  # (N,)


class StepwiseLearner(Learner):
    """`stepwise` in training: 8 constants of `OwnTimes` and the distribution of 15 weights.

    The first iteration builds plans with random weights for tasks of `suite`, and fits the constants to their phases.
    Each further one is a generation: each of `population` sets of weights builds a plan of each of `tasks` tasks, and
    the distribution of weights moves to the sets whose plans were furthest below that of the rule.

    Args:
        suite, cost_model, seed: see `Learner`.
        name: the agent's name.
        also: names of more suites, with commas between them: each generation has as many tasks of each suite.
        iterations: generations, and one more.
        tasks: of each suite, in each generation.
        population: sets of weights.
        sigma: their standard deviations at the start, of logarithms.
        generations: of the constants.
        largest: tables times devices of a task to learn from, at most; a suite that has none is learned from as it is.

    Raises:
        InvalidOptionError: an option is out of range.
    """

    def __init__(
        self,
        suite: TaskSuite,
        cost_model: CostModel,
        seed: int,
        *,
        name: str = "stepwise",
        also: str = "",
        iterations: int = 60,
        tasks: int = 4,
        population: int = 24,
        sigma: float = 0.6,
        generations: int = 30,
        largest: int = 1000,
    ) -> None:
        suites = suites_to_learn(suite, also)
        plans = any(task.splittable for each in suites for task in each)
        super().__init__(suite, make_cost_model(cost_model, splits=True) if plans else cost_model, seed)
        self.name = name
        self.iterations = checked_count("iterations", iterations)
        self.tasks = checked_count("tasks", tasks)
        self.population = checked_count("population", population, least=4)
        self.generations = checked_count("generations", generations)
        checked_positive("sigma", sigma)
        if sigma > MOST_SIGMA:
            raise InvalidOptionError(
                f"sigma must be at most {MOST_SIGMA:g}, not {short_repr(sigma)}: it is of logarithms of factors."
            )
        checked_count("largest", largest)
        self._pools = [
            [task for task in each if task.num_tables * task.num_devices <= largest] or list(each) for each in suites
        ]
        self._names = [f"{each.name}/{each.split}" for each in suites[1:]]
        if also:
            self.sources = {"also_sha256": [each.sha256 for each in suites[1:]]}
        self._constants = np.zeros(len(ROUGH))  # logarithms of what the rough ones are multiplied by
        self._evolution = Evolution(START, sigma, self.population)
        self._ready: dict[tuple[int, int], _Ready] = {}

    @override
    def iterate(self) -> Report:
        with one_blas_thread():
            return self._generation() if self.iteration else self._fit_constants()

    def _fit_constants(self) -> Report:
        self.on_stage("costing random plans")
        rng = self.rng(CONSTANTS)
        seen = [self._seen(ready, self._drawn(rng, PLANS)) for ready in self._some(self.rng(TASKS), 1, FITTED)]
        seen = [each for each in seen if each.known.any()]
        self.on_stage("fitting the constants of own times")
        evolution = Evolution(self._constants, CONSTANTS_SIGMA, CONSTANTS_POPULATION)
        for _ in range(self.generations if seen else 0):
            found = evolution.draw(rng)
            evolution.tell(found, np.array([_error(each, seen) for each in found]))
        self._constants = evolution.mean
        self._ready.clear()
        costs = np.concatenate([each.ms[each.known] for each in seen] or [np.array([np.nan])])
        return Report(float(costs.mean()), {"error": _error(self._constants, seen) if seen else 0.0})

    def _generation(self) -> Report:
        weights = self._evolution.draw(self.rng(DRAWS))
        scores, costs, failed = np.zeros(self.population), list[float](), 0
        for ready in self._some(self.rng(TASKS)):
            seen = self._seen(ready, weights)
            failed += int((~seen.known).sum())
            if seen.known.any():
                ms = np.where(seen.known, seen.ms, FAILURE * seen.ms[seen.known].max())
                logs = np.log(np.maximum(ms, LEAST_MS))
                known = np.isfinite(ready.rule_ms)
                rule = np.log(max(ready.rule_ms, LEAST_MS)) if known else logs.mean()
                scores += np.minimum(logs - rule, 0.0) + REST * (logs - logs.mean())
                costs.append(float(ms.mean()))
        self._evolution.tell(weights, scores)
        numbers = {"sigma": self._evolution.sigma, "failed": float(failed)}
        return Report(float(np.mean(costs)) if costs else float("nan"), numbers)

    def _drawn(self, rng: np.random.Generator, count: int) -> FloatArray:
        """(count, `Weight`) sets, some of them far from the mean."""
        drawn, mean = self._evolution.draw(rng, count), self._evolution.mean
        wide = mean + (drawn - mean) * np.resize(WIDER, count)[:, None]
        return np.asarray(np.clip(wide, -MOST_LOGARITHM, MOST_LOGARITHM))

    def _some(self, rng: np.random.Generator, suites: int | None = None, count: int | None = None) -> list[_Ready]:
        """So many tasks of each of the first suites."""
        found = []
        for suite, pool in enumerate(self._pools[:suites]):
            for number in rng.choice(len(pool), min(count or self.tasks, len(pool)), replace=False).tolist():
                if (suite, number) not in self._ready:
                    self._ready[suite, number] = self._prepared(pool[number])
                found.append(self._ready[suite, number])
        return found

    def _prepared(self, task: Task) -> _Ready:
        task = task_of_group(task, ONE_GROUP) if task.sync_every else task
        own = OwnTimes(task.tables, task.topology, own_constants(self._constants))
        types = SHARDING_TYPES if task.splittable else (TABLE_WISE,)
        options, model = SplitOptions(task, own, types), self.cost_model
        true = SplitOptions(task, model, types) if isinstance(model, AdditiveCostModel) else options
        by_rule = Moldable(options, own).plans()
        estimate = self._estimate(by_rule[0][1]) if by_rule else None
        return _Ready(task, Steps(options, own), true, float("nan") if estimate is None else estimate.total_ms)

    def _estimate(self, split: SplitTables) -> CostEstimate | None:
        """What a plan truly costs; None if that is not known."""
        task = split.options.origin
        answer = split.plan() if task.splittable else split.in_order().placement
        return self.true_cost(answer, task.tables, task.topology)

    def _seen(self, ready: _Ready, weights: FloatArray) -> _Seen:
        """The plans that sets of weights build, with their true costs."""
        built, task, model = ready.steps.build(weights), ready.task, self.cost_model
        known = np.isfinite(built.ms)
        if isinstance(model, AdditiveCostModel):
            before = model.queries
            phases, ms = model.costs(built.loads(ready.options), ready.options.cluster)
            model.queries = before + int(known.sum())  # the others are no plans
            self.require_costs(ms[known])
            self.costed += int(known.sum())
            return _Seen(ready, built, known, phases, ms)
        phases, ms = np.zeros((len(known), task.num_devices, 4)), np.zeros(len(known))
        for number in np.flatnonzero(known).tolist():
            estimate = self._estimate(built.split(number, ready.options))
            known[number] = estimate is not None
            if estimate is not None:
                phases[number], ms[number] = estimate.phases_ms, estimate.total_ms
        return _Seen(ready, built, known, phases, ms)

    @override
    def state(self) -> Arrays:
        return {"constants": self._constants.copy(), **prefixed(EVOLUTION, self._evolution.state())}

    @override
    def load_state(self, arrays: Arrays) -> None:
        require_arrays("The state", arrays, self.state())
        self._constants = arrays["constants"].copy()
        self._evolution.load_state(under(EVOLUTION, arrays))
        self._ready.clear()

    @override
    def weights(self) -> Arrays:
        rng = np.random.default_rng([self.seed, AGENT])
        sets = self._drawn(rng, SETS)
        sets[0] = np.clip(self._evolution.mean, -MOST_LOGARITHM, MOST_LOGARITHM)
        return {"weights": sets, "constants": self._constants.copy()}

    @override
    def about(self) -> dict[str, Any]:
        return {"more_data": self._names} if self._names else {}

    @override
    def agent(self) -> StepwiseAgent:
        arrays = self.weights()
        return StepwiseAgent(self.name, arrays["weights"], arrays["constants"])


def _error(constants: FloatArray, seen: list[_Seen]) -> float:
    """How far phases of plans are from true ones, of all devices and of the slowest, as a share of the true cost."""
    found = []
    for each in seen:
        task, options = each.ready.task, each.ready.steps.options
        model = OwnTimes(task.tables, task.topology, own_constants(constants))
        phases = model.device_phases(each.built.loads(options.under(model)))
        every = np.abs(phases - each.phases_ms).sum(axis=-1).mean(axis=-1)
        slowest = np.abs(phases.max(axis=1) - each.phases_ms.max(axis=1)).sum(axis=-1)
        found.append(((0.5 * every + slowest) / each.ms)[each.known].mean())
    return float(np.mean(found)) + ROUGH_STAYS * float(np.abs(constants).mean())
