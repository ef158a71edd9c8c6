"""Training of DreamShard: measure placements, train a surrogate on their costs, and for `paper` a policy under it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from shard_gym.agents.dreamshard.agent import POLICY, DreamShardAgent, agent_arrays
from shard_gym.agents.dreamshard.options import PRESETS, PaperOptions, SearchOptions
from shard_gym.agents.dreamshard.reinforce import PolicyTraining
from shard_gym.agents.presets import COST
from shard_gym.agents.training.cost_network import WEIGHT_DECAY, CostNetworkTraining, PlacementCostLearner
from shard_gym.cost_models import CostModel
from shard_gym.cost_models.data.dataset import CostDataset, CostRecorder
from shard_gym.cost_models.data.folder import INDEX
from shard_gym.cost_models.data.measurements import Measurements, load_measurements
from shard_gym.cost_models.neural.dreamshard import DreamShardCostModel
from shard_gym.cost_models.neural.training import paper_loss, relative_loss
from shard_gym.errors import InvalidOptionError
from shard_gym.io.arrays import Arrays, require_arrays
from shard_gym.io.files import read_bytes, sha256_of
from shard_gym.placement import Placement
from shard_gym.tables import Tables
from shard_gym.tasks import TaskSuite
from shard_gym.topology import Topology

TRAIN_POLICY = 2  # purpose of a random generator, after those of `CostNetworkLearner`
COST_OPTIMIZER = "cost_optimizer."  # prefix of the averages of the surrogate's optimizer in a state


class DreamShardLearner(PlacementCostLearner):
    """DreamShard in training, with one of two presets (see `SearchOptions` and `PaperOptions`).

    The arguments and errors that are not named here are those of `PresetLearner`.

    Args:
        preset: "dream-search" or "paper".
        data: folder of measurements (`shard-gym collect`) to learn from in place of new ones; their training part is
            used. Nothing is measured then. A warning says if they are of other devices than the tasks have.

    Raises:
        InvalidOptionError: `data` is of tables with another workload.
        DamagedFileError: `data` holds no measurements.
    """

    presets = PRESETS

    options: SearchOptions | PaperOptions

    def __init__(
        self,
        suite: TaskSuite,
        cost_model: CostModel,
        seed: int = 0,
        *,
        name: str = "dreamshard",
        preset: str = "dream-search",
        data: str = "",
        **changes: Any,
    ) -> None:
        super().__init__(suite, cost_model, seed, name, preset, changes)
        rng, search = np.random.default_rng([self.seed]), isinstance(self.options, SearchOptions)
        recorder, decay = CostRecorder(self.cost_model.fingerprint), WEIGHT_DECAY if search else 0.0
        self._network = CostNetworkTraining(self.options.architecture, recorder, rng, decay, COST_OPTIMIZER)
        self._policy = PolicyTraining(suite, rng, self.options) if isinstance(self.options, PaperOptions) else None
        self._given: CostDataset | None = None
        self._pools: Sequence[str] = ()
        if data:
            measurements = _measurements_for(suite, data)
            self._given, self._pools = measurements.first.part("train"), measurements.index.sampling["pools"]
            index = read_bytes(Path(data) / INDEX)  # it has the checksums of all files
            self.sources = {"data_hardware": measurements.index.hardware, "data_sha256": sha256_of(index)}
            _warn_of_other_devices(suite, self._given, data, measurements.index.hardware)
            self.planned_queries = 0

    @property
    def measurements(self) -> CostDataset:
        """The placements measured so far, at least one, and their true costs."""
        return self._network.recorder.dataset()

    def _measure(self) -> list[float]:
        """Those of `data` if it is given."""
        if not self._given:
            return super()._measure()
        if not len(self._network.recorder):
            self._network.recorder.extend(self._given)
        return [float(cost) for cost in self._given.cost_ms]

    def _random_load(self, number: int, rng: np.random.Generator) -> tuple[Tables, Topology, Placement] | None:
        """None also for the preset `paper`, whose policy proposes all placements."""
        return None if self._policy else super()._random_load(number, rng)

    @property
    def _falling_rate(self) -> float:
        """The learning rate of `paper`, which falls linearly over the iterations, as in dreamshard/training.py."""
        return self.options.learning_rate * (1 - self.iteration / self.iterations)

    @override
    def _train(self) -> float:
        if self._policy is None:
            return self._fit()
        loss = paper_loss if issubclass(self.options.architecture, DreamShardCostModel) else relative_loss
        return self._fit((self._falling_rate, self._falling_rate), loss)

    def _train_more(self) -> dict[str, float]:
        if self._policy is None:
            return {}
        self.on_stage("training the policy")
        return self._policy.update(self._network.model(), self.rng(TRAIN_POLICY), self._falling_rate)

    @override
    def state(self) -> Arrays:
        return {**self.weights(), **super().state(), **(self._policy.optimizer_arrays() if self._policy else {})}

    @override
    def load_state(self, arrays: Arrays) -> None:
        weights = {name: array for name, array in arrays.items() if name.startswith((COST, POLICY))}
        require_arrays("The saved state", weights, self.weights())
        super().load_state(arrays)
        if self._policy:
            self._policy.load_state(arrays)

    @override
    def weights(self) -> Arrays:
        return agent_arrays(self._network.weights(), self._policy.arrays() if self._policy else {})

    def about(self) -> dict[str, Any]:
        """Also the pools of `data`."""
        pools = [f"pool/{name}" for name in self._pools]
        return {**super().about(), **({"more_data": pools} if pools else {})}

    @override
    def agent(self) -> DreamShardAgent:
        policy = self._policy.arrays() if self._policy else {}
        return DreamShardAgent(self.name, self._network.model(), self.options, policy, self.seed)


def _warn_of_other_devices(suite: TaskSuite, data: CostDataset, folder: str, hardware: str) -> None:
    found, wanted = (
        {f"{topology.num_devices} x {topology.device.name}" for topology in topologies}
        for topologies in (data.topologies, [task.topology for task in suite])
    )
    if not wanted <= found:
        warnings.warn(
            f"The measurements in {folder} are of {' and '.join(sorted(found))} (measured on {hardware}), but the "
            f"tasks of {suite.name!r} have {' and '.join(sorted(wanted))}. What is learnt may not hold for them; race "
            "the agent on the hardware that it is meant for.",
            stacklevel=3,
        )


def _measurements_for(suite: TaskSuite, folder: str) -> Measurements:
    measurements = load_measurements(folder)
    found, wanted = measurements.index.workload, suite.tasks[0].tables.workload
    if found != wanted:
        raise InvalidOptionError(
            f"The measurements in {folder} are of tables with {found}, but the tasks of {suite.name!r} have {wanted}. "
            "Measure that workload, or train on tasks of the other (Tables.at_batch_size, Tables.with_training)."
        )
    return measurements
