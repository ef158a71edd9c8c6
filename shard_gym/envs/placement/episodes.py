"""N episodes at once: tasks, states, rewards, observations. The scalar environment is N = 1, the vector one any N."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models import AdditiveCostModel, make_cost_model
from shard_gym.cost_models.base import FloatArray
from shard_gym.envs.placement.bank import TaskBank
from shard_gym.envs.placement.failure import describe_failure
from shard_gym.envs.placement.observation import Observation, ObservationDict, make_observation
from shard_gym.envs.placement.problem import IntArray, Problem
from shard_gym.envs.placement.reward import Reward, Transition, make_reward
from shard_gym.envs.placement.state import (
    COMPLETE,
    RUNNING,
    UNPLACED,
    PlacementState,
    action_mask,
    advance,
    begin,
    initial_state,
)
from shard_gym.envs.placement.viewer import PlacementView
from shard_gym.errors import InvalidOptionError
from shard_gym.suites import load_suite
from shard_gym.tasks import Task, TaskSource, TaskSuite


class Episodes:
    """N episodes of embedding table placement. Arguments are those of `EmbeddingPlacementEnv`, and `num_envs`.

    Attributes:
        source: where tasks come from.
        cost_model: what estimates the costs.
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
        cost_model: str | AdditiveCostModel,
        reward: str | Reward,
        observation: str | Observation,
        max_tables: int | None,
        max_devices: int | None,
    ) -> None:
        self.source: TaskSource = load_suite(suite, split) if isinstance(suite, str) else suite
        self.cost_model = make_cost_model(cost_model)
        self.max_tables = _padding("max_tables", max_tables, self.source.max_tables)
        self.max_devices = _padding("max_devices", max_devices, self.source.max_devices)
        self.observe = make_observation(observation)
        self._reward = make_reward(reward)
        self._bank = TaskBank(self.source, self.cost_model, self.max_tables, self.max_devices, num_envs)
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
        """
        if key is None:
            return self.source.sample(rng)
        if isinstance(key, Task):
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
        for key, rows in self.observe.constant(self.problem, envs).items():
            self._constant[key][envs] = rows

    def step(self, actions: NDArray[np.integer[Any]]) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Place the current tables on devices `actions` (N,); episodes that are over stay as they are.

        Returns:
            (N,) float64 rewards, 0 where the episode was over before; (N,) bool, where it ended with this step.
        """
        state = self.state
        cost_before, was_running = state.cost_ms.copy(), state.status == RUNNING
        advance(self.problem, state, actions, self.cost_model)
        over = was_running & (state.status != RUNNING)
        failed = over & (state.status != COMPLETE)
        problem = self.problem
        transition = Transition(cost_before, state.cost_ms, over, failed, problem.penalty_ms, problem.lower_bound_ms)
        return self._reward(transition), over

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
        problem = self.problem
        real = np.arange(self.max_tables) < problem.num_tables[envs][:, None]
        row, step = np.nonzero(real)
        placements = np.full((len(envs), self.max_tables), UNPLACED, np.int64)
        placements[row, problem.tables.order[problem.row[envs]][row, step]] = self.state.assignment[envs][row, step]
        return placements

    def ending(self, env: int) -> dict[str, Any]:
        """What the info of an episode's last step adds; empty while it goes on."""
        if self.state.status[env] == RUNNING:
            return {}
        if self.state.status[env] == COMPLETE:
            # Padded like the observations: vector environments stack infos, and tasks differ in size.
            return {
                "placement": self.placements(np.array([env]))[0],
                "cost_ms": float(self.state.cost_ms[env]),
                "phase_costs_ms": self.state.phases_ms[env].copy(),
            }
        return {"failure": describe_failure(self._task(env), self.problem, self.state, env)}

    def view(self, env: int) -> PlacementView:
        """The placement of one episode so far, for rendering and explaining."""
        task, problem, state = self._task(env), self.problem, self.state
        failure = describe_failure(task, problem, state, env)
        placed = int(state.step[env])
        return PlacementView(
            task=task,
            placement=self.placements(np.array([env]))[0, : task.num_tables],
            phases_ms=state.phases_ms[env, : task.num_devices],
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
        twin.state = self.state.copy()
        twin._constant = {key: array.copy() for key, array in self._constant.items()}
        return twin


def _padding(name: str, given: int | None, needed: int) -> int:
    if given is None:
        return int(needed)
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or given < needed:
        raise InvalidOptionError(f"{name} must be an integer of at least {needed}, the suite's own; got {given!r}.")
    return int(given)
