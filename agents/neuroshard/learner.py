"""Training of NeuroShard's networks: measure shards on devices, then fit the networks to all measurements so far."""

from __future__ import annotations

from typing import Any

import numpy as np
from typing_extensions import override

from shard_gym.agents.neuroshard.agent import NeuroShardAgent
from shard_gym.agents.neuroshard.loads import ShardLoad, load_of, paper_load, random_shards
from shard_gym.agents.neuroshard.options import PRESETS, PaperOptions, SearchOptions
from shard_gym.agents.training.cost_network import WEIGHT_DECAY, CostNetworkLearner, CostNetworkTraining
from shard_gym.cost_models import CostModel, make_sharding_cost_model
from shard_gym.cost_models.counted import CountedShardingModel
from shard_gym.cost_models.data.shards import ShardRecorder
from shard_gym.io.arrays import Arrays
from shard_gym.tasks import Task, TaskSuite

PROPOSAL_QUERIES = 4_000  # estimates of the search for a plan to measure


class NeuroShardLearner(CostNetworkLearner):
    """NeuroShard in training, with one of two presets (see `SearchOptions` and `PaperOptions`).

    The arguments and errors that are not named here are those of `PresetLearner`.

    Args:
        cost_model: the true cost, of a `ShardingCostModel`.
        preset: "search" or "paper".

    Raises:
        InvalidOptionError: the cost model does not estimate sharded tables.
    """

    presets = PRESETS
    measuring = "measuring plans"

    cost_model: CountedShardingModel
    options: SearchOptions | PaperOptions
    _network: CostNetworkTraining[ShardRecorder]

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
        super().__init__(suite, make_sharding_cost_model(cost_model), seed, name, preset, changes)
        rng, decay = np.random.default_rng([self.seed]), WEIGHT_DECAY if self._searches else 0.0
        self._network = CostNetworkTraining(self.options.architecture, ShardRecorder(), rng, decay)

    @property
    def _searches(self) -> bool:
        return isinstance(self.options, SearchOptions)

    def _random_load(self, number: int, rng: np.random.Generator) -> ShardLoad | None:
        """As the paper draws it, on one device and on all of them in turn; or of random shards, in `search`."""
        if not self._searches:
            return paper_load(self.suite, number % 2 == 0, rng)
        if self.iteration:
            return None
        max_halvings = self.options.max_shards.bit_length() - 1
        return random_shards(self.suite, max_halvings, self._network.network.sharding_types, rng)

    @override
    def _proposed(self, agent: NeuroShardAgent, task: Task, rng: np.random.Generator) -> ShardLoad:
        agent.seed = int(rng.integers(2**31))
        return load_of(agent.split(task, self._network.network.sharding_types, PROPOSAL_QUERIES))

    @override
    def _recorded_ms(self, load: ShardLoad) -> float:
        estimate = load.estimate(self.cost_model)
        self.costed += 1
        self._network.recorder.add(load.inputs(self._network.network), load.devices, load.topology, estimate)
        return estimate.total_ms

    def _train(self) -> float:
        """In `paper` the rate falls over all iterations: each one would start at a high rate otherwise."""
        if self._searches:
            return self._fit()
        start, end = (1 - (self.iteration + done) / self.iterations for done in (0, 1))
        return self._fit((start * self.options.learning_rate, end * self.options.learning_rate))

    def weights(self) -> Arrays:
        """Copies of the weights, whose names have no prefix: there is no other network."""
        return self._network.weights()

    @override
    def agent(self) -> NeuroShardAgent:
        return NeuroShardAgent(self.name, self._network.model(), self.options, self.seed)
