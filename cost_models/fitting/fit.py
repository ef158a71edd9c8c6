"""Fitting neural cost models to the training tables of a data set, with early stopping on the validation tables."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shard_gym.common.checks import checked_count, checked_learning_rate, checked_seed, is_not_negative
from shard_gym.common.errors import TrainingDivergedError, missing_extra, wrong_kind
from shard_gym.common.io.arrays import SUFFIX
from shard_gym.common.io.files import write_atomically
from shard_gym.common.system import one_thread
from shard_gym.cost_models.base import AdditiveCostModel
from shard_gym.cost_models.fitting.card import card_page, make_card
from shard_gym.cost_models.fitting.data.dataset import CostDataset
from shard_gym.cost_models.fitting.data.measurements import Measurements
from shard_gym.cost_models.fitting.data.splits import SplitCosts
from shard_gym.cost_models.fitting.linear import fit_linear
from shard_gym.cost_models.fitting.metrics import errors
from shard_gym.cost_models.neural import NeuralCostModel, save_cost_model
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

LINEAR = "linear"  # the baseline beside the networks; it is refitted when needed and has no file


def fit_networks(
    measurements: Measurements,
    folder: str | Path,
    networks: Sequence[str] = ("pooled",),
    *,
    seed: int = 0,
    options: FitOptions | None = None,
    on_progress: Callable[[str, FitProgress], None] | None = None,
) -> dict[str, AdditiveCostModel]:
    """Fit neural cost models to measurements of one workload; write each with its card: `shard-gym fit-cost-model`.

    Args:
        measurements: placements of training, validation and test tables.
        folder: for the models, by the names of their networks.
        networks: architectures, by name.
        seed, options: see `fit_cost_model`.
        on_progress: called with the name of the network after every validation.

    Returns:
        The linear baseline (`LINEAR`) and the networks, by name.

    Raises:
        InvalidOptionError: these are no `Measurements`, or too few, or a network cannot estimate plans of them.
        UnknownNameError, TrainingDivergedError: see `fit_cost_model`.
        MissingExtraError: torch or scipy is not installed.
    """
    if not isinstance(measurements, Measurements):
        raise wrong_kind("measurements", measurements, "Measurements, such as those of load_workloads(path)")
    require_torch()
    measurements.require_splits()
    costs = measurements.first
    found: dict[str, AdditiveCostModel] = {LINEAR: fit_linear(costs.part("train"))}
    for name in networks:
        show = None if on_progress is None else partial(on_progress, name)
        found[name] = model = fit_cost_model(name, costs, seed=seed, options=options, on_progress=show)
        model.card = make_card(model, costs, measurements.test_tasks, measurements.index.hardware)
        save_cost_model(model, Path(folder) / f"{name}{SUFFIX}")
        write_atomically(Path(folder) / f"{name}.md", card_page(model.card).encode())
    return found


def require_torch() -> None:
    """Raise MissingExtraError if torch is not installed."""
    if not importlib.util.find_spec("torch"):
        raise missing_extra("torch", "torch", "Fitting a cost model")


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
        MissingExtraError: torch is not installed.
    """
    require_torch()
    import torch

    from shard_gym.cost_models.fitting import training as nets

    seed = checked_seed(seed)
    options, chosen = options or FitOptions(), network_named(network) if isinstance(network, str) else network
    rng, step, best_step, best_error = np.random.default_rng(seed), 0, 0, np.inf
    with one_thread():
        train, validation = costs.part("train"), costs.part("validation")
        samples, first = nets.Samples(train, chosen), chosen.first_weights(rng, train.needs)
        weights = nets.trainable(nets.with_normalization(samples, first))
        optimizer, best = nets.new_optimizer(weights, options.weight_decay), nets.as_arrays(weights)
        while step < options.steps and step - best_step < options.patience * options.check_every:
            begin, step = step, min(step + options.check_every, options.steps)
            loss = nets.train_network(
                weights,
                optimizer,
                samples,
                rng,
                steps=step - begin,
                learning_rate=options.learning_rate * (1 - begin / options.steps),
                final_learning_rate=options.learning_rate * (1 - step / options.steps),
                batch_size=options.batch_size,
            )
            arrays = nets.as_arrays(weights)
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
