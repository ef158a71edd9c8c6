"""Training of SurCo: measure placements, train a cost network on them, and a network of linear costs under that."""

from __future__ import annotations

import copy
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from shard_gym.agents.attention.features import described
from shard_gym.agents.dreamshard.learner import WEIGHT_DECAY
from shard_gym.agents.dreamshard.measuring import measure
from shard_gym.agents.presets import preset_options
from shard_gym.agents.surco.agent import PRIOR, SurCoAgent
from shard_gym.agents.surco.network import LinearCostNetwork
from shard_gym.agents.surco.options import PRESETS, SurCoOptions
from shard_gym.agents.surco.perturbed import EstimatedCosts, perturbed
from shard_gym.agents.training.cost_network import COST, CostNetworkTraining
from shard_gym.agents.training.learner import Learner, Report, require_whole_tables
from shard_gym.agents.training.modules import finite, new_module
from shard_gym.agents.training.torch_arrays import load_training_arrays, module_arrays, training_arrays
from shard_gym.cost_models import CostModel
from shard_gym.cost_models.data.dataset import CostRecorder
from shard_gym.cost_models.neural.storage import NETWORKS
from shard_gym.errors import NoPlacementFoundError
from shard_gym.io.arrays import Arrays, under
from shard_gym.placement import Placement
from shard_gym.system import one_thread
from shard_gym.tasks import Task, TaskSuite

WEIGHTS, MEASURE, COSTS, PRIORS = range(4)
"""Purposes of random generators."""

PROPOSAL_STEPS = 10
"""Steps on linear costs for a placement to measure, at most."""


class SurCoLearner(Learner):
    """SurCo in training, with one of three presets (see `ZeroOptions`, `PriorOptions` and `HybridOptions`).

    The first iteration measures random loads, the later ones the agent's own placements, as `dream-search` does.

    Args:
        suite, cost_model, seed: see `Learner`.
        name: of the agent.
        preset: "zero", "prior" or "hybrid".
        changes: options of the preset that differ from its defaults.

    Raises:
        UnknownNameError: there is no such preset or option.
        InvalidOptionError: an option has an impossible value, or the tables of `suite` may be split.
    """

    presets = PRESETS

    def __init__(
        self,
        suite: TaskSuite,
        cost_model: CostModel,
        seed: int,
        *,
        name: str = "surco",
        preset: str = "zero",
        **changes: Any,
    ) -> None:
        super().__init__(suite, cost_model, seed)
        require_whole_tables(suite, name)
        self.name = name
        self.preset = preset
        self.options: SurCoOptions = preset_options(PRESETS, preset, **changes)
        self.iterations = self.options.iterations
        self.planned_queries = self.iterations * self.options.measurements
        rng, recorder = self.rng(WEIGHTS), CostRecorder(self.cost_model.fingerprint)
        self._learned = CostNetworkTraining(NETWORKS[self.options.network], recorder, rng, WEIGHT_DECAY)
        self._prior = None
        if self.options.prior_updates:
            self._prior = new_module(lambda: LinearCostNetwork(suite.max_devices, self.options.hidden), rng)
            self._prior.normalize(np.concatenate([described(task) for task in suite]))
            self._optimizer = torch.optim.Adam(self._prior.parameters(), lr=self.options.prior_rate)

    def iterate(self) -> Report:
        """See `Learner`."""
        options, numbers = self.options, {}
        with one_thread():
            self.on_stage("measuring placements")
            propose = None if self.iteration == 0 else self._proposed
            costs = measure(self, self._learned.recorder, options.measurements, self.rng(MEASURE), propose)
            if len(self._learned.recorder):
                self.on_stage("training the cost network")
                numbers["cost_loss"] = self._learned.train(
                    self.rng(COSTS),
                    steps=options.cost_updates,
                    learning_rate=options.learning_rate,
                    batch_size=options.cost_batch,
                    anew=True,
                )
                if options.prior_updates:
                    self.on_stage("training the network of linear costs")
                    numbers["prior_cost_ms"] = self._train_prior(self.rng(PRIORS))
        return Report(float(np.mean(costs)), numbers)

    def _proposed(self, task: Task, rng: np.random.Generator) -> Placement:
        """A placement of `task` to measure."""
        options = replace(self.options, steps=min(self.options.steps, PROPOSAL_STEPS))
        return SurCoAgent(self.name, self._learned.model(), options, self._prior).proposal(task, rng)

    def _train_prior(self, rng: np.random.Generator) -> float:
        """Train the network of linear costs under the learned cost; the mean cost of the last steps, ms."""
        assert self._prior is not None
        options, model, means = self.options, self._learned.model(), []
        costs = {task.name: EstimatedCosts(model, task) for task in self.suite}
        for _ in range(options.prior_updates):
            self._optimizer.zero_grad()
            for _ in range(options.prior_tasks):
                task = self.suite.sample(rng)
                linear = finite(self._prior(task))
                try:
                    found = perturbed(
                        linear.detach().double().numpy(), costs[task.name], options.samples, options.sigma, rng
                    )
                except NoPlacementFoundError:
                    continue
                linear.backward(  # type: ignore[no-untyped-call]
                    torch.from_numpy(found.gradient.astype(np.float32)) / options.prior_tasks
                )
                means.append(found.mean_ms)
            self._optimizer.step()
        return float(np.mean(means[-len(means) // 4 :])) if means else 0.0

    def state(self) -> Arrays:
        """See `Learner`."""
        prior = {} if self._prior is None else training_arrays(self._prior, self._optimizer)
        return {**self._learned.state(), **{PRIOR + name: array for name, array in prior.items()}}

    def load_state(self, arrays: Arrays) -> None:
        """See `Learner`."""
        if self._prior is not None:
            load_training_arrays(self._prior, self._optimizer, under(PRIOR, arrays), "The network of linear costs")
        self._learned.load_state(arrays)

    def weights(self) -> Arrays:
        """See `Learner`."""
        prior = {} if self._prior is None else module_arrays(self._prior)
        return {
            **{COST + name: array for name, array in self._learned.weights().items()},
            **{PRIOR + name: array for name, array in prior.items()},
        }

    def about(self) -> dict[str, Any]:
        """See `Learner`."""
        return {"preset": self.preset, "options": asdict(self.options), "max_devices": self.suite.max_devices}

    def agent(self) -> SurCoAgent:
        """See `Learner`."""
        return SurCoAgent(self.name, self._learned.model(), self.options, copy.deepcopy(self._prior))
