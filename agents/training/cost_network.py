"""Learners that fit a cost network to the costs that they measure. Needs torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from shard_gym.agents.base.presets import COST, TYPES, CostNetworkOptions, preset_options
from shard_gym.agents.training.learner import Learner, Report
from shard_gym.agents.training.loads import ShardLoad, task_to_learn
from shard_gym.agents.training.torch_arrays import load_optimizer_arrays, optimizer_arrays
from shard_gym.common.errors import DamagedFileError, InvalidCheckpointError, NoPlacementFoundError
from shard_gym.common.io.arrays import Arrays, prefixed, require_arrays, under
from shard_gym.common.system import one_thread
from shard_gym.cost_models import CostEstimate, CostModel, make_cost_model
from shard_gym.cost_models.base import AdditiveCostModel
from shard_gym.cost_models.fitting.data.shards import ShardRecorder
from shard_gym.cost_models.fitting.training import (
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
from shard_gym.cost_models.neural import NeuralCostModel, groups
from shard_gym.hardware import Topology
from shard_gym.plans.plan import TABLE_WISE
from shard_gym.tables import Tables
from shard_gym.tasks import Task, TaskSuite

DATA = "data."
"""Prefix of what was measured in a state; that of the weights is `COST`."""

COST_OPTIMIZER = "cost_optimizer."  # prefix of the averages of the optimizer in a state


class CostNetworkTraining:
    """A cost network, its optimizer, and everything that was measured so far.

    Args:
        network: its class.
        rng: of the first weights.
        weight_decay: see `new_optimizer`.
        needs: of the tasks, see `NeuralCostModel.first_weights`; InvalidOptionError if the network cannot learn them.

    Attributes:
        recorder: the measurements.
    """

    def __init__(
        self,
        network: type[NeuralCostModel],
        rng: np.random.Generator,
        weight_decay: float = 0.0,
        needs: Collection[str] = (),
    ) -> None:
        self.network = network
        self.recorder = ShardRecorder()
        self._decay = weight_decay
        self._weights = trainable(network.first_weights(rng, needs))
        self._optimizer = new_optimizer(self._weights, weight_decay)
        self._normalized = False
        self._device = "cpu"

    def move_to(self, device: str) -> None:
        """Train on `device`; before the first training."""
        self._device = device
        self._weights = trainable(self.weights(), device)
        self._optimizer = new_optimizer(self._weights, self._decay)

    def record(self, load: ShardLoad, estimate: CostEstimate) -> None:
        """Remember the cost of `load`."""
        inputs = load.inputs(self.network, groups.learned_by(self._weights))
        self.recorder.add(inputs, load.devices, load.topology, estimate, load.host_megabytes())

    def train(self, rng: np.random.Generator, *, anew: bool = False, **options: Any) -> float:
        """Train on all measurements, at least one; the loss. The first call sets the normalization.

        `anew` forgets the optimizer's averages first: those of the small last gradients at a low rate would make the
        first steps at a high rate enormous. `options` are the other arguments of `train_network`.
        """
        samples = Samples(self.recorder.dataset(), self.network, self._device)
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
            **optimizer_arrays(self._optimizer, COST_OPTIMIZER),
            **prefixed(DATA, self.recorder.to_arrays()),
        }

    def load_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` returned; other arrays are ignored. Raises InvalidCheckpointError for others."""
        weights = under(COST, arrays)
        require_arrays("The saved cost network", weights, self.weights())
        assign_arrays(self._weights, weights)
        load_optimizer_arrays(self._optimizer, dict(arrays), COST_OPTIMIZER)
        try:
            self.recorder.restore(under(DATA, arrays))
        except DamagedFileError as error:
            raise InvalidCheckpointError(f"The measurements in the saved state are not usable. {error}") from error
        self._normalized = len(self.recorder) > 0


class CostNetworkLearner(Learner):
    """A learner that measures costs and fits a cost network to all of them so far, in each iteration.

    What is measured is the subclass's: random loads (`_random_load`), or what its agent proposes for training tasks
    (`_proposed`): placements, and plans where tasks may be split and the network estimates parts of tables.

    Args:
        suite, cost_model, seed: see `Learner`.
        name: of the agent.
        preset: one of `presets`, whose options it has.
        changes: options of the preset that differ from its defaults.

    Attributes:
        plans: whether tables are split.
        network: the cost network, and what was measured.
        first_weights: the random generator of the first weights.

    Raises:
        UnknownNameError: there is no such preset or option.
        InvalidOptionError: an option has an impossible value, or tasks may be split, and the cost model costs no plans.
    """

    MEASURE: ClassVar[int] = 0
    TRAIN: ClassVar[int] = 1
    """Purposes of random generators."""

    options: CostNetworkOptions

    def __init__(
        self, suite: TaskSuite, cost_model: CostModel, seed: int, name: str, preset: str, changes: Mapping[str, Any]
    ) -> None:
        plans = any(task.splittable for task in suite)
        super().__init__(suite, make_cost_model(cost_model, splits=True) if plans else cost_model, seed)
        self.name, self.preset = name, preset
        self.options = preset_options(self.presets, preset, **changes)
        self.iterations = self.options.iterations
        self.plans = plans
        self.planned_queries = self.iterations * self.options.measurements
        self.first_weights = np.random.default_rng([self.seed])
        needs = frozenset[str]().union(*(task.needs for task in suite))
        self.network = CostNetworkTraining(
            self.options.architecture, self.first_weights, self.options.weight_decay, needs
        )

    @override
    def _move(self, device: str) -> None:
        self.network.move_to(device)

    @property
    def measures_plans(self) -> bool:
        """Whether it learns from plans that are executed: from those alone, as shards by themselves are not."""
        return self.plans and not isinstance(self.cost_model, AdditiveCostModel)

    @property
    def sharding_types(self) -> tuple[str, ...]:
        """Those that it learns."""
        return self.network.network.sharding_types if self.plans else (TABLE_WISE,)

    def iterate(self) -> Report:
        """Measure costs, then train the cost network."""
        with one_thread():
            self.on_stage("measuring placements")
            costs = self._measure()
            self.on_stage("training the cost network")
            numbers = {"cost_loss": self._train()} if len(self.network.recorder) else {}
            numbers |= self._train_more()
        return Report(float(np.mean(costs)), numbers)

    def _measure(self) -> list[float]:
        """True costs of new loads, ms; the penalty where the agent proposed none, or it could not be measured."""
        rng, agent, costs = self.rng(self.MEASURE), self.agent(), []
        for number in range(self.options.measurements):
            load = self._random_load(number, rng)
            if load is None:
                task = task_to_learn(self.suite, rng)
                try:
                    load = self._proposed(agent, task, rng)
                except NoPlacementFoundError:
                    costs.append(self._penalty_ms(task.tables, task.topology))
                    continue
            costs.append(self._recorded_ms(load))
        return costs

    @abstractmethod
    def _random_load(self, number: int, rng: np.random.Generator) -> ShardLoad | None:
        """The load to measure as the `number`-th one of the iteration; None for one that the agent proposes."""

    @abstractmethod
    def _proposed(self, agent: Any, task: Task, rng: np.random.Generator) -> ShardLoad:
        """The load that `agent` proposes for `task`; raises NoPlacementFoundError if it found none."""

    def _recorded_ms(self, load: ShardLoad) -> float:
        """The true cost of `load` in ms, which is recorded; the penalty if it cannot be measured."""
        estimate: CostEstimate | None
        if load.placement is not None:
            tables, topology, placement = load.placement
            estimate = self.true_cost(placement, tables, topology)
        elif self.measures_plans:
            assert load.plan is not None
            tables, plan = load.plan
            topology, estimate = load.topology, self.true_cost(plan, tables, load.topology)
        else:
            assert isinstance(self.cost_model, AdditiveCostModel)  # only learners of plans have such loads
            estimate = load.estimate(self.cost_model)
            self.require_costs(np.array(estimate.total_ms))
            self.costed += 1
        if estimate is None:
            return self._penalty_ms(tables, topology)
        self._record(load, estimate)
        return estimate.total_ms

    def _penalty_ms(self, tables: Tables, topology: Topology) -> float:
        """What is charged for tables that no answer was found for, or whose answer cannot be measured."""
        return self.cost_model.penalty_ms(tables, topology, splits=self.measures_plans)

    def _record(self, load: ShardLoad, estimate: CostEstimate) -> None:
        self.network.record(load, estimate)

    def _train(self) -> float:
        return self._fit()

    def _fit(self, rates: tuple[float, float] | None = None, loss: Loss = relative_loss) -> float:
        """Train the cost network between two `rates`, or with a new optimizer from the options' rate to 0; its loss."""
        learning_rate, final_learning_rate = rates or (self.options.learning_rate, 0.0)
        return self.network.train(
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
        return self.network.state()

    @override
    def load_state(self, arrays: Arrays) -> None:
        self.network.load_state(arrays)

    @override
    def weights(self) -> Arrays:
        return prefixed(COST, self.network.weights())

    @override
    def about(self) -> dict[str, Any]:
        return {"preset": self.preset, "options": asdict(self.options), TYPES: list(self.sharding_types)}
