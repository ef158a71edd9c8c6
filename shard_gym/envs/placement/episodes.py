"""N episodes at once: tasks, states, rewards, observations. The scalar environment is N = 1, the vector one any N."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models import AdditiveCostModel, CostModel, make_cost_model
from shard_gym.cost_models.base import FloatArray
from shard_gym.envs.placement.failure import describe_failure
from shard_gym.envs.placement.observation import Observation, ObservationDict, make_observation
from shard_gym.envs.placement.prepared_tasks import PreparedTasks
from shard_gym.envs.placement.problem import IntArray, Problem, require_room
from shard_gym.envs.placement.reward import Reward, Transition, make_reward
from shard_gym.envs.placement.state import COMPLETE, RUNNING, PlacementState, action_mask, advance, begin, initial_state
from shard_gym.envs.placement.viewer import PlacementView
from shard_gym.errors import InvalidCostError, InvalidOptionError, wrong_kind
from shard_gym.suites import load_suite
from shard_gym.tasks import Task, TaskSource, TaskSuite


class Episodes:
    """N episodes of embedding table placement. Arguments are those of `EmbeddingPlacementEnv`, and `num_envs`.

    Attributes:
        source: where tasks come from.
        cost_model: what estimates the costs.
        final_cost: the cost model of complete placements; None for `cost_model`.
        observe: what describes the episodes.
        max_tables: padding of the tables.
        max_devices: padding of the devices.
        tasks: the task of each episode; None before the first `begin`.
        state: where each episode stands; changed in place.
    """

    def __init__(
        self,
        num_envs: int,
        suite: str | TaskSource,
        split: str,
        cost_model: str | Path | AdditiveCostModel,
        reward: str | Reward,
        observation: str | Observation,
        max_tables: int | None,
        max_devices: int | None,
    ) -> None:
        self.source = task_source(suite, split)
        self.cost_model = make_cost_model(cost_model)
        self.max_tables = _padding("max_tables", max_tables, self.source.max_tables)
        self.max_devices = _padding("max_devices", max_devices, self.source.max_devices)
        self.observe = make_observation(observation)
        self._reward = make_reward(reward)
        self._bank = PreparedTasks(self.source, self.cost_model, self.max_tables, self.max_devices, num_envs)
        self.final_cost: CostModel | None = None
        self._details: dict[int, dict[str, float]] = {}
        self.tasks: list[Task | None] = [None] * num_envs
        self.state = initial_state(self.problem, self.cost_model)
        self._constant = self.observe.constant(self.problem)

    @property
    def problem(self) -> Problem:
        """What the episodes are solving; changed in place."""
        return self._bank.problem

    def choose(self, rng: np.random.Generator, key: Any = None) -> Task:
        """The task that `key` names (an index, a name or a Task); one drawn with `rng` if it is None.

        Raises:
            InvalidOptionError: the index is out of range, or the source's tasks have no numbers.
            UnknownNameError: no task has that name.
            InvalidTaskError: a Task with more tables or devices than the padding holds.
        """
        if key is None:
            return self.source.sample(rng)
        if isinstance(key, Task):
            require_room(key, self.max_tables, self.max_devices)  # now, before any episode begins
            return key
        if isinstance(self.source, TaskSuite):
            return self.source.task(key)
        raise InvalidOptionError(f"{self.source!r} has no numbered tasks; pass a Task as options['task'], not {key!r}.")

    def begin(self, envs: IntArray, tasks: Sequence[Task]) -> None:
        """Start episode `envs[i]` anew with `tasks[i]`.

        Raises:
            InvalidTaskError: a task has more tables or devices than the padding holds.
        """
        self._bank.begin(envs, tasks)
        begin(self.problem, self.state, envs)
        for env, task in zip(envs.tolist(), tasks, strict=True):
            self.tasks[env] = task
            self._details.pop(env, None)
            if self.final_cost is not None:
                self.problem.penalty_ms[env] = self.final_cost.penalty_ms(task.tables, task.topology)
        for key, rows in self.observe.constant(self.problem, envs).items():
            self._constant[key][envs] = rows

    def step(self, actions: NDArray[np.integer[Any]]) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Place the current tables on devices `actions` (N,); episodes that are over stay as they are.

        Returns:
            (N,) float64 rewards, 0 where the episode was over before; (N,) bool, where it ended with this step.
        """
        state, problem = self.state, self.problem
        cost_before, was_over = state.cost_ms.copy(), state.over
        before = state.copy() if self.final_cost is not None else None
        advance(problem, state, actions, self.cost_model)
        over = state.over > was_over
        if self.final_cost is not None:
            try:
                self._charge_final_cost(np.flatnonzero(over & (state.status == COMPLETE)), self.final_cost)
            except BaseException:
                assert before is not None
                self.state = before  # so that the step can be tried again
                raise
        failed = over & (state.status != COMPLETE)
        # Copies: a reward may keep what it saw, or return one of these arrays.
        after, penalty, bound = state.cost_ms.copy(), problem.penalty_ms.copy(), problem.lower_bound_ms.copy()
        rewards = np.empty(len(actions))
        rewards[:] = self._reward(Transition(cost_before, after, over.copy(), failed, penalty, bound))
        rewards[was_over] = 0.0
        return rewards, over

    def _charge_final_cost(self, envs: IntArray, final_cost: CostModel) -> None:
        """Replace the cost of the complete placements of `envs` by that of `final_cost`."""
        for env, placement in zip(envs.tolist(), self.placements(envs), strict=True):
            task = self._task(env)
            cost = final_cost.estimate(placement[: task.num_tables], task.tables, task.topology)
            self.state.phases_ms[env, : task.num_devices] = cost.phases_ms
            # No valid placement may be as bad as a failure, however long its measurement took.
            self.state.cost_ms[env] = min(cost.total_ms, np.nextafter(self.problem.penalty_ms[env], 0.0))
            self._details[env] = cost.details

    def masks(self) -> NDArray[np.bool_]:
        """(N, D) bool, the legal devices; see `state.action_mask`."""
        return action_mask(self.problem, self.state)

    def observations(self, *, share: bool = False) -> ObservationDict:
        """One array for each key with leading shape (N,).

        Args:
            share: hand out the arrays of the keys that stay the same during an episode, not copies; they change in
                place when an episode begins.
        """
        constant = self._constant if share else {key: array.copy() for key, array in self._constant.items()}
        return {**self.observe(self.problem, self.state), **constant}

    def placements(self, envs: IntArray) -> IntArray:
        """(len(envs), max_tables) int64, the placements so far in the tasks' own order of tables; -1 where none is."""
        return self.problem.placements_of(self.state.assignment, envs)

    def ending(self, env: int) -> dict[str, Any]:
        """What the info of an episode's last step adds; empty while it goes on.

        Raises:
            InvalidCostError: see `require_finite_costs`.
        """
        if self.state.status[env] == RUNNING:
            return {}
        self.require_finite_costs(np.array([env]))
        if self.state.status[env] == COMPLETE:
            # Padded like the observations: vector environments stack infos, and tasks differ in size.
            return {
                "placement": self.placements(np.array([env]))[0],
                "cost_ms": float(self.state.cost_ms[env]),
                "phase_costs_ms": self.state.phases_ms[env].copy(),
                **self.details(env),
            }
        return {"failure": describe_failure(self._task(env), self.problem, self.state, env)}

    def details(self, env: int) -> dict[str, dict[str, float]]:
        """What `final_cost` adds to the info of a complete placement."""
        found = self._details.get(env)
        return {"measurement": dict(found)} if found else {}

    def require_finite_costs(self, envs: IntArray) -> None:
        """Refuse what the episodes `envs` cost if it is no number; asked only where they end, to keep steps fast.

        Raises:
            InvalidCostError: a cost, or the penalty of a failure, is NaN or infinite.
        """
        complete = self.state.status[envs] == COMPLETE
        costs = np.where(complete, self.state.cost_ms[envs], self.problem.penalty_ms[envs])
        if not np.isfinite(costs).all():
            row = int((~np.isfinite(costs)).argmax())
            charged = f"{costs[row]} ms for" if complete[row] else f"a penalty of {costs[row]} ms for failing at"
            raise InvalidCostError(
                f"Cost model {self.cost_model.fingerprint!r} says {charged} task {self._task(int(envs[row])).name!r}; "
                "every cost must be a finite number. Repair the model, or pass another as cost_model."
            )

    def view(self, env: int) -> PlacementView:
        """The placement of one episode so far, for rendering and explaining."""
        task, problem, state = self._task(env), self.problem, self.state
        failure = describe_failure(task, problem, state, env)
        placed = int(state.step[env])
        return PlacementView(
            task=task,
            placement=self.placements(np.array([env]))[0, : task.num_tables],
            phases_ms=state.phases_ms[env, : task.num_devices].copy(),
            cost_ms=float(state.cost_ms[env]),
            note=failure["message"] if failure else "",
            next_table=int(problem.tables.order[problem.row[env], placed]) if placed < task.num_tables else -1,
        )

    def _task(self, env: int) -> Task:
        task = self.tasks[env]
        if task is None:
            raise InvalidOptionError(f"Environment {env} has no task yet; reset it first.")
        return task

    def restore(self, env: int, task: Task, state: PlacementState) -> None:
        """Go on in episode `env` from `state` (N = 1) of `task`."""
        self.begin(np.array([env]), [task])
        self.state.put(env, state)

    def copy(self) -> Episodes:
        """Independent episodes in the same state. The tasks, the model, the reward and the observation are shared."""
        twin = copy.copy(self)
        twin._bank = self._bank.copy()
        twin.tasks = list(self.tasks)
        twin._details = dict(self._details)
        twin.state = self.state.copy()
        twin._constant = {key: array.copy() for key, array in self._constant.items()}
        return twin


def checked_options(options: Any, *known: str) -> dict[str, Any]:
    """A copy of the options given to a reset; empty for None.

    Raises:
        InvalidOptionError: they are no mapping, or one of them is not known.
    """
    if options is None:
        return {}
    quoted = [repr(name) for name in known]
    if not isinstance(options, Mapping):
        raise wrong_kind("options", options, f"None or a dict with the keys {', '.join(quoted)}, such as {{'task': 0}}")
    unknown = sorted(str(name) for name in options if name not in known)
    if unknown:
        listed = f"option {quoted[0]}" if len(quoted) == 1 else f"options {', '.join(quoted[:-1])} and {quoted[-1]}"
        raise InvalidOptionError(f"reset() knows the {listed}, not {unknown}.")
    return dict(options)


def task_source(suite: Any, split: str) -> TaskSource:
    """Where the tasks named `suite` come from; a source of tasks is one already.

    Raises:
        UnknownNameError: no suite has that name, or it has no such split.
        InvalidOptionError: `suite` is neither a name nor a source of tasks.
    """
    if isinstance(suite, str):
        return load_suite(suite, split)
    if isinstance(suite, type) or not isinstance(suite, TaskSource):
        wanted = "the name of a suite, a TaskSuite or a TaskSampler"
        raise wrong_kind("suite", suite, wanted, "Wrap tasks of your own in a suite: TaskSuite('mine', [task]).")
    return suite


def _padding(name: str, given: int | None, needed: int) -> int:
    if given is None:
        return int(needed)
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or given < needed:
        raise InvalidOptionError(f"{name} must be an integer of at least {needed}, the suite's own; got {given!r}.")
    return int(given)
