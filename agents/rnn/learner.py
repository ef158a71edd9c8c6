"""Training of the RNN baseline: REINFORCE on the true cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from shard_gym.agents.rnn.agent import RnnAgent, gumbel_noise
from shard_gym.agents.rnn.decoding import Decoded, TableSequence, decode
from shard_gym.agents.rnn.network import network_with, new_network
from shard_gym.agents.training.learner import Learner, Report
from shard_gym.agents.training.optimizer import load_optimizer_arrays, optimizer_arrays
from shard_gym.checks import checked_count, checked_positive
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.cost_models.base import FloatArray
from shard_gym.io.arrays import Arrays
from shard_gym.system import one_thread
from shard_gym.tasks import Task, TaskSuite

WEIGHTS, TASKS, CHOICES = range(3)
"""Purposes of random numbers."""

MAX_GRADIENT_NORM = 1.0
"""As Mirhoseini et al. clip (A Hierarchical Model for Device Placement, ICLR 2018)."""


class RnnLearner(Learner):
    """The RNN baseline of DreamShard (NeurIPS 2022), after Mirhoseini et al. (ICML 2017), in training.

    An iteration draws `episodes` placements of one training task, has the true cost of each told, and makes one step of
    REINFORCE. The baseline is the mean of the iteration's costs, and their standard deviation is the unit, for tasks
    differ in size; a placement that got stuck is charged its penalty and asks nothing.

    The output layer has one unit for each device, so the agent cannot place on more devices than the suite it learnt
    from has. The default budget of 100 true costs is DreamShard's; REINFORCE needs some thousands to get far.

    Args:
        suite: the tasks to learn from.
        cost_model: what tells the true cost.
        seed: of everything random.
        name: of the agent.
        iterations: steps of REINFORCE.
        episodes: placements of each; at least two, for one alone is its own baseline.
        learning_rate: Adam's.
        hidden: units of each layer.

    Raises:
        InvalidOptionError: an option is out of range.
    """

    def __init__(
        self,
        suite: TaskSuite,
        cost_model: AdditiveCostModel,
        seed: int,
        *,
        name: str = "rnn",
        iterations: int = 10,
        episodes: int = 10,
        learning_rate: float = 0.01,
        hidden: int = 64,
    ) -> None:
        super().__init__(suite, cost_model, seed)
        self.name = name
        self.iterations = checked_count("iterations", iterations)
        self.episodes = checked_count("episodes", episodes, least=2)
        rate = checked_positive("learning_rate", learning_rate)
        self.network = new_network(suite.max_devices, checked_count("hidden", hidden), self.rng(WEIGHTS))
        self._optimizer = torch.optim.Adam(self.network.parameters(), lr=rate)

    def iterate(self) -> Report:
        """See `Learner`."""
        task = self.suite.sample(self.rng(TASKS))
        most = self.network.max_devices
        noise = gumbel_noise(self.rng(CHOICES), task.num_tables, self.episodes, most)
        with one_thread():
            decoded = decode(self.network, TableSequence.of(task, most), noise)
            costs = self._true_costs(task, decoded)
            loss = (_excess(costs) * decoded.log_probability).mean()
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), MAX_GRADIENT_NORM)
            self._optimizer.step()
        entropy = float(decoded.entropy.mean().detach())
        return Report(float(costs.mean()), {"entropy": entropy, "stuck": int((decoded.stuck >= 0).sum())})

    def _true_costs(self, task: Task, decoded: Decoded) -> FloatArray:
        """(B,) ms; the penalty for placements that got stuck."""
        model = self.cost_model
        costs = np.full(self.episodes, model.penalty_ms(task.tables, task.topology))
        complete = np.flatnonzero(decoded.stuck < 0)
        if complete.size:
            loads = model.table_loads(task.tables, task.topology)
            placed = [model.reduce(loads, decoded.placements[each], task.num_devices) for each in complete]
            costs[complete] = model.costs(np.stack(placed), task.topology.cluster())[1]
        return costs

    def state(self) -> Arrays:
        """See `Learner`."""
        return {**self.network.arrays(), **optimizer_arrays(self._optimizer)}

    def load_state(self, arrays: Arrays) -> None:
        """See `Learner`."""
        own = {name: array for name, array in arrays.items() if not name.startswith("optimizer.")}
        self.network.load_state_dict(network_with(own, self.network.max_devices, self.network.hidden).state_dict())
        load_optimizer_arrays(self._optimizer, arrays)

    def weights(self) -> Arrays:
        """See `Learner`."""
        return self.network.arrays()

    def about(self) -> dict[str, Any]:
        """See `Learner`."""
        return {"max_devices": self.network.max_devices, "hidden": self.network.hidden}

    def agent(self) -> RnnAgent:
        """See `Learner`."""
        network = network_with(self.network.arrays(), self.network.max_devices, self.network.hidden)
        return RnnAgent(self.name, network)


def _excess(costs: FloatArray) -> torch.Tensor:
    """(B,) float32, how far above their mean each cost is, in standard deviations; 0 if all are the same."""
    spread = float(costs.std()) or 1.0
    return torch.from_numpy(((costs - costs.mean()) / spread).astype(np.float32))
