"""`EmbeddingShardingEnv`: the Gymnasium environment of `EmbeddingSharding-v0`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import cast

from shard_gym.cost_models.sharding import ShardingCostModel
from shard_gym.envs.core.episodes import Observation
from shard_gym.envs.core.reward import Reward
from shard_gym.envs.core.split_rules import SplitRules
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.envs.placement.rendering.modes import check_render_mode
from shard_gym.envs.placement.rendering.plan_view import PlanView
from shard_gym.envs.sharding.episodes import ShardingEpisodes
from shard_gym.envs.sharding.observation import sharding_observation
from shard_gym.envs.sharding.view import view_of
from shard_gym.sharding import SHARDING_TYPES, ShardingPlan
from shard_gym.tasks import TaskSource


class EmbeddingShardingEnv(EmbeddingPlacementEnv):
    """
    ## Description

    The problem of `EmbeddingPlacementEnv`, but tables may also be split: halved by columns, cut into blocks of rows on
    all devices or on those of a host, or replicated on all devices. The result is a `ShardingPlan` with TorchRec's
    sharding types. Tables come one after the other in descending order of the estimated cost of each whole table alone.
    The cost model adds reduce-scatters of partial sums and all-reduces of gradients (docs/cost-model.md).

    ## Action Space

    `Discrete(A)`. Until a table is halved, its current part is the whole table.

    - `0` to `max_devices - 1`: the current part to that device. Legal if the task has the device and the part fits into
      its free memory.
    - The next action, with "column_wise": halve the columns of the current part; its halves come next, in turn. Legal
      if they are multiples of 4 wide, and if all that waits of the table would fit when halved to parts of one size.
    - The next, with "row_wise": a block of rows to every device. Legal for a table that is not halved, if a block fits
      every device and none is empty.
    - The next `max_hosts`, with "table_row_wise": the same on the devices of host 0, 1, ...; all hosts of the task must
      have as many devices.
    - The last, with "data_parallel": a replica to every device. Legal for a table that is not halved, if it fits.

    An illegal action ends the episode and raises nothing. A value outside the space raises `InvalidActionError`.

    ## Observation Space

    A `Dict` of 1-D arrays, as in `EmbeddingPlacementEnv`, padded to `max_tables` (T) and `max_devices` (D). V is the
    number of variants of a table (whole, halved 1, 2, .. H times, then the other sharding types), A that of actions.
    `observation="compact"` has no keys marked *.

    | Key | Shape | Dtype | Content |
    |---|---|---|---|
    | `current_table` | (21,) | float32 | features of the current part, see `shard_gym.tables.FEATURE_NAMES` |
    | `current_table_costs` | (4,) | float32 | ms of the four phases with that part alone on a device |
    | `device_costs` | (D * 4,) | float32 | ms of the four phases of each device with what it holds so far |
    | `device_memory` | (D * 2,) | float32 | share of the memory cap in use, and the current part's share of it |
    | `device_mask` | (D,) | int8 | 1 for a device of the task, 0 for padding |
    | `action_mask` | (A,) | int8 | 1 for a legal action |
    | `progress` | (1,) | float32 | share of the tables completed |
    | `parts_waiting` | (H + 1,) | float32 | parts of the current table without a device, by number of halvings |
    | `variant_costs` | (V * 4,) | float32 | ms of the phases with one part of each variant alone; 0 if not possible |
    | `table_features` * | (T * 21,) | float32 | the 21 features of every whole table |
    | `table_mask` * | (T,) | int8 | 1 for a table of the task, 0 for padding |
    | `table_done` * | (T,) | int8 | 1 for a table that is completely on devices |

    ## Starting State

    As in `EmbeddingPlacementEnv`.

    ## Rewards

    As in `EmbeddingPlacementEnv`. A failed episode is charged 1.1 times an upper bound on the cost of all plans of the
    task.

    ## Episode End

    `terminated` is True when all tables are on devices, when the action was illegal, or when no action is legal (a dead
    end). Once a table is halved, it can always be completed. `truncated` is always False. An episode has at most
    (2 max_shards - 1) T steps.

    ## Information

    As in `EmbeddingPlacementEnv`, but the last step of a complete plan adds `actions` (int32, what was done, -1 after
    the last) instead of `placement`. `env.unwrapped.plan` is the plan so far. In `failure`, `bytes_needed` are those of
    the current part.

    ## Arguments

    ```python
    import gymnasium
    env = gymnasium.make("shard_gym:EmbeddingSharding-v0", suite="mixdim-4", split="train")
    ```

    - `suite="mixdim-4"`, `split="train"`, `reward="terminal"`, `observation="full"`, `max_tables=None`,
      `max_devices=None`, `render_mode=None`: as in `EmbeddingPlacementEnv`;
    - `cost_model="analytical"`: a name, or a `ShardingCostModel` such as `AnalyticalShardingModel("fp16")`;
    - `sharding_types=("table_wise", "column_wise", "row_wise", "table_row_wise", "data_parallel")`: those allowed;
      `("table_wise", "column_wise")` is NeuroShard's problem;
    - `max_shards=8`: column shards of a table at most, a power of two;
    - `max_hosts=None`: padding of the hosts; by default those of the suite's largest task.

    ## References

    D. Zha et al., *Pre-train and Search: Efficient Embedding Table Sharding with Pre-trained Neural Cost Models*, MLSys
    2023. TorchRec, https://github.com/meta-pytorch/torchrec.

    ## Version History

    * v0: initial version
    """

    def __init__(
        self,
        suite: str | TaskSource = "mixdim-4",
        split: str = "train",
        cost_model: str | Path | ShardingCostModel = "analytical",
        reward: str | Reward = "terminal",
        observation: str | Observation = "full",
        sharding_types: Collection[str] = SHARDING_TYPES,
        max_shards: int = 8,
        max_tables: int | None = None,
        max_devices: int | None = None,
        max_hosts: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        check_render_mode(render_mode)
        self.render_mode = render_mode
        make_observation = sharding_observation(observation)
        problem = (suite, split, cost_model, reward, make_observation)
        self._use(ShardingEpisodes(1, *problem, max_tables, max_devices, max_hosts, sharding_types, max_shards))

    @property
    def plan(self) -> ShardingPlan:
        """The plan so far; tables that have no shard yet are table_wise without shards."""
        self._require_episode("There is no plan yet")
        return cast(ShardingEpisodes, self._episodes).plan(0)

    @property
    def rules(self) -> SplitRules:
        """Which action means what."""
        rules = self._episodes.problem.rules
        assert rules is not None
        return rules

    def view(self) -> PlanView:
        """The plan so far, for rendering."""
        self._require_episode("There is nothing to see yet")
        return view_of(cast(ShardingEpisodes, self._episodes), 0)
