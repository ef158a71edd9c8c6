"""Training of DreamShard: measure placements, train a surrogate on their costs, and for `paper` a policy under it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.agents.dreamshard.agent import COST, POLICY, DreamShardAgent, agent_arrays
from shard_gym.agents.dreamshard.measuring import measure
from shard_gym.agents.dreamshard.options import PRESETS, PaperOptions, SearchOptions, dreamshard_options
from shard_gym.agents.dreamshard.reinforce import PolicyTraining
from shard_gym.agents.training.cost_network import CostNetworkTraining
from shard_gym.agents.training.learner import Learner, Report
from shard_gym.agents.training.torch_arrays import load_optimizer_arrays, optimizer_arrays
from shard_gym.cost_models import CostModel
from shard_gym.cost_models.data.dataset import CostDataset, CostRecorder
from shard_gym.cost_models.data.folder import INDEX
from shard_gym.cost_models.data.measurements import Measurements, load_measurements
from shard_gym.cost_models.neural.dreamshard import DreamShardCostModel
from shard_gym.cost_models.neural.network import FloatWeights
from shard_gym.cost_models.neural.storage import NETWORKS
from shard_gym.cost_models.neural.training import (
    as_arrays,
    assign_arrays,
    paper_loss,
    relative_loss,
)
from shard_gym.errors import InvalidOptionError
from shard_gym.io.arrays import Arrays, require_arrays, under
from shard_gym.io.files import read_bytes, sha256_of
from shard_gym.system import one_thread
from shard_gym.tasks import TaskSuite

MEASURE, TRAIN_SURROGATE, TRAIN_POLICY = range(3)
"""Purposes of random generators."""

WEIGHT_DECAY = 0.5
"""Of the surrogate of `dream-search`, for tasks with more devices than in training. Trained on dlrm-50x4 (seed 0), its
mean error on its own placements for the first ten tasks of dlrm-40x8 is 19%. Without decay it is 93% over the suite
(November 2026)."""

COST_OPTIMIZER, POLICY_OPTIMIZER = "cost_optimizer.", "policy_optimizer."
"""Prefixes of the averages of the optimizers in a state."""


class DreamShardLearner(Learner):
    """DreamShard in training, with one of two presets (see `SearchOptions` and `PaperOptions`).

    Args:
        suite, cost_model, seed: see `Learner`.
        name: of the agent.
        preset: "dream-search" or "paper".
        data: folder of measurements (`shard-gym collect`) to learn from in place of new ones; their training part is
            used. Nothing is measured then. A warning says if they are of other devices than the tasks have.
        changes: options of the preset that differ from its defaults.

    Raises:
        UnknownNameError: there is no such preset or option.
        InvalidOptionError: an option has an impossible value, or `data` is of tables with another workload.
        DamagedFileError: `data` holds no measurements.
    """

    presets = PRESETS

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
        super().__init__(suite, cost_model, seed)
        self.name = name
        self.preset = preset
        self.options = dreamshard_options(preset, **changes)
        self.iterations = self.options.iterations
        self.planned_queries = self.iterations * self.options.measurements
        self._network = NETWORKS[self.options.network]
        rng, search = np.random.default_rng([self.seed]), isinstance(self.options, SearchOptions)
        recorder = CostRecorder(self.cost_model.fingerprint)
        self._surrogate: CostNetworkTraining[CostRecorder] = CostNetworkTraining(
            self._network, recorder, rng, WEIGHT_DECAY if search else 0.0
        )
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
        return self._surrogate.recorder.dataset()

    def iterate(self) -> Report:
        """Measure placements, then train the surrogate, then the policy if there is one."""
        with one_thread():
            self.on_stage("measuring placements")
            costs = self._measure()
            self.on_stage("training the cost network")
            numbers = self._train_surrogate() if len(self._surrogate.recorder) else {}
            if self._policy:
                self.on_stage("training the policy")
                numbers |= self._policy.update(self._surrogate.model(), self.rng(TRAIN_POLICY), self._learning_rate)
        return Report(float(np.mean(costs)), numbers)

    @property
    def _learning_rate(self) -> float:
        """That of the iteration's first update. For `paper` it falls linearly, as in dreamshard/training.py."""
        falling = isinstance(self.options, PaperOptions)
        return self.options.learning_rate * (1 - self.iteration / self.iterations if falling else 1.0)

    def _measure(self) -> list[float]:
        """True costs of new placements, ms; the penalty where the agent found none, or none could be measured."""
        if self._given:
            if not len(self._surrogate.recorder):
                self._surrogate.recorder.extend(self._given)
            return [float(cost) for cost in self._given.cost_ms]
        first = isinstance(self.options, SearchOptions) and self.iteration == 0
        propose = None if first else self.agent().proposal
        return measure(self, self._surrogate.recorder, self.options.measurements, self.rng(MEASURE), propose)

    def _train_surrogate(self) -> dict[str, float]:
        """Train the cost network on all measurements so far; its loss."""
        search = isinstance(self.options, SearchOptions)
        loss = self._surrogate.train(
            self.rng(TRAIN_SURROGATE),
            steps=self.options.cost_updates,
            learning_rate=self._learning_rate,
            final_learning_rate=0.0 if search else self._learning_rate,
            batch_size=self.options.cost_batch,
            loss=relative_loss if search or not issubclass(self._network, DreamShardCostModel) else paper_loss,
            anew=search,
        )
        return {"cost_loss": loss}

    def _policy_weights(self) -> FloatWeights:
        return as_arrays(self._policy.weights) if self._policy else {}

    def state(self) -> Arrays:
        """See `Learner`."""
        policy = optimizer_arrays(self._policy.optimizer, POLICY_OPTIMIZER) if self._policy else {}
        return {**self.weights(), **self._surrogate.state(COST_OPTIMIZER), **policy}

    def load_state(self, arrays: Arrays) -> None:
        """See `Learner`."""
        weights = {name: array for name, array in arrays.items() if name.startswith((COST, POLICY))}
        require_arrays("The saved state", weights, self.weights())
        self._surrogate.load_state(arrays, COST_OPTIMIZER)
        if self._policy:
            assign_arrays(self._policy.weights, under(POLICY, weights))
            load_optimizer_arrays(self._policy.optimizer, arrays, POLICY_OPTIMIZER)

    def weights(self) -> Arrays:
        """See `Learner`."""
        return agent_arrays(self._surrogate.weights(), self._policy_weights())

    def about(self) -> dict[str, Any]:
        """See `Learner`."""
        pools = [f"pool/{name}" for name in self._pools]
        return {"preset": self.preset, "options": asdict(self.options), **({"more_data": pools} if pools else {})}

    def agent(self) -> DreamShardAgent:
        """See `Learner`."""
        return DreamShardAgent(self.name, self._surrogate.model(), self.options, self._policy_weights(), self.seed)


def _warn_of_other_devices(suite: TaskSuite, data: CostDataset, folder: str, hardware: str) -> None:
    """Warn where the tasks have devices of another kind or number than those that were measured."""
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
    """The measurements in `folder`, which must have the workload of the tasks.

    Raises:
        InvalidOptionError: they have another one.
        DamagedFileError: there are none.
    """
    measurements = load_measurements(folder)
    found, wanted = measurements.index.workload, suite.tasks[0].tables.workload
    if found != wanted:
        raise InvalidOptionError(
            f"The measurements in {folder} are of tables with {found}, but the tasks of {suite.name!r} have {wanted}. "
            "Measure that workload, or train on tasks of the other (Tables.at_batch_size, Tables.with_training)."
        )
    return measurements
