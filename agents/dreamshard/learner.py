"""Training of DreamShard: measure placements, train a surrogate on their costs, and for `paper` a policy under it.

An iteration (`CostNetworkLearner.iterate`) has these steps:

1. Measure. `dream-search` measures random loads first (`load_to_search`) and then what its own search finds
   (`load_of_search`); `paper` measures episodes of its policy. With `data` nothing is measured.
2. Train the surrogate on all measurements so far: `relative_loss`, in `paper` with the paper's network `paper_loss`.
3. Only `paper`: REINFORCE on episodes under the surrogate (`PolicyTraining`).

The agent of now is in `agent.py`: a search under the surrogate, or the policy.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.agents.base.presets import COST
from shard_gym.agents.dreamshard.agent import (
    POLICY,
    PRESETS,
    DreamShardAgent,
    DreamShardPaperOptions,
    DreamShardTrajectories,
    Rollout,
    SearchOptions,
    SurrogateSearchAgent,
    agent_arrays,
    device_scores,
    new_policy,
    play,
)
from shard_gym.agents.training.cost_network import CostNetworkLearner
from shard_gym.agents.training.loads import (
    ShardLoad,
    load_of,
    load_of_plan,
    loads_of_data,
    random_load,
    random_plan_load,
    random_shards,
    whole_tables,
)
from shard_gym.agents.training.modules import chosen_and_entropy
from shard_gym.agents.training.torch_arrays import load_optimizer_arrays, optimizer_arrays
from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.io.arrays import Arrays, require_arrays, under
from shard_gym.common.io.files import read_bytes, sha256_of
from shard_gym.cost_models import AdditiveCostModel, CostModel
from shard_gym.cost_models.fitting import CostDataset, Measurements, load_measurements
from shard_gym.cost_models.fitting.data.folder import INDEX
from shard_gym.cost_models.fitting.data.random_plans import executable_types
from shard_gym.cost_models.fitting.training import (
    as_arrays,
    assign_arrays,
    new_optimizer,
    paper_loss,
    relative_loss,
    trainable,
)
from shard_gym.cost_models.neural.dreamshard import DreamShardCostModel
from shard_gym.cost_models.neural.features import plain_features, table_latents
from shard_gym.cost_models.neural.network import Weights
from shard_gym.envs.core.prepared_tasks import PreparedTasks
from shard_gym.plans.plan import TABLE_WISE
from shard_gym.tasks import Task, TaskSuite

POLICY_OPTIMIZER = "policy_optimizer."  # prefix of the averages of the policy's optimizer in a state

FAILURE = 1.1
"""A failed episode counts as this many times the most expensive complete one. Its penalty exceeds the cost of every
placement by so much that the differences between complete episodes would vanish beside it."""


class PolicyTraining:
    """The policy and its optimizer. `weights` are tensors by name, changed in place."""

    def __init__(self, suite: TaskSuite, rng: np.random.Generator, options: DreamShardPaperOptions) -> None:
        self._suite = suite
        self._options = options
        features = np.concatenate([task.tables.features() for task in suite])
        self.weights = trainable(new_policy(rng, features))
        self.optimizer = new_optimizer(self.weights)

    def move_to(self, device: str) -> None:
        """Train on `device`; before the first step."""
        self.weights = trainable(self.arrays(), device)
        self.optimizer = new_optimizer(self.weights)

    def arrays(self) -> Arrays:
        """Copies of the weights."""
        return as_arrays(self.weights)

    def optimizer_arrays(self) -> Arrays:
        """Copies of the averages of the optimizer."""
        return optimizer_arrays(self.optimizer, POLICY_OPTIMIZER)

    def load_state(self, arrays: Arrays) -> None:
        """Set the weights, which are under `POLICY` in `arrays`, and the averages."""
        assign_arrays(self.weights, under(POLICY, arrays))
        load_optimizer_arrays(self.optimizer, arrays, POLICY_OPTIMIZER)

    def update(self, surrogate: AdditiveCostModel, rng: np.random.Generator, learning_rate: float) -> dict[str, float]:
        """Make the steps of one iteration; the mean estimated cost of the last episodes, if there was a step."""
        options, suite = self._options, self._suite
        prepared = PreparedTasks(suite, surrogate, suite.max_tables, suite.max_devices, options.episodes)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        numbers = {}
        for _ in range(options.policy_updates):
            prepared.begin(np.arange(options.episodes), [suite.sample(rng)] * options.episodes)
            weights = as_arrays(self.weights)
            rollout = play(prepared.problem, surrogate, weights, rng, cost_features=options.cost_features)
            loss = policy_loss(self.weights, rollout.trajectories, advantages(rollout), options.entropy)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            numbers["surrogate_cost_ms"] = float(rollout.cost_ms.mean())
        return numbers


def advantages(rollout: Rollout) -> FloatArray:
    """(N,) float64, the batch-normalised return of each episode (daochenzha/dreamshard, dreamshard/training.py)."""
    highest = np.where(rollout.complete, rollout.cost_ms, 0.0).max()
    returns = -np.where(rollout.complete, rollout.cost_ms, FAILURE * highest)
    normalised: FloatArray = (returns - returns.mean()) / (returns.std(ddof=1) + 1e-8)
    return normalised


def policy_loss(
    weights: Weights, steps: DreamShardTrajectories, advantage: FloatArray, entropy_weight: float
) -> Tensor:
    """REINFORCE (Williams, 1992) with an entropy bonus, mean over all steps of N episodes (dreamshard/training.py)."""
    log_probabilities = action_log_probabilities(weights, steps)
    device = log_probabilities.device
    taken, actions = torch.tensor(steps.taken, device=device), torch.tensor(steps.actions, device=device)
    chosen, entropy = chosen_and_entropy(log_probabilities, actions, least=-1e4)
    gain = chosen * torch.tensor(advantage, dtype=torch.float32, device=device)[:, None]
    return -(gain + entropy_weight * entropy)[taken].mean()


def action_log_probabilities(weights: Weights, steps: DreamShardTrajectories) -> Tensor:
    """(N, T, D) log of the probability of each device at each step; -inf where it is illegal."""
    tensor = partial(torch.tensor, device=next(iter(weights.values())).device)
    latents = table_latents(weights, plain_features(tensor(steps.features)))
    placed = torch.nn.functional.one_hot(tensor(steps.actions), steps.legal.shape[-1]).float()
    placed = (placed * tensor(steps.taken)[..., None])[..., None] * latents[..., None, :]
    scores = device_scores(weights, placed.cumsum(dim=1) - placed, tensor(steps.costs_ms))
    legal = tensor(steps.legal)
    # Scores of 0 where no device is legal: the softmax of such a step must not be NaN, though it is never used.
    scores = scores.masked_fill(~legal, -torch.inf).masked_fill(~legal.any(-1, keepdim=True), 0.0)
    return torch.log_softmax(scores, dim=-1)


PROPOSAL_QUERIES = 5_000  # surrogate evaluations of a search for an answer to measure
MORE_QUERIES = 10.0  # times those, for a plan, at most: long searches find forms that short ones do not
RANDOM_PLANS = 0.1  # share of random loads of plans in the later iterations


def load_to_search(
    learner: CostNetworkLearner, number: int, max_shards: int, rng: np.random.Generator
) -> ShardLoad | None:
    """The random load that a learner whose agent searches measures as the `number`-th; None for an answer of the agent.

    All are random in the first iteration, and of plans some in the later ones: a form of which the network says that it
    costs more than it does is in no answer.
    """
    if learner.iteration and not (learner.plans and number < RANDOM_PLANS * learner.options.measurements):
        return None
    if not learner.plans:
        return random_load(learner.suite, rng)
    draw = random_plan_load if learner.measures_plans else random_shards
    return draw(learner.suite, max_shards.bit_length() - 1, learner.sharding_types, rng)


def load_of_search(
    learner: CostNetworkLearner, agent: SurrogateSearchAgent, task: Task, rng: np.random.Generator
) -> ShardLoad:
    """The load of what the agent of such a learner finds for a task, in a short search; of parts that are executed."""
    seed, queries = int(rng.integers(2**31)), PROPOSAL_QUERIES
    types = learner.sharding_types if task.splittable else (TABLE_WISE,)
    if len(types) > 1:
        queries = int(queries * MORE_QUERIES ** rng.random())
    if not learner.measures_plans:
        return load_of(agent.split(task, types, queries, seed))
    split = agent.split(task, executable_types(types, task.tables, task.topology), queries, seed)
    return load_of_plan(split.plan(), task.tables, task.topology)


TRAIN_POLICY = 2  # purpose of a random generator, after those of `CostNetworkLearner`


class DreamShardLearner(CostNetworkLearner):
    """DreamShard in training, with one of two presets (see `SearchOptions` and `DreamShardPaperOptions`).

    The arguments and errors that are not named here are those of `CostNetworkLearner`.

    Args:
        preset: "dream-search" or "paper".
        data: folder of measurements (`shard-gym collect`) to learn from in place of new ones; their training part is
            used. Nothing is measured then, and no plans are learned: it holds placements. A warning says if they are of
            other devices than the tasks have.

    Raises:
        InvalidOptionError: `data` is of tables with another workload.
        DamagedFileError: `data` holds no measurements.
    """

    presets = PRESETS

    options: SearchOptions | DreamShardPaperOptions

    def __init__(
        self,
        suite: TaskSuite,
        cost_model: CostModel,
        seed: int = 0,
        *,
        name: str = "dreamshard",
        preset: str = "dream-search",
        data: str = "",
        **changes: Any,
    ) -> None:
        super().__init__(suite, cost_model, seed, name, preset, changes)
        self._policy: PolicyTraining | None = None
        if isinstance(self.options, DreamShardPaperOptions):
            self._policy = PolicyTraining(suite, self.first_weights, self.options)
        self._given: CostDataset | None = None
        self._pools: Sequence[str] = ()
        if data:
            measurements = _measurements_for(suite, data)
            self._given, self._pools = measurements.first.part("train"), measurements.index.sampling["pools"]
            index = read_bytes(Path(data) / INDEX)  # it has the checksums of all files
            self.sources = {"data_hardware": measurements.index.hardware, "data_sha256": sha256_of(index)}
            _warn_of_other_devices(suite, self._given, data, measurements.index.hardware)
            self.planned_queries = 0
            self.plans = False  # measured are placements

    @override
    def _measure(self) -> list[float]:
        """Those of `data` if it is given."""
        if not self._given:
            return super()._measure()
        if not len(self.network.recorder):
            for load, estimate in loads_of_data(self._given):
                self._record(load, estimate)
        return [float(cost) for cost in self._given.cost_ms]

    @override
    def _random_load(self, number: int, rng: np.random.Generator) -> ShardLoad | None:
        if isinstance(self.options, SearchOptions):
            return load_to_search(self, number, self.options.max_shards, rng)
        return None  # the policy proposes all placements

    @override
    def _proposed(self, agent: Any, task: Task, rng: np.random.Generator) -> ShardLoad:
        if isinstance(agent, SurrogateSearchAgent):
            return load_of_search(self, agent, task, rng)
        return whole_tables(task.tables, task.topology, agent.proposal(task, rng))

    @property
    def _falling_rate(self) -> float:
        """The learning rate of `paper`, which falls linearly over the iterations, as in dreamshard/training.py."""
        return self.options.learning_rate * (1 - self.iteration / self.iterations)

    @override
    def _train(self) -> float:
        if self._policy is None:
            return self._fit()
        loss = paper_loss if issubclass(self.options.architecture, DreamShardCostModel) else relative_loss
        return self._fit((self._falling_rate, self._falling_rate), loss)

    @override
    def _train_more(self) -> dict[str, float]:
        if self._policy is None:
            return {}
        self.on_stage("training the policy")
        return self._policy.update(self.network.model(), self.rng(TRAIN_POLICY), self._falling_rate)

    @override
    def _move(self, device: str) -> None:
        super()._move(device)
        if self._policy:
            self._policy.move_to(device)

    @override
    def state(self) -> Arrays:
        return {**self.weights(), **super().state(), **(self._policy.optimizer_arrays() if self._policy else {})}

    @override
    def load_state(self, arrays: Arrays) -> None:
        weights = {name: array for name, array in arrays.items() if name.startswith((COST, POLICY))}
        require_arrays("The saved state", weights, self.weights())
        super().load_state(arrays)
        if self._policy:
            self._policy.load_state(arrays)

    @override
    def weights(self) -> Arrays:
        return agent_arrays(self.network.weights(), self._policy.arrays() if self._policy else {})

    @override
    def about(self) -> dict[str, Any]:
        """Also the pools of `data`."""
        pools = [f"pool/{name}" for name in self._pools]
        return {**super().about(), **({"more_data": pools} if pools else {})}

    @override
    def agent(self) -> Agent:
        model = self.network.model()
        if isinstance(self.options, SearchOptions):
            return SurrogateSearchAgent(self.name, model, self.options, self.sharding_types, self.seed)
        assert self._policy is not None
        return DreamShardAgent(self.name, model, self.options, self._policy.arrays())


def _warn_of_other_devices(suite: TaskSuite, data: CostDataset, folder: str, hardware: str) -> None:
    found, wanted = (
        {f"{topology.num_devices} x {topology.device.name}" for topology in topologies}
        for topologies in (data.topologies, [task.topology for task in suite])
    )
    if not wanted <= found:
        warnings.warn(
            f"The measurements in {folder} are of {' and '.join(sorted(found))} (measured on {hardware}), but the "
            f"tasks of {suite.name!r} have {' and '.join(sorted(wanted))}. What is learnt may not hold for them; race "
            "the agent on the hardware that it is meant for.",
            stacklevel=3,
        )


def _measurements_for(suite: TaskSuite, folder: str) -> Measurements:
    measurements = load_measurements(folder)
    found, wanted = measurements.index.workload, suite.tasks[0].tables.workload
    if found != wanted:
        raise InvalidOptionError(
            f"The measurements in {folder} are of tables with {found}, but the tasks of {suite.name!r} have {wanted}. "
            "Measure that workload, or train on tasks of the other (Tables.at_batch_size, Tables.with_training)."
        )
    return measurements
