"""`EmbeddingShardingEnv`: the Gymnasium environment of `EmbeddingSharding-v0`."""

from __future__ import annotations

from shard_gym.envs.core.config import takes_fields_of
from shard_gym.envs.core.split_rules import SplitRules
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.envs.sharding.episodes import ShardingConfig, ShardingEpisodes
from shard_gym.plans import ShardingPlan


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
      if they are multiples of 4 wide, and if all parts of this table without a device would fit once they are halved to
      the same width; so a table that was halved can always be completed.
    - The next, with "row_wise": a block of rows to every device. Legal for a table that is not halved, if a block fits
      every device and none is empty.
    - The next `max_hosts`, with "table_row_wise": the same on the devices of host 0, 1, ...; all hosts of the task must
      have the same number of devices. Of one host this is "row_wise" again; leave it out of `sharding_types` there.
    - The last, with "data_parallel": a replica to every device. Legal for a table that is not halved, if it fits.

    Of all these, what the constraints of the task (`Task.constraints`) forbid, if it has any, is not legal.

    An illegal action ends the episode and raises nothing. With `illegal="redirect"` the part goes to the legal device
    with the least memory in use instead (if there is none, the first legal split is done), and the reward is less by
    0.05 times the task's lower bound. A value outside the space raises `InvalidActionError`.

    ## Observation Space

    A `Dict` of 1-D arrays, as in `EmbeddingPlacementEnv`, padded to `max_tables` (T) and `max_devices` (D). U is
    `max_shards` (1 without "column_wise"), H = log2(U), V the number of variants of a table (whole, halved 1, 2, .. H
    times, then the other sharding types), and A that of actions. Tables are in the order in which they come.

    `observation="full"` (default) has no keys marked +, `observation="compact"` none marked * or +, and of those that
    hold no cost, `observation="features"` none marked * or - and `observation="set"` none marked -. With these two,
    tables come in descending order of embedding_dim * pooling_factor.

    If tasks have host memory, there are the keys marked !, too: curves as in `EmbeddingPlacementEnv`, of parts. A block
    has its share of the rows and of their reads; a batch updates all rows of a replica on several devices.

    | Key | Shape | Dtype | Content |
    |---|---|---|---|
    | `current_table` | (21,) | float32 | features of the current part, see `shard_gym.tables.tables.FEATURE_NAMES` |
    | `current_table_costs` - | (4,) | float32 | ms of the four phases with that part alone on a device |
    | `device_costs` - | (D * 4,) | float32 | ms of the four phases of each device with what it holds so far |
    | `current_table_shares` + | (5,) | float32 | its share of the task's `shard_gym.tables.tables.AMOUNT_NAMES` |
    | `device_shares` + | (D * 5,) | float32 | the same of each device: the sums over its parts, at most U |
    | `device_width` + | (D,) | float32 | columns / 128 of the widest part on each device, at most 1 |
    | `device_memory` | (D * 2,) | float32 | share of the memory cap in use, and the current part's share of it |
    | `current_table_curve` ! | (8,) | float32 | curve of the current part |
    | `device_curves` ! | (D * 8,) | float32 | curve of each device with what it holds so far |
    | `variant_curves` ! | (V * 8,) | float32 | curve of one part of each variant; 0 if not possible |
    | `device_hbm` ! | (D,) | float32 | the HBM's share of the memory cap of each device, which is HBM and host memory |
    | `hbm_gib` ! | (1,) | float32 | GiB of HBM of each device |
    | `device_mask` | (D,) | int8 | 1 for a device of the task, 0 for padding |
    | `action_mask` | (A,) | int8 | 1 for a legal action |
    | `progress` | (1,) | float32 | share of the tables completed |
    | `parts_waiting` | (H + 1,) | float32 | parts of the current table without a device, by number of halvings |
    | `variant_costs` - | (V * 4,) | float32 | ms of the phases with one part of each variant alone; 0 if not possible |
    | `variant_shares` + | (V * 5,) | float32 | share of the amounts of one part of each variant; 0 if not possible |
    | `table_features` * | (T * 21,) | float32 | the 21 features of every whole table |
    | `table_mask` * | (T,) | int8 | 1 for a table of the task, 0 for padding |
    | `assignment` * | (T * U,) | int16 | actions of the shards of each table, as in `placement` (see Information) |

    The bounds of the spaces; all but those of costs are the least and the largest value that can occur. A task whose
    iterations may take longer than 1e9 ms is refused.

    | Range | Keys |
    |---|---|
    | 0 to 1e9 | `current_table_costs`, `device_costs`, `variant_costs` |
    | 0 to 1 | `current_table_shares`, `variant_shares`, `device_width`, `device_memory`, `progress` |
    | 0 to 1 | `current_table_curve`, `device_curves`, `variant_curves`, `device_hbm` |
    | 0 to 2**33 | `hbm_gib` |
    | 0 to U | `device_shares`, `parts_waiting` |
    | -1 to A - 1 | `assignment` |
    | `shard_gym.tables.tables.FEATURE_BOUNDS`, and 0 | `current_table`, `table_features` |

    ## Starting State

    As in `EmbeddingPlacementEnv`. Tables may be larger than a device, if the task says so (`Task.splittable`) and the
    `sharding_types` and `max_shards` leave a way to split them; otherwise `reset` raises `TableTooLargeError`.

    ## Rewards

    As in `EmbeddingPlacementEnv`. A failed episode is charged 1.1 times an upper bound on the cost of all plans of the
    task.

    ## Episode End

    `terminated` is True when all tables are on devices, when the action was illegal, or when no action is legal (a dead
    end). Once a table is halved, it can always be completed. `truncated` is always False. An episode has at most
    (2 max_shards - 1) T steps.

    ## Information

    As in `EmbeddingPlacementEnv`; `action_mask` is (A,), and:
    - `placement`: (max_tables, max_shards) int32, -1 until the plan is complete. Then, for each table in the task's own
      order, the action that gave a shard to devices, at the U-th of the columns where the shard begins, and -1
      elsewhere: [2, -1, 0, 0] is a half on device 2 and two quarters on device 0.

    `env.unwrapped.plan` is the plan so far, and `shard_gym.envs.core.plans.plan_of` makes one of `placement`. In
    `env.unwrapped.failure()`, `bytes_needed` are those of the current part.

    ## Arguments

    ```python
    import gymnasium
    env = gymnasium.make("shard_gym:EmbeddingSharding-v0", suite="shard-4", split="train")
    ```

    - `suite="shard-4"`, `split="train"`, `reward="terminal"`, `observation="full"`, `max_tables=None`,
      `max_devices=None`, `illegal="terminate"`, `info_text=False`, `render_mode=None`: as in `EmbeddingPlacementEnv`;
    - `cost_model="analytical"`: a name, or a cost model that supports splits, such as
      `AnalyticalShardingModel("fp16")`; of a suite whose tables are served, "analytical" is `analytical-inference`;
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

    _episodes: ShardingEpisodes

    @takes_fields_of(ShardingConfig)
    def __init__(self, config: ShardingConfig) -> None:
        self._set_up(config)

    @property
    def plan(self) -> ShardingPlan:
        """The plan so far; tables that have no shard yet are table_wise without shards."""
        self._require_episode("There is no plan yet")
        return self._episodes.plan(0)

    @property
    def rules(self) -> SplitRules:
        """Which action means what."""
        return self._episodes.rules
