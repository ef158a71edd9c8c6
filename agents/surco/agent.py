"""The trained SurCo agent: a linear solver, with linear costs from steps on a learned cost. Needs SciPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from typing_extensions import override

from shard_gym.agents.base import Agent, task_rng
from shard_gym.agents.items import Items
from shard_gym.agents.presets import COST, options_to_place
from shard_gym.agents.surco.options import PRESETS, REMOVED, ZeroOptions
from shard_gym.agents.surco.solver import perturbed
from shard_gym.checks import checked_seed
from shard_gym.cost_models import AdditiveCostModel, CostModel
from shard_gym.errors import NoPlacementFoundError
from shard_gym.io.arrays import Arrays, prefixed, require_arrays, under
from shard_gym.placement import Placement
from shard_gym.system import one_blas_thread
from shard_gym.tasks import Task

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
