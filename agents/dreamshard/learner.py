"""DreamShard in training: measure a few placements, learn what they cost, learn to place inside that estimate."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from shard_gym.agents.dreamshard.agent import COST, POLICY, DreamShardAgent, agent_arrays
from shard_gym.agents.dreamshard.measure import measure, random_load
from shard_gym.agents.dreamshard.options import DreamShardOptions, dreamshard_options
from shard_gym.agents.dreamshard.policy import POLICIES
from shard_gym.agents.dreamshard.reinforce import advantages, policy_loss
from shard_gym.agents.dreamshard.rollout import play
from shard_gym.agents.training.learner import Learner, Report
from shard_gym.agents.training.optimizer import load_optimizer_arrays, optimizer_arrays
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.cost_models.data.dataset import CostDataset, CostRecorder
from shard_gym.cost_models.neural.base import NeuralCostModel
from shard_gym.cost_models.neural.storage import NETWORKS
from shard_gym.cost_models.neural.training import (
    Samples,
    as_arrays,
    assign_arrays,
    new_optimizer,
    paper_loss,
    relative_loss,
    train_network,
    trainable,
    with_normalization,
)
from shard_gym.envs.core.prepared_tasks import PreparedTasks
from shard_gym.errors import DamagedFileError, InvalidCheckpointError
from shard_gym.io.arrays import Arrays, require_arrays, under
from shard_gym.system import one_thread
from shard_gym.tasks import TaskSuite

MEASURE, TEACH, DREAM = range(3)
"""Purposes of random generators."""

DATA, COST_OPTIMIZER, POLICY_OPTIMIZER = "data.", "cost_optimizer.", "policy_optimizer."


class DreamShardLearner(Learner):
    """The loop of DreamShard (daochenzha/dreamshard, dreamshard/training.py).

    Args:
        suite: the tasks to learn from.
        cost_model: the true cost; asked for `measurements` placements in each iteration.
        seed: of everything random.
        name: of the agent.
        preset: "dream-search" or "paper".
        changes: single options of the preset; see `DreamShardOptions`.

    Raises:
        UnknownNameError: there is no such preset or option.
        InvalidOptionError: an option has an impossible value.
    """

    def __init__(
        self,
        suite: TaskSuite,
        cost_model: AdditiveCostModel,
        seed: int = 0,
        *,
        name: str = "dreamshard",
        preset: str = "dream-search",
        **changes: Any,
    ) -> None:
        super().__init__(suite, cost_model, seed)
        self.name = name
        self.preset = preset
        self.options: DreamShardOptions = dreamshard_options(preset, **changes)
        self.iterations = self.options.iterations
        self._network, self._policy = NETWORKS[self.options.network], POLICIES[self.options.policy]
        rng = np.random.default_rng([self.seed])
        self._cost_weights = trainable(self._network.new_weights(rng))
        features = np.concatenate([task.tables.features() for task in suite])
        self._policy_weights = trainable({**self._policy.new_weights(rng), **self._policy.calibrated(features)})
        self._recorder = CostRecorder(self.cost_model.fingerprint)
        self._cost_optimizer = self._new_cost_optimizer()
        self._policy_optimizer = new_optimizer(self._policy_weights)

    @staticmethod
    def more_options() -> dict[str, Any]:
        """What `changes` may name, with the defaults of the usual preset."""
        return asdict(dreamshard_options("dream-search"))

    # The loop

    def iterate(self) -> Report:
        """Measure, teach the cost network, teach the policy."""
        with one_thread():
            first = not len(self._recorder)
            costs = self._measure()
            cost_loss = self._teach_costs(calibrate=first)
            dreamt = self._teach_policy()
        return Report(float(np.mean(costs)), {**cost_loss, **dreamt})

    def _measure(self) -> list[float]:
        """Ask the true cost of new placements; ms of those that are the agent's own."""
        rng, agent = self.rng(MEASURE), self.agent()
        explored = int(self.options.measurements * self.options.explored)
        for _ in range(explored):
            measure(self._recorder, self.cost_model, *random_load(self.suite, rng))
        costs = []
        for _ in range(self.options.measurements - explored):
            task = self.suite.sample(rng)
            # An untrained estimate is no place to search: what looks best there is extreme, and teaches little.
            placement = agent.proposal(task, rng, search=self.iteration > 0)
            if placement is None:
                costs.append(self.cost_model.penalty_ms(task.tables, task.topology))
            else:
                costs.append(measure(self._recorder, self.cost_model, task.tables, task.topology, placement))
        return costs

    def _teach_costs(self, *, calibrate: bool) -> dict[str, float]:
        """Let the cost network learn from all measurements so far; its loss, if there was anything to do."""
        options = self.options
        if not len(self._recorder) or not options.cost_updates:
            return {}
        samples = Samples(self._recorder.dataset(), self._network)
        if calibrate:
            assign_arrays(self._cost_weights, with_normalization(samples, as_arrays(self._cost_weights)))
        anew = options.cost_learning_rate > 0
        if anew:  # with a rate that starts high again, Adam's memory of small gradients would make enormous steps
            self._cost_optimizer = self._new_cost_optimizer()
        loss = train_network(
            self._cost_weights,
            self._cost_optimizer,
            samples,
            self.rng(TEACH),
            steps=options.cost_updates,
            learning_rate=options.cost_learning_rate if anew else self._learning_rate,
            final_learning_rate=0.0 if anew else self._learning_rate,
            batch_size=options.cost_batch,
            loss=relative_loss if options.relative_loss else paper_loss,
        )
        return {"cost_loss": loss}

    def _new_cost_optimizer(self) -> torch.optim.AdamW:
        return new_optimizer(self._cost_weights, self.options.weight_decay)

    def _teach_policy(self) -> dict[str, float]:
        """REINFORCE inside the estimate; ms that the last episodes cost there on average, if there were any."""
        options, rng = self.options, self.rng(DREAM)
        model, count = self._network(as_arrays(self._cost_weights)), options.tasks * options.episodes
        bank = PreparedTasks(self.suite, model, self.suite.max_tables, self.suite.max_devices, count)
        for group in self._policy_optimizer.param_groups:
            group["lr"] = self._learning_rate
        dreamt = {}
        for _ in range(options.policy_updates):
            tasks = [self.suite.sample(rng) for _ in range(options.tasks)]
            bank.begin(np.arange(count), [task for task in tasks for _ in range(options.episodes)])
            rollout = play(bank.problem, model, self._policy, as_arrays(self._policy_weights), rng, record=True)
            assert rollout.steps is not None
            advantage = advantages(rollout, options.tasks)
            loss = policy_loss(self._policy, self._policy_weights, rollout.steps, advantage, options.entropy)
            self._policy_optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._policy_optimizer.step()
            dreamt["dreamt_cost_ms"] = float(rollout.cost_ms.mean())
        return dreamt

    @property
    def _learning_rate(self) -> float:
        """Falls linearly with the iterations, as in dreamshard/training.py."""
        return self.options.learning_rate * (1 - self.iteration / self.iterations)

    # The protocol of learners

    def state(self) -> Arrays:
        """See `Learner`."""
        data = self._recorder.dataset().to_arrays() if len(self._recorder) else {}
        return {
            **self.weights(),
            **optimizer_arrays(self._cost_optimizer, COST_OPTIMIZER),
            **optimizer_arrays(self._policy_optimizer, POLICY_OPTIMIZER),
            **{DATA + name: array for name, array in data.items()},
        }

    def load_state(self, arrays: Arrays) -> None:
        """See `Learner`."""
        weights = {name: array for name, array in arrays.items() if name.startswith((COST, POLICY))}
        require_arrays("The saved state", weights, self.weights())
        assign_arrays(self._cost_weights, under(COST, weights))
        assign_arrays(self._policy_weights, under(POLICY, weights))
        load_optimizer_arrays(self._cost_optimizer, arrays, COST_OPTIMIZER)
        load_optimizer_arrays(self._policy_optimizer, arrays, POLICY_OPTIMIZER)
        self._recorder = CostRecorder(self.cost_model.fingerprint)
        data = under(DATA, arrays)
        if data:
            try:
                self._recorder.extend(CostDataset.from_arrays(data))
            except DamagedFileError as error:
                raise InvalidCheckpointError(f"The measurements in the saved state are not usable. {error}") from error

    def weights(self) -> Arrays:
        """See `Learner`."""
        return agent_arrays(as_arrays(self._cost_weights), as_arrays(self._policy_weights))

    def about(self) -> dict[str, Any]:
        """See `Learner`."""
        return {"preset": self.preset, "options": asdict(self.options)}

    def agent(self) -> DreamShardAgent:
        """See `Learner`."""
        model: NeuralCostModel = self._network(as_arrays(self._cost_weights))
        return DreamShardAgent(self.name, model, as_arrays(self._policy_weights), self.options, self.seed)
