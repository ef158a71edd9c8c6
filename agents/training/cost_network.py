"""A cost network in training on the costs that a learner measures. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

import numpy as np

from shard_gym.agents.training.torch_arrays import load_optimizer_arrays, optimizer_arrays
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
from shard_gym.errors import DamagedFileError, InvalidCheckpointError
from shard_gym.io.arrays import Arrays, require_arrays, under

COST, OPTIMIZER, DATA = "cost.", "optimizer.", "data."
"""Prefixes of the arrays of a state: the weights, the optimizer's averages, and what was measured."""


Recorder = TypeVar("Recorder", CostRecorder, ShardRecorder)


class CostNetworkTraining(Generic[Recorder]):
    """A cost network, its optimizer, and everything that was measured so far.

    Args:
        network: the class of the network.
        recorder: empty; it keeps the measurements.
        rng: of the first weights.
        weight_decay: see `new_optimizer`.
    """

    def __init__(
        self,
        network: type[NeuralCostModel],
        recorder: Recorder,
        rng: np.random.Generator,
        weight_decay: float = 0.0,
    ) -> None:
        self.network = network
        self.recorder: Recorder = recorder
        self._decay = weight_decay
        self._weights = trainable(network.new_weights(rng))
        self._optimizer = new_optimizer(self._weights, weight_decay)
        self._normalized = False

    def train(
        self,
        rng: np.random.Generator,
        *,
        steps: int,
        learning_rate: float,
        final_learning_rate: float = 0.0,
        batch_size: int = 64,
        loss: Loss = relative_loss,
        anew: bool = False,
    ) -> float:
        """Train on all measurements, at least one; the loss. The first call sets the normalization.

        Args:
            rng: chooses the batches.
            steps, learning_rate, final_learning_rate, batch_size, loss: see `train_network`.
            anew: forget the optimizer's averages first: those of the small last gradients at a low rate would make the
                first steps at a high rate enormous.
        """
        samples = Samples(self.recorder.dataset(), self.network)
        if not self._normalized:
            assign_arrays(self._weights, with_normalization(samples, as_arrays(self._weights)))
            self._normalized = True
        if anew:
            self._optimizer = new_optimizer(self._weights, self._decay)
        return train_network(
            self._weights,
            self._optimizer,
            samples,
            rng,
            steps=steps,
            learning_rate=learning_rate,
            final_learning_rate=final_learning_rate,
            batch_size=batch_size,
            loss=loss,
        )

    def weights(self) -> Arrays:
        """Copies of the weights."""
        return as_arrays(self._weights)

    def model(self) -> NeuralCostModel:
        """The network as it is now."""
        return self.network(self.weights())

    def state(self, optimizer: str = OPTIMIZER) -> Arrays:
        """All arrays that decide how training goes on; `optimizer` is the prefix of the optimizer's."""
        return {
            **{COST + name: array for name, array in self.weights().items()},
            **optimizer_arrays(self._optimizer, optimizer),
            **{DATA + name: array for name, array in self.recorder.to_arrays().items()},
        }

    def load_state(self, arrays: Mapping[str, np.ndarray], optimizer: str = OPTIMIZER) -> None:
        """Go on from what `state` returned; other arrays are ignored.

        Raises:
            InvalidCheckpointError: these are not its arrays.
        """
        weights = under(COST, arrays)
        require_arrays("The saved cost network", weights, self.weights())
        assign_arrays(self._weights, weights)
        load_optimizer_arrays(self._optimizer, dict(arrays), optimizer)
        try:
            self.recorder.restore(under(DATA, arrays))
        except DamagedFileError as error:
            raise InvalidCheckpointError(f"The measurements in the saved state are not usable. {error}") from error
        self._normalized = len(self.recorder) > 0
