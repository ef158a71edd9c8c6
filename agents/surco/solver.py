"""The linear problem of SurCo, the assignment of the least linear cost, and the gradient through its solver."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.items import Items
from shard_gym.cost_models.base import FloatArray
from shard_gym.errors import NoPlacementFoundError
from shard_gym.placement import Placement
from shard_gym.system import silent_c_output
from shard_gym.tasks import Task

NODES, LEAST_NODES, MAX_WORK = 1_000, 10, 250_000
"""Limits of the solver's tree for one problem: the most nodes, the least, and nodes times variables. The best
assignment it found until then counts. A limit of seconds would make the answer depend on the machine's load."""

UNITS = 100_000  # the integer program counts memory in about so many parts of the largest device


def assign(costs: FloatArray, task: Task) -> Placement:
    """The placement of `task` with the least sum of the (T, D) `costs` of its tables on their devices.

    Where each table can have the device that costs it least, that is the answer; otherwise HiGHS solves the integer
    program, to within its relative gap of 0.01%.

    Raises:
        NoPlacementFoundError: HiGHS found none.
    """
    cheapest = np.asarray(costs.argmin(axis=1), np.int64)
    needed, caps = task.tables.memory_bytes, task.topology.memory_cap_bytes
    if _fits(cheapest, needed, caps):
        return cheapest
    unit = max(int(caps.max()) // UNITS, 1)
    # Rounded up, tables that fill a device to the last byte are too large; rounded down, or as they are, they may fit.
    for rounded, within in ((-(-needed // unit), caps // unit), (needed // unit, caps // unit), (needed, caps)):
        placement = _solved(costs, rounded, within)
        if placement is not None and _fits(placement, needed, caps):
            return placement
    raise NoPlacementFoundError(
        f"HiGHS found no assignment of the tables of {task.name!r} to devices within {NODES:,} nodes of its tree."
    )


def _fits(placement: Placement, needed: NDArray[np.int64], caps: NDArray[np.int64]) -> bool:
    used = np.zeros(len(caps), np.int64)
    np.add.at(used, placement, needed)
    return bool((used <= caps).all())


def _solved(costs: FloatArray, needed: NDArray[np.int64], caps: NDArray[np.int64]) -> Placement | None:
    """The same with HiGHS, and costs and memory in shares of the largest; None if it found nothing."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    tables, devices = costs.shape
    variable = np.arange(tables * devices)  # table t on device d is t * D + d
    once = csr_array((np.ones(len(variable)), (variable // devices, variable)))
    memory = csr_array((np.repeat(needed / caps.max(), devices), (variable % devices, variable)))
    with silent_c_output():  # HiGHS has a line of debugging in it that no option turns off
        found = milp(
            costs.reshape(-1) / max(np.abs(costs).max(), np.finfo(float).tiny),
            integrality=np.ones(len(variable)),
            bounds=Bounds(0, 1),
            constraints=[LinearConstraint(once, 1, 1), LinearConstraint(memory, -np.inf, caps / caps.max())],
            options={"node_limit": max(LEAST_NODES, min(NODES, MAX_WORK // len(variable)))},
        )
    if found.x is None:
        return None
    placement: NDArray[np.int64] = found.x.reshape(tables, devices).argmax(axis=1)
    return placement


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
