"""The trained SurCo agent: a linear solver, with linear costs from steps on a learned cost. Needs SciPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.agents.base import Agent, task_rng
from shard_gym.agents.base.agent import MAX_QUERIES
from shard_gym.agents.base.assignment import constraint_rows
from shard_gym.agents.base.presets import COST, WEIGHT_DECAY, CostNetworkOptions, options_to_place
from shard_gym.agents.search.items import Items
from shard_gym.common.arrays import FloatArray
from shard_gym.common.checks import checked_count, checked_positive, checked_seed
from shard_gym.common.errors import InvalidOptionError, NoPlacementFoundError
from shard_gym.common.io.arrays import Arrays, prefixed, require_arrays, under
from shard_gym.common.system import one_blas_thread, silent_c_output
from shard_gym.cost_models import AdditiveCostModel, CostModel
from shard_gym.plans import plan_of_placement
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.placement import Placement, memory_used
from shard_gym.tasks import Task

MAX_STEPS = 100_000  # the most steps; a file that says more would keep its agent busy for hours


@dataclass(frozen=True, kw_only=True)
class ZeroOptions(CostNetworkOptions):
    """`zero`: the linear costs of each task are found when it is placed, from zero.

    The true cost is measured and the cost network is trained as in `dream-search`, so both can be compared at equal
    numbers of measurements.

    Attributes:
        steps: gradient steps on the linear costs of a task when it is placed.
        samples: solved problems in each step, an even number.
        sigma: standard deviation of their noise.
        step_size: of Adam on the linear costs.
    """

    placing: ClassVar[tuple[str, ...]] = ("steps",)
    weight_decay: ClassVar[float] = WEIGHT_DECAY

    iterations: int = 5
    measurements: int = 20
    network: str = "pooled"
    cost_updates: int = 600
    learning_rate: float = 6e-3
    steps: int = 60
    samples: int = 16
    sigma: float = 0.5
    step_size: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_count("steps", self.steps, most=MAX_STEPS)
        checked_count("samples", self.samples, least=2, most=2**12)
        for name in ("sigma", "step_size"):
            checked_positive(name, getattr(self, name))
        if self.steps * self.samples > MAX_QUERIES:
            raise InvalidOptionError(
                f"steps times samples must be at most {MAX_QUERIES}, not {self.steps} times {self.samples}."
            )
        if self.samples % 2:
            raise InvalidOptionError(f"samples must be even, for they come in pairs, not {self.samples}.")


PRESETS: dict[str, type[ZeroOptions]] = {"zero": ZeroOptions}
"""The options of each preset; their defaults are the preset."""

REMOVED = ("prior_updates", "prior_tasks", "prior_rate", "hidden")
"""Options of presets that older versions had; files of `zero` have them, too, without effect."""


NODES, LEAST_NODES, MAX_WORK = 1_000, 10, 250_000
"""Limits of the solver's tree for one problem: the most nodes, the least, and nodes times variables. The best
assignment it found until then counts. A limit of seconds would make the answer depend on the machine's load."""

UNITS = 100_000  # the integer program counts memory in about so many parts of the largest device


def assign(costs: FloatArray, task: Task) -> Placement:
    """The placement of `task` with the least sum of the (T, D) `costs` of its tables on their devices.

    Where each table can have the device that costs it least, that is the answer; otherwise HiGHS solves the integer
    program, to within its relative gap of 0.01%. Constraints of the task are rows of the program.

    Raises:
        NoPlacementFoundError: HiGHS found none.
    """
    cheapest = np.asarray(costs.argmin(axis=1), np.int64)
    needed, caps = task.tables.memory_bytes, task.topology.memory_cap_bytes
    if _fits(cheapest, task):
        return cheapest
    unit = max(int(caps.max()) // UNITS, 1)
    # Rounded up, tables that fill a device to the last byte are too large; rounded down, or as they are, they may fit.
    for rounded, within in ((-(-needed // unit), caps // unit), (needed // unit, caps // unit), (needed, caps)):
        placement = _solved(costs, rounded, within, task.constraints)
        if placement is not None and _fits(placement, task):
            return placement
    raise NoPlacementFoundError(
        f"HiGHS found no assignment of the tables of {task.name!r} to devices within {NODES:,} nodes of its tree."
    )


def _fits(placement: Placement, task: Task) -> bool:
    used = memory_used(placement, task.tables, task.num_devices)
    if not (used <= task.topology.memory_cap_bytes).all():
        return False
    return task.constraints is None or not task.constraints.problem_of(
        plan_of_placement(placement, task.tables), task.tables
    )


def _solved(
    costs: FloatArray, needed: NDArray[np.int64], caps: NDArray[np.int64], limits: Constraints | None
) -> Placement | None:
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
            constraints=[
                LinearConstraint(once, 1, 1),
                LinearConstraint(memory, -np.inf, caps / caps.max()),
                *([] if limits is None else constraint_rows(limits, variable)),
            ],
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


DECAYS = 0.9, 0.999  # decays of Adam's averages in the steps on linear costs
PROPOSAL_STEPS = 10  # steps on linear costs for a placement to measure, at most


class SurCoAgent(Agent):
    """Places the tables of a task as a linear solver does; it never evaluates the true cost.

    Args:
        cost_model: the learned cost.
        options: of the preset it was trained with.
        seed: of the noise.
    """

    def __init__(self, name: str, cost_model: AdditiveCostModel, options: ZeroOptions, seed: int = 0) -> None:
        self.name = name
        self.cost_model = cost_model
        self.options = options
        self.seed = checked_seed(seed)

    @property
    @override
    def search_budget(self) -> int:
        return self.options.steps * self.options.samples

    @override
    def place(self, task: Task) -> Placement:
        return self._stepped(task, task_rng(self.seed, task), self.options.steps)

    def proposal(self, task: Task, rng: np.random.Generator) -> Placement:
        """A placement to measure in training, of fewer steps; raises NoPlacementFoundError if the solver found none."""
        return self._stepped(task, rng, min(self.options.steps, PROPOSAL_STEPS))

    def _stepped(self, task: Task, rng: np.random.Generator, steps: int) -> Placement:
        """The cheapest placement that was seen in Adam's steps on the linear costs, by the learned cost."""
        with one_blas_thread():
            options, items = self.options, Items.of_tables(task, self.cost_model)
            linear = np.zeros((task.num_tables, task.num_devices))
            mean, square = np.zeros_like(linear), np.zeros_like(linear)
            best, best_ms = None, np.inf
            for step in range(1, steps + 1):
                try:
                    found = perturbed(linear, task, items, options.samples, options.sigma, rng)
                except NoPlacementFoundError:
                    if best is None:
                        raise
                    break  # what was found before still stands
                if best is None or found.cost_ms < best_ms:
                    best, best_ms = found.placement, found.cost_ms
                mean = DECAYS[0] * mean + (1 - DECAYS[0]) * found.gradient
                square = DECAYS[1] * square + (1 - DECAYS[1]) * found.gradient**2
                unbiased, scale = mean / (1 - DECAYS[0] ** step), np.sqrt(square / (1 - DECAYS[1] ** step))
                linear = linear - options.step_size * unbiased / (scale + 1e-8)
        assert best is not None
        return best


def load_surco(
    arrays: Arrays, about: Mapping[str, Any], cost_model: CostModel, seed: int, **changes: Any
) -> SurCoAgent:
    """The agent of a training run; `changes` are `steps` to place with, and the errors those of `load_agent`."""
    saved = about.get("options")
    if isinstance(saved, Mapping):
        about = {**about, "options": {name: value for name, value in saved.items() if name not in REMOVED}}
    options: ZeroOptions = options_to_place(PRESETS, about, changes)
    network = options.architecture
    require_arrays("The agent's file", arrays, prefixed(COST, network.weights_like(under(COST, arrays))))
    return SurCoAgent(about["agent"], network(under(COST, arrays)), options, seed)
