"""Training of NeuroShard's networks: measure shards on devices, then fit the networks to all measurements so far."""

from __future__ import annotations

from typing import Any

import numpy as np
from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.agents.dreamshard import SearchOptions
from shard_gym.agents.dreamshard.agent import SurrogateSearchAgent
from shard_gym.agents.dreamshard.learner import load_of_search, load_to_search
from shard_gym.agents.neuroshard.agent import PRESETS, NeuroShardAgent, NeuroShardPaperOptions
from shard_gym.agents.training.cost_network import CostNetworkLearner
from shard_gym.agents.training.loads import ShardLoad, whole_tables, with_whole_memory
from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.text import counted
from shard_gym.cost_models import CostModel
from shard_gym.cost_models.fitting.data.dataset import concatenate_tables
from shard_gym.tasks import Task, TaskSuite

PAPER_DIMS = (4, 8, 16, 32, 64, 128)
MAX_ON_ONE, ON_ALL = 15, (10, 60)
"""The paper's numbers of tables of a load: at most on one device, and from and to before on all devices."""

MAX_DRAWS = 10_000  # draws of a load as the paper draws it, at most, until one fits the memory


def paper_load(suite: TaskSuite, one_device: bool, rng: np.random.Generator) -> ShardLoad:
    """Tables drawn with replacement from the training tasks, with random dims, placed as the paper places them.

    On one device: up to 15 tables, drawn again until they fit it. On all: 10 to 59 tables, by descending dim; each goes
    to a random device with a probability that is drawn once, else to the one with the fewest columns so far.
    """
    pool = concatenate_tables([suite.sample(rng).tables for _ in range(2)])
    topology = suite.sample(rng).topology
    dims = np.array([dim for dim in PAPER_DIMS if dim <= pool.embedding_dim.max()] or pool.embedding_dim[:1])
    devices = 1 if one_device else topology.num_devices
    topology = with_whole_memory(topology, devices)
    for _ in range(MAX_DRAWS):
        count = int(rng.integers(1, MAX_ON_ONE + 1) if one_device else rng.integers(*ON_ALL))
        tables = pool.select(rng.integers(len(pool), size=count)).with_dims(np.sort(rng.choice(dims, count))[::-1])
        placement = np.zeros(count, np.int64)
        if not one_device:
            at_random, columns = rng.random(count) < rng.random(), np.zeros(devices)
            for table, width in enumerate(tables.embedding_dim):
                placement[table] = rng.integers(devices) if at_random[table] else columns.argmin()
                columns[placement[table]] += width
        held = np.bincount(placement, tables.memory_bytes, devices)
        if (held <= topology.memory_cap_bytes).all():
            return whole_tables(tables, topology, placement)
    raise InvalidOptionError(
        f"{MAX_DRAWS:,} random loads of tables of {suite.name!r} did not fit {counted(devices, 'device')}. Train with "
        "the preset 'search', which draws loads that fit."
    )


class NeuroShardLearner(CostNetworkLearner):
    """NeuroShard in training, with one of two presets (see `SearchOptions` and `NeuroShardPaperOptions`).

    The arguments and errors that are not named here are those of `CostNetworkLearner`.

    Args:
        cost_model: the true cost.
        preset: "search" or "paper".

    Raises:
        InvalidOptionError: tasks may be split, and the cost model costs no plans.
    """

    presets = PRESETS

    options: SearchOptions | NeuroShardPaperOptions

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
            return load_to_search(self, number, self.options.max_shards, rng)
        return paper_load(self.suite, number % 2 == 0, rng)  # on one device and on all of them in turn

    @override
    def _proposed(self, agent: SurrogateSearchAgent, task: Task, rng: np.random.Generator) -> ShardLoad:
        return load_of_search(self, agent, task, rng)  # of the preset `search` alone: `paper` measures random loads

    @override
    def _train(self) -> float:
        """In `paper` the rate falls over all iterations: each one would start at a high rate otherwise."""
        if isinstance(self.options, SearchOptions):
            return self._fit()
        start, end = (1 - (self.iteration + done) / self.iterations for done in (0, 1))
        return self._fit((start * self.options.learning_rate, end * self.options.learning_rate))

    @override
    def agent(self) -> Agent:
        model = self.network.model()
        if isinstance(self.options, SearchOptions):
            return SurrogateSearchAgent(self.name, model, self.options, self.sharding_types, self.seed)
        return NeuroShardAgent(self.name, model, self.options)
