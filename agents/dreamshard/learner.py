"""Training of DreamShard: measure placements, train a surrogate on their costs, and for `paper` a policy under it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.agents.dreamshard.agent import POLICY, DreamShardAgent, agent_arrays
from shard_gym.agents.dreamshard.options import PRESETS, PaperOptions, SearchOptions
from shard_gym.agents.dreamshard.reinforce import PolicyTraining
from shard_gym.agents.dreamshard.search_learner import SurrogateSearchLearner
from shard_gym.agents.presets import COST
from shard_gym.agents.training.loads import ShardLoad, loads_of_data, whole_tables
from shard_gym.cost_models import CostModel
from shard_gym.cost_models.data.dataset import CostDataset
from shard_gym.cost_models.data.folder import INDEX
from shard_gym.cost_models.data.measurements import Measurements, load_measurements
from shard_gym.cost_models.neural.dreamshard import DreamShardCostModel
from shard_gym.cost_models.neural.training import paper_loss, relative_loss
from shard_gym.errors import InvalidOptionError
from shard_gym.io.arrays import Arrays, require_arrays
from shard_gym.io.files import read_bytes, sha256_of
from shard_gym.tasks import Task, TaskSuite

TRAIN_POLICY = 2  # purpose of a random generator, after those of `CostNetworkLearner`


class DreamShardLearner(SurrogateSearchLearner):
    """DreamShard in training, with one of two presets (see `SearchOptions` and `PaperOptions`).

    The arguments and errors that are not named here are those of `PresetLearner`.

    Args:
        preset: "dream-search" or "paper".
        data: folder of measurements (`shard-gym collect`) to learn from in place of new ones; their training part is
            used. Nothing is measured then, and no plans are learned: it holds placements. A warning says if they are of
            other devices than the tasks have.

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
        self._policy: PolicyTraining | None = None
        if isinstance(self.options, PaperOptions):
            self._policy = PolicyTraining(suite, self.first_weights, self.options)
        self._given: CostDataset | None = None
        self._pools: Sequence[str] = ()
        if data:
            measurements = _measurements_for(suite, data)
            self._given, self._pools = measurements.first.part("train"), measurements.index.sampling["pools"]
            index = read_bytes(Path(data) / INDEX)  # it has the checksums of all files
            self.sources = {"data_hardware": measurements.index.hardware, "data_sha256": sha256_of(index)}
            _warn_of_other_devices(suite, self._given, data, measurements.index.hardware)
            self.planned_queries = 0
            self.plans = False  # measured are placements

    @override
    def _measure(self) -> list[float]:
        """Those of `data` if it is given."""
        if not self._given:
            return super()._measure()
        if not len(self.network.recorder):
            for load, estimate in loads_of_data(self._given):
                self._record(load, estimate)
        return [float(cost) for cost in self._given.cost_ms]

    @override
    def _random_load(self, number: int, rng: np.random.Generator) -> ShardLoad | None:
        """None also for the preset `paper`, whose policy proposes all placements."""
        return None if self._policy else super()._random_load(number, rng)

    @override
    def _proposed(self, agent: Any, task: Task, rng: np.random.Generator) -> ShardLoad:
        if self._policy is None:
            return super()._proposed(agent, task, rng)
        return whole_tables(task.tables, task.topology, agent.proposal(task, rng))

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

    @override
    def _train_more(self) -> dict[str, float]:
        if self._policy is None:
            return {}
        self.on_stage("training the policy")
        return self._policy.update(self.network.model(), self.rng(TRAIN_POLICY), self._falling_rate)

    @override
    def _move(self, device: str) -> None:
        super()._move(device)
        if self._policy:
            self._policy.move_to(device)

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
        return agent_arrays(self.network.weights(), self._policy.arrays() if self._policy else {})

    @override
    def about(self) -> dict[str, Any]:
        """Also the pools of `data`."""
        pools = [f"pool/{name}" for name in self._pools]
        return {**super().about(), **({"more_data": pools} if pools else {})}

    @override
    def agent(self) -> Agent:
        if self._policy is None:
            return super().agent()
        assert isinstance(self.options, PaperOptions)
        return DreamShardAgent(self.name, self.network.model(), self.options, self._policy.arrays())


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
