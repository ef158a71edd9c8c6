"""The learned cost by which the agent chooses among rollouts, and its training on the costs of rollouts."""

from __future__ import annotations

import numpy as np

from shard_gym.agents.attention.rollout import MAX_SHARDS, SPLIT_TYPES, Rollouts
from shard_gym.agents.training.torch_arrays import load_optimizer_arrays, optimizer_arrays
from shard_gym.cost_models import CostEstimate
from shard_gym.cost_models.base import FloatArray
from shard_gym.cost_models.data.shards import ShardRecorder
from shard_gym.cost_models.neural.pooled_sharding import PooledShardingModel
from shard_gym.cost_models.neural.training import (
    Samples,
    as_arrays,
    assign_arrays,
    new_optimizer,
    relative_loss,
    train_network,
    trainable,
    with_normalization,
)
from shard_gym.errors import DamagedFileError, InvalidCheckpointError
from shard_gym.io.arrays import Arrays, require_arrays, under
from shard_gym.sharding.variants import variants_of, whole_tables

OPTIMIZER, DATA = "optimizer.", "data."
"""Prefixes of the arrays of a state that are not weights."""

LEARNING_RATE, BATCH = 6e-3, 64


class CostTraining:
    """A `PooledShardingModel` in training on some of the rollouts of a policy.

    Args:
        rng: of its first weights.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._weights = trainable(PooledShardingModel.new_weights(rng))
        self._optimizer = new_optimizer(self._weights)
        self._recorder = ShardRecorder()

    def add(self, rollouts: Rollouts, episode: int, phases_ms: FloatArray, cost_ms: float) -> None:
        """Record the (D, 4) phases and the cost of a complete rollout."""
        batch, ways = rollouts.batch, rollouts.trajectories
        task = batch.tasks[episode // batch.count]
        if batch.problem.rules is None:
            variants = whole_tables(task.tables)
        else:
            variants = variants_of(task.tables, task.topology, SPLIT_TYPES, MAX_SHARDS.bit_length() - 1)
        described = [
            PooledShardingModel.describe_shards(tables, kind)
            for tables, kind in zip(variants.tables, variants.sharding_types, strict=True)
        ]
        order = batch.problem.order[episode]
        step, device = np.nonzero(ways.given[episode])
        table, variant = order[ways.table[episode, step]], ways.variant[episode, step]
        phases = phases_ms[: task.num_devices]
        self._recorder.add(
            np.stack(described, axis=1)[table, variant], device, task.topology, CostEstimate(phases, cost_ms)
        )

    def train(self, rng: np.random.Generator, steps: int, learning_rate: float) -> float:
        """Train on all that was recorded; the loss. The first call sets the normalization."""
        samples = Samples(self._recorder.dataset(), PooledShardingModel)
        if not self._optimizer.state_dict()["state"]:
            assign_arrays(self._weights, with_normalization(samples, as_arrays(self._weights)))
        return train_network(
            self._weights,
            self._optimizer,
            samples,
            rng,
            steps=steps,
            learning_rate=learning_rate,
            final_learning_rate=learning_rate,
            batch_size=BATCH,
            loss=relative_loss,
        )

    def weights(self) -> Arrays:
        """Copies of the weights."""
        return as_arrays(self._weights)

    def model(self) -> PooledShardingModel:
        """The network as it is now."""
        return PooledShardingModel(self.weights())

    def state(self) -> Arrays:
        """All arrays that decide how training goes on."""
        return {
            **self.weights(),
            **optimizer_arrays(self._optimizer, OPTIMIZER),
            **{DATA + name: array for name, array in self._recorder.to_arrays().items()},
        }

    def load_state(self, arrays: Arrays) -> None:
        """Go on from what `state` returned.

        Raises:
            InvalidCheckpointError: these are not its arrays.
        """
        weights = {name: array for name, array in arrays.items() if not name.startswith((OPTIMIZER, DATA))}
        require_arrays("The saved cost network", weights, self.weights())
        assign_arrays(self._weights, weights)
        load_optimizer_arrays(self._optimizer, arrays, OPTIMIZER)
        try:
            self._recorder = ShardRecorder.from_arrays(under(DATA, arrays))
        except DamagedFileError as error:
            raise InvalidCheckpointError(f"The costs in the saved state are not usable. {error}") from error
