"""The attention policy: features of tables, its network, the episodes that it plays, the agent and its loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import one_hot
from typing_extensions import override

from shard_gym.agents.base import Agent, task_rng
from shard_gym.agents.base.presets import COST
from shard_gym.agents.search.heuristics import lookup_score
from shard_gym.agents.training.loads import PlacedShards, ShardLoad
from shard_gym.agents.training.modules import NOWHERE, chosen_and_entropy, finite, tensors_beside
from shard_gym.agents.training.torch_arrays import load_module_arrays, network_size
from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.common.checks import checked_count, checked_seed, is_not_negative
from shard_gym.common.errors import (
    InvalidCheckpointError,
    InvalidOptionError,
    NoPlacementFoundError,
    TableTooLargeError,
    short_repr,
)
from shard_gym.common.io.arrays import Arrays, prefixed, require_arrays, under
from shard_gym.common.system import one_thread
from shard_gym.cost_models import AdditiveCostModel, CostModel
from shard_gym.cost_models.analytical.model import lane_share
from shard_gym.cost_models.base.no_costs import NoCosts, without_costs
from shard_gym.cost_models.neural.pooled import PooledCostModel
from shard_gym.envs.core.episode_state import COMPLETE, PlacementState
from shard_gym.envs.core.prepared_tasks import PreparedTasks
from shard_gym.envs.core.problem import WIDE, EnvProblem
from shard_gym.envs.core.state import advance, initial_state
from shard_gym.plans import ShardingPlan
from shard_gym.plans.placement import Placement
from shard_gym.plans.plan import TABLE_WISE
from shard_gym.plans.statistics import shard_tables
from shard_gym.tables import AMOUNT_NAMES, FEATURE_NAMES, NUM_BINS, Tables
from shard_gym.tasks import Task, TaskSuite
from shard_gym.tasks.forms import FINER, FINEST, FORMS, SplitTask, forms_of, whole

NUM_SHARES = len(AMOUNT_NAMES) + 1  # shares of a table: of the `Tables.amounts` and of the memory
LOOKUPS, VALUES_UPDATED = AMOUNT_NAMES.index("lookups"), AMOUNT_NAMES.index("values_updated")
NUM_FEATURES = len(FEATURE_NAMES) + NUM_BINS + PooledCostModel.num_work + 1 + 2 * len(AMOUNT_NAMES) + 1 + 4
LEAST_SHARE = 1e-3  # this is added to shares before the logarithm


def placing_order(tables: Tables) -> IntArray:
    """(T,) int64: the widest lanes first, then by descending embedding_dim * pooling_factor.

    Wide tables should be together, which is easier to learn if they come together.
    """
    return np.lexsort((-lookup_score(tables), -lane_share(tables.embedding_dim)))


def described(task: Task) -> NDArray[np.float32]:
    """(T, `NUM_FEATURES`) float32 of the tables of `task`, in its own order: statistics, shares, and the machine."""
    tables, topology = task.tables, task.topology
    inputs = PooledCostModel.describe(tables).astype(np.float64)
    work = slice(-PooledCostModel.num_work - 1, -1)
    inputs[:, work] = np.log2(1.0 + inputs[:, work])
    amounts = tables.amounts()
    shares = amounts / np.maximum(amounts.sum(axis=0), 1e-12) * task.num_devices
    memory = (tables.memory_bytes / topology.memory_cap_bytes.max())[:, None]
    cluster = topology.cluster()
    machine = [
        np.log2(task.num_devices),
        np.log2(topology.device.dram_gb_per_s / 1e3),
        np.log2(float(cluster.intra_bytes_per_ms) / 1e8),
        float(cluster.crosses_domains),
    ]
    columns = [inputs, np.log2(shares + LEAST_SHARE), shares, memory, np.tile(machine, (len(tables), 1))]
    return np.concatenate(columns, axis=1, dtype=np.float32)


def amounts_of(problem: EnvProblem) -> NDArray[np.float32]:
    """(S * T, `NUM_SHARES` + 1) float32 of all rows of `TableRows`: what a device that receives the table gets more of.

    Shares of the task's amounts in multiples of a D-th, of a device's memory, and the share of a warp that FBGEMM gives
    to a row.
    """
    tables = problem.tables
    rows, first = np.unique(problem.row, return_index=True)
    amounts = np.zeros((*tables.memory.shape, NUM_SHARES + 1), np.float32)
    devices = np.asarray(problem.cluster.num_devices)[first, None, None]
    amounts[rows, :, : len(AMOUNT_NAMES)] = tables.shares[rows] * devices
    amounts[rows, :, -2] = tables.memory[rows] / problem.memory_cap[first].max(axis=1, keepdims=True)
    amounts[rows, :, -1] = lane_share((tables.widths[rows] * WIDE).astype(np.int64))
    return amounts.reshape(-1, NUM_SHARES + 1)


def shard_load(form: SplitTask, placement: Placement) -> ShardLoad:
    """All shards of the plan that `placement` of the parts is, on their devices."""
    shards, topology = [PlacedShards(TABLE_WISE, form.task.tables, placement)], form.origin.topology
    every = np.arange(form.origin.num_devices)
    for kind, tables in form.spread.items():
        spread = shard_tables(form.origin.tables.select(tables), kind, topology)
        on_each = np.repeat(np.arange(len(tables)), len(every))
        shards.append(PlacedShards(kind, spread.select(on_each), np.tile(every, len(tables))))
    return ShardLoad(topology, tuple(shards))


HEADS = 8  # heads of the encoder's attention; its hidden size is a multiple of it

LATENT = 16
"""Size of the vectors that devices sum, and of the layers that score devices.

Small ones are fast, and steps count: after seven minutes on one core, the greedy placements of mixdim-4 were 5.3% above
the best known with 64 and 4.3% with 32; once all tasks of a step had one size, 4.0% with 32 and 3.4% with 16
(prototypes, one seed, 23 November 2026)."""

_WORK = [LOOKUPS, VALUES_UPDATED]


class Held(NamedTuple):
    """What the devices hold, and the table that comes next."""

    sums: Tensor  # (..., D, `LATENT`), of the learned vectors of the tables on each device
    shares: Tensor  # (..., D, `NUM_SHARES`), of their shares
    widest: Tensor  # (..., D), the largest lane share on each device; 0 if it is empty
    table: Tensor  # (..., `NUM_SHARES` + 1), shares and lane share of the table that comes next
    devices: Tensor  # (..., D) bool, whether the task has the device


class AttentionPolicy(nn.Module):
    """Self-attention over the tables without positions, and devices as a set: no weight depends on their numbers.

    As in Kool et al. (Attention, Learn to Solve Routing Problems!, ICLR 2019), the tables are encoded once, and each
    step scores all devices. A device is what it holds: the sum of learned vectors of its tables, the sums of their
    shares, and the widest. FBGEMM runs all tables of a device at the width of the widest, so the products of work and
    width, before and after the step, are inputs, too.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(NUM_FEATURES))
        self.register_buffer("scale", torch.ones(NUM_FEATURES))
        self.embed = nn.Linear(NUM_FEATURES, hidden)
        layer = nn.TransformerEncoderLayer(hidden, HEADS, 2 * hidden, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(hidden), enable_nested_tensor=False)
        self.value = nn.Linear(hidden, LATENT)
        self.query = nn.Linear(hidden, LATENT)
        state = LATENT + 2 * (NUM_SHARES + 1) + 2 * len(_WORK)
        self.device = nn.Sequential(nn.Linear(state, LATENT), nn.ReLU(), nn.Linear(LATENT, LATENT))
        self.own = nn.Linear(LATENT, LATENT, bias=False)
        self.others = nn.Linear(2 * LATENT, LATENT, bias=False)
        self.score = nn.Sequential(nn.ReLU(), nn.Linear(LATENT, LATENT), nn.ReLU(), nn.Linear(LATENT, 1))

    def normalize(self, features: np.ndarray) -> None:
        """Normalize inputs as (M, F) `features` of training tables."""
        self.mean.copy_(torch.from_numpy(features.mean(axis=0)))
        self.scale.copy_(torch.from_numpy(features.std(axis=0) + 0.1))

    def encode(self, features: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, `LATENT`) queries, and vectors that devices sum, of (B, T, F) tables; `padding` is (B, T) bool."""
        encoded = self.encoder(self.embed((features - self.mean) / self.scale), src_key_padding_mask=padding)
        return self.query(encoded), self.value(encoded)

    def scores(self, query: Tensor, held: Held) -> Tensor:
        """(..., D) scores of the devices for a table with (..., `LATENT`) `query`."""
        table = held.table[..., None, :].expand(*held.widest.shape, held.table.shape[-1])
        widest = held.widest[..., None]
        work, added = held.shares[..., _WORK], table[..., _WORK]
        before = widest * work
        after = torch.maximum(widest, table[..., -1:]) * (work + added)
        state = self.device(torch.cat([held.sums, held.shares, widest, table, before, after], dim=-1))
        there = held.devices[..., None]
        mean = (state * there).sum(dim=-2) / there.sum(dim=-2)
        largest = state.masked_fill(~there, NOWHERE).amax(dim=-2)
        context = query + self.others(torch.cat([mean, largest], dim=-1))
        scores: Tensor = self.score(self.own(state) + context[..., None, :])[..., 0]
        return scores


@dataclass(frozen=True)
class Batch:
    """R episodes of each of B tasks, padded to T tables and D devices; episode b * R + r is the r-th of task b."""

    tasks: Sequence[Task]  # B, with different names
    count: int  # R
    features: NDArray[np.float32]  # (B, T, F) float32, in placing order; zeros in padding
    padding: NDArray[np.bool_]  # (B, T) bool
    problem: EnvProblem  # the N = B * R episodes
    model: AdditiveCostModel  # whose loads they add up; it computes no cost while they are played

    @staticmethod
    def of(tasks: Sequence[Task], count: int, model: AdditiveCostModel) -> Batch:
        """`count` episodes of each of `tasks`; raises TableTooLargeError if a table fits no device."""
        longest, widest = max(task.num_tables for task in tasks), max(task.num_devices for task in tasks)
        suite, total = TaskSuite("drawn", tuple(tasks)), len(tasks) * count
        prepared = PreparedTasks(suite, model, longest, widest, total, placing_order)
        prepared.begin(np.arange(total), [task for task in tasks for _ in range(count)])
        features = np.zeros((len(tasks), longest, NUM_FEATURES), np.float32)
        padding = np.ones((len(tasks), longest), np.bool_)
        for row, task in enumerate(tasks):
            features[row, : task.num_tables] = described(task)[placing_order(task.tables)]
            padding[row, : task.num_tables] = False
        return Batch(tasks, count, features, padding, prepared.problem, model)

    @property
    def task_of(self) -> NDArray[np.int64]:
        """(N,) int64, the task of each episode."""
        return np.repeat(np.arange(len(self.tasks)), self.count)


@dataclass(frozen=True)
class AttentionTrajectories:
    """M episodes of T steps; a step beyond the end of an episode is not `taken`."""

    task: NDArray[np.int64]  # (M,) int64, the number of its task in the batch
    shares: NDArray[np.float32]  # (M, T, D, ...) float32, see `Held`
    widest: NDArray[np.float32]  # (M, T, D, ...) float32, see `Held`
    legal: NDArray[np.bool_]  # (M, T, D) bool
    action: NDArray[np.int64]  # (M, T) int64, a device for each table in placing order
    taken: NDArray[np.bool_]  # (M, T) bool

    def take(self, episodes: NDArray[np.int64]) -> AttentionTrajectories:
        """Those of `episodes`."""
        return AttentionTrajectories(*(getattr(self, field.name)[episodes] for field in fields(self)))


@dataclass(frozen=True)
class Rollouts:
    """The ends of the N episodes of a batch, and the way there."""

    batch: Batch  # what was played
    state: PlacementState  # at the ends
    complete: NDArray[np.bool_]  # (N,) bool, whether every table found a place
    trajectories: AttentionTrajectories | None  # inputs and actions; None if they were not recorded

    def costs(self, everywhere: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
        """(N, D, 4) phases and (N,) ms under the model of the batch; of incomplete ones, of what they hold.

        `everywhere` are (B, K) further loads of all devices of each task.
        """
        model, loads = self.batch.model, self.state.device_loads
        if everywhere is not None:
            own = everywhere[self.batch.task_of][:, None] * self.batch.problem.cluster.device_mask[..., None]
            loads = model.add(loads, own)
        return model.costs(loads, self.batch.problem.cluster)

    def placement(self, episode: int) -> Placement:
        """(T,) int64, of a complete one, in the task's own order of tables."""
        task = self.batch.tasks[episode // self.batch.count]
        found = self.batch.problem.placements_of(self.state.assignment, np.array([episode]))
        placement: Placement = found[0, : task.num_tables]
        return placement


def play(
    policy: AttentionPolicy,
    batch: Batch,
    rng: np.random.Generator | None,
    temperature: FloatArray | float = 1.0,
    record: bool = True,
) -> Rollouts:
    """Play the episodes of `batch` to their ends.

    `rng` draws the devices from the softmax of the scores, divided by `temperature`, which is that of all or of each of
    the N episodes; 0 takes the best, as None does for `rng`. Training needs the inputs and actions that `record` keeps.
    """
    problem, model = batch.problem, without_costs(batch.model)
    tensor = tensors_beside(policy)
    state, task = initial_state(problem, model), tensor(batch.task_of)
    count, devices, amounts = problem.num_envs, problem.max_devices, amounts_of(problem)
    there = tensor(problem.cluster.device_mask.copy())
    shares, widest = np.zeros((count, devices, NUM_SHARES), np.float32), np.zeros((count, devices), np.float32)
    sums, steps = tensor(np.zeros((count, devices, LATENT), np.float32)), []
    with torch.no_grad():
        query, value = policy.encode(tensor(batch.features), tensor(batch.padding))
        for step in range(problem.max_tables):
            taken, legal = ~state.over, state.fits.copy()
            table = amounts[problem.current(np.full(count, step))]
            seen = shares.copy(), widest.copy()
            held = Held(sums, tensor(seen[0]), tensor(seen[1]), tensor(table), there)
            scores = finite(policy.scores(query[task, step], held)).cpu().numpy()
            if rng is not None:
                scores = scores + rng.gumbel(size=scores.shape) * np.reshape(temperature, (-1, 1))
            action = np.where(legal, scores, -np.inf).argmax(axis=1)
            if record:
                steps.append((*seen, legal, action, taken))
            advance(problem, state, action, model)
            put = ((action[:, None] == np.arange(devices)) & taken[:, None])[..., None]
            shares += put * table[:, None, :-1]
            np.maximum(widest, put[..., 0] * table[:, -1:], out=widest)
            sums = sums + tensor(put) * value[task, step][:, None]
    complete = np.asarray(state.status == COMPLETE)
    if not record:
        return Rollouts(batch, state, complete, None)
    columns = (np.stack(column, axis=1) for column in zip(*steps, strict=True))
    return Rollouts(batch, state, complete, AttentionTrajectories(batch.task_of, *columns))


def log_probabilities(policy: AttentionPolicy, batch: Batch, ways: AttentionTrajectories) -> tuple[Tensor, Tensor]:
    """(M,) logs of the probability of each of `ways`, and (M,) mean entropies of its choices in nats."""
    tensor = tensors_beside(policy)
    query, value = policy.encode(tensor(batch.features), tensor(batch.padding))
    task, action = tensor(ways.task), tensor(ways.action)
    taken, legal = tensor(ways.taken).float(), tensor(ways.legal)
    problem, first = batch.problem, ways.task * batch.count
    put = one_hot(action, problem.max_devices).float() * taken[..., None]
    added = put[..., None] * value[task][:, :, None]
    rows = problem.row[first, None] * problem.max_tables + np.arange(problem.max_tables)
    held = Held(
        added.cumsum(dim=1) - added,
        tensor(ways.shares),
        tensor(ways.widest),
        tensor(amounts_of(problem)[rows]),
        tensor(problem.cluster.device_mask[first])[:, None].expand(legal.shape),
    )
    scores = policy.scores(query[task], held).masked_fill(~legal, NOWHERE)
    logs = scores.log_softmax(dim=-1)
    chosen, entropy = chosen_and_entropy(logs, action)
    return (chosen * taken).sum(dim=-1), (entropy * taken).sum(dim=-1) / taken.sum(dim=-1).clamp(min=1.0)


POLICY = "policy."  # prefix of the policy's weights in a file; `COST` that of the learned cost's
MAX_HIDDEN, MAX_LAYERS = 2**10, 32  # the largest network that is loaded from a file
ATTEMPTS = FORMS, FINER, FINEST  # the forms of a plan: the next ones where those before all fail
SAMPLES, MAX_SAMPLES = 128, 2**14  # rollouts of a task, by default and at most

TEMPERATURE = 3.0
"""On the first 25 training tasks of mixdim-4, 128 samples at 3, 4 and 6 cost 0.1%, 0.2% and 0.1% less than at 2; on
those of mixdim-8 0.2%, 0.3% and 0.5% more (seed 0, 23 November 2026)."""

MAX_TEMPERATURE = 1e6  # the highest temperature: all devices are then equally likely


class AttentionAgent(Agent):
    """Places tables as the policy rolls out, and keeps the rollout that a learned cost says is the cheapest.

    It never evaluates the true cost. The first rollout takes the likeliest devices, the others draw them. So a rollout
    that leaves a table without room is not the end, if there are others. A plan is a placement of the parts of a task
    in one of its `FORMS`; every form has as many rollouts.

    Args:
        name: how result files call it.
        policy: takes tasks of any size.
        cost_model: the learned cost.
        samples: rollouts of a task, of all forms together, rounded up to a multiple of these. With 1 only the likeliest
            devices are taken, and the learned cost is not used, but to choose among forms. If the likeliest devices
            leave a table without room, there are as many rollouts as by default.
        temperature: divides the scores before devices are drawn.
        seed: of the drawn devices. Equal seeds give equal placements.

    Raises:
        InvalidOptionError: an argument is out of range.
    """

    def __init__(
        self,
        name: str,
        policy: AttentionPolicy,
        cost_model: AdditiveCostModel,
        *,
        samples: int = SAMPLES,
        temperature: float = TEMPERATURE,
        seed: int = 0,
    ) -> None:
        self.name = name
        self.policy = policy
        self.cost_model = cost_model
        self.samples = checked_count("samples", samples, most=MAX_SAMPLES)
        if not is_not_negative(temperature) or temperature > MAX_TEMPERATURE:
            raise InvalidOptionError(
                f"temperature must be a number from 0 to {MAX_TEMPERATURE:g}, not {short_repr(temperature)}."
            )
        self.temperature = float(temperature)
        self.seed = checked_seed(seed)

    @property
    def search_budget(self) -> int:
        """Rollouts of a plan if all forms fail, and are tried twice again with smaller parts."""
        samples = self.samples if self.samples > 1 else SAMPLES
        return len(ATTEMPTS) * len(FORMS) * -(-samples // len(FORMS))

    @override
    def place(self, task: Task) -> Placement:
        return self._best(task, [whole(task)])[1]

    @override
    def plan(self, task: Task) -> ShardingPlan:
        for forms in ATTEMPTS:
            with suppress(NoPlacementFoundError):
                form, placement = self._best(task, forms_of(task, forms))
                return form.plan(placement)
        raise NoPlacementFoundError(
            f"{self.name} tried {len(FORMS)} forms of task {task.name!r}, in which wide or heavy tables are split, and "
            "twice again with smaller parts; in none it found a device with room for every part. Use plan-search."
        )

    def _best(self, task: Task, forms: Sequence[SplitTask]) -> tuple[SplitTask, Placement]:
        """The form and the placement of its parts that the learned cost prefers."""
        for samples in (1, SAMPLES) if self.samples == 1 else (self.samples,):
            found = self._tried(task, forms, -(-samples // len(forms))) if forms else None
            if found is not None:
                return found
        raise NoPlacementFoundError(
            f"In all rollouts of {self.name}, a table of task {task.name!r} was left without a device that has room for"
            " it. Take more samples, or use local-search."
        )

    def _tried(self, task: Task, forms: Sequence[SplitTask], count: int) -> tuple[SplitTask, Placement] | None:
        """The same with `count` rollouts of each form; None if none is complete."""
        only = len(forms) == count == 1
        model = NoCosts() if only else self.cost_model
        temperature = np.full((len(forms), count), self.temperature)
        temperature[:, 0] = 0.0
        with one_thread():
            tasks = [replace(form.task, name=f"form {number}") for number, form in enumerate(forms)]
            try:
                batch = Batch.of(tasks, count, model)
            except TableTooLargeError as error:
                raise NoPlacementFoundError(str(error)) from error
            rollouts = play(self.policy, batch, task_rng(self.seed, task), temperature.reshape(-1), record=False)
            complete = np.flatnonzero(rollouts.complete)
            if not len(complete):
                return None
            costs = rollouts.costs(np.stack([form.loads(model) for form in forms]))[1][complete]
        best = int(complete[costs.argmin()])
        return forms[best // count], rollouts.placement(best)


def load_attention(
    arrays: Arrays,
    about: Mapping[str, Any],
    cost_model: CostModel,
    seed: int,
    *,
    samples: int = SAMPLES,
    temperature: float = TEMPERATURE,
) -> AttentionAgent:
    """The agent of a training run; other arguments are those of `AttentionAgent`, errors those of `load_agent`."""
    hidden, layers = network_size(about, "hidden", MAX_HIDDEN), network_size(about, "layers", MAX_LAYERS)
    if hidden % HEADS:
        raise InvalidCheckpointError(f"hidden of the policy must be a multiple of {HEADS}, not {hidden}.")
    with torch.device("meta"):  # shapes only, so a wrong size in a file allocates nothing
        policy = AttentionPolicy(hidden, layers)
    load_module_arrays(policy, under(POLICY, arrays), "The policy")
    weights = {name: array for name, array in arrays.items() if not name.startswith(POLICY)}
    expected = PooledCostModel.weights_like(under(COST, weights))
    require_arrays("The agent's file", weights, prefixed(COST, expected))
    learned = PooledCostModel(under(COST, weights))
    return AttentionAgent(about["agent"], policy, learned, samples=samples, temperature=temperature, seed=seed)
