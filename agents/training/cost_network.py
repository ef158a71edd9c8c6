"""Learners that fit a cost network to the costs that they measure. Needs torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from typing_extensions import override

from shard_gym.agents.presets import COST, CostNetworkOptions
from shard_gym.agents.training.learner import PresetLearner, Report
from shard_gym.agents.training.random_loads import random_load
from shard_gym.agents.training.torch_arrays import OPTIMIZER, load_optimizer_arrays, optimizer_arrays
from shard_gym.cost_models import CostModel
from shard_gym.cost_models.data.dataset import CostRecorder
from shard_gym.cost_models.data.shards import ShardRecorder
from shard_gym.cost_models.neural.base import NeuralCostModel
from shard_gym.cost_models.neural.training import (
    Loss,
    Samples,
    as_arrays,
    assign_arrays,
    new_optimizer,
    relative_loss,
    train_network,
    trainable,
    with_normalization,
)
from shard_gym.errors import DamagedFileError, InvalidCheckpointError, NoPlacementFoundError
from shard_gym.io.arrays import Arrays, prefixed, require_arrays, under
from shard_gym.placement import Placement
from shard_gym.system import one_thread
from shard_gym.tables import Tables
from shard_gym.tasks import Task, TaskSuite
from shard_gym.topology import Topology

DATA = "data."
"""Prefix of what was measured in a state; those of the weights and the optimizer are `COST` and `OPTIMIZER`."""

WEIGHT_DECAY = 0.5
"""Weight decay of cost networks that a search works under, for tasks with more devices than in training.

`dream-search` trained on dlrm-50x4 (seed 0) has a mean error of 19% on its own placements for the first ten tasks of
dlrm-40x8. Without decay it is 93% over the suite (November 2026)."""

Recorder = TypeVar("Recorder", CostRecorder, ShardRecorder)


class CostNetworkTraining(Generic[Recorder]):
    """A cost network, its optimizer, and everything that was measured so far.

    Args:
        network: its class.
        recorder: empty; it keeps the measurements.
        rng: of the first weights.
        weight_decay: see `new_optimizer`.
        optimizer: prefix of the optimizer's averages in a state.
    """

    def __init__(
        self,
        network: type[NeuralCostModel],
        recorder: Recorder,
        rng: np.random.Generator,
        weight_decay: float = 0.0,
        optimizer: str = OPTIMIZER,
    ) -> None:
        self.network = network
        self.recorder: Recorder = recorder
        self._decay, self._prefix = weight_decay, optimizer
        self._weights = trainable(network.new_weights(rng))
        self._optimizer = new_optimizer(self._weights, weight_decay)
        self._normalized = False

    def train(self, rng: np.random.Generator, *, anew: bool = False, **options: Any) -> float:
        """Train on all measurements, at least one; the loss. The first call sets the normalization.

        `anew` forgets the optimizer's averages first: those of the small last gradients at a low rate would make the
        first steps at a high rate enormous. `options` are the other arguments of `train_network`.
        """
        samples = Samples(self.recorder.dataset(), self.network)
        if not self._normalized:
            assign_arrays(self._weights, with_normalization(samples, as_arrays(self._weights)))
            self._normalized = True
        if anew:
            self._optimizer = new_optimizer(self._weights, self._decay)
        return train_network(self._weights, self._optimizer, samples, rng, **options)

    def weights(self) -> Arrays:
        """Copies of the weights."""
        return as_arrays(self._weights)

    def model(self) -> NeuralCostModel:
        """The network as it is now."""
        return self.network(self.weights())

    def state(self) -> Arrays:
        """All arrays that decide how training goes on."""
        return {
            **prefixed(COST, self.weights()),
            **optimizer_arrays(self._optimizer, self._prefix),
            **prefixed(DATA, self.recorder.to_arrays()),
        }

    def load_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` returned; other arrays are ignored. Raises InvalidCheckpointError for others."""
        weights = under(COST, arrays)
        require_arrays("The saved cost network", weights, self.weights())
        assign_arrays(self._weights, weights)
        load_optimizer_arrays(self._optimizer, dict(arrays), self._prefix)
        try:
            self.recorder.restore(under(DATA, arrays))
        except DamagedFileError as error:
            raise InvalidCheckpointError(f"The measurements in the saved state are not usable. {error}") from error
        self._normalized = len(self.recorder) > 0


class CostNetworkLearner(PresetLearner):
    """A learner that measures costs and fits a cost network to all of them so far, in each iteration.

    It measures random loads, and what its agent proposes for training tasks. A subclass sets `_network` and says what
    is measured. The arguments are those of `PresetLearner`.
    """

    MEASURE: ClassVar[int] = 0
    TRAIN: ClassVar[int] = 1
    """Purposes of random generators."""

    measuring: ClassVar[str] = "measuring placements"
    """The name of the first stage."""

    options: CostNetworkOptions
    _network: CostNetworkTraining[Any]

    def __init__(
        self, suite: TaskSuite, cost_model: CostModel, seed: int, name: str, preset: str, changes: Mapping[str, Any]
    ) -> None:
        super().__init__(suite, cost_model, seed, name, preset, changes)
        self.planned_queries = self.iterations * self.options.measurements

    def iterate(self) -> Report:
        """Measure costs, then train the cost network."""
        with one_thread():
            self.on_stage(self.measuring)
            costs = self._measure()
            self.on_stage("training the cost network")
            numbers = {"cost_loss": self._train()} if len(self._network.recorder) else {}
            numbers |= self._train_more()
        return Report(float(np.mean(costs)), numbers)

    def _measure(self) -> list[float]:
        """True costs of new loads, ms; the penalty where the agent proposed none, or it could not be measured."""
        rng, agent, costs = self.rng(self.MEASURE), self.agent(), []
        for number in range(self.options.measurements):
            load = self._random_load(number, rng)
            if load is None:
                task = self.suite.sample(rng)
                try:
                    load = self._proposed(agent, task, rng)
                except NoPlacementFoundError:
                    costs.append(self.cost_model.penalty_ms(task.tables, task.topology))
                    continue
            costs.append(self._recorded_ms(load))
        return costs

    @abstractmethod
    def _random_load(self, number: int, rng: np.random.Generator) -> Any:
        """The load to measure as the `number`-th one of the iteration; None for one that the agent proposes."""

    @abstractmethod
    def _proposed(self, agent: Any, task: Task, rng: np.random.Generator) -> Any:
        """The load that `agent` proposes for `task`; raises NoPlacementFoundError if it found none."""

    @abstractmethod
    def _recorded_ms(self, load: Any) -> float:
        """The true cost of `load` in ms, which is recorded; the penalty if it cannot be measured."""

    def _train(self) -> float:
        return self._fit()

    def _fit(self, rates: tuple[float, float] | None = None, loss: Loss = relative_loss) -> float:
        """Train the cost network between two `rates`, or with a new optimizer from the options' rate to 0; its loss."""
        learning_rate, final_learning_rate = rates or (self.options.learning_rate, 0.0)
        return self._network.train(
            self.rng(self.TRAIN),
            steps=self.options.cost_updates,
            learning_rate=learning_rate,
            final_learning_rate=final_learning_rate,
            batch_size=self.options.cost_batch,
            loss=loss,
            anew=rates is None,
        )

    def _train_more(self) -> dict[str, float]:
        """Train what is beside the cost network, at the end of an iteration; numbers for the report."""
        return {}

    @override
    def state(self) -> Arrays:
        return self._network.state()

    @override
    def load_state(self, arrays: Arrays) -> None:
        self._network.load_state(arrays)

    @override
    def weights(self) -> Arrays:
        return prefixed(COST, self._network.weights())


class PlacementCostLearner(CostNetworkLearner):
    """A `CostNetworkLearner` that measures placements: of random tables in the first iteration, later proposed ones.

    Its agent has `proposal(task, rng)`, a placement to measure.
    """

    _network: CostNetworkTraining[CostRecorder]

    def _random_load(self, number: int, rng: np.random.Generator) -> tuple[Tables, Topology, Placement] | None:
        return None if self.iteration else random_load(self.suite, rng)

    def _proposed(self, agent: Any, task: Task, rng: np.random.Generator) -> tuple[Tables, Topology, Placement]:
        return task.tables, task.topology, agent.proposal(task, rng)

    @override
    def _recorded_ms(self, load: tuple[Tables, Topology, Placement]) -> float:
        tables, topology, placement = load
        estimate = self.true_cost(placement, tables, topology)
        if estimate is None:
            return self.cost_model.penalty_ms(tables, topology)
        self._network.recorder.add(tables, topology, placement, estimate)
        return estimate.total_ms
