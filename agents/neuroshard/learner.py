"""Training of NeuroShard's networks: measure shards on devices, then fit the networks to all measurements so far."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from shard_gym.agents.neuroshard.agent import NeuroShardAgent
from shard_gym.agents.neuroshard.loads import ShardLoad, load_of, paper_load, random_shards
from shard_gym.agents.neuroshard.options import PRESETS, SearchOptions, neuroshard_options
from shard_gym.agents.training.cost_network import CostNetworkTraining
from shard_gym.agents.training.learner import Learner, Report
from shard_gym.cost_models import CostModel, make_sharding_cost_model
from shard_gym.cost_models.counted import CountedShardingModel
from shard_gym.cost_models.data.shards import ShardRecorder
from shard_gym.cost_models.neural.storage import NETWORKS
from shard_gym.errors import NoPlacementFoundError
from shard_gym.io.arrays import Arrays
from shard_gym.system import one_thread
from shard_gym.tasks import TaskSuite

MEASURE, TRAIN = range(2)
"""Purposes of random generators."""

PROPOSAL_QUERIES = 4_000
"""Estimates of the search for a plan to measure."""

WEIGHT_DECAY = 0.5
"""Of the networks of the preset `search`; that of `dream-search`."""


class NeuroShardLearner(Learner):
    """NeuroShard in training, with one of two presets (see `SearchOptions` and `PaperOptions`).

    Args:
        suite, seed: see `Learner`.
        cost_model: the true cost, of a `ShardingCostModel`.
        name: of the agent.
        preset: "search" or "paper".
        changes: options of the preset that differ from its defaults.

    Raises:
        UnknownNameError: there is no such preset or option.
        InvalidOptionError: an option has an impossible value, or the cost model does not estimate sharded tables.
    """

    presets = PRESETS

    cost_model: CountedShardingModel

    def __init__(
        self,
        suite: TaskSuite,
        cost_model: CostModel,
        seed: int = 0,
        *,
        name: str = "neuroshard",
        preset: str = "search",
        **changes: Any,
    ) -> None:
        super().__init__(suite, make_sharding_cost_model(cost_model), seed)
        self.name = name
        self.preset = preset
        self.options = neuroshard_options(preset, **changes)
        self.iterations = self.options.iterations
        self.planned_queries = self.iterations * self.options.measurements
        self._network = NETWORKS[self.options.network]
        decay = WEIGHT_DECAY if isinstance(self.options, SearchOptions) else 0.0
        self._learned = CostNetworkTraining(self._network, ShardRecorder(), np.random.default_rng([self.seed]), decay)

    def iterate(self) -> Report:
        """Measure shards on devices, then train the network."""
        with one_thread():
            self.on_stage("measuring plans")
            costs = self._measure()
            self.on_stage("training the cost network")
            numbers = {"cost_loss": self._train()}
        return Report(float(np.mean(costs)), numbers)

    def _measure(self) -> list[float]:
        """True costs of new loads, ms; the penalty where the agent found no plan."""
        rng, agent, costs = self.rng(MEASURE), self.agent(), []
        for number in range(self.options.measurements):
            if not isinstance(self.options, SearchOptions):
                costs.append(self._measured(paper_load(self.suite, number % 2 == 0, rng)))
            elif self.iteration == 0:
                max_halvings = self.options.max_shards.bit_length() - 1
                costs.append(self._measured(random_shards(self.suite, max_halvings, self._network.sharding_types, rng)))
            else:
                task = self.suite.sample(rng)
                agent.seed = int(rng.integers(2**31))
                try:
                    split = agent.split(task, self._network.sharding_types, PROPOSAL_QUERIES)
                except NoPlacementFoundError:
                    costs.append(self.cost_model.penalty_ms(task.tables, task.topology))
                    continue
                costs.append(self._measured(load_of(split)))
        return costs

    def _measured(self, load: ShardLoad) -> float:
        """The true cost of `load` in ms; it is recorded."""
        estimate = load.estimate(self.cost_model)
        self.costed += 1
        self._learned.recorder.add(load.inputs(self._network), load.devices, load.topology, estimate)
        return estimate.total_ms

    def _train(self) -> float:
        """Train the network on all measurements so far; its loss."""
        rate, final, search = self.options.learning_rate, 0.0, isinstance(self.options, SearchOptions)
        if not search:  # over all iterations; as in dream-search, each one starts at a high rate otherwise
            left = [1 - (self.iteration + done) / self.iterations for done in (0, 1)]
            rate, final = left[0] * rate, left[1] * rate
        return self._learned.train(
            self.rng(TRAIN),
            steps=self.options.cost_updates,
            learning_rate=rate,
            final_learning_rate=final,
            batch_size=self.options.cost_batch,
            anew=search,
        )

    def state(self) -> Arrays:
        """See `Learner`."""
        return self._learned.state()

    def load_state(self, arrays: Arrays) -> None:
        """See `Learner`."""
        self._learned.load_state(arrays)

    def weights(self) -> Arrays:
        """See `Learner`."""
        return self._learned.weights()

    def about(self) -> dict[str, Any]:
        """See `Learner`."""
        return {"preset": self.preset, "options": asdict(self.options)}

    def agent(self) -> NeuroShardAgent:
        """See `Learner`."""
        return NeuroShardAgent(self.name, self._learned.model(), self.options, self.seed)
