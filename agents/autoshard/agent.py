"""AutoShard: its options, its networks and rollouts, the trained policy as an agent, and its loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, one_hot
from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.agents.base.presets import saved_options
from shard_gym.agents.training.modules import NOWHERE, finite, tensors_beside
from shard_gym.agents.training.torch_arrays import load_module_arrays
from shard_gym.common.arrays import IntArray
from shard_gym.common.checks import checked_count, checked_learning_rate, is_not_negative
from shard_gym.common.errors import InvalidOptionError, NoPlacementFoundError, TableTooLargeError, short_repr
from shard_gym.common.io.arrays import Arrays
from shard_gym.common.system import one_thread
from shard_gym.cost_models import CostModel
from shard_gym.cost_models.base.no_costs import NoCosts
from shard_gym.envs.core.episode_batch import ObservationDict
from shard_gym.envs.core.episode_state import COMPLETE, PlacementState
from shard_gym.envs.core.problem import EnvProblem
from shard_gym.envs.core.reward import make_reward
from shard_gym.envs.placement.episodes import PlacementConfig
from shard_gym.plans.placement import Placement
from shard_gym.tables import FEATURE_NAMES, Tables
from shard_gym.tasks import Task, TaskSuite


@dataclass(frozen=True, kw_only=True)
class AutoShardOptions:
    """Options of both presets.

    Attributes:
        iterations: steps of V-trace; the learning rate falls linearly to zero over them.
        episodes: placements in each step, of as many drawn tasks.
        reward: of an environment, by name. Episodes see no cost before their end, so "dense" is "terminal".
        masks: whether a device without room for a table is never chosen. The trained agent always masks.
        standardized: whether all inputs are those of `Tables.features`, on a common scale.
        cost_updates: batches that the cost network is trained on after each step.
        learning_rate: of Adam, at the start.
        entropy: weight of the entropy of the choices.
    """

    iterations: int
    episodes: int
    reward: str
    masks: bool
    standardized: bool
    cost_updates: int = 20
    learning_rate: float = 1e-3
    entropy: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("iterations", "episodes"):
            checked_count(name, getattr(self, name))
        checked_count("cost_updates", self.cost_updates, least=0)
        checked_learning_rate(self.learning_rate)
        if not is_not_negative(self.entropy):
            raise InvalidOptionError(f"entropy must be a number of at least 0, not {short_repr(self.entropy)}.")
        for name in ("masks", "standardized"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidOptionError(f"{name} must be True or False, not {short_repr(getattr(self, name))}.")
        if not isinstance(self.reward, str):
            raise InvalidOptionError(f"reward must be the name of a reward, not {short_repr(self.reward)}.")
        make_reward(self.reward)


@dataclass(frozen=True, kw_only=True)
class AutoShardPaperOptions(AutoShardOptions):
    """`paper`: the reward, sizes and rates of daochenzha/autoshard.

    Their step is 8 parts of episodes, 100 placed tables each, played by processes while another one learns; here it is
    10 whole episodes, as many at their 80 tables, played with the weights before the last step. Their 100,000 tables
    are 125 such steps.
    """

    iterations: int = 125
    episodes: int = 10
    reward: str = "balance"
    masks: bool = False
    standardized: bool = False


@dataclass(frozen=True, kw_only=True)
class CostOptions(AutoShardOptions):
    """`cost`: the same network, trained on minus the cost, with masks and inputs on a common scale.

    The cost is divided by the task's lower bound, because the tasks of a suite differ in size more than the placements
    of one task do, and the value cannot know the tables to come. The rate is lower and the entropy weighs more than in
    the authors' code, with whose numbers the policy collapsed on mixdim-8: it put all tables on one device.
    """

    iterations: int = 300
    episodes: int = 16
    reward: str = "normalized"
    masks: bool = True
    standardized: bool = True
    learning_rate: float = 3e-4
    entropy: float = 0.01


PRESETS: dict[str, type[AutoShardOptions]] = {"paper": AutoShardPaperOptions, "cost": CostOptions}
"""The options of each preset; their defaults are the preset."""


LATENT = 32  # size of the latents of a table, of the progress and of a device's own numbers; the state has two of them
NUM_STANDARDIZED = 3  # the dims, rows and pooling factors come first among the features


class Scored(NamedTuple):
    """What the network says of N episodes of at most S steps."""

    logits: Tensor  # (N, S, D), the scores of the devices
    values: Tensor  # (N, S), the expected return


class AutoShardNetwork(nn.Module):
    """The network of daochenzha/autoshard (autoshard/training.py), with its layer sizes.

    Two layers encode a table. An LSTM reads the latents of the tables in the order in which they are placed. A device
    is the sum of its tables' latents and of that of a table of zeros, beside latents of its predicted cost and memory;
    its score reads the state, the device and their product. No weight depends on the number of tables or devices.
    Inputs are `Tables.features` if `standardized`; otherwise raw numbers as in the authors' code, see `inputs`.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, standardized: bool) -> None:
        super().__init__()
        self.standardized = standardized
        self.register_buffer("mean", torch.zeros(NUM_STANDARDIZED))
        self.register_buffer("scale", torch.ones(NUM_STANDARDIZED))
        self.table = _mlp(len(FEATURE_NAMES), 128, LATENT, last=True)
        self.progress = _mlp(1, LATENT, last=True)
        self.numbers = _mlp(2, LATENT, last=True)
        self.core = nn.LSTM(2 * LATENT, 2 * LATENT, num_layers=2, batch_first=True)
        self.score = _mlp(6 * LATENT, 128, 128, 64, 1)
        self.value = _mlp(2 * LATENT, 64, 1)
        self.cost = _mlp(LATENT, 64, 1)

    def normalize(self, tables: Tables) -> None:
        """Normalize dims, rows and pooling factors by those of the training `tables`; raw inputs only."""
        if not self.standardized:
            sizes = _sizes(tables)[:, :NUM_STANDARDIZED]
            spread = sizes.std(axis=0)
            self.mean.copy_(torch.from_numpy(sizes.mean(axis=0)))
            self.scale.copy_(torch.from_numpy(np.where(spread > 0, spread, 1.0)))

    def inputs(self, tables: Tables) -> Tensor:
        """(T, 21) float32 features: those of `Tables`, or raw dims, rows and pooling factors, GiB, and reuse bins."""
        tensor = tensors_beside(self)
        if self.standardized:
            return tensor(tables.features())
        sizes = tensor(_sizes(tables)).float()
        sizes[:, :NUM_STANDARDIZED] = (sizes[:, :NUM_STANDARDIZED] - self.mean) / self.scale
        return torch.cat([sizes, torch.tensor(tables.reuse_histogram, dtype=torch.float32, device=sizes.device)], dim=1)

    def latents(self, inputs: Tensor) -> Tensor:
        """(..., `LATENT`) of (..., 21) inputs of tables."""
        latents: Tensor = self.table(inputs)
        return latents

    def states(self, latents: Tensor, progress: Tensor) -> Tensor:
        """(N, S, 2 `LATENT`) of the latents of the tables in their order, and of the shares (N, S) placed before."""
        states: Tensor = self.core(torch.cat([latents, self.progress(progress[..., None])], dim=-1))[0]
        return states

    def empty(self) -> Tensor:
        """(`LATENT`,) of a table of zeros, which every device holds."""
        return self.latents(self.mean.new_zeros(len(FEATURE_NAMES)))

    def scores(self, states: Tensor, sums: Tensor, numbers: Tensor) -> Tensor:
        """(..., D) scores of the devices from (..., 2 `LATENT`) states and what each device holds.

        `sums` are (..., D, `LATENT`) sums of the latents of its tables and of `empty`; `numbers`, (..., D, 2), are its
        predicted cost in ms and the GiB that its tables need.
        """
        devices = torch.cat([sums, self.numbers(numbers)], dim=-1)
        states = states[..., None, :].expand(devices.shape)
        scores: Tensor = self.score(torch.cat([states, devices, states * devices], dim=-1))[..., 0]
        return scores

    def costs(self, sums: Tensor) -> Tensor:
        """(...) predicted ms of forward and backward compute of devices, from (..., `LATENT`) sums of latents."""
        costs: Tensor = self.cost(sums)[..., 0]
        return costs

    def costs_of_sets(self, inputs: Tensor, members: Tensor, offsets: Tensor) -> Tensor:
        """(B,) predicted ms of sets of tables: `members`, rows of (T, 21) `inputs`, set after set from `offsets`."""
        return self.costs(embedding_bag(members, self.latents(inputs), offsets, mode="sum"))


def _mlp(*sizes: int, last: bool = False) -> nn.Sequential:
    """Linear layers with ReLU between them, and after the last one if `last`."""
    layers: list[nn.Module] = []
    for ins, outs in pairwise(sizes):
        layers += [nn.Linear(ins, outs), nn.ReLU()]
    return nn.Sequential(*(layers if last else layers[:-1]))


def _sizes(tables: Tables) -> NDArray[np.float64]:
    """(T, 4) raw dims, rows, pooling factors, and GiB of the weights."""
    gib = tables.num_embeddings * tables.row_bytes / 2**30
    return np.stack([tables.embedding_dim, tables.num_embeddings, tables.pooling_factor, gib], axis=1).astype(float)


GIB = 2**30


class _ByPredictedCost:
    """An `Observation` without any; tables come by descending cost alone on a device, as `network` predicts it."""

    def __init__(self, network: AutoShardNetwork) -> None:
        self._network = network

    def order(self, tables: Tables) -> IntArray:
        with torch.no_grad():
            costs = self._network.costs(self._network.latents(self._network.inputs(tables)))
        return np.argsort(-costs.cpu().numpy(), kind="stable")

    def space(self, max_tables: int, max_devices: int) -> spaces.Dict:
        return spaces.Dict({})

    def constant(self, problem: EnvProblem, envs: IntArray | None = None) -> ObservationDict:
        return {}

    def __call__(self, problem: EnvProblem, state: PlacementState) -> ObservationDict:
        return {}


@dataclass(frozen=True)
class AutoShardTrajectories:
    """N episodes of at most S steps; undefined beyond the end of each."""

    inputs: Tensor  # (N, S, 21) float32, of the tables in placement order
    progress: Tensor  # (N, S) float32, the share of the tables placed before each step
    numbers: Tensor  # (N, S, D, 2) float32, see `AutoShardNetwork.scores`
    open: Tensor  # (N, S, D) bool, the devices that could be chosen
    actions: Tensor  # (N, S) int64
    taken: Tensor  # (N, S) bool, whether the episode had such a step
    log_probability: Tensor  # (N, S) float32, of each action
    rewards: NDArray[np.float64]  # (N, S) float64


@dataclass(frozen=True)
class Played:
    """The ends of N episodes, and the way there."""

    placements: NDArray[np.int64]  # (N, T), in the tasks' own order of tables; -1 beyond them and for unplaced tables
    phases_ms: NDArray[np.float64]  # (N, D, 4) float64, of complete placements
    costs_ms: NDArray[np.float64]  # (N,) float64; the penalty where the episode failed
    complete: NDArray[np.bool_]  # (N,) bool
    measured: NDArray[np.bool_]  # (N,) bool, whether the true cost of a complete placement is less than the penalty
    trajectories: AutoShardTrajectories  # inputs and actions


def play(
    network: AutoShardNetwork,
    tasks: Sequence[Task],
    rng: np.random.Generator | None,
    *,
    masks: bool = True,
    reward: str = "terminal",
    true_cost: CostModel | None = None,
    lower_bounds_ms: NDArray[np.float64] | None = None,
) -> Played:
    """Play an episode of each task.

    `rng` draws the devices; with None the likeliest are taken. Without `masks`, choosing a device without room ends the
    episode. `true_cost` estimates or measures complete placements; None is for no costs and no evaluation. Rewards that
    divide by lower bounds need `lower_bounds_ms`, (N,) of the tasks.
    """
    unique = {task.name: task for task in tasks}
    suite = TaskSuite("drawn", tuple(unique.values()))
    envs = np.arange(len(tasks))
    observe = _ByPredictedCost(network)
    episodes = PlacementConfig(suite, cost_model=NoCosts(), reward=reward, observation=observe).episodes(len(tasks))
    episodes.final_cost = true_cost
    episodes.begin(envs, list(tasks))
    problem, state = episodes.problem, episodes.state
    if lower_bounds_ms is not None:
        problem.lower_bound_ms[:] = lower_bounds_ms
    inputs = _in_order(network, tasks, problem)
    steps, devices = inputs.shape[1], problem.max_devices
    tensor, shape, nothing = tensors_beside(network), (len(tasks), steps), inputs.new_zeros
    progress = (torch.arange(steps, device=inputs.device) / tensor(problem.num_tables)[:, None]).float()
    real = tensor(problem.cluster.device_mask.copy())
    numbers, choosable = nothing(*shape, devices, 2), nothing(*shape, devices, dtype=torch.bool)
    actions, taken = nothing(shape, dtype=torch.int64), nothing(shape, dtype=torch.bool)
    logs, rewards = nothing(shape), np.zeros(shape)
    with torch.no_grad():
        latents = network.latents(inputs)
        states, empty = network.states(latents, progress), network.empty()
        sums, held = nothing(len(tasks), devices, LATENT), nothing(len(tasks), devices, dtype=torch.bool)
        for step in range(steps):
            taken[:, step] = tensor(~state.over)
            numbers[:, step, :, 0] = network.costs(sums) * held  # nothing costs nothing
            numbers[:, step, :, 1] = tensor(state.memory_used / GIB)
            choosable[:, step] = tensor(episodes.masks()) if masks else real
            scores = finite(network.scores(states[:, step], sums + empty, numbers[:, step]))
            distribution = scores.masked_fill(~choosable[:, step], NOWHERE).log_softmax(dim=-1)
            noise = 0.0 if rng is None else tensor(rng.gumbel(size=scores.shape).astype(np.float32))
            device = (distribution + noise).argmax(dim=-1)
            actions[:, step], logs[:, step] = device, distribution[tensor(envs), device]
            rewards[:, step], _ = episodes.step(device.cpu().numpy())
            put = one_hot(device, devices) * taken[:, step, None]
            sums = sums + put[..., None] * latents[:, step, None]
            held = held | (put > 0)
    complete = state.status == COMPLETE
    measured = complete & (state.cost_ms < problem.penalty_ms)
    last = problem.num_tables - 1
    unmeasured = np.flatnonzero(complete & ~measured)  # one device is always in balance
    rewards[unmeasured, last[unmeasured]] = np.minimum(rewards[unmeasured, last[unmeasured]], 0.0)
    return Played(
        placements=episodes.placements(envs),
        phases_ms=state.phases_ms.copy(),
        costs_ms=np.where(complete, state.cost_ms, problem.penalty_ms),
        complete=complete,
        measured=measured,
        trajectories=AutoShardTrajectories(inputs, progress, numbers, choosable, actions, taken, logs, rewards),
    )


def _in_order(network: AutoShardNetwork, tasks: Sequence[Task], problem: EnvProblem) -> Tensor:
    """(N, S, 21) float32 inputs of the tables of each episode, in placement order."""
    tensor = tensors_beside(network)
    shape = (len(tasks), int(problem.num_tables.max()), problem.tables.features.shape[-1])
    inputs = tensor(np.zeros(shape, np.float32))
    orders = problem.tables.order[problem.row]
    for row, (task, order) in enumerate(zip(tasks, orders, strict=True)):
        inputs[row, : task.num_tables] = network.inputs(task.tables)[tensor(order[: task.num_tables])]
    return inputs


def scored(network: AutoShardNetwork, played: AutoShardTrajectories) -> Scored:
    """Scores and values of all steps of `played`, with gradients."""
    latents = network.latents(played.inputs)
    states = network.states(latents, played.progress)
    put = one_hot(played.actions, played.open.shape[-1]) * played.taken[..., None]
    added = put[..., None] * latents[..., None, :]
    scores = network.scores(states, added.cumsum(dim=1) - added + network.empty(), played.numbers)
    return Scored(scores.masked_fill(~played.open, NOWHERE), network.value(states)[..., 0])


class AutoShardAgent(Agent):
    """Places tasks of any size on the policy's likeliest devices that have room; it evaluates no cost model."""

    def __init__(self, name: str, network: AutoShardNetwork) -> None:
        self.name = name
        self.network = network

    @override
    def place(self, task: Task) -> Placement:
        try:
            with one_thread():
                played = play(self.network, [task], None)
        except TableTooLargeError as error:
            raise NoPlacementFoundError(str(error)) from error
        if not played.complete[0]:
            raise NoPlacementFoundError(
                f"{self.name} left a table of task {task.name!r} without a device that has room for it. Where memory "
                "is short, use local-search."
            )
        placement: Placement = played.placements[0]
        return placement


def load_autoshard(arrays: Arrays, about: Mapping[str, Any], cost_model: CostModel, seed: int) -> AutoShardAgent:
    """The agent of a training run, from the network's weights; the errors are those of `load_agent`."""
    options: AutoShardOptions = saved_options(PRESETS, about)
    with torch.device("meta"):
        network = AutoShardNetwork(options.standardized)
    load_module_arrays(network, arrays, "The network")
    return AutoShardAgent(about["agent"], network)
