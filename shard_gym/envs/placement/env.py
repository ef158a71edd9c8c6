"""`EmbeddingPlacementEnv`: the Gymnasium environment of `EmbeddingPlacement-v0`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from shard_gym.cost_models import AdditiveCostModel
from shard_gym.envs.core.arguments import checked_options
from shard_gym.envs.core.episodes import Episodes, Observation, ObservationDict
from shard_gym.envs.core.problem import Problem
from shard_gym.envs.core.reward import Reward
from shard_gym.envs.core.state import RUNNING, PlacementState
from shard_gym.envs.placement.observation import make_observation
from shard_gym.envs.placement.rendering.modes import RENDER_MODES, check_render_mode, render
from shard_gym.envs.placement.rendering.view import PlacementView
from shard_gym.errors import InvalidActionError, wrong_kind
from shard_gym.tasks import Task, TaskSource

_ENV = np.zeros(1, np.int64)
"""Index of the only episode."""


@dataclass(frozen=True)
class Snapshot:
    """An episode under way and the random generator; see `EmbeddingPlacementEnv.get_state`.

    Attributes:
        task: the task of the episode.
        state: the placement so far.
        rng_state: state of the environment's random generator.
        redirected: illegal actions so far that were redirected.
    """

    task: Task
    state: PlacementState
    rng_state: Mapping[str, Any]
    redirected: int = 0


class EmbeddingPlacementEnv(gymnasium.Env[ObservationDict, np.int64]):
    """
    ## Description

    A recommender model has tens to thousands of embedding tables. Each is placed on one of D devices, such that a
    training iteration is short and no device runs out of memory. An episode places the tables of one task, one at a
    time, in descending order of the estimated cost of each table alone. A cost model estimates the cost of the
    placement: an iteration has four phases (forward, forward all-to-all, backward all-to-all, backward), and each lasts
    as long as its slowest device. The costs of tables on one device are not additive, because the tables are fused into
    one operator.

    ## Action Space

    `Discrete(max_devices)`: the device that receives the current table.

    An action is legal if the task has that device and the table fits into its free memory. An illegal action ends the
    episode (see Episode End) and raises nothing. With `illegal="redirect"`, for learners without masks, the table goes
    to the legal device with the least memory in use instead, and the reward is less by 0.05 times the task's lower
    bound. A value outside the space raises `InvalidActionError`.

    ## Observation Space

    A `Dict` of 1-D arrays, padded to `max_tables` (T) and `max_devices` (D). Padding is 0, in `assignment` -1. Tables
    are in the order in which they are placed. Several numbers of one device or table are adjacent:
    `obs["device_costs"].reshape(D, 4)` has a row for each device.

    `observation="full"` (default) has no keys marked +, `observation="compact"` none marked * or +, and
    `observation="features"` none marked * or -. The last one holds no cost: a policy that sees it needs the cost model
    for its reward in training only. Tables then come in descending order of embedding_dim * pooling_factor, because the
    order by cost tells costs.

    | Key | Shape | Dtype | Content |
    |---|---|---|---|
    | `current_table` | (21,) | float32 | features of the table to place, see `shard_gym.tables.FEATURE_NAMES` |
    | `current_table_costs` - | (4,) | float32 | ms of the four phases with that table alone on a device |
    | `device_costs` - | (D * 4,) | float32 | ms of the four phases of each device with the tables placed so far |
    | `current_table_shares` + | (5,) | float32 | its share of the task's `shard_gym.tables.AMOUNT_NAMES` |
    | `device_shares` + | (D * 5,) | float32 | the same of each device: the sums over its tables |
    | `device_width` + | (D,) | float32 | embedding_dim / 128 of the widest table on each device, at most 1 |
    | `device_memory` | (D * 2,) | float32 | share of the memory cap in use, and the current table's share of it |
    | `device_mask` | (D,) | int8 | 1 for a device of the task, 0 for padding |
    | `action_mask` | (D,) | int8 | 1 for a device where the current table fits |
    | `progress` | (1,) | float32 | share of the tables already placed |
    | `table_features` * | (T * 21,) | float32 | the 21 features of every table |
    | `table_mask` * | (T,) | int8 | 1 for a table of the task, 0 for padding |
    | `assignment` * | (T,) | int64 | device of each table, -1 if it is not placed |

    ## Starting State

    Nothing is placed. The task is drawn uniformly from the suite with the environment's random generator, or chosen
    with `reset(options={"task": key})`: an index, a name, or a `shard_gym.Task`.

    ## Rewards

    - `"terminal"` (default): 0, and at the last step minus the cost of the placement in ms.
    - `"dense"`: at each step minus the increase of the cost in ms; the return is that of `"terminal"`.
    - `"normalized"`: 0, and at the last step minus the cost divided by a lower bound of the task.
    - `"balance"`: 0, and at the last step the least compute time of a device divided by the largest; see
      `shard_gym.envs.core.reward.balance`, also for what a failure is charged there.

    In the others a failed episode is charged a penalty instead of the cost: 1.1 times an upper bound on the cost of all
    placements of the task, so every valid placement is better. For a reward of your own, pass a function like
    `shard_gym.envs.core.reward.Reward`.

    ## Episode End

    `terminated` is True when all tables are placed, when the action was illegal, or when the next table fits no device
    (a dead end). `truncated` is always False. A further step without a reset raises `gymnasium.error.ResetNeeded`.

    ## Information

    `reset` and `step` return the same keys, all of them numbers or arrays of a fixed shape:
    - `action_mask`: (max_devices,) int8, the same mask as in the observation. It is never all zero: after the end of an
      episode it is 1 for all devices of the task. `env.unwrapped.action_masks()` returns it as bool, for MaskablePPO;
    - `task_index`: int, number of the task in the suite; -1 for a task that has none;
    - `cost_ms`: float, ms of the tables placed so far, at the end of a complete placement of all. It is so after a
      failure, too: an illegal action places no table, and the penalty is charged by the reward alone;
    - `phase_costs_ms`: (max_devices, 4) float64, ms of each device in each phase;
    - `placement`: (max_tables,) int64, -1 until the placement is complete, then the device of each table in the task's
      own order, -1 in padding;
    - `failure`: int, 0 for none, 1 for an illegal action, 2 for a dead end. `env.unwrapped.failure()` explains it;
    - `redirected`: int, illegal actions of the episode that were redirected.

    `info_text=True` adds texts, which not all libraries can store: `task` (name of the task) and `failure_message`
    (empty without a failure).

    ## Arguments

    ```python
    import gymnasium
    env = gymnasium.make("shard_gym:EmbeddingPlacement-v0", suite="dlrm-50x4", split="train")
    ```

    - `suite="dlrm-50x4"`: name of a suite (`shard-gym suites` lists them), a `TaskSuite`, or a `TaskSampler`;
    - `split="train"`: split of a named suite. The suites of whole models (mlperf, merlin) have only "test";
    - `cost_model="analytical"`: name of a cost model, path of a neural one, or an `AdditiveCostModel`;
    - `reward="terminal"`, `observation="full"`: names as above, or objects;
    - `max_tables=None`, `max_devices=None`: padding; by default the size of the largest task in all splits of the
      suite. Set both to train one agent on several suites;
    - `illegal="terminate"`: or "redirect", see Action Space;
    - `info_text=False`: see Information;
    - `render_mode=None`: "ansi" or, with the extra `viz` installed, "rgb_array". Gymnasium's `RecordVideo` also needs
      the package `moviepy`.

    In addition to the Gymnasium interface there are `get_state`, `set_state` and `clone` for search, and attributes:
    `task` (unpadded), `problem` and `state` (arrays), `tasks` (the suite or sampler), `cost_model`, `max_tables` and
    `max_devices` (the padding).

    ## References

    D. Zha et al., *DreamShard: Generalizable Embedding Table Placement for Recommender Systems*, NeurIPS 2022.

    ## Version History

    * v0: initial version
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": RENDER_MODES, "render_fps": 4}  # type: ignore[misc]

    def __init__(
        self,
        suite: str | TaskSource = "dlrm-50x4",
        split: str = "train",
        cost_model: str | Path | AdditiveCostModel = "analytical",
        reward: str | Reward = "terminal",
        observation: str | Observation = "full",
        max_tables: int | None = None,
        max_devices: int | None = None,
        render_mode: str | None = None,
        illegal: str = "terminate",
        info_text: bool = False,
    ) -> None:
        observe = make_observation(observation)
        episodes = Episodes(1, suite, split, cost_model, reward, observe, max_tables, max_devices, illegal)
        self._set_up(episodes, render_mode, info_text)

    def _set_up(self, episodes: Episodes, render_mode: str | None, info_text: bool) -> None:
        """Step these episodes (N = 1)."""
        check_render_mode(render_mode)
        self.render_mode, self._info_text = render_mode, info_text
        self._episodes, self._num_actions = episodes, episodes.problem.num_actions
        self.tasks, self.cost_model = episodes.source, episodes.cost_model
        self.max_tables, self.max_devices = episodes.max_tables, episodes.max_devices
        self.observation_space = episodes.observe.space(self.max_tables, self.max_devices)
        self.action_space = spaces.Discrete(self._num_actions)

    # The Gymnasium interface

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObservationDict, dict[str, Any]]:
        """Start an episode; `options={"task": key}` picks its task (see the class).

        Raises:
            InvalidOptionError: options that are not a dict, an unknown option, or an index out of range.
            UnknownNameError: no task has that name.
            InvalidTaskError: the task has more tables or devices than the padding.
        """
        chosen = checked_options(options, "task")
        super().reset(seed=seed)
        task = self._episodes.choose(self.np_random, chosen.get("task"))
        self._episodes.begin(_ENV, [task])
        return self._observation(), self._info()

    def step(self, action: Any) -> tuple[ObservationDict, float, bool, bool, dict[str, Any]]:
        """Place the current table on device `action`.

        Raises:
            InvalidActionError: `action` is outside the action space.
            ResetNeeded: the episode is over, or none has begun.
            InvalidCostError: the episode ends here, and its cost is NaN or infinite.
        """
        self._require_episode("No episode has begun")
        if self._episodes.state.status.item() != RUNNING:
            raise ResetNeeded("This episode is over: call reset() before the next step().")
        if not self._is_action(action):
            raise InvalidActionError(f"{known_actions(self._episodes.problem)}, not {action!r}.")
        rewards, over = self._episodes.step(np.array([action], np.int64))
        if over[0]:
            self._episodes.require_finite_costs(_ENV)
        return self._observation(), float(rewards[0]), bool(over[0]), False, self._info()

    def render(self) -> Any:
        """A str ("ansi"), or an (H, W, 3) uint8 array ("rgb_array"); None without a render mode."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() was called without a render_mode; pass render_mode to gymnasium.make().")
            return None
        self._require_episode("There is nothing to render yet")
        return render(self.view(), self.render_mode)

    # In addition to it

    @property
    def task(self) -> Task:
        """The task of this episode."""
        return self._require_episode("There is no task yet")

    @property
    def problem(self) -> Problem:
        """The task of this episode as arrays (N = 1); changed in place by a reset."""
        self._require_episode("There is no problem yet")
        return self._episodes.problem

    @property
    def state(self) -> PlacementState:
        """The placement so far (N = 1); changed in place."""
        self._require_episode("There is no state yet")
        return self._episodes.state

    def action_masks(self) -> NDArray[np.bool_]:
        """(max_devices,) bool: the devices where the current table fits; MaskablePPO calls this method."""
        self._require_episode("There is no mask yet")
        mask: NDArray[np.bool_] = self._episodes.masks()[0]
        return mask

    def failure(self) -> dict[str, Any] | None:
        """Why the episode failed, or None: `reason` ("illegal_action" or "dead_end"), `table`, `bytes_needed`,
        `bytes_free` (the most on any device) and a `message`.
        """
        self._require_episode("Nothing has failed yet")
        return self._episodes.failure(0)

    def view(self) -> PlacementView:
        """The placement so far, for rendering."""
        self._require_episode("There is nothing to see yet")
        return PlacementView.of(self._episodes, 0)

    def get_state(self) -> Snapshot:
        """A copy of the episode and of the state of the random generator, for `set_state`."""
        rng_state = copy.deepcopy(self.np_random.bit_generator.state)
        return Snapshot(self.task, self.state.copy(), rng_state, int(self._episodes.redirected[0]))

    def set_state(self, snapshot: Snapshot) -> None:
        """Continue from `snapshot`, taken from this environment or one with equal arguments.

        Raises:
            InvalidOptionError: it is no snapshot, or one of an environment with other arguments.
            InvalidTaskError: its task has more tables or devices than the padding holds.
        """
        if not isinstance(snapshot, Snapshot):
            raise wrong_kind("snapshot", snapshot, "what get_state() of such an environment returned")
        self._episodes.restore(0, snapshot.task, snapshot.state, snapshot.redirected)
        self.np_random.bit_generator.state = copy.deepcopy(snapshot.rng_state)

    def clone(self) -> EmbeddingPlacementEnv:
        """An independent environment in the same state; the immutable tasks are shared."""
        clone = copy.copy(self)
        clone._episodes = self._episodes.copy()
        clone._np_random = copy.deepcopy(self.np_random)
        clone.action_space = copy.deepcopy(self.action_space)  # it has a random generator
        return clone

    def _require_episode(self, sentence: str) -> Task:
        """The task of this episode; `ResetNeeded` if none has begun."""
        task = self._episodes.tasks[0]
        if task is None:
            raise ResetNeeded(f"{sentence}: call reset() first.")
        return task

    def _is_action(self, action: Any) -> bool:
        """Whether `action` is in the action space; `Discrete.contains` takes two microseconds more for integers."""
        if type(action) in (int, np.int64):
            return bool(0 <= action < self._num_actions)
        return self.action_space.contains(action)

    def _observation(self) -> ObservationDict:
        return {key: batch[0] for key, batch in self._episodes.observations().items()}

    def _info(self) -> dict[str, Any]:
        info = self._episodes.info()
        return info | self._episodes.texts(0) if self._info_text else info


def known_actions(problem: Problem) -> str:
    """The beginning of a sentence about an action outside the space."""
    splits = f", or from {problem.max_devices} to {problem.num_actions - 1} to split"
    devices = f"An action is a device number from 0 to {problem.max_devices - 1}"
    return devices + splits if problem.num_actions > problem.max_devices else devices
