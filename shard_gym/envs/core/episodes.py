"""N episodes at once: tasks, states, rewards, observations. A scalar environment has N = 1, a vector one any N."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.common.errors import InvalidCostError
from shard_gym.common.text import format_bytes
from shard_gym.cost_models import AdditiveCostModel, CostEstimate, CostModel, make_cost_model
from shard_gym.envs.core.config import EnvConfig, padding, require_model, require_padding, task_source
from shard_gym.envs.core.episode_batch import EpisodeBatch, ObservationDict
from shard_gym.envs.core.episode_state import (
    COMPLETE,
    DEAD_END,
    ILLEGAL_ACTION,
    RUNNING,
    UNPLACED,
    PlacementState,
    ShardingState,
    Status,
)
from shard_gym.envs.core.prepared_tasks import PreparedTasks
from shard_gym.envs.core.problem import EnvProblem, require_room
from shard_gym.envs.core.reward import REWARDS, Reward, Transition, checked_rewards, make_reward
from shard_gym.envs.core.split_rules import SplitRules
from shard_gym.envs.core.state import action_mask, advance, begin, current_rows, initial_state
from shard_gym.hardware import MAX_DEVICES
from shard_gym.tables import Tables
from shard_gym.tasks import Task, TaskSource, TaskSuite
from shard_gym.tasks.task import cost_model_for

FAILURES = np.zeros(len(Status), np.int64)
FAILURES[[ILLEGAL_ACTION, DEAD_END]] = 1, 2  # the number of a failure in infos, by `Status`; 0 for none

REASONS: dict[int, str] = {
    ILLEGAL_ACTION: "was put on a device that does not exist or has too little memory free",
    DEAD_END: "fits no device",
}
SPLIT_REASONS: dict[int, str] = {
    ILLEGAL_ACTION: "was given an action that is illegal",
    DEAD_END: "fits no device, and no split of it fits",
}
"""The reasons of failures where tables may be split."""

_FIRST = np.zeros(1, np.int64)  # index of the only episode


@runtime_checkable
class Observation(Protocol):
    """Builds the observations of N environments."""

    def space(self, max_tables: int, max_devices: int) -> spaces.Dict:
        """The space of one environment: the keys of `constant` and of `__call__`."""

    def constant(self, problem: EnvProblem, envs: IntArray | None = None) -> ObservationDict:
        """The keys that stay the same during an episode, of all environments or of `envs`; new arrays."""

    def __call__(self, problem: EnvProblem, state: PlacementState) -> ObservationDict:
        """The other keys, leading shape (N,); new arrays."""


@runtime_checkable
class CostFreeObservation(Observation, Protocol):
    """An observation without costs. It has its own order of tables, because their order by cost tells costs."""

    def order(self, tables: Tables) -> IntArray:
        """(T,) int64, the order in which the tables are placed."""


@dataclass(frozen=True, eq=False)
class EpisodesConfig(EnvConfig):
    """The arguments of environments that place tables, as given and, in properties, as objects."""

    suite: str | TaskSource = "dlrm-50x4"
    split: str = "train"
    cost_model: str | Path | AdditiveCostModel = "analytical"
    reward: str | Reward = "terminal"
    observation: str | Observation = "full"
    max_tables: int | None = None
    max_devices: int | None = None

    @cached_property
    def source(self) -> TaskSource:
        """Where tasks come from."""
        return self.source_of(self.suite)

    @override
    def source_of(self, suite: Any) -> TaskSource:
        return task_source(suite, self.split)

    @cached_property
    def model(self) -> AdditiveCostModel:
        """The cost model; with `rules` one that supports splits."""
        return self.model_of(self.source)

    def model_of(self, source: TaskSource) -> AdditiveCostModel:
        """The cost model of the tasks of `source`."""
        return make_cost_model(cost_model_for(source, self.cost_model), additive=True)

    @property
    def final_cost(self) -> CostModel | None:
        """The cost model of complete placements, with `rules` one that supports splits; None for `model`."""
        return None

    @property
    def rules(self) -> SplitRules | None:
        """How tables may be split; None if they are not."""
        return None

    @cached_property
    @abstractmethod
    def observe(self) -> Observation:
        """Builds the observations."""


class Episodes(EpisodeBatch[Task]):
    """N episodes in which tables are placed, or under `config.rules` split.

    Attributes:
        final_cost: the cost model of complete placements, such as one that measures; None for `cost_model`. Its details
            are in infos.
        state: the state of each episode; changed in place.
    """

    task_type: ClassVar[type[Any]] = Task
    suite_type: ClassVar[type[Any]] = TaskSuite
    source: TaskSource

    def __init__(self, num_envs: int, config: EpisodesConfig) -> None:
        self._config = config
        self.source, self.cost_model, self.observe = config.source, config.model, config.observe
        self.max_tables = padding("max_tables", config.max_tables, self.source.max_tables)
        self.max_devices = padding("max_devices", config.max_devices, self.source.max_devices, MAX_DEVICES)
        self.observation_space = self.observe.space(self.max_tables, self.max_devices)
        self._reward = make_reward(config.reward)
        self._own_reward = self._reward not in REWARDS.values()
        order_of = self.observe.order if isinstance(self.observe, CostFreeObservation) else None
        sizes = self.max_tables, self.max_devices, num_envs
        self._prepared = PreparedTasks(self.source, self.cost_model, *sizes, order_of, config.rules)
        self.num_actions = self.problem.num_actions
        self._redirects = config.illegal == "redirect"
        self._none = np.broadcast_to(False, num_envs)
        self.redirected = np.zeros(num_envs, np.int64)
        self.tasks = [None] * num_envs
        self.final_cost = config.final_cost
        self.state = initial_state(self.problem, self.cost_model)
        # A plan has `max_shards` numbers for each table, so they are small ones.
        nothing = np.array(UNPLACED, np.int64 if config.rules is None else np.int32)
        self._unplaced = np.broadcast_to(nothing, self.state.assignment.shape)
        self._constant = self.observe.constant(self.problem)

    @property
    def problem(self) -> EnvProblem:
        """The tasks of the episodes as arrays; changed in place."""
        return self._prepared.problem

    @property
    def final_cost(self) -> CostModel | None:
        """The cost model of complete placements; set it before the first `begin`."""
        return self._final_cost

    @final_cost.setter
    def final_cost(self, model: CostModel | None) -> None:
        names = () if model is None else model.detail_names
        self._details = {f"measurement_{name}": np.zeros(len(self.tasks)) for name in names}
        self._final_cost = model

    @override
    def draw_from(self, suite: Any) -> None:
        source = self._config.source_of(suite)
        require_padding("tables", source.max_tables, self.max_tables)
        require_padding("devices", source.max_devices, self.max_devices)
        require_model(self._config.model_of(source), self.cost_model)
        prepared = self._prepared.of_source(source)
        if self.tasks[0] is not None:
            prepared.begin(np.arange(len(self.tasks)), [self.task(env) for env in range(len(self.tasks))])
            prepared.problem.penalty_ms[:] = self.problem.penalty_ms
        self.source, self._prepared = source, prepared

    @override
    def require_room(self, task: Task) -> None:
        require_room(task, self.max_tables, self.max_devices)

    @override
    def begin(self, envs: IntArray, tasks: Sequence[Task]) -> None:
        self._prepared.begin(envs, tasks)
        begin(self.problem, self.state, envs)
        for env, task in zip(envs.tolist(), tasks, strict=True):
            self.tasks[env] = task
            if self.final_cost is not None:
                self.problem.penalty_ms[env] = self._final_penalty_ms(task, self.final_cost)
        self.redirected[envs] = 0
        for numbers in self._details.values():
            numbers[envs] = 0.0
        for key, rows in self.observe.constant(self.problem, envs).items():
            self._constant[key][envs] = rows

    @override
    def step(self, actions: NDArray[np.integer[Any]]) -> tuple[FloatArray, NDArray[np.bool_]]:
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
        for env in envs.tolist():
            cost = self._final_cost_of(env, model)
            self.state.phases_ms[env, : self.task(env).num_devices] = cost.phases_ms
            self.state.cost_ms[env] = cost.total_ms
            details = cost.details
            for name in model.detail_names:
                self._details[f"measurement_{name}"][env] = details[name]

    def _final_penalty_ms(self, task: Task, model: CostModel) -> float:
        """What `model` charges for a task that fails."""
        return model.penalty_ms(task.tables, task.topology)

    def _final_cost_of(self, env: int, model: CostModel) -> CostEstimate:
        """What the complete episode `env` costs under `model`."""
        task, placement = self.task(env), self.placements(np.array([env]))[0]
        return model.estimate(placement[: task.num_tables], task.tables, task.topology)

    def _redirected(self, actions: NDArray[np.integer[Any]]) -> tuple[NDArray[np.integer[Any]], NDArray[np.bool_]]:
        """(N,) actions with the legal device of least memory in use for an illegal one; (N,) bool, which changed."""
        legal = self.masks()
        illegal = ~legal[np.arange(len(actions)), actions] & ~self.state.over
        if not illegal.any():
            return actions, illegal
        devices = legal[:, : self.max_devices]
        emptiest = np.where(devices, self.state.memory_used, np.iinfo(np.int64).max).argmin(axis=1)
        instead = np.where(devices.any(axis=1), emptiest, legal.argmax(axis=1))
        return np.where(illegal, instead, actions), illegal

    @override
    def is_over(self, env: int) -> bool:
        return bool(self.state.status.item(env) != RUNNING)

    @override
    def known_actions(self) -> str:
        splits = f", or from {self.max_devices} to {self.num_actions - 1} to split"
        devices = f"An action is a device number from 0 to {self.max_devices - 1}"
        return devices + splits if self.num_actions > self.max_devices else devices

    @override
    def masks(self) -> NDArray[np.bool_]:
        return action_mask(self.problem, self.state)

    @override
    def observations(self, *, share: bool = False) -> ObservationDict:
        constant = self._constant if share else {key: array.copy() for key, array in self._constant.items()}
        return {**self.observe(self.problem, self.state), **constant}

    def placements(self, envs: IntArray) -> NDArray[Any]:
        """(len(envs), max_tables) int64, the placements so far in the tasks' own order of tables; -1 if not placed.

        If tables may be split, (len(envs), max_tables, U) int32; see `plans.plan_of`.
        """
        return self.problem.placements_of(self.state.assignment, envs, self._unplaced.dtype)

    @override
    def infos(self) -> dict[str, NDArray[Any]]:
        status, placement = self.state.status, self._unplaced.copy()
        complete = np.flatnonzero(status == COMPLETE)
        if len(complete):
            placement[complete] = self.placements(complete)
        mask = self.masks().astype(np.int8, order="C")
        return self._infos(mask, placement, FAILURES[status], np.ndarray.copy, _copy_as_it_lies)

    @override
    def info(self) -> dict[str, Any]:
        status = self.state.status.item()
        placement = self.placements(_FIRST)[0] if status == COMPLETE else self._unplaced[0].copy()
        mask = self.masks()[0].astype(np.int8)
        return self._infos(mask, placement, FAILURES[status], _first, _first_copy)

    def _infos(
        self,
        mask: NDArray[np.int8],
        placement: NDArray[Any],
        failure: Any,
        number: Callable[[NDArray[Any]], Any],
        array: Callable[[NDArray[Any]], NDArray[Any]],
    ) -> dict[str, Any]:
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

    @override
    def failure(self, env: int) -> dict[str, Any] | None:
        """`reason` ("illegal_action" or "dead_end"), `table` (its name), `bytes_needed`, `bytes_free`, `message`."""
        task, problem, state = self.task(env), self.problem, self.state
        status = int(state.status[env])
        if not FAILURES[status]:
            return None
        part, reasons = "Table", REASONS
        if isinstance(state, ShardingState):
            part, reasons = "The current shard of table" if state.level[env] else part, SPLIT_REASONS
        table = task.tables.names[problem.tables.order[problem.row[env], state.step[env]]]
        needed = int(problem.tables.memory.reshape(-1)[current_rows(problem, state)[env]])
        free = int((problem.memory_cap[env] - state.memory_used[env]).max())
        limits = " Its task has constraints." if task.constraints is not None else ""
        return {
            "reason": Status(status).name.lower(),
            "table": table,
            "bytes_needed": needed,
            "bytes_free": free,
            "message": (
                f"{part} {table} {reasons[status]}: it needs {needed} bytes ({format_bytes(needed)}), "
                f"and the emptiest of the {task.num_devices} devices has {free} bytes ({format_bytes(free)}) free"
                + (" in HBM and host memory." if task.topology.host else ".")
                + limits
            ),
        }

    @override
    def require_finite_costs(self, envs: IntArray) -> None:
        complete = self.state.status[envs] == COMPLETE
        costs = np.where(complete, self.state.cost_ms[envs], self.problem.penalty_ms[envs])
        if not np.isfinite(costs).all():
            row = int((~np.isfinite(costs)).argmax())
            charged = f"{costs[row]} ms for" if complete[row] else f"a penalty of {costs[row]} ms for failing at"
            raise InvalidCostError(
                f"Cost model {self.cost_model.fingerprint!r} says {charged} task {self.task(int(envs[row])).name!r}; "
                "every cost must be a finite number. Repair the model, or pass another as cost_model."
            )

    def restore(self, env: int, task: Task, state: PlacementState, redirected: int = 0) -> None:
        """Continue episode `env` from `state` (N = 1) of `task`, if padding and cost model are the same."""
        self.state.require_same_shapes(state)
        self.begin(np.array([env]), [task])
        self.state.put(env, state)
        self.redirected[env] = redirected

    @override
    def copy(self) -> Episodes:
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


def _first(array: NDArray[Any]) -> Any:
    """A NumPy scalar, whose dtype libraries of tensors need."""
    return array[0]


def _first_copy(array: NDArray[Any]) -> NDArray[Any]:
    first: NDArray[Any] = array[0].copy()
    return first
