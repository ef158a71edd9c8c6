"""N episodes at once: tasks, states, rewards, observations. A scalar environment has N = 1, a vector one any N."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from shard_gym.checks import is_integer
from shard_gym.cost_models import AdditiveCostModel, CostModel, make_additive_cost_model
from shard_gym.cost_models.base import FloatArray
from shard_gym.envs.core.prepared_tasks import PreparedTasks
from shard_gym.envs.core.problem import IntArray, Problem, require_room
from shard_gym.envs.core.reward import Reward, Transition, make_reward
from shard_gym.envs.core.split_rules import SplitRules
from shard_gym.envs.core.state import (
    COMPLETE,
    DEAD_END,
    ILLEGAL_ACTION,
    RUNNING,
    PlacementState,
    Status,
    action_mask,
    advance,
    begin,
    initial_state,
)
from shard_gym.errors import InvalidCostError, InvalidOptionError, wrong_kind
from shard_gym.suites import load_suite
from shard_gym.tasks import Task, TaskSource, TaskSuite
from shard_gym.text import format_bytes

ObservationDict = dict[str, Any]
"""An array for each key of the observation space."""


@runtime_checkable
class Observation(Protocol):
    """Builds the observations of N environments."""

    def space(self, max_tables: int, max_devices: int) -> spaces.Dict:
        """The space of one environment: the keys of `constant` and of `__call__`."""

    def constant(self, problem: Problem, envs: IntArray | None = None) -> ObservationDict:
        """The keys that stay the same during an episode, of all environments or of `envs`; new arrays."""

    def __call__(self, problem: Problem, state: PlacementState) -> ObservationDict:
        """The other keys, leading shape (N,); new arrays."""


class Episodes:
    """N episodes of one environment. Arguments are those of `EmbeddingPlacementEnv`, and `num_envs`.

    Attributes:
        source: where tasks come from.
        cost_model: estimates the costs.
        final_cost: the cost model of complete placements, such as one that measures; None for `cost_model`.
        observe: builds the observations.
        max_tables: padding of the tables.
        max_devices: padding of the devices.
        tasks: the task of each episode; None before the first `begin`.
        state: the state of each episode; changed in place.
    """

    def __init__(
        self,
        num_envs: int,
        suite: str | TaskSource,
        split: str,
        cost_model: str | Path | AdditiveCostModel,
        reward: str | Reward,
        observation: Observation,
        max_tables: int | None,
        max_devices: int | None,
    ) -> None:
        self.source = task_source(suite, split)
        self.cost_model = make_additive_cost_model(cost_model)
        self.max_tables = _padding("max_tables", max_tables, self.source.max_tables)
        self.max_devices = _padding("max_devices", max_devices, self.source.max_devices)
        self.observe = observation
        self._reward = make_reward(reward)
        padding = (self.max_tables, self.max_devices)
        self._prepared = PreparedTasks(self.source, self.cost_model, *padding, num_envs, self._rules())
        self.final_cost: CostModel | None = None
        self._details: dict[int, dict[str, float]] = {}
        self.tasks: list[Task | None] = [None] * num_envs
        self.state = initial_state(self.problem, self.cost_model)
        self._constant = self.observe.constant(self.problem)

    def _rules(self) -> SplitRules | None:
        """How tables may be split; None if they are whole."""
        return None

    @property
    def problem(self) -> Problem:
        """The tasks of the episodes as arrays; changed in place."""
        return self._prepared.problem

    def choose(self, rng: np.random.Generator, key: Any = None) -> Task:
        """The task of `key` (an index, a name or a Task); without a key, one drawn with `rng`.

        Raises:
            InvalidOptionError: the index is out of range, or the tasks of the source have no numbers.
            UnknownNameError: no task has that name.
            InvalidTaskError: a Task with more tables or devices than the padding holds.
        """
        if key is None:
            return self.source.sample(rng)
        if isinstance(key, Task):
            require_room(key, self.max_tables, self.max_devices)  # before any episode begins
            return key
        if isinstance(self.source, TaskSuite):
            return self.source.task(key)
        raise InvalidOptionError(f"{self.source!r} has no numbered tasks; pass a Task as options['task'], not {key!r}.")

    def begin(self, envs: IntArray, tasks: Sequence[Task]) -> None:
        """Start episode `envs[i]` anew with `tasks[i]`.

        Raises:
            InvalidTaskError: a task has more tables or devices than the padding holds.
        """
        self._prepared.begin(envs, tasks)
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
        before = None if self.final_cost is None else state.copy()
        advance(problem, state, actions, self.cost_model)
        over = state.over > was_over
        if self.final_cost is not None:
            try:
                self._set_final_costs(np.flatnonzero(over & (state.status == COMPLETE)), self.final_cost)
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

    def _set_final_costs(self, envs: IntArray, model: CostModel) -> None:
        """Set the costs of the complete placements of `envs` to those of `model`."""
        for env, placement in zip(envs.tolist(), self.placements(envs), strict=True):
            task = self.task(env)
            cost = model.estimate(placement[: task.num_tables], task.tables, task.topology)
            self.state.phases_ms[env, : task.num_devices] = cost.phases_ms
            # A valid placement always costs less than a failure, however long its measurement took.
            self.state.cost_ms[env] = min(cost.total_ms, np.nextafter(self.problem.penalty_ms[env], 0.0))
            self._details[env] = cost.details

    def masks(self) -> NDArray[np.bool_]:
        """(N, D) bool, the legal actions; see `state.action_mask`."""
        return action_mask(self.problem, self.state)

    def observations(self, *, share: bool = False) -> ObservationDict:
        """One array for each key with leading shape (N,).

        Args:
            share: do not copy the arrays that stay the same during an episode; they change in place when an episode
                begins.
        """
        constant = self._constant if share else {key: array.copy() for key, array in self._constant.items()}
        return {**self.observe(self.problem, self.state), **constant}

    def placements(self, envs: IntArray) -> IntArray:
        """(len(envs), max_tables) int64, the placements so far in the tasks' own order of tables; -1 if not placed."""
        return self.problem.placements_of(self.state.assignment, envs)

    def outcomes(self, envs: IntArray) -> dict[str, NDArray[Any]]:
        """What complete episodes `envs` have done: a key of their infos, and an array with a row for each."""
        return {"placement": self.placements(envs)}

    def ending(self, env: int) -> dict[str, Any]:
        """What the last step of an episode adds to its info; empty while the episode runs.

        Raises:
            InvalidCostError: see `require_finite_costs`.
        """
        if self.state.status[env] == RUNNING:
            return {}
        self.require_finite_costs(np.array([env]))
        if self.state.status[env] == COMPLETE:
            # Padded like the observations: vector environments stack infos, and tasks differ in size.
            return {
                **{key: rows[0] for key, rows in self.outcomes(np.array([env])).items()},
                "cost_ms": float(self.state.cost_ms[env]),
                "phase_costs_ms": self.state.phases_ms[env].copy(),
                **self.details(env),
            }
        return {"failure": self.failure(env)}

    def failure(self, env: int) -> dict[str, Any] | None:
        """Why an episode failed, or None if it did not.

        Returns:
            `reason` ("illegal_action" or "dead_end"), `table` (its name), `bytes_needed`, `bytes_free` (the most on any
            device) and `message`.
        """
        task, problem, status = self.task(env), self.problem, int(self.state.status[env])
        if status not in (ILLEGAL_ACTION, DEAD_END):
            return None
        current = (problem.row[env], self.state.step[env])
        table = task.tables.names[problem.tables.order[current]]
        needed = int(problem.tables.memory[current])
        free = int((problem.memory_cap[env] - self.state.memory_used[env]).max())
        reason = "was put on a device that does not exist or has too little memory free"
        if status == DEAD_END:
            reason = "fits no device"
        return {
            "reason": Status(status).name.lower(),
            "table": table,
            "bytes_needed": needed,
            "bytes_free": free,
            "message": (
                f"Table {table} {reason}: it needs {needed} bytes ({format_bytes(needed)}), "
                f"and the emptiest of the {task.num_devices} devices has {free} bytes ({format_bytes(free)}) free."
            ),
        }

    def details(self, env: int) -> dict[str, dict[str, float]]:
        """What `final_cost` adds to the info of a complete placement."""
        found = self._details.get(env)
        return {"measurement": dict(found)} if found else {}

    def require_finite_costs(self, envs: IntArray) -> None:
        """Refuse costs that are not finite; checked only where episodes end, to keep steps fast.

        Raises:
            InvalidCostError: a cost, or the penalty of a failure, is NaN or infinite.
        """
        complete = self.state.status[envs] == COMPLETE
        costs = np.where(complete, self.state.cost_ms[envs], self.problem.penalty_ms[envs])
        if not np.isfinite(costs).all():
            row = int((~np.isfinite(costs)).argmax())
            charged = f"{costs[row]} ms for" if complete[row] else f"a penalty of {costs[row]} ms for failing at"
            raise InvalidCostError(
                f"Cost model {self.cost_model.fingerprint!r} says {charged} task {self.task(int(envs[row])).name!r}; "
                "every cost must be a finite number. Repair the model, or pass another as cost_model."
            )

    def task(self, env: int) -> Task:
        """The task of episode `env`.

        Raises:
            InvalidOptionError: the episode has not begun.
        """
        task = self.tasks[env]
        if task is None:
            raise InvalidOptionError(f"Environment {env} has no task yet; reset it first.")
        return task

    def restore(self, env: int, task: Task, state: PlacementState) -> None:
        """Continue episode `env` from `state` (N = 1) of `task`."""
        self.begin(np.array([env]), [task])
        self.state.put(env, state)

    def copy(self) -> Episodes:
        """Independent episodes in the same state. The tasks, the model, the reward and the observation are shared."""
        clone = copy.copy(self)
        clone._prepared = self._prepared.copy()
        clone.tasks = list(self.tasks)
        clone._details = dict(self._details)
        clone.state = self.state.copy()
        clone._constant = {key: array.copy() for key, array in self._constant.items()}
        return clone


def checked_options(options: Any, *known: str) -> dict[str, Any]:
    """A copy of the options of a reset; empty for None.

    Raises:
        InvalidOptionError: they are not a mapping, or one of them is not known.
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
    """The suite of this name and split; a source of tasks is returned as it is.

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
    if not is_integer(given) or given < needed:
        raise InvalidOptionError(f"{name} must be an integer of at least {needed}, the suite's own; got {given!r}.")
    return int(given)
