"""`EmbeddingPlacementEnv`: the Gymnasium environment of `EmbeddingPlacement-v0`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shard_gym.common.errors import wrong_kind
from shard_gym.envs.core.config import takes_fields_of
from shard_gym.envs.core.env import EpisodeEnv
from shard_gym.envs.core.episode_state import PlacementState
from shard_gym.envs.core.problem import EnvProblem
from shard_gym.envs.placement.episodes import PlacementConfig, PlacementEpisodes
from shard_gym.envs.placement.rendering.view import PlacementView
from shard_gym.tasks import Task


@dataclass(frozen=True)
class Snapshot:
    """An episode under way, the state of the random generator, and how many actions were redirected."""

    task: Task
    state: PlacementState
    rng_state: Mapping[str, Any]
    redirected: int = 0


class EmbeddingPlacementEnv(EpisodeEnv[Task]):
    """
    ## Description

    A recommender model has tens to thousands of embedding tables. Each is placed on one of D devices, such that a
    training iteration is short and no device runs out of memory. An episode places the tables of one task, one at a
    time, in descending order of the estimated cost of each table alone. A cost model estimates the cost of the
    placement: an iteration has four phases (forward, forward all-to-all, backward all-to-all, backward), and each lasts
    as long as its slowest device. The costs of tables on one device are not additive, because the tables are fused into
    one operator.

    Where the topology has host memory, the memory of a device is its HBM and its part of its host's memory. Which rows
    are in HBM is no action: the cost model takes the best split of the rows that a device holds (host_rows.py), and
    reading and updating the others takes longer.

    ## Action Space

    `Discrete(max_devices)`: the device that receives the current table.

    An action is legal if the task has that device, the table fits into its free memory, and the constraints of the task
    (`Task.constraints`), if it has any, permit it beside the tables placed so far. An illegal action ends the episode
    (see Episode End) and raises nothing. With `illegal="redirect"`, for learners without masks, the table goes
    to the legal device with the least memory in use instead, and the reward is less by 0.05 times the task's lower
    bound. A value outside the space raises `InvalidActionError`.

    ## Observation Space

    A `Dict` of 1-D arrays, padded to `max_tables` (T) and `max_devices` (D). Padding is 0, in `assignment` -1. Tables
    are in the order in which they are placed. Several numbers of one device or table are adjacent:
    `obs["device_costs"].reshape(D, 4)` has a row for each device.

    `observation="full"` (default) has no keys marked +, `observation="compact"` none marked * or +,
    `observation="features"` none marked * or -, and `observation="set"` none marked -. The last two hold no cost: a
    policy that sees them needs the cost model for its reward in training only. Tables then come in descending order of
    embedding_dim * pooling_factor, because the order by cost tells costs.

    If tasks have host memory (`HostMemory`), every observation has the keys marked !, too. A curve has eight numbers,
    one for each probability p with which a batch reads a row that it is expected to read 1.4, 1/2, 1/8, 1/32, 1/128,
    1/512, 2^-12 and 2^-16 times. Rows that a batch reads with at least that probability count whole, the others by
    their probability / p. If the bytes of the rows are x times a device's HBM, the number is x / (1 + x): 0.5 says that
    they just fill it. Curves come from the tables alone; that of a device is of the sum of x over its tables. Among
    such tasks, those without host memory have zeros there.

    | Key | Shape | Dtype | Content |
    |---|---|---|---|
    | `current_table` | (21,) | float32 | features of the table to place, see `shard_gym.tables.tables.FEATURE_NAMES` |
    | `current_table_costs` - | (4,) | float32 | ms of the four phases with that table alone on a device |
    | `device_costs` - | (D * 4,) | float32 | ms of the four phases of each device with the tables placed so far |
    | `current_table_shares` + | (5,) | float32 | its share of the task's `shard_gym.tables.tables.AMOUNT_NAMES` |
    | `device_shares` + | (D * 5,) | float32 | the same of each device: the sums over its tables |
    | `device_width` + | (D,) | float32 | embedding_dim / 128 of the widest table on each device, at most 1 |
    | `device_memory` | (D * 2,) | float32 | share of the memory cap in use, and the current table's share of it |
    | `current_table_curve` ! | (8,) | float32 | curve of the table to place |
    | `device_curves` ! | (D * 8,) | float32 | curve of each device with the tables placed so far |
    | `device_hbm` ! | (D,) | float32 | the HBM's share of the memory cap of each device, which is HBM and host memory |
    | `hbm_gib` ! | (1,) | float32 | GiB of HBM of each device |
    | `device_mask` | (D,) | int8 | 1 for a device of the task, 0 for padding |
    | `action_mask` | (D,) | int8 | 1 for a device where the current table fits |
    | `progress` | (1,) | float32 | share of the tables already placed |
    | `table_features` * | (T * 21,) | float32 | the 21 features of every table |
    | `table_mask` * | (T,) | int8 | 1 for a table of the task, 0 for padding |
    | `assignment` * | (T,) | int16 | device of each table, -1 if it is not placed |

    The bounds of the spaces; all but those of costs are the least and the largest value that can occur. A task whose
    iterations may take longer than 1e9 ms is refused.

    | Range | Keys |
    |---|---|
    | 0 to 1e9 | `current_table_costs`, `device_costs` |
    | 0 to 1 | `current_table_shares`, `device_shares`, `device_width`, `device_memory`, `progress` |
    | 0 to 1 | `current_table_curve`, `device_curves`, `device_hbm` |
    | 0 to 2**33 | `hbm_gib` |
    | -1 to D - 1 | `assignment` |
    | `shard_gym.tables.tables.FEATURE_BOUNDS`, and 0 | `current_table`, `table_features` |

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
    placements of the task, so every valid placement is better. For a custom reward, pass a function like
    `shard_gym.envs.core.reward.Reward`.

    ## Episode End

    `terminated` is True when all tables are placed, when the action was illegal, or when the next table fits no device
    (a dead end). `truncated` is always False. A further step without a reset raises `gymnasium.error.ResetNeeded`.

    ## Information

    `reset` and `step` return the same keys, all of them numbers or arrays of a fixed shape:
    - `action_mask`: (max_devices,) int8, the same mask as in the observation. It is never all zero: after the end of an
      episode it is 1 for all devices of the task. `env.unwrapped.action_masks()` returns it as bool, for MaskablePPO;
    - `task_index`: int64, number of the task in the suite; -1 for a task that has none;
    - `cost_ms`: float64, ms of the tables placed so far, at the end of a complete placement of all. It is so after a
      failure, too: an illegal action places no table, and the penalty is charged by the reward alone;
    - `phase_costs_ms`: (max_devices, 4) float64, ms of each device in each phase;
    - `placement`: (max_tables,) int64, -1 until the placement is complete, then the device of each table in the task's
      own order, -1 in padding;
    - `failure`: int64, 0 for none, 1 for an illegal action, 2 for a dead end. `env.unwrapped.failure()` explains it by
      `reason` ("illegal_action" or "dead_end"), `table`, `bytes_needed`, `bytes_free` (the most on any device, in HBM
      and host memory together) and `message`;
    - `redirected`: int64, illegal actions of the episode that were redirected.

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
    `task` (unpadded), `problem` and `state` (arrays), `tasks` (the suite or sampler; for a curriculum, assign another,
    from which episodes come that begin afterwards), `cost_model`, `max_tables` and `max_devices` (the padding).

    ## References

    D. Zha et al., *DreamShard: Generalizable Embedding Table Placement for Recommender Systems*, NeurIPS 2022.

    ## Version History

    * v0: initial version
    """

    _episodes: PlacementEpisodes

    @takes_fields_of(PlacementConfig)
    def __init__(self, config: PlacementConfig) -> None:
        self._set_up(config)

    @property
    def max_tables(self) -> int:
        """The padding of the tables."""
        return self._episodes.max_tables

    @property
    def max_devices(self) -> int:
        """The padding of the devices."""
        return self._episodes.max_devices

    @property
    def problem(self) -> EnvProblem:
        """The task of this episode as arrays (N = 1); changed in place by a reset."""
        self._require_episode("There is no problem yet")
        return self._episodes.problem

    @property
    def state(self) -> PlacementState:
        """The placement so far (N = 1); changed in place."""
        self._require_episode("There is no state yet")
        return self._episodes.state

    def view(self) -> PlacementView:
        """The placement so far, for rendering."""
        self._require_episode("There is nothing to see yet")
        return self._episodes.view(0)

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
