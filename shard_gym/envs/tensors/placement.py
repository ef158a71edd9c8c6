"""`TensorPlacementEnv`: episodes of `EmbeddingPlacement-v0` as tensors of torch, on any device. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from typing_extensions import Self

from shard_gym.common.checks import checked_count, checked_seed, is_one_of
from shard_gym.common.either import larger
from shard_gym.common.errors import InvalidOptionError, short_repr, unknown_name, wrong_kind
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.cost_models.base import PHASES
from shard_gym.envs.core.attributes import FixedArguments
from shard_gym.envs.core.episode_state import COMPLETE, DEAD_END, ILLEGAL_ACTION, RUNNING, UNPLACED
from shard_gym.envs.placement.episodes import PlacementConfig
from shard_gym.envs.placement.observation import COST_FREE, GIB, OBSERVATIONS
from shard_gym.envs.tensors.limits import Limits, held, open_devices
from shard_gym.hardware import Cluster
from shard_gym.tables import AMOUNT_NAMES
from shard_gym.tasks import Task, TaskSource, TaskSuite
from shard_gym.tasks.suites.own import MAX_PADDING

Tensor = torch.Tensor
Observations = dict[str, Tensor]

REWARDS = ("terminal", "dense", "normalized")
"""Rewards of tensors, by their names in `EmbeddingPlacement-v0`."""

OF_CLUSTER = tuple(field.name for field in fields(Cluster))


@dataclass
class _Tasks:
    """P tasks; of their T tables, in placement order, and of their D devices, with zeros as padding. If tables are
    split, all but `order` have T V rows, one for each variant of a table.
    """

    order: Tensor  # (P, T) int64
    loads: Tensor  # (P, T, K) float64
    memory: Tensor  # (P, T) int64, bytes
    features: Tensor  # (P, T, 21) float32
    costs: Tensor  # (P, T, 4) float32
    shares: Tensor  # (P, T, 5) float64
    widths: Tensor  # (P, T) float32
    legal: Tensor  # (P, T) bool
    hbm_curves: Tensor  # (P, T, C) float64
    num_tables: Tensor  # (P,) int64
    memory_cap: Tensor  # (P, D) int64, bytes
    hbm_bytes: Tensor  # (P,) int64
    penalty_ms: Tensor  # (P,) float64
    lower_bound_ms: Tensor  # (P,) float64
    cluster: Any  # a `Cluster` of tensors, leading shape (P,)


def _device(given: Any) -> torch.device:
    """The device of torch, on which a tensor can be made; InvalidOptionError if there is none."""
    try:
        device = torch.device(given)
        torch.empty(1, device=device)
    except (AssertionError, RuntimeError, TypeError) as error:
        why = str(error).splitlines()[0] if str(error) else "torch has no such device"
        raise InvalidOptionError(
            f"device must be one that torch can use here, such as 'cpu', not {short_repr(given)}: {why}"
        ) from error
    return device


def _require(name: str, given: Any, count: int, dtype: torch.dtype, device: torch.device) -> None:
    """Raise InvalidOptionError unless it is a tensor of the shape (count,) and this dtype, on such a device."""
    if (
        not isinstance(given, Tensor)
        or given.shape != (count,)
        or given.dtype != dtype
        or given.device.type != device.type
    ):
        what = type(given).__name__
        if isinstance(given, Tensor):
            on = f" on {given.device.type}" * (given.device.type != device.type)
            what = f"{given.dtype} of the shape {tuple(given.shape)}{on}"
        kind, where = str(dtype).removeprefix("torch."), f" on {device.type}" * (device.type != "cpu")
        raise InvalidOptionError(f"{name} must be a tensor of {count} {kind}{where}, not {what}.")


_FIXED = (
    *("num_envs", "suite", "split", "cost_model", "reward", "observation", "pool", "seed", "device", "rules"),
    *("max_tables", "max_devices", "num_actions", "sharding_types", "max_shards", "max_hosts"),
)
"""Arguments, and what follows from them, that cannot be assigned to."""


class TensorPlacementEnv(FixedArguments):
    """N episodes at once as tensors of torch, on any device: masks, costs and rewards are those of
    `EmbeddingPlacementVectorEnv`, the costs but for rounding.

    Python reads nothing from a tensor in a step. Episodes that are over stay as they are, with rewards of 0, until
    `reset` begins new ones. Those have tasks of a pool, which is on the device: all tasks of a suite, or so many drawn
    from a sampler once.

    Args:
        num_envs: N.
        suite, split, cost_model, max_tables, max_devices: see `EmbeddingPlacementEnv`.
        reward: "terminal", "dense" or "normalized".
        observation: "full", "compact", "features" or "set".
        pool: tasks that are drawn from a source that is no suite.
        seed: of these, and of the tasks of episodes.
        device: where the tensors are.

    Attributes:
        batch_size: `torch.Size([N])`.
        task: (N,) int64, the number of each episode's task.
        step_count: (N,) int64, tables placed so far.
        assignment: (N, T) int64, device of each table in the order of placement; -1 if it has none.
        cost_ms: (N,) float64, cost of the tables placed so far.
        phases_ms: (N, D, 4) float64, of the devices.
        status: (N,) int64, a `Status` of `shard_gym.envs.core.episode_state`: 0 goes on, 1 is complete, 2 ended with an
            illegal action, 3 where nothing fits.

    Raises:
        InvalidOptionError, UnknownNameError: an argument is not valid.
        InvalidTaskError: a task has no room in the padding or on its devices.
    """

    _kept: ClassVar[tuple[str, ...]] = (
        *("task", "step_count", "status", "assignment", "cost_ms", "phases_ms"),
        *("_loads", "_used", "_shares", "_widths", "_curves", "_fits", "_apart_on", "_together_on"),
    )
    """What a reset of some episodes keeps of the others; the rest follows from their tasks."""

    _splitting: ClassVar[tuple[str, ...]] = ()  # options of a subclass
    _most: float = 1.0  # what a device holds of an amount at most, as a share of that of all tables
    config: ClassVar[type[PlacementConfig]] = PlacementConfig

    def __init__(
        self,
        num_envs: int,
        suite: str | TaskSource = "dlrm-50x4",
        split: str = "train",
        cost_model: str | Path | AdditiveCostModel = "analytical",
        reward: str = "terminal",
        observation: str = "set",
        max_tables: int | None = None,
        max_devices: int | None = None,
        *,
        pool: int = 256,
        seed: int = 0,
        device: str | torch.device = "cpu",
        **splits: Any,
    ) -> None:
        """`splits` are the further options of a subclass whose tables are split."""
        if unknown := sorted(set(splits) - set(self._splitting)):
            raise InvalidOptionError(f"{type(self).__name__} has no option {unknown[0]!r}.")
        checked_count("num_envs", num_envs, most=MAX_PADDING)
        if not is_one_of(reward, REWARDS):
            raise unknown_name("reward of tensors", reward, REWARDS)
        if not is_one_of(observation, OBSERVATIONS):
            raise unknown_name("observation of tensors", observation, OBSERVATIONS)
        self.reward, self.observation, self.device = reward, observation, _device(device)
        self._splits = splits
        config = self.config(
            **splits,
            suite=suite,
            split=split,
            cost_model=cost_model,
            observation=observation,
            max_tables=max_tables,
            max_devices=max_devices,
        )
        self._config, self._pool_size = config, checked_count("pool", pool)
        self._draws = np.random.default_rng(checked_seed(seed))
        self.cost_model, self.rules = config.model, config.rules
        self._arithmetic: Any = self.cost_model  # which takes tensors, too
        self._resize(num_envs)
        self._fill(config.source)
        draws_on = "cpu" if self.device.type == "meta" else self.device  # `meta` draws nothing
        self._generator = torch.Generator(device=draws_on).manual_seed(int(seed) % 2**63)
        self.task = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        self._begin_with(self.task)
        self._fix(_FIXED)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The P tasks of the pool. Assign a suite, its name or a sampler, for a curriculum.

        All episodes then begin anew, with tasks that are drawn. So many tasks as before are drawn from the sampler; its
        tasks are others each time that it is assigned. The split of a named suite is that of the environment. Tasks of
        another kind, larger than the padding, or scored by another cost model raise InvalidOptionError, an unknown name
        UnknownNameError.
        """
        return self._tasks

    @tasks.setter
    def tasks(self, suite: str | TaskSource) -> None:
        self._fill(suite)
        self.reset()

    def _fill(self, suite: str | TaskSource) -> None:
        """Fill the pool with tasks of `suite`, or so many that it draws."""
        one = self._config.episodes(1)
        if suite is not one.source:
            one.draw_from(suite)
        source = one.source
        if isinstance(source, TaskSuite):
            tasks = source.tasks
        else:
            tasks = tuple(source.sample(self._draws) for _ in range(self._pool_size))
        episodes = self._config.episodes(len(tasks))
        if source is not episodes.source:
            episodes.draw_from(source)
        episodes.begin(np.arange(len(tasks)), tasks)
        self._tasks: tuple[Task, ...] = tasks
        self._padding = episodes.max_tables, episodes.max_devices, episodes.num_actions
        self._pool = self._on_device(episodes.problem)
        self._limits = Limits.of(episodes.problem, self.device)
        self._host_memory = self._pool.hbm_curves.shape[-1] > 0

    def _on_device(self, problem: Any) -> _Tasks:
        def tensor(array: Any) -> Tensor:
            return torch.as_tensor(np.ascontiguousarray(array), device=self.device)

        of_tables = {f.name: getattr(problem.tables, f.name) for f in fields(problem.tables)}
        tables = {name: tensor(array[problem.row]) for name, array in of_tables.items()}
        named = ("num_tables", "memory_cap", "hbm_bytes", "penalty_ms", "lower_bound_ms")
        of_tasks = {name: tensor(getattr(problem, name)) for name in named}
        return _Tasks(**tables, **of_tasks, cluster=problem.cluster.tensors(self.device))

    @property
    def max_tables(self) -> int:
        """T, of the padding."""
        return self._padding[0]

    @property
    def max_devices(self) -> int:
        """D, of the padding."""
        return self._padding[1]

    @property
    def num_actions(self) -> int:
        """A; of a placement D."""
        return self._padding[2]

    @property
    def num_envs(self) -> int:
        """N."""
        return self.batch_size[0]

    # Episodes

    def reset(self, mask: Tensor | None = None, tasks: Tensor | None = None, seed: int | None = None) -> Observations:
        """Begin new episodes, and return the observations of all.

        Args:
            mask: (N,) bool, which; all if None.
            tasks: (N,) int64, the numbers of their tasks; drawn with equal probability if None.
            seed: of the tasks that are drawn from now on.

        Raises:
            InvalidOptionError: an argument has another shape, or other numbers.
        """
        if mask is not None:
            _require("mask", mask, self.num_envs, torch.bool, self.device)
        if seed is not None:
            self._generator.manual_seed(checked_seed(seed) % 2**63)
        if tasks is None:
            size = (self.num_envs,)
            tasks = torch.randint(len(self.tasks), size, generator=self._generator, device=self.device)
        else:
            self._require_tasks(tasks, self.num_envs)
        old = self.state()
        self._begin_with(tasks if mask is None else torch.where(mask, tasks, old["task"]))
        if mask is not None:
            for name, value in self.state().items():
                setattr(self, name, torch.where(mask.reshape(-1, *(1,) * (value.ndim - 1)), value, old[name]))
        return self.observations()

    def state(self) -> dict[str, Tensor]:
        """The tensors of the episodes, each with a leading axis of N. No step changes them: it makes new ones."""
        found = {name: getattr(self, name) for name in self._kept}
        return {**found, "phases_ms": self.phases_ms.clone()}  # of which a step fills in the exchanges

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state` of this environment, or of one with equal tasks and arguments, with any N.

        So a search goes back, and `{name: each[rows] for name, each in state.items()}` plays episodes several times.

        Raises:
            InvalidOptionError: it has not the tensors of a state.
        """
        own, given = self.state(), dict(state) if isinstance(state, Mapping) else {}
        same = set(given) == set(own) and all(
            isinstance(each, Tensor)
            and each.ndim
            and (each.shape[1:], each.dtype) == (own[name].shape[1:], own[name].dtype)
            for name, each in given.items()
        )
        if not same or len({len(each) for each in given.values()}) != 1:
            raise InvalidOptionError(
                f"A state is what state() returns, with {', '.join(self._kept)} of N episodes, of equal padding."
            )
        self._require_tasks(state["task"], len(state["task"]))
        self._resize(len(state["task"]))
        self._take(state["task"])
        for name, value in state.items():
            setattr(self, name, value.clone() if name == "phases_ms" else value)

    def begin(self, tasks: Tensor) -> None:
        """Begin new episodes with (N,) int64 `tasks`, for any N; the errors are those of `reset`."""
        self._require_tasks(tasks, len(tasks) if isinstance(tasks, Tensor) and tasks.ndim else 1)
        self._resize(len(tasks))
        self._begin_with(tasks)

    def of_tasks(self, tasks: Sequence[Task]) -> Self:
        """An environment with the same options, with an episode of each of these tasks; its padding is no smaller."""
        if not tasks or not all(isinstance(task, Task) for task in tasks):
            raise wrong_kind("tasks", tasks, "a list of tasks, one at least")
        numbered = tuple(replace(task, name=f"{number}: {task.name}") for number, task in enumerate(tasks))
        asked, options = TaskSuite("asked", numbered), {**self._splits, "reward": self.reward}
        options["max_tables"] = max(self.max_tables, *(task.num_tables for task in tasks))
        options["max_devices"] = max(self.max_devices, *(task.num_devices for task in tasks))
        return type(self)(
            len(tasks), asked, cost_model=self.cost_model, observation=self.observation, device=self.device, **options
        )

    def _require_tasks(self, tasks: Tensor, count: int) -> None:
        """Raise InvalidOptionError unless they are so many, and numbers of tasks where the host has them."""
        _require("tasks", tasks, count, torch.int64, self.device)
        if tasks.device.type != "cpu" or not len(tasks) or torch.compiler.is_compiling():
            return
        if not 0 <= tasks.min() <= tasks.max() < len(self.tasks):
            raise InvalidOptionError(
                f"tasks must be numbers from 0 to {len(self.tasks) - 1}, not {int(tasks.min())} to {int(tasks.max())}."
            )

    def _resize(self, num_envs: int) -> None:
        self.batch_size = torch.Size([num_envs])
        self._every = torch.arange(num_envs, device=self.device)

    def _begin_with(self, tasks: Tensor) -> None:
        """Let every episode begin with these tasks."""
        pool, count, devices = self._pool, self.num_envs, self.max_devices
        self._take(tasks)

        def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(count, *shape, dtype=dtype, device=self.device)

        self.step_count, self.status = zeros(dtype=torch.int64), zeros(dtype=torch.int64) + RUNNING
        self.cost_ms, self.phases_ms = zeros(), zeros(devices, len(PHASES))
        self._loads, self._used = zeros(devices, pool.loads.shape[-1]), zeros(devices, dtype=torch.int64)
        self._shares, self._widths = zeros(devices, len(AMOUNT_NAMES)), zeros(devices, dtype=torch.float32)
        self._curves = zeros(devices, pool.hbm_curves.shape[-1])
        apart, sets = (0, 0) if self._limits is None else (self._limits.apart.shape[2], self._limits.needed.shape[1])
        self._apart_on = zeros(devices, apart, dtype=torch.int64)
        self._together_on = zeros(sets, dtype=torch.int64) - 1
        self._begin_tables(zeros)
        self._fits = self._permitted()

    def _take(self, tasks: Tensor) -> None:
        """Set what follows from the (N,) tasks alone."""
        pool, self.task = self._pool, tasks
        self._num_tables, self._memory_cap = pool.num_tables[tasks], pool.memory_cap[tasks]
        self._penalty_ms, self._lower_bound_ms = pool.penalty_ms[tasks], pool.lower_bound_ms[tasks]
        own: dict[str, Any] = {name: getattr(pool.cluster, name) for name in OF_CLUSTER}
        of_envs: dict[str, Any] = {name: each[tasks] if torch.is_tensor(each) else each for name, each in own.items()}
        self._cluster: Any = Cluster(**of_envs)
        more = torch.zeros(len(tasks), self.num_actions - self.max_devices, dtype=torch.bool, device=self.device)
        self._devices_alone = torch.cat([of_envs["device_mask"], more], dim=1)

    def _begin_tables(self, zeros: Callable[..., Tensor]) -> None:
        """What else begins, in a subclass; the assignment here."""
        self.assignment = zeros(self.max_tables, dtype=torch.int64) + UNPLACED

    def step(self, actions: Tensor) -> tuple[Observations, Tensor, Tensor]:
        """Place the current table of each episode on device `actions[i]`, (N,) int64 from 0 to A - 1.

        An illegal action ends its episode; a number of no action is an error of torch.

        Returns:
            The observations; (N,) float64 rewards; (N,) bool, which episodes are over.

        Raises:
            InvalidOptionError: `actions` has another shape or dtype.
        """
        _require("actions", actions, self.num_envs, torch.int64, self.device)
        model = self._arithmetic
        running, before = self.status == RUNNING, self.cost_ms
        legal = self._fits.gather(1, actions[:, None])[:, 0]  # nothing fits after the end of an episode
        if self._limits is not None:
            own, placed = self._limits.part((self.task, self._step())), legal & (actions < self.max_devices)
            self._apart_on, self._together_on = held(
                own, self._step(), self._apart_on, self._together_on, actions, placed
            )
        self._do(legal, actions)
        shared = self._loads[..., model.shared_loads]
        model.fill_communication(self.phases_ms, shared, self._cluster)
        self.cost_ms = torch.where(legal, model.iteration_cost(self.phases_ms, shared, self._cluster), before)

        complete = self.step_count == self._num_tables
        goes_on = legal & ~complete
        self._fits = self._permitted() & goes_on[:, None]
        stuck = goes_on & ~self._fits.any(dim=1)
        status = torch.where(running & ~legal, ILLEGAL_ACTION, self.status)
        status = torch.where(legal & complete, COMPLETE, status)
        self.status = torch.where(stuck, DEAD_END, status)
        over = self.status != RUNNING
        return self.observations(), self._rewards(over & running, running, before), over

    def _step(self) -> Tensor:
        """(N,) int64, the places of the current tables in the order of placement; after the last that one's."""
        return self.step_count.clamp(max=self.max_tables - 1)

    def _part(self) -> tuple[Tensor, Tensor]:
        """Where what comes next is in the arrays of tables."""
        return self.task, self._step()

    def _do(self, legal: Tensor, actions: Tensor) -> None:
        """Do the (N,) `legal` ones of the actions, but for exchanges between devices."""
        pool, every, model = self._pool, self._every, self._arithmetic
        place, table = (every, actions), self._part()
        held = self._loads[place]
        joined = torch.where(legal[:, None], model.add(held, pool.loads[table]), held)
        phases = torch.where(legal[:, None], model.device_phases(joined), self.phases_ms[place])
        self._loads = self._loads.index_put(place, joined)
        self.phases_ms = self.phases_ms.index_put(place, phases)
        self._used = self._used.index_put(place, self._used[place] + pool.memory[table] * legal)
        if self.observation in COST_FREE:
            self._shares = self._shares.index_put(place, self._shares[place] + pool.shares[table] * legal[:, None])
            self._widths = self._widths.index_put(place, larger(self._widths[place], pool.widths[table] * legal))
        if self._host_memory:
            self._curves = self._curves.index_put(place, self._curves[place] + pool.hbm_curves[table] * legal[:, None])
        where = every, table[1]
        placed = torch.where(legal, actions, self.assignment[where])
        self.assignment = self.assignment.index_put(where, placed)
        self.step_count = self.step_count + legal

    def _legal(self) -> Tensor:
        """(N, A) bool: what can be done next, as if no episode were over."""
        return self._used + self._pool.memory[self._part()][:, None] <= self._memory_cap

    def _permitted(self) -> Tensor:
        """(N, A) bool: what can be done next, and constraints permit."""
        fits = self._legal()
        if self._limits is None:
            return fits
        own, free = self._limits.part((self.task, self._step())), self._memory_cap - self._used
        may = open_devices(own, self._step(), self._apart_on, self._together_on, free, self._uncut())
        return fits & self._with_hosts(may, own.hosts)

    def _uncut(self) -> Tensor:
        """(N,) bool, whether the next part is a whole table."""
        return torch.ones_like(self.status, dtype=torch.bool)

    def _with_hosts(self, devices: Tensor, hosts: Tensor) -> Tensor:
        """(N, A) bool, the actions on (N, D) `devices` and on (N, H) `hosts`, and all others; here there are none."""
        return devices

    def _rewards(self, ends: Tensor, running: Tensor, before: Tensor) -> Tensor:
        """(N,) float64 of a step with which the episodes `ends` end, of those that were `running`."""
        final = torch.where(ends & (self.status != COMPLETE), self._penalty_ms, self.cost_ms)
        if self.reward == "dense":
            return torch.where(running, before - final, 0.0)
        if self.reward == "normalized":
            final = final / self._lower_bound_ms
        return torch.where(ends, -final, 0.0)

    def action_mask(self) -> Tensor:
        """(N, A) bool: the legal actions; all devices of the task after the end of an episode."""
        return torch.where((self.status == RUNNING)[:, None], self._fits, self._devices_alone)

    def placements(self) -> Tensor:
        """(N, T) int64, device of each table in the tasks' own order; -1 if it has none, and in padding."""
        order, count = self._pool.order[self.task], torch.arange(self.max_tables, device=self.device)
        real = count < self._num_tables[:, None]
        found = torch.full((self.num_envs, self.max_tables + 1), UNPLACED, dtype=torch.int64, device=self.device)
        spare = torch.where(real, order, self.max_tables)  # of padding
        return found.scatter(1, spare, self.assignment)[:, : self.max_tables]

    # Observations

    def observations(self) -> Observations:
        """The keys of `EmbeddingPlacementEnv`, with a leading axis of N; what is of devices or tables has their axis,
        such as (N, D, 4), and masks are bool. Some are tensors of the environment itself: write to none of them.
        """
        pool, table = self._pool, self._part()
        left = (self.step_count < self._num_tables)[:, None]
        cap, mask = self._memory_cap.clamp(min=1), self._cluster.device_mask
        needed = (pool.memory[table][:, None] * left / cap).clamp(max=1.0) * mask
        keys: dict[str, Tensor] = {
            "current_table": pool.features[table] * left,
            "device_memory": torch.stack([(self._used / cap).float(), needed.float()], dim=-1),
            "device_mask": mask,
            "action_mask": self.action_mask(),
            "progress": (self.step_count / self._num_tables).float()[:, None],
        }
        if self.observation in COST_FREE:
            keys["current_table_shares"] = (pool.shares[table] * left).float()
            keys["device_shares"] = self._shares.float().clamp(max=self._most)
            keys["device_width"] = self._widths
        else:
            keys["current_table_costs"] = pool.costs[table] * left
            keys["device_costs"] = self.phases_ms.float()
        if self.observation in ("full", "set"):
            count = torch.arange(self.max_tables, device=self.device)
            keys["table_features"] = pool.features[self.task, :: pool.features.shape[1] // self.max_tables]
            keys["table_mask"] = count < self._num_tables[:, None]
            keys["assignment"] = self.assignment
        if self._host_memory:
            hbm = pool.hbm_bytes[self.task][:, None]
            current = pool.hbm_curves[table]
            keys["current_table_curve"] = (current / (1.0 + current)).float() * left
            keys["device_curves"] = (self._curves / (1.0 + self._curves)).float()
            keys["device_hbm"] = ((hbm / cap).clamp(max=1.0) * mask).float()
            keys["hbm_gib"] = (hbm / GIB).float()
        return keys
