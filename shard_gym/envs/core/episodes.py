"""N episodes at once: tasks, states, rewards, observations. A scalar environment has N = 1, a vector one any N."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from shard_gym.cost_models import AdditiveCostModel, CostModel, make_additive_cost_model
from shard_gym.cost_models.base import FloatArray
from shard_gym.envs.core.arguments import padding, task_source
from shard_gym.envs.core.episode_batch import ObservationDict
from shard_gym.envs.core.failures import failure_of
from shard_gym.envs.core.prepared_tasks import PreparedTasks
from shard_gym.envs.core.problem import IntArray, Problem, require_room
from shard_gym.envs.core.reward import REWARDS, Reward, Transition, checked_rewards, make_reward
from shard_gym.envs.core.split_rules import SplitRules
from shard_gym.envs.core.state import (
    COMPLETE,
    DEAD_END,
    ILLEGAL_ACTION,
    RUNNING,
    UNPLACED,
    PlacementState,
    Status,
    action_mask,
    advance,
    begin,
    initial_state,
)
from shard_gym.errors import InvalidCostError, InvalidOptionError, wrong_kind
from shard_gym.tables import Tables
from shard_gym.tasks import Task, TaskSource, TaskSuite

FAILURES = np.zeros(len(Status), np.int64)
FAILURES[[ILLEGAL_ACTION, DEAD_END]] = 1, 2
"""The number of a failure in infos, by `Status`; 0 for none."""

_FIRST = np.zeros(1, np.int64)
"""Index of the only episode."""

ILLEGAL = ("terminate", "redirect")
"""What an illegal action does: it ends the episode, or the table goes to the emptiest device where it fits."""


@runtime_checkable
class Observation(Protocol):
    """Builds the observations of N environments."""

    def space(self, max_tables: int, max_devices: int) -> spaces.Dict:
        """The space of one environment: the keys of `constant` and of `__call__`."""

    def constant(self, problem: Problem, envs: IntArray | None = None) -> ObservationDict:
        """The keys that stay the same during an episode, of all environments or of `envs`; new arrays."""

    def __call__(self, problem: Problem, state: PlacementState) -> ObservationDict:
        """The other keys, leading shape (N,); new arrays."""


@runtime_checkable
class CostFreeObservation(Observation, Protocol):
    """An observation without costs. Tables come in an order of its own, because their order by cost tells costs."""

    def order(self, tables: Tables) -> IntArray:
        """(T,) int64, the order in which the tables are placed."""


class Episodes:
    """N episodes of one environment, an `EpisodeBatch`.

    Arguments are those of `EmbeddingPlacementEnv`, `num_envs`, and the rules. With `rules` tables may be split, and the
    cost model is a `ShardingCostModel`.

    Attributes:
        source: where tasks come from.
        cost_model: estimates the costs.
        final_cost: the cost model of complete placements, such as one that measures; None for `cost_model`. Its details
            are in infos.
        redirected: (N,) int64, illegal actions of each episode that were redirected.
        observe: builds the observations.
        max_tables: padding of the tables.
        max_devices: padding of the devices.
        observation_space: of one environment.
        num_actions: A; the actions are 0 to A - 1.
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
        illegal: str,
        rules: SplitRules | None = None,
    ) -> None:
        if illegal not in ILLEGAL:
            raise wrong_kind("illegal", illegal, " or ".join(map(repr, ILLEGAL)))
        self.source = task_source(suite, split)
        self.cost_model = make_additive_cost_model(cost_model)
        self.max_tables = padding("max_tables", max_tables, self.source.max_tables)
        self.max_devices = padding("max_devices", max_devices, self.source.max_devices)
        self.observe = observation
        self.observation_space = observation.space(self.max_tables, self.max_devices)
        self._reward = make_reward(reward)
        self._own_reward = self._reward not in REWARDS.values()
        order_of = observation.order if isinstance(observation, CostFreeObservation) else None
        sizes = self.max_tables, self.max_devices, num_envs
        self._prepared = PreparedTasks(self.source, self.cost_model, *sizes, order_of, rules)
        self.num_actions = self.problem.num_actions
        self._details: dict[str, FloatArray] = {}
        self._final_cost: CostModel | None = None
        self._redirects = illegal == "redirect"
        self._none = np.broadcast_to(False, num_envs)
        self.redirected = np.zeros(num_envs, np.int64)
        self.tasks: list[Task | None] = [None] * num_envs
        self.state = initial_state(self.problem, self.cost_model)
        # A plan has `max_shards` numbers for each table, so they are small ones.
        nothing = np.array(UNPLACED, np.int64 if rules is None else np.int32)
        self._unplaced = np.broadcast_to(nothing, self.state.assignment.shape)
        self._constant = self.observe.constant(self.problem)

    @property
    def problem(self) -> Problem:
        """The tasks of the episodes as arrays; changed in place."""
        return self._prepared.problem

    @property
    def final_cost(self) -> CostModel | None:
        """See the attributes; set it before the first `begin`."""
        return self._final_cost

    @final_cost.setter
    def final_cost(self, model: CostModel | None) -> None:
        names = () if model is None else model.detail_names
        self._details = {f"measurement_{name}": np.zeros(len(self.tasks)) for name in names}
        self._final_cost = model

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
            if self.final_cost is not None:
                self.problem.penalty_ms[env] = self.final_cost.penalty_ms(task.tables, task.topology)
        self.redirected[envs] = 0
        for numbers in self._details.values():
            numbers[envs] = 0.0
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
        redirected = None
        if self._redirects:
            actions, redirected = self._redirected(actions)
        advance(problem, state, actions, self.cost_model)
        over = state.over > was_over
        if self.final_cost is not None:
            try:
                self._set_final_costs(np.flatnonzero(over & (state.status == COMPLETE)), self.final_cost)
            except BaseException:
                assert before is not None
                self.state = before  # so that the step can be tried again
                raise
        if redirected is not None:
            self.redirected += redirected
        failed = over & (state.status != COMPLETE)
        # Copies: a reward may keep what it saw, or return one of these arrays.
        after, penalty, bound = state.cost_ms.copy(), problem.penalty_ms.copy(), problem.lower_bound_ms.copy()
        if self.final_cost is not None:  # failing is worse than any valid placement, however long that one took
            complete = over & ~failed
            after[complete] = np.minimum(after[complete], np.nextafter(penalty[complete], 0.0))
        rewards = np.empty(len(actions))
        moved = self._none if redirected is None else redirected
        seen = Transition(cost_before, after, over.copy(), failed, penalty, bound, moved, actions, problem, self.state)
        rewards[:] = checked_rewards(self._reward, seen) if self._own_reward else self._reward(seen)
        rewards[was_over] = 0.0
        return rewards, over

    def _set_final_costs(self, envs: IntArray, model: CostModel) -> None:
        """Set the costs of the complete placements of `envs` to those of `model`."""
        for env, placement in zip(envs.tolist(), self.placements(envs), strict=True):
            task = self.task(env)
            cost = model.estimate(placement[: task.num_tables], task.tables, task.topology)
            self.state.phases_ms[env, : task.num_devices] = cost.phases_ms
            self.state.cost_ms[env] = cost.total_ms
            details = cost.details
            for name in model.detail_names:
                self._details[f"measurement_{name}"][env] = details[name]

    def _redirected(self, actions: NDArray[np.integer[Any]]) -> tuple[NDArray[np.integer[Any]], NDArray[np.bool_]]:
        """(N,) actions: an illegal one becomes the legal device with least memory in use; (N,) bool, which did.

        Where no device is legal, it becomes the first legal split.
        """
        legal = self.masks()
        illegal = ~legal[np.arange(len(actions)), actions] & ~self.state.over
        if not illegal.any():
            return actions, illegal
        devices = legal[:, : self.max_devices]
        emptiest = np.where(devices, self.state.memory_used, np.iinfo(np.int64).max).argmin(axis=1)
        instead = np.where(devices.any(axis=1), emptiest, legal.argmax(axis=1))
        return np.where(illegal, instead, actions), illegal

    def is_over(self, env: int) -> bool:
        """Whether episode `env` has ended."""
        return bool(self.state.status.item(env) != RUNNING)

    def known_actions(self) -> str:
        """The beginning of a sentence about an action outside the space."""
        splits = f", or from {self.max_devices} to {self.num_actions - 1} to split"
        devices = f"An action is a device number from 0 to {self.max_devices - 1}"
        return devices + splits if self.num_actions > self.max_devices else devices

    def masks(self) -> NDArray[np.bool_]:
        """(N, A) bool, the legal actions; see `state.action_mask`."""
        return action_mask(self.problem, self.state)

    def observations(self, *, share: bool = False) -> ObservationDict:
        """One array for each key with leading shape (N,).

        Args:
            share: do not copy the arrays that stay the same during an episode; they change in place when an episode
                begins.
        """
        constant = self._constant if share else {key: array.copy() for key, array in self._constant.items()}
        return {**self.observe(self.problem, self.state), **constant}

    def placements(self, envs: IntArray) -> NDArray[Any]:
        """(len(envs), max_tables) int64, the placements so far in the tasks' own order of tables; -1 if not placed.

        If tables may be split, (len(envs), max_tables, U) int32; see `plans.plan_of`.
        """
        return self.problem.placements_of(self.state.assignment, envs, self._unplaced.dtype)

    def infos(self) -> dict[str, NDArray[Any]]:
        """What infos hold: an array for each key with leading shape (N,), the same keys in every step; new arrays."""
        status, placement = self.state.status, self._unplaced.copy()
        complete = np.flatnonzero(status == COMPLETE)
        if len(complete):
            placement[complete] = self.placements(complete)
        mask = self.masks().astype(np.int8, order="C")
        return self._infos(mask, placement, FAILURES[status], np.ndarray.copy, _copy_as_it_lies)

    def info(self) -> dict[str, Any]:
        """`infos` of a single episode (N = 1): numbers, and new arrays without the leading axis."""
        status = self.state.status.item()
        placement = self.placements(_FIRST)[0] if status == COMPLETE else self._unplaced[0].copy()
        mask = self.masks()[0].astype(np.int8)
        return self._infos(mask, placement, FAILURES.item(status), np.ndarray.item, _first_copy)

    def _infos(
        self,
        mask: NDArray[np.int8],
        placement: NDArray[Any],
        failure: Any,
        number: Callable[[NDArray[Any]], Any],
        array: Callable[[NDArray[Any]], NDArray[Any]],
    ) -> dict[str, Any]:
        """The keys of infos; `number` and `array` make what is returned of the arrays of the state."""
        infos = {
            "action_mask": mask,
            "task_index": number(self._prepared.suite_index),
            "cost_ms": number(self.state.cost_ms),
            "phase_costs_ms": array(self.state.phases_ms),
            "placement": placement,
            "failure": failure,
            "redirected": number(self.redirected),
        }
        for name, numbers in self._details.items():  # a comprehension takes longer where there are none
            infos[name] = number(numbers)
        return infos

    def texts(self, env: int) -> dict[str, str]:
        """What infos hold with `info_text`: the task's name, and the message of a failure."""
        failure = self.failure(env)
        return {"task": self.task(env).name, "failure_message": failure["message"] if failure else ""}

    def failure(self, env: int) -> dict[str, Any] | None:
        """Why an episode failed, or None if it did not.

        Returns:
            `reason` ("illegal_action" or "dead_end"), `table` (its name), `bytes_needed`, `bytes_free` (the most on any
            device) and `message`.
        """
        return failure_of(self.task(env), self.problem, self.state, env)

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

    def restore(self, env: int, task: Task, state: PlacementState, redirected: int = 0) -> None:
        """Continue episode `env` from `state` (N = 1) of `task`.

        Raises:
            InvalidTaskError, InvalidOptionError: they are of an environment with another padding or cost model.
        """
        self.state.require_same_shapes(state)
        self.begin(np.array([env]), [task])
        self.state.put(env, state)
        self.redirected[env] = redirected

    def copy(self) -> Episodes:
        """Independent episodes in the same state. The tasks, the model, the reward and the observation are shared."""
        clone = copy.copy(self)
        clone._prepared = self._prepared.copy()
        clone.tasks = list(self.tasks)
        clone._details = {name: numbers.copy() for name, numbers in self._details.items()}
        clone.redirected = self.redirected.copy()
        clone.state = self.state.copy()
        clone._constant = {key: array.copy() for key, array in self._constant.items()}
        return clone


def _copy_as_it_lies(array: NDArray[Any]) -> NDArray[Any]:
    """A copy in the same order in memory, where the device is the slowest axis: it takes half the time."""
    return array.copy(order="K")


def _first_copy(array: NDArray[Any]) -> NDArray[Any]:
    first: NDArray[Any] = array[0].copy()
    return first
