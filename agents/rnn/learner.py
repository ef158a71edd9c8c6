"""Training of the RNN baseline: REINFORCE on the true cost."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from shard_gym.agents.rnn.agent import Decoded, PlacementNetwork, RnnAgent, decode, gumbel_noise
from shard_gym.agents.training import Learner, Report
from shard_gym.agents.training.modules import ModuleTraining, new_module
from shard_gym.common.arrays import FloatArray
from shard_gym.common.checks import MAX_UNITS, checked_count, checked_learning_rate
from shard_gym.common.io.arrays import Arrays
from shard_gym.common.system import one_thread
from shard_gym.cost_models import CostModel
from shard_gym.tasks import Task, TaskSuite

WEIGHTS, TASKS, CHOICES = range(3)  # purposes of random generators
MAX_GRADIENT_NORM = 1.0  # the limit of Mirhoseini et al. (A Hierarchical Model for Device Placement, ICLR 2018)


class RnnLearner(Learner):
    """The RNN baseline of DreamShard (NeurIPS 2022), after Mirhoseini et al. (ICML 2017), in training.

    An iteration draws `episodes` placements of one training task, evaluates the true cost of each, and makes one step
    of REINFORCE. The baseline is the mean of the iteration's costs, and the unit is their standard deviation, because
    tasks differ in size. A placement that gets stuck costs its penalty and no evaluation.

    The output layer has one unit for each device, so the agent cannot place on more devices than its training suite
    has. The default budget is 3,000 evaluations of the true cost, 30 times DreamShard's: with 100 the agent was worse
    than random on every suite (version 1 of the cost model), with 3,000 it reaches 11.84 ms on dlrm-20x4 (version 2,
    seed 0; random 16.44, local search 11.29).

    Args:
        suite, cost_model, seed: see `Learner`.
        name: of the agent.
        iterations: steps of REINFORCE.
        episodes: placements in each, at least two; 300 x 10 by default.
        learning_rate: Adam's.
        hidden: units of each layer.

    Raises:
        InvalidOptionError: an option is out of range.
    """

    def __init__(
        self,
        suite: TaskSuite,
        cost_model: CostModel,
        seed: int,
        *,
        name: str = "rnn",
        iterations: int = 300,
        episodes: int = 10,
        learning_rate: float = 0.01,
        hidden: int = 64,
    ) -> None:
        super().__init__(suite, cost_model, seed)
        self.name = name
        self.iterations = checked_count("iterations", iterations)
        self.episodes = checked_count("episodes", episodes, least=2)
        self.planned_queries = self.iterations * self.episodes
        rate = checked_learning_rate(learning_rate)
        self.network = new_module(
            lambda: PlacementNetwork(suite.max_devices, checked_count("hidden", hidden, most=MAX_UNITS)),
            self.rng(WEIGHTS),
        )
        self._training = ModuleTraining(self.network, rate, MAX_GRADIENT_NORM)

    @override
    def _move(self, device: str) -> None:
        self._training.move_to(device)

    @override
    def iterate(self) -> Report:
        task = self.suite.sample(self.rng(TASKS))
        noise = gumbel_noise(self.rng(CHOICES), task.num_tables, self.episodes, self.network.max_devices)
        with one_thread():
            decoded = decode(self.network, task, noise.to(self.device))
            costs = self._true_costs(task, decoded)
            excess = (costs - costs.mean()) / (costs.std() or 1.0)  # in standard deviations; 0 if all are equal
            weight = torch.from_numpy(excess.astype(np.float32)).to(self.device)
            self._training.step((weight * decoded.log_probability).mean())
        entropy = float(decoded.entropy.mean().detach())
        return Report(float(costs.mean()), {"entropy": entropy, "stuck": int((decoded.stuck >= 0).sum())})

    def _true_costs(self, task: Task, decoded: Decoded) -> FloatArray:
        """(B,) ms; the penalty for placements that got stuck or cannot be measured."""
        model = self.cost_model
        costs = np.full(self.episodes, model.penalty_ms(task.tables, task.topology))
        for each in np.flatnonzero(decoded.stuck < 0):
            estimate = self.true_cost(decoded.placements[each], task.tables, task.topology)
            if estimate is not None:
                costs[each] = estimate.total_ms
        return costs

    @override
    def state(self) -> Arrays:
        return self._training.state()

    @override
    def load_state(self, arrays: Arrays) -> None:
        self._training.load_state(arrays, "The network")

    @override
    def weights(self) -> Arrays:
        return self._training.weights()

    @override
    def about(self) -> dict[str, Any]:
        return {"max_devices": self.network.max_devices, "hidden": self.network.hidden}

    @override
    def agent(self) -> RnnAgent:
        return RnnAgent(self.name, copy.deepcopy(self.network).cpu())
