"""The gradient of a placement's cost by the linear costs that a solver placed it with: that of a perturbed solver."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shard_gym.agents.items import Items
from shard_gym.agents.surco.solver import assign
from shard_gym.cost_models.base import FloatArray
from shard_gym.errors import NoPlacementFoundError
from shard_gym.placement import Placement
from shard_gym.tasks import Task


class Perturbed(NamedTuple):
    """What the perturbed solver answered."""

    gradient: FloatArray  # (T, D), an estimate of the derivative of the mean cost, in standard deviations of the costs
    placement: Placement  # the cheapest answer
    cost_ms: float  # its cost


def perturbed(
    linear: FloatArray, task: Task, items: Items, samples: int, sigma: float, rng: np.random.Generator
) -> Perturbed:
    """Solve with (T, D) `linear` costs and normal noise, and see which noise made the placement cheaper.

    The answer of a solver is piecewise constant in the linear costs c, but the mean cost of its answers under noise,
    E f(x(c + sigma Z)), is smooth, with the derivative E f(x(c + sigma Z)) Z / sigma (Berthet et al., Learning with
    Differentiable Perturbed Optimizers, NeurIPS 2020). The noise comes in pairs Z, -Z.

    Args:
        linear: the linear costs.
        task, items: the task, and its tables with their costs.
        samples, sigma: the number of draws of the noise, an even one, and its standard deviation.
        rng: draws it.

    Raises:
        NoPlacementFoundError: the solver found no assignment with any noise. Pairs of which it did not solve both do
            not enter the gradient.
    """
    half = rng.normal(size=(samples // 2, *linear.shape))
    noise = np.concatenate([half, -half])
    answers = [_answer(linear + sigma * each, task) for each in noise]
    placements = [each for each in answers if each is not None]
    if not placements:
        raise NoPlacementFoundError(f"HiGHS found no assignment of the tables of {task.name!r} under any noise.")
    held = np.stack([items.device_loads(placement) for placement in placements])
    found = items.model.costs(held, items.cluster)[1]
    best = int(found.argmin())
    # Without the other of its pair, an answer would pull the gradient to its side.
    answered = np.array([each is not None for each in answers])
    paired = np.tile(answered[: len(half)] & answered[len(half) :], 2)
    gradient = np.zeros_like(linear)
    if paired.any():
        both = found[paired[answered]]
        weight = (both - both.mean()) / (both.std() + 1e-12 * both.mean())
        gradient = np.tensordot(weight, noise[paired], axes=1) / (len(both) * sigma)
    return Perturbed(gradient, placements[best], float(found[best]))


def _answer(linear: FloatArray, task: Task) -> Placement | None:
    try:
        return assign(linear, task)
    except NoPlacementFoundError:
        return None
