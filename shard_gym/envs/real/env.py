"""`EmbeddingPlacementRealEnv`: the placement environment with measured costs."""

from __future__ import annotations

from dataclasses import dataclass

from shard_gym.envs.core.config import takes_fields_of
from shard_gym.envs.placement.episodes import PlacementConfig
from shard_gym.envs.real.measuring import MeasuringConfig, MeasuringEnv, MeasuringVectorEnv


@dataclass(frozen=True, eq=False)
class RealConfig(MeasuringConfig, PlacementConfig):
    """The arguments of `EmbeddingPlacementRealEnv`."""


class EmbeddingPlacementRealEnv(MeasuringEnv):
    """
    ## Description

    The problem of `EmbeddingPlacementEnv`, with measured costs. When the last table is placed, the placement is
    executed: FBGEMM's fused operator on every device, all-to-all of the pooled outputs, all-to-all of the gradients,
    backward with the fused optimizer. The time it takes is the cost. docs/real-hardware.md explains the installation
    and the numbers.

    Devices are the GPUs of this machine (`device="cuda"`), processes on its CPU (`device="cpu"`), or one GPU that
    stands for all of them, one after the other (`layout="sequential"`; the all-to-alls are modelled then).

    ## Action Space

    `Discrete(max_devices)`, as in `EmbeddingPlacementEnv`.

    ## Observation Space

    That of `EmbeddingPlacementEnv`, so an agent trained in one variant can act in the other. Until the last step the
    costs in it are estimates of `cost_model` for the hardware profile of this machine; in the last observation
    `device_costs` is measured. `observation="features"` and `"set"` hold no cost, neither estimated nor
    measured.

    ## Starting State

    As in `EmbeddingPlacementEnv`. Tasks keep their memory caps; their devices are those of this machine, and lookups,
    distinct rows and histograms those of the batch that is measured (`as_measured` in shard_gym/envs/real/tasks.py).
    The suites `cpu-20x2` and `cpu-40x4` are made for a CPU, `gpu-40x4` and `gpu-80x8` for one GPU.

    ## Rewards

    As in `EmbeddingPlacementEnv`: `"terminal"` (default) is minus the measured cost in ms. `"dense"` distributes it
    over the steps by the estimates of `cost_model`, `"normalized"` divides it by the lower bound of `cost_model`.

    A failed episode is charged 11 times an upper bound on the estimated cost of all placements of the task. For a
    measured cost above that the reward is that of a cost just below it, so that failing never pays; there is a warning,
    and `info["cost_ms"]` is what was measured.

    ## Episode End

    As in `EmbeddingPlacementEnv`. If a measurement fails (`shard_gym.common.errors.MeasurementError`: a worker died, a
    device ran out of memory, a collective got stuck), the step raises and the workers are terminated. The same step may
    be tried again; new workers start then.

    ## Information

    As in `EmbeddingPlacementEnv`; at the end of a complete placement `cost_ms` and `phase_costs_ms` are measured;
    before, and after a failure, they are estimates. Further keys, all 0 until then:
    - `measurement_spread`: float64, interquartile range of the iterations' costs, as a share of the median;
    - `measurement_seconds`: float64, wall-clock time of the measurement; 0 if it comes from the cache;
    - `measurement_clock_ghz`: float64, lowest SM clock of the GPUs; 0 on a CPU;
    - `measurement_late`: float64, iterations on a GPU whose times contain time of the host.

    Measuring the same placement twice gives two numbers, so the environment is registered as nondeterministic. Times
    are cached by hardware and tables on the device, as long as the environment exists or in the file `cache`.

    ## Arguments

    ```python
    import gymnasium
    env = gymnasium.make("shard_gym:EmbeddingPlacementReal-v0", suite="dlrm-20x4", device="cpu")
    ```

    - `suite="dlrm-50x4"`, `split="train"`, `reward="terminal"`, `observation="full"`, `max_tables=None`,
      `max_devices=None`, `illegal="terminate"`, `info_text=False`, `render_mode=None`: as in `EmbeddingPlacementEnv`;
    - `device="cpu"`: or "cuda";
    - `layout="auto"`: "parallel", "sequential", or "auto": parallel if there are as many GPUs (or CPUs) as devices;
    - `batch_size=None`: samples of all devices together, at most those of the tables' workload, which is the default;
    - `iterations=10`, `warmup=3`: timed iterations, whose median counts, and those before them;
    - `timeout_s=120.0`: limit of one measurement;
    - `cache=None`: file that keeps measurements;
    - `cost_model="analytical"`: the cost model of the estimates, its name, file or object;
    - `measured=None`: a custom `MeasuredCostModel`, in place of all arguments from `device` to `cache`.

    `close()` ends the workers.

    ## References

    D. Zha et al., *DreamShard: Generalizable Embedding Table Placement for Recommender Systems*, NeurIPS 2022.

    ## Version History

    * v0: initial version
    """

    @takes_fields_of(RealConfig)
    def __init__(self, config: RealConfig) -> None:
        self._set_up(config)


class EmbeddingPlacementRealVectorEnv(MeasuringVectorEnv):
    """N environments of `EmbeddingPlacementRealEnv` that share their workers: placements are measured one by one.

    The arguments are those of `EmbeddingPlacementVectorEnv` and of `EmbeddingPlacementRealEnv`.
    """

    config = RealConfig
