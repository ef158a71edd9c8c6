"""DreamShard: options, policy, rollouts, and agents, `plan-search` under the surrogate or the policy; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.agents.base.agent import MAX_QUERIES
from shard_gym.agents.base.presets import COST, TYPES, WEIGHT_DECAY, CostNetworkOptions, options_to_place
from shard_gym.agents.search import PlanSearchAgent
from shard_gym.agents.search.splits import SplitTables
from shard_gym.common.arrays import FloatArray
from shard_gym.common.checks import checked_count, checked_positive, checked_seed
from shard_gym.common.either import Array, joined
from shard_gym.common.errors import InvalidCheckpointError, InvalidOptionError, NoPlacementFoundError, short_repr
from shard_gym.common.io.arrays import Arrays, prefixed, require_arrays, under
from shard_gym.common.system import one_blas_thread
from shard_gym.cost_models import AdditiveCostModel, CountedCostModel
from shard_gym.cost_models.neural import NeuralCostModel
from shard_gym.cost_models.neural import network as net
from shard_gym.cost_models.neural.features import (
    LATENT,
    fitted_feature_normalization,
    new_table_network,
    plain_features,
    table_latents,
)
from shard_gym.cost_models.neural.network import FloatWeights, Weights
from shard_gym.envs.core.episode_state import COMPLETE
from shard_gym.envs.core.problem import EnvProblem, prepare
from shard_gym.envs.core.state import advance, initial_state
from shard_gym.hardware import Cluster
from shard_gym.plans import ShardingPlan
from shard_gym.plans.needs import TRAINING
from shard_gym.plans.placement import Placement
from shard_gym.plans.plan import TABLE_WISE
from shard_gym.plans.variants import checked_max_shards, default_max_shards
from shard_gym.tasks import Task


@dataclass(frozen=True, kw_only=True)
class SearchOptions(CostNetworkOptions):
    """`dream-search`: a surrogate trained on few measurements, and `plan-search` under it. There is no policy.

    The first iteration measures random loads, the later ones the agent's own answers to training tasks: placements, or
    plans where tasks may be split. The learning rate falls to 0 within each iteration.

    Attributes:
        queries: surrogate evaluations of the search that answers a task.
        max_shards: column shards of a table at most, a power of two; 32 where the largest table needs more memory than
            8 devices have (`default_max_shards`), if that is more.
    """

    placing: ClassVar[tuple[str, ...]] = ("queries",)
    weight_decay: ClassVar[float] = WEIGHT_DECAY

    iterations: int = 5
    measurements: int = 20
    network: str = "pooled"
    cost_updates: int = 600
    learning_rate: float = 6e-3
    queries: int = 100_000
    max_shards: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_count("queries", self.queries, most=MAX_QUERIES)
        checked_max_shards(self.max_shards)


@dataclass(frozen=True, kw_only=True)
class DreamShardPaperOptions(CostNetworkOptions):
    """`paper`: DreamShard as described by Zha et al. (NeurIPS 2022), with the defaults of daochenzha/dreamshard.

    Every measured placement is an episode of the policy, and the policy is trained on episodes under the surrogate. The
    learning rate of both falls linearly over the iterations. Three details differ from the authors' code: the softmax
    is masked in training, too; an empty device has latents of 0; and table features are normalized over the training
    tables.

    Attributes:
        policy_updates: steps of REINFORCE in each iteration.
        episodes: episodes in each step, all of one task.
        entropy: weight of the entropy bonus.
        cost_features: whether the policy sees the estimated costs.
    """

    iterations: int = 10
    measurements: int = 10
    network: str = "dreamshard"
    cost_updates: int = 300
    learning_rate: float = 5e-4
    policy_updates: int = 10
    episodes: int = 10
    entropy: float = 1e-3
    cost_features: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_count("policy_updates", self.policy_updates, least=0)
        checked_count("episodes", self.episodes, least=2)
        if self.entropy != 0:
            checked_positive("entropy", self.entropy)
        if not isinstance(self.cost_features, bool):
            raise InvalidOptionError(f"cost_features must be True or False, not {self.cost_features!r}.")


PRESETS: dict[str, type[SearchOptions] | type[DreamShardPaperOptions]] = {
    "dream-search": SearchOptions,
    "paper": DreamShardPaperOptions,
}
"""The options of each preset; their defaults are the preset."""


# The policy network of DreamShard: a score for every device, from the tables it holds and its estimated times.
#
# As in the cost networks, weights are a dict of arrays, and the functions work on NumPy arrays (placing) and torch
# tensors (training) alike. The weights do not depend on the numbers of tables and devices.
#
# Sizes and activations are those of daochenzha/dreamshard, dreamshard/models.py. A device is represented by its sum of
# table latents beside an MLP (3, 64, 32, ReLU on both layers) of its estimated times for forward, communication and
# backward; one affine layer scores it. The table to place is not an input: the order of the tables implies it.


def new_policy(rng: np.random.Generator, features: NDArray[np.float32] | None = None) -> FloatWeights:
    """Weights of an untrained policy, whose inputs are normalized over (M, 21) `features` of the training tables."""
    return {
        **new_table_network(rng),
        **net.new_mlp(rng, "costs", (3, 64, LATENT)),
        **net.new_dense(rng, "score", 2 * LATENT, (2 * LATENT, 1)),
        **({} if features is None else fitted_feature_normalization(plain_features(features))),
    }


def device_scores(weights: Weights, latent_sums: Array, costs_ms: Array) -> Array:
    """(..., D) scores, whose softmax over the legal devices is the policy.

    They follow from the (..., D, 32) sums of the latents of each device's tables and its (..., D, 4) estimated phases.
    """
    costs = net.relu(net.mlp(weights, "costs", costs_ms[..., [0, 2, 3]]))
    return net.dense(weights, "score", joined([latent_sums, costs]))[..., 0]


@dataclass(frozen=True)
class DreamShardTrajectories:
    """Inputs and actions of a policy in N episodes of at most T steps; undefined beyond an episode's last step."""

    features: NDArray[np.float32]  # (N, T, 21) float32, of the tables in placement order
    costs_ms: NDArray[np.float32]  # (N, T, D, 4), estimated before each step; 0 if the policy is to ignore them
    legal: NDArray[np.bool_]  # (N, T, D) bool
    actions: NDArray[np.int64]  # (N, T) int64

    @property
    def taken(self) -> NDArray[np.bool_]:
        """(N, T) bool, whether the policy chose a device: no device is legal once an episode has ended."""
        return np.asarray(self.legal.any(axis=2))


@dataclass(frozen=True)
class Rollout:
    """The ends of N episodes, and the way there."""

    placements: NDArray[np.int64]  # (N, T), in the tasks' own order of tables; -1 beyond them and for unplaced tables
    cost_ms: FloatArray  # (N,) float64, estimated; the penalty for a failed episode
    complete: NDArray[np.bool_]  # (N,) bool
    trajectories: DreamShardTrajectories  # inputs and actions


def play(
    problem: EnvProblem,
    model: AdditiveCostModel,
    weights: FloatWeights,
    rng: np.random.Generator | None,
    *,
    cost_features: bool = True,
) -> Rollout:
    """Play the N episodes of `problem`, which was prepared with `model`, to their ends.

    `rng` draws the devices; with None the most likely ones are taken. The policy, of these `weights`, sees the
    estimated costs if `cost_features`.
    """
    state, step_model = initial_state(problem, model), _WithoutTotals(model)
    features = problem.tables.features[problem.row]
    latents = table_latents(weights, plain_features(features))
    longest, episodes = int(problem.num_tables.max()), np.arange(problem.num_envs)
    latent_sums = np.zeros((problem.num_envs, problem.max_devices, latents.shape[-1]), np.float32)
    shape = (problem.num_envs, longest, problem.max_devices)
    costs = np.zeros((*shape, 4), np.float32)
    legal, actions = np.zeros(shape, np.bool_), np.zeros(shape[:2], np.int64)
    for step in range(longest):
        legal[:, step] = state.fits
        if cost_features:
            costs[:, step] = state.phases_ms
        scores = device_scores(weights, latent_sums, costs[:, step])
        # The maximum of scores with Gumbel noise follows their softmax.
        noise = 0.0 if rng is None else rng.gumbel(size=scores.shape)
        actions[:, step] = np.where(legal[:, step], scores + noise, -np.inf).argmax(axis=1)
        advance(problem, state, actions[:, step], step_model)
        latent_sums[episodes, actions[:, step]] += latents[:, step]
    complete = state.status == COMPLETE
    cost = model.iteration_cost(state.phases_ms, state.device_loads[..., model.shared_loads], problem.cluster)
    return Rollout(
        placements=problem.placements_of(state.assignment, episodes),
        cost_ms=np.where(complete, cost, problem.penalty_ms),
        complete=complete,
        trajectories=DreamShardTrajectories(features[:, :longest], costs, legal, actions),
    )


class _WithoutTotals(CountedCostModel):
    """A model without the cost of the iteration, which is only needed at the end of an episode."""

    def iteration_cost(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> FloatArray:
        return np.zeros(phases.shape[:-2])


POLICY = "policy."  # prefix of the policy's weights in a file; that of the surrogate's is `COST`


class SurrogateSearchAgent(Agent):
    """Searches for placements and plans under a learned cost model; it never evaluates the true cost.

    Args:
        name: its name.
        cost_model: the surrogate.
        options: those that it was trained with.
        sharding_types: those that the surrogate learned; table_wise alone for one that learned from placements.
        seed: of the search.
    """

    def __init__(
        self,
        name: str,
        cost_model: NeuralCostModel,
        options: SearchOptions,
        sharding_types: tuple[str, ...] = (TABLE_WISE,),
        seed: int = 0,
    ) -> None:
        self.name = name
        self.cost_model = cost_model
        self.options = options
        self.sharding_types = sharding_types
        self.seed = checked_seed(seed)

    @property
    @override
    def splits(self) -> bool:
        return self.sharding_types != (TABLE_WISE,)

    @property
    @override
    def search_budget(self) -> int:
        return self.options.queries

    @override
    def place(self, task: Task) -> Placement:
        return self.split(task, (TABLE_WISE,)).placement

    @override
    def plan(self, task: Task) -> ShardingPlan:
        if not self.splits:
            return super().plan(task)
        with one_blas_thread():
            return self._search(task, self.sharding_types).plan(task)

    def split(
        self, task: Task, sharding_types: tuple[str, ...], queries: int | None = None, seed: int | None = None
    ) -> SplitTables:
        """The parts of the best plan of these types; of a shorter search with `queries`, and with another `seed`."""
        with one_blas_thread():
            return self._search(task, sharding_types, queries, seed).split(task)

    def _search(
        self, task: Task, sharding_types: tuple[str, ...], queries: int | None = None, seed: int | None = None
    ) -> PlanSearchAgent:
        """The search under the surrogate, or where `task` is served under its forward alone."""
        options, seed = self.options, self.seed if seed is None else seed
        model = self.cost_model if TRAINING in task.needs else self.cost_model.forward_alone()
        queries = min(queries or options.queries, options.queries)
        most = default_max_shards(task.tables, int(task.topology.memory_cap_bytes.max()))
        return PlanSearchAgent(model, sharding_types, max(most, options.max_shards), queries, seed=seed)


class DreamShardAgent(Agent):
    """Places tasks of any size with DreamShard's policy, which sees the costs of a surrogate; it searches nothing.

    Args:
        name: its name.
        cost_model: the surrogate.
        options: of the preset `paper`.
        policy_weights: of the policy.
    """

    def __init__(
        self, name: str, cost_model: AdditiveCostModel, options: DreamShardPaperOptions, policy_weights: FloatWeights
    ) -> None:
        self.name = name
        self.cost_model = cost_model
        self.options = options
        self.policy_weights = policy_weights

    @override
    def place(self, task: Task) -> Placement:
        with one_blas_thread():
            return self.proposal(task, None)

    def proposal(self, task: Task, rng: np.random.Generator | None) -> Placement:
        """The placement of one episode, with the most likely devices where `rng` is None, otherwise with drawn ones."""
        problem = prepare(task, self.cost_model, task.num_tables, task.num_devices)
        cost_features = self.options.cost_features
        rollout = play(problem, self.cost_model, self.policy_weights, rng, cost_features=cost_features)
        if not rollout.complete[0]:
            raise NoPlacementFoundError(
                f"The policy of {self.name} left a table of task {task.name!r} without a device that has room for it. "
                "Train with the preset dream-search, which searches for a valid placement."
            )
        placement: Placement = rollout.placements[0]
        return placement


def load_dreamshard(
    arrays: Arrays, about: Mapping[str, Any], cost_model: AdditiveCostModel, seed: int, **changes: Any
) -> Agent:
    """The agent of a training run; `changes` are `queries` for `dream-search`, the errors those of `load_agent`."""
    options: SearchOptions | DreamShardPaperOptions = options_to_place(PRESETS, about, changes)
    network, rng = options.architecture, np.random.default_rng(0)
    if isinstance(options, SearchOptions):
        return load_search(arrays, about, options, seed)
    require_arrays("The agent's file", arrays, agent_arrays(network.weights_like(under(COST, arrays)), new_policy(rng)))
    return DreamShardAgent(about["agent"], network(under(COST, arrays)), options, under(POLICY, arrays))


def load_search(arrays: Arrays, about: Mapping[str, Any], options: SearchOptions, seed: int) -> SurrogateSearchAgent:
    """The agent of a training run with `SearchOptions`; the errors are those of `load_agent`."""
    network = options.architecture
    require_arrays("The agent's file", arrays, prefixed(COST, network.weights_like(under(COST, arrays))))
    types, known = about.get(TYPES, [TABLE_WISE]), network.sharding_types
    if not isinstance(types, list) or TABLE_WISE not in types or not set(map(str, types)) <= set(known):
        raise InvalidCheckpointError(
            f"{TYPES} in its metadata must be a list with {TABLE_WISE!r} and others of "
            f"{', '.join(known)}, not {short_repr(types)}."
        )
    return SurrogateSearchAgent(about["agent"], network(under(COST, arrays)), options, tuple(types), seed)


def agent_arrays(cost_weights: FloatWeights, policy_weights: FloatWeights) -> Arrays:
    """The weights of both networks in one dict."""
    return {**prefixed(COST, cost_weights), **prefixed(POLICY, policy_weights)}
