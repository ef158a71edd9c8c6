"""`EmbeddingShardingRealEnv`: the sharding environment with measured costs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shard_gym.cost_models.base import AdditiveCostModel
from shard_gym.envs.core.config import takes_fields_of
from shard_gym.envs.real.measuring import MeasuringConfig, MeasuringEnv, MeasuringVectorEnv
from shard_gym.envs.sharding.env import EmbeddingShardingEnv
from shard_gym.envs.sharding.episodes import ShardingConfig
from shard_gym.envs.sharding.vector import EmbeddingShardingVectorEnv
from shard_gym.tasks import TaskSource


@dataclass(frozen=True, eq=False)
class ShardingRealConfig(MeasuringConfig, ShardingConfig):
    """The arguments of `EmbeddingShardingRealEnv`."""

    suite: str | TaskSource = "shard-cpu-20x2"
    cost_model: str | Path | AdditiveCostModel = "analytical"


class EmbeddingShardingRealEnv(MeasuringEnv, EmbeddingShardingEnv):
    """
    ## Description

    The problem of `EmbeddingShardingEnv`, with measured costs. When the last table is complete, the plan is executed,
    and the time it takes is the cost. All five sharding types are executed: besides what `EmbeddingPlacementRealEnv`
    does, there are reduce-scatters of the partial sums of blocks of rows, on all devices or inside a host first, and
    all-reduces of the gradients of replicas. docs/real-hardware.md explains the installation and the numbers.

    Devices are those of `EmbeddingPlacementRealEnv`. With `layout="sequential"` the shards of each device are executed,
    one device after the other, and everything that the devices exchange is estimated by the analytical model.

    ## Action Space

    `Discrete(A)`, as in `EmbeddingShardingEnv`.

    ## Observation Space

    That of `EmbeddingShardingEnv`, so an agent trained in one variant can act in the other. Until the last step the
    costs in it are estimates of `cost_model` for the hardware profile of this machine; in the last observation
    `device_costs` is measured. `observation="features"` and `"set"` hold no cost, neither estimated nor
    measured.

    ## Starting State

    As in `EmbeddingShardingEnv`. Tasks keep their memory caps; all else is changed as in `EmbeddingPlacementRealEnv`.
    The suites `shard-cpu-20x2` and `shard-cpu-40x4` are made for a CPU, `shard-gpu-40x4` for one GPU.

    Tasks with sequence tables, with tables that are served, with host memory or with groups of devices are not
    executed, and refused (`InvalidOptionError`). The step that completes a plan with blocks of rows raises it, too, if
    the devices do not divide the batch; `sharding_types=("table_wise", "column_wise")` leaves out the blocks.

    ## Rewards

    As in `EmbeddingShardingEnv`: `"terminal"` (default) is minus the measured cost in ms. `"dense"` distributes it
    over the steps by the estimates of `cost_model`, `"normalized"` divides it by the lower bound of `cost_model`.

    A failed episode is charged 11 times an upper bound on the estimated cost of all plans of the task. For a measured
    cost above that the reward is that of a cost just below it, so that failing never pays; there is a warning, and
    `info["cost_ms"]` is what was measured.

    ## Episode End

    As in `EmbeddingShardingEnv`. If a measurement fails (`shard_gym.common.errors.MeasurementError`), the step raises
    and the workers are terminated, as in `EmbeddingPlacementRealEnv`. The same step may be tried again.

    ## Information

    As in `EmbeddingShardingEnv`; at the end of a complete plan `cost_ms` and `phase_costs_ms` are measured; before, and
    after a failure, they are estimates. Further keys, all 0 until then:
    - `measurement_spread`: float64, interquartile range of the iterations' costs, as a share of the median;
    - `measurement_seconds`: float64, wall-clock time of the measurement; 0 if it comes from the cache;
    - `measurement_clock_ghz`: float64, lowest SM clock of the GPUs; 0 on a CPU;
    - `measurement_late`: float64, iterations on a GPU whose times contain time of the host.

    Measuring the same plan twice gives two numbers, so the environment is registered as nondeterministic. Times are
    cached by hardware and shards on the device, as long as the environment exists or in the file `cache`.

    ## Arguments

    ```python
    import gymnasium
    env = gymnasium.make("shard_gym:EmbeddingShardingReal-v0", suite="shard-cpu-20x2", device="cpu")
    ```

    - `suite="shard-cpu-20x2"`, `split="train"`, `reward="terminal"`, `observation="full"`, `max_tables=None`,
      `max_devices=None`, `illegal="terminate"`, `info_text=False`, `render_mode=None`: as in `EmbeddingPlacementEnv`;
    - `sharding_types=("table_wise", "column_wise", "row_wise", "table_row_wise", "data_parallel")`, `max_shards=8`,
      `max_hosts=None`: as in `EmbeddingShardingEnv`;
    - `device="cpu"`, `layout="auto"`, `batch_size=None`, `iterations=10`, `warmup=3`, `timeout_s=120.0`, `cache=None`:
      as in `EmbeddingPlacementRealEnv`;
    - `cost_model="analytical"`: the cost model of the estimates, as in `EmbeddingShardingEnv`;
    - `measured=None`: a custom `MeasuredCostModel`, in place of all arguments from `device` to `cache`.

    `close()` ends the workers.

    ## References

    D. Zha et al., *Pre-train and Search: Efficient Embedding Table Sharding with Pre-trained Neural Cost Models*, MLSys
    2023. TorchRec, https://github.com/meta-pytorch/torchrec.

    ## Version History

    * v0: initial version
    """

    @takes_fields_of(ShardingRealConfig)
    def __init__(self, config: ShardingRealConfig) -> None:
        self._set_up(config)


class EmbeddingShardingRealVectorEnv(MeasuringVectorEnv, EmbeddingShardingVectorEnv):
    """N environments of `EmbeddingShardingRealEnv` that share their workers: plans are measured one by one.

    The arguments are those of `EmbeddingPlacementVectorEnv` and of `EmbeddingShardingRealEnv`.
    """

    config = ShardingRealConfig
