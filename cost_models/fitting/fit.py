"""Fitting a neural cost model to the training tables of a data set, with early stopping on the validation tables.

Needs torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from shard_gym.common.checks import checked_count, checked_learning_rate, checked_seed, is_not_negative
from shard_gym.common.errors import TrainingDivergedError, wrong_kind
from shard_gym.common.system import one_thread
from shard_gym.cost_models.fitting.data.dataset import CostDataset
from shard_gym.cost_models.fitting.data.splits import SplitCosts
from shard_gym.cost_models.fitting.metrics import errors
from shard_gym.cost_models.fitting.training import (
    Samples,
    as_arrays,
    new_optimizer,
    train_network,
    trainable,
    with_normalization,
)
from shard_gym.cost_models.neural.base import NeuralCostModel
from shard_gym.cost_models.neural.storage import network_named


@dataclass(frozen=True)
class FitOptions:
    """Length and step sizes of a fit.

    Raises:
        InvalidOptionError: a number is not positive (the decay: negative).
    """

    steps: int = 10_000  # most batches to train on
    learning_rate: float = 5e-3  # of AdamW's first step; falls linearly to 0
    weight_decay: float = 0.1  # of the matrices, see `training.new_optimizer`
    batch_size: int = 64  # placements in a batch
    check_every: int = 200  # steps between two validations
    patience: int = 25  # validations without a smaller error before the fit ends

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "check_every", "patience"):
            checked_count(name, getattr(self, name))
        checked_learning_rate(self.learning_rate)
        if not is_not_negative(self.weight_decay):
            raise wrong_kind("weight_decay", self.weight_decay, "a number of at least 0")


class FitProgress(NamedTuple):
    """State of a fit after a validation."""

    step: int
    steps: int
    loss: float  # mean of the last training losses
    validation_error: float
    best_step: int  # with the smallest validation error so far; its weights are kept


OnProgress = Callable[[FitProgress], None]


def fit_cost_model(
    network: str | type[NeuralCostModel],
    costs: SplitCosts,
    *,
    seed: int,
    options: FitOptions | None = None,
    on_progress: OnProgress | None = None,
) -> NeuralCostModel:
    """A network fitted to the costs of the training tables; equal arguments give equal weights.

    It has the weights with the smallest `validation_error`, and a card with the key "fit" alone (see `make_card`).

    Args:
        network: architecture, by name or class.
        costs: placements of training and validation tables, at least.
        seed: of the initial weights and of the batches.
        options: length and step sizes.
        on_progress: called after every validation.

    Raises:
        UnknownNameError: there is no such network.
        InvalidOptionError: a split has no placement, or the seed is no integer of at least 0.
        TrainingDivergedError: a weight became NaN or infinite, or no validation error was finite.
    """
    seed = checked_seed(seed)
    options, chosen = options or FitOptions(), network_named(network) if isinstance(network, str) else network
    rng, step, best_step, best_error = np.random.default_rng(seed), 0, 0, np.inf
    with one_thread():
        samples, validation = Samples(costs.part("train"), chosen), costs.part("validation")
        weights = trainable(with_normalization(samples, chosen.new_weights(rng)))
        optimizer, best = new_optimizer(weights, options.weight_decay), as_arrays(weights)
        while step < options.steps and step - best_step < options.patience * options.check_every:
            begin, step = step, min(step + options.check_every, options.steps)
            loss = train_network(
                weights,
                optimizer,
                samples,
                rng,
                steps=step - begin,
                learning_rate=options.learning_rate * (1 - begin / options.steps),
                final_learning_rate=options.learning_rate * (1 - step / options.steps),
                batch_size=options.batch_size,
            )
            arrays = as_arrays(weights)
            if not all(np.isfinite(array).all() for array in arrays.values()):
                raise TrainingDivergedError(
                    f"The fit of {chosen.architecture!r} diverged: after {step} steps a weight is no finite number. "
                    f"Fit with a learning_rate below {options.learning_rate:g}."
                )
            error = validation_error(chosen(arrays), validation)
            if error < best_error:
                best, best_error, best_step = arrays, error, step
            if on_progress:
                on_progress(FitProgress(step, options.steps, loss, error, best_step))
    if not np.isfinite(best_error):
        raise TrainingDivergedError(
            f"The fit of {chosen.architecture!r} diverged: its error on the validation tables was never a finite "
            "number. Fit with a smaller learning_rate."
        )
    import shard_gym

    record: dict[str, Any] = {
        "seed": seed,
        **vars(options),
        "steps_done": step,
        "best_step": best_step,
        "validation_error": best_error,
        "versions": {"shard-gym": shard_gym.__version__, "numpy": np.__version__, "torch": torch.__version__},
    }
    return chosen(best, {"fit": record})


def validation_error(model: NeuralCostModel, data: CostDataset) -> float:
    """Mean of the relative error of the cost and of the mean relative error of the phases, of `model` on `data`."""
    found = errors(model, data)
    phases = [error.mape for error in found.phases.values() if error.count]
    return (found.cost.mape + float(np.mean(phases))) / 2
