"""Training of NeuroShard's networks: measure shards on devices, then fit the networks to all measurements so far."""

from __future__ import annotations

from typing import Any

import numpy as np
from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.agents.dreamshard.options import SearchOptions
from shard_gym.agents.dreamshard.search_learner import SurrogateSearchLearner
from shard_gym.agents.neuroshard.agent import NeuroShardAgent
from shard_gym.agents.neuroshard.loads import paper_load
from shard_gym.agents.neuroshard.options import PRESETS, PaperOptions
from shard_gym.agents.training.loads import ShardLoad
from shard_gym.cost_models import CostModel
from shard_gym.tasks import TaskSuite


class NeuroShardLearner(SurrogateSearchLearner):
    """NeuroShard in training, with one of two presets (see `SearchOptions` and `PaperOptions`).

    The arguments and errors that are not named here are those of `PresetLearner`.

    Args:
        cost_model: the true cost.
        preset: "search" or "paper".

    Raises:
        InvalidOptionError: tasks may be split, and the cost model costs no plans.
    """

    presets = PRESETS

    options: SearchOptions | PaperOptions

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
        super().__init__(suite, cost_model, seed, name, preset, changes)

    @override
    def _random_load(self, number: int, rng: np.random.Generator) -> ShardLoad | None:
        if isinstance(self.options, SearchOptions):
            return super()._random_load(number, rng)
        return paper_load(self.suite, number % 2 == 0, rng)  # on one device and on all of them in turn

    @override
    def _train(self) -> float:
        """In `paper` the rate falls over all iterations: each one would start at a high rate otherwise."""
        if isinstance(self.options, SearchOptions):
            return self._fit()
        start, end = (1 - (self.iteration + done) / self.iterations for done in (0, 1))
        return self._fit((start * self.options.learning_rate, end * self.options.learning_rate))

    @override
    def agent(self) -> Agent:
        if isinstance(self.options, SearchOptions):
            return super().agent()
        return NeuroShardAgent(self.name, self.network.model(), self.options)
