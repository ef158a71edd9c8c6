"""The trained SurCo agent: a linear solver, with linear costs from a network, from steps on a learned cost, or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from shard_gym.agents.base import Agent, task_rng
from shard_gym.agents.presets import require_known, saved_options
from shard_gym.agents.surco.network import LinearCostNetwork
from shard_gym.agents.surco.options import MAX_STEPS, PRESETS, SurCoOptions
from shard_gym.agents.surco.perturbed import EstimatedCosts, perturbed
from shard_gym.agents.surco.solver import assign
from shard_gym.agents.training.cost_network import COST
from shard_gym.agents.training.modules import finite
from shard_gym.agents.training.torch_arrays import load_module_arrays, network_size
from shard_gym.checks import checked_count, checked_seed
from shard_gym.cost_models import AdditiveCostModel, CostModel
from shard_gym.cost_models.base import FloatArray
from shard_gym.cost_models.neural.storage import NETWORKS
from shard_gym.errors import NoPlacementFoundError
from shard_gym.io.arrays import Arrays, require_arrays, under
from shard_gym.placement import Placement
from shard_gym.system import one_thread
from shard_gym.tasks import Task
from shard_gym.topology import MAX_DEVICES

PRIOR = "prior."
"""Prefix of the weights of the network of linear costs."""

DECAYS = 0.9, 0.999
"""Adam's, of the steps on linear costs."""


class SurCoAgent(Agent):
    """Places the tables of a task as a linear solver does; it never evaluates the true cost.

    Args:
        name: its name in result files.
        cost_model: the learned cost.
        options: of the preset it was trained with.
        prior: gives linear costs to start from; None for zeros.
        seed: of the noise.
    """

    def __init__(
        self,
        name: str,
        cost_model: AdditiveCostModel,
        options: SurCoOptions,
        prior: LinearCostNetwork | None,
        seed: int = 0,
    ) -> None:
        self.name = name
        self.cost_model = cost_model
        self.options = options
        self.prior = prior
        self.seed = checked_seed(seed)

    @property
    def search_budget(self) -> int:
        """See `Agent`."""
        return self.options.steps * self.options.samples

    def place(self, task: Task) -> Placement:
        """See `Agent`."""
        return self.proposal(task, task_rng(self.seed, task))

    def proposal(self, task: Task, rng: np.random.Generator) -> Placement:
        """The placement of `place` with the noise of `rng`.

        Raises:
            NoPlacementFoundError: the solver found none, or the task has more devices than the network.
        """
        with one_thread():
            linear = self._linear(task)
            if not self.options.steps:
                return assign(linear, task)
            return self._stepped(linear, task, rng)

    def _linear(self, task: Task) -> FloatArray:
        """(T, D) linear costs to start from."""
        if self.prior is None:
            return np.zeros((task.num_tables, task.num_devices))
        if task.num_devices > self.prior.max_devices:
            raise NoPlacementFoundError(
                f"{self.name} was trained for at most {self.prior.max_devices} devices, each with a vector of its own; "
                f"task {task.name!r} has {task.num_devices}. Train it on a suite with as many."
            )
        with torch.no_grad():
            linear: FloatArray = finite(self.prior(task)).double().numpy()
        return linear

    def _stepped(self, linear: FloatArray, task: Task, rng: np.random.Generator) -> Placement:
        """The cheapest placement that was seen in Adam's steps on the linear costs, by the learned cost."""
        options, costs = self.options, EstimatedCosts(self.cost_model, task)
        mean, square = np.zeros_like(linear), np.zeros_like(linear)
        best, best_ms = None, np.inf
        for step in range(1, options.steps + 1):
            try:
                found = perturbed(linear, costs, options.samples, options.sigma, rng)
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
    """The agent of a training run; `changes` are `steps` to place with, for `zero` and `hybrid`.

    Raises:
        InvalidCheckpointError: the arrays are not those of such an agent.
        InvalidOptionError: an option has an impossible value.
        UnknownNameError: there is no such option for placing.
    """
    options: SurCoOptions = saved_options(PRESETS, about)
    require_known(f"place with preset {about['preset']!r}", changes, ("steps",) if options.steps else ())
    if "steps" in changes:
        checked_count("steps", changes["steps"], most=MAX_STEPS)
    prior = None
    if options.prior_updates:
        with torch.device("meta"):  # shapes only, so a wrong size in a file allocates nothing
            prior = LinearCostNetwork(network_size(about, "max_devices", MAX_DEVICES), options.hidden)
        load_module_arrays(prior, under(PRIOR, arrays), "The network of linear costs")
    rest = {name: array for name, array in arrays.items() if prior is None or not name.startswith(PRIOR)}
    network = NETWORKS[options.network]
    expected = network.new_weights(np.random.default_rng(0))
    require_arrays("The agent's file", rest, {COST + name: array for name, array in expected.items()})
    return SurCoAgent(about["agent"], network(under(COST, rest)), replace(options, **changes), prior, seed)
