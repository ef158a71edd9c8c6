"""Draws the tasks of a suite from its recipe, as the record of a suite's file: the same tasks for the same name."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.errors import TableTooLargeError
from shard_gym.hardware import PROFILES, hardware_profile
from shard_gym.plans import SHARDING_TYPES
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.plan import DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE, TABLE_WISE
from shard_gym.tables import Tables, load_pool
from shard_gym.tasks.sampler import TaskSampler, capped_task
from shard_gym.tasks.suites.info import SHARDING, SIMULATED, SPLITS
from shard_gym.tasks.suites.recipes import Recipe
from shard_gym.tasks.task import MIB, Task

SCHEMA = 1  # of the record

MEMORY_SLACK = 1.5
"""Memory cap of a device, in multiples of the fullest device when tables are packed by memory; see `capped_task`."""

TIGHT_SLACK = 1.1  # the same of suites whose tables may be split, so that memory is nearly full
UNPLACEABLE = 10  # of the tasks whose tables may be split, every tenth has a table that is larger than a device
SampledTask = tuple[Task, NDArray[np.int64]]  # a task, and the positions of its tables in the pool


def split_columns(tables: Tables, max_bytes: int) -> tuple[Tables, NDArray[np.int64]]:
    """`tables`, those above `max_bytes` in 2, 4, 8, ... equal column shards; and the table of each shard."""
    shards = np.ones(len(tables), np.int64)
    while (too_large := tables.memory_bytes // shards > max_bytes).any():
        shards[too_large] *= 2
    positions = np.repeat(np.arange(len(tables)), shards)
    return tables.select(positions).with_dims((tables.embedding_dim // shards)[positions]), positions


def halves(pool_name: str, size: int) -> dict[str, NDArray[np.int64]]:
    """The tables of a pool in each split, the same for all suites: no agent is trained on a test table of any suite."""
    shuffled = _generator(f"{pool_name}/halves").permutation(size)
    return {"train": np.sort(shuffled[: size // 2]), "test": np.sort(shuffled[size // 2 :])}


def sampled_tasks(recipe: Recipe, num_tables: tuple[int, int], pool: Tables, split: str) -> list[SampledTask]:
    """Random tasks from the tables of the pool that belong to `split`."""
    own_half = halves(recipe.pool, len(pool))[split]
    tight = recipe.splittable and not recipe.host_memory and not recipe.sync_every and not recipe.constrained
    samplers = [
        TaskSampler(
            pool.select(own_half[pool.num_embeddings[own_half] <= recipe.max_rows]),
            num_tables,
            recipe.num_devices,
            hardware,
            recipe.embedding_dims,
            TIGHT_SLACK if tight else MEMORY_SLACK,
            hbm_share=recipe.hbm_share,
            repeats=recipe.repeats,
        )
        for hardware in (recipe.hardware, *recipe.more_hardware)
    ]
    rng = _generator(f"{recipe.name}/{split}")
    position = {name: index for index, name in enumerate(pool.names)}
    count = recipe.test_tasks if split == "test" else recipe.train_tasks
    if tight:
        tasks = [tight_task(samplers[0], rng, number % UNPLACEABLE == UNPLACEABLE - 1) for number in range(count)]
    else:
        drawn = [samplers[number % len(samplers)].sample(rng) for number in range(count)]
        if recipe.sync_every:
            drawn = [_in_groups(task, recipe.sync_every) for task in drawn]
        tasks = [replace(task, splittable=True) for task in drawn] if recipe.splittable else drawn
    if recipe.sequence_share:
        tasks = [replace(task, tables=_with_sequences(task.tables, recipe.sequence_share, rng)) for task in tasks]
    if recipe.constrained:
        tasks = [with_constraints(task, rng) for task in tasks]
    return [(task, np.array([position[name] for name in task.tables.names])) for task in tasks]


def with_constraints(task: Task, rng: np.random.Generator) -> Task:
    """`task` with constraints as people have them, which its known placement meets but for the sharding types.

    - A tenth of the tables may be on 1, 2 or 4 devices next to one another alone: they are kept near what feeds them.
    - Up to twice, two or three tables of a device stay together: their outputs are concatenated before the exchange.
    - Of the tables that are read most, up to four on different devices are kept apart.
    - Where tables may be split, a tenth, the largest ones, are row-wise, on all devices or on a host; another tenth is
      replicated, the smallest ones; a fifth is table-wise; and a fifth has no shards with fewer than 16, 32 or 64
      columns.
    """
    known, count, devices = task.known_placement, task.num_tables, task.num_devices
    assert known is not None
    tables, shuffled = task.tables, rng.permutation(task.num_tables)
    types, least = np.ones((count, len(SHARDING_TYPES)), np.bool_), np.zeros(count, np.int64)
    allowed = np.ones((count, devices), np.bool_)
    kept_near = shuffled[: max(1, count // 10)].tolist()
    for table in kept_near:
        width = int(rng.choice([1, 2, 4]))
        first = int(known[table]) // width * width
        allowed[table] = (np.arange(devices) >= first) & (np.arange(devices) < first + width)
    free = [table for table in shuffled.tolist() if table not in kept_near]
    together: list[tuple[int, ...]] = []
    for device in rng.permutation(devices).tolist():
        here = [table for table in free if known[table] == device][: int(rng.integers(2, 4))]
        if len(here) > 1 and len(together) < 2:
            together.append(tuple(here))
            free = [table for table in free if table not in here]
    most = sorted(free, key=lambda table: -float(tables.lookups_per_batch[table]))[: int(rng.integers(2, 5))]
    apart = {int(known[table]): table for table in reversed(most)}
    free = [table for table in free if table not in apart.values()]
    if task.splittable:
        by_size = sorted(free, key=lambda table: int(tables.memory_bytes[table]))
        tenth = len(free) // 10
        for table in by_size[len(by_size) - tenth :]:
            types[table] = np.isin(SHARDING_TYPES, (ROW_WISE, TABLE_ROW_WISE))
        for table in by_size[:tenth]:
            types[table] = np.isin(SHARDING_TYPES, (DATA_PARALLEL,))
        others = rng.permutation(by_size[tenth : len(by_size) - tenth])
        for table in others[: 2 * tenth].tolist():
            types[table] = np.isin(SHARDING_TYPES, (TABLE_WISE,))
        least[others[2 * tenth : 4 * tenth]] = rng.choice([16, 32, 64], len(others[2 * tenth : 4 * tenth]))
    sets = (tuple(apart.values()),) if len(apart) > 1 else ()
    limits = Constraints(types, least, allowed, tuple(together), sets)
    whole = bool(limits.may_be_whole.all())
    return replace(task, constraints=limits, known_placement=known if whole else None)


def _in_groups(task: Task, sync_every: int) -> Task:
    """`task` on the whole memory of its devices, so that a group of them may hold all tables."""
    caps = np.full(task.num_devices, task.topology.device.memory_bytes)
    return replace(task, topology=replace(task.topology, memory_cap_bytes=caps), splittable=True, sync_every=sync_every)


def _with_sequences(tables: Tables, share: float, rng: np.random.Generator) -> Tables:
    return replace(tables, pooled=rng.random(len(tables)) >= share)


def tight_task(sampler: TaskSampler, rng: np.random.Generator, unplaceable: bool) -> Task:
    """A task whose tables may be split; an `unplaceable` one has a table larger than a device, so no placement."""
    while True:
        task = sampler.sample(rng)
        if not unplaceable:
            return replace(task, splittable=True)
        cap = evenly_capped(task.tables, task.num_devices, TIGHT_SLACK)
        if task.tables.memory_bytes.max() > cap:
            topology = replace(task.topology, memory_cap_bytes=np.full(task.num_devices, cap))
            with suppress(TableTooLargeError):  # its columns are too few; try another one
                return Task(task.name, task.tables, topology, splittable=True)


def evenly_capped(tables: Tables, num_devices: int, slack: float) -> int:
    """Bytes of a memory cap: `slack` times an even share of the tables, rounded up to whole MiB."""
    return -(-int(slack * tables.memory_bytes.sum() / num_devices) // MIB) * MIB


def whole_model_task(recipe: Recipe, pool: Tables) -> SampledTask:
    """One task with all tables of the pool; tables that are larger than a device are split into column shards.

    In a suite whose tables may be split they are as they are, and may use the whole memory of the devices.
    """
    if recipe.splittable:
        profile = hardware_profile(recipe.hardware)
        host_bytes = profile.host.memory_bytes if recipe.host_memory and profile.host else 0
        topology = profile.topology(recipe.num_devices[0], host_memory_bytes=host_bytes)
        return Task("whole", pool, topology, splittable=True), np.arange(len(pool))
    tables, positions = split_columns(pool, hardware_profile(recipe.hardware).device.memory_bytes)
    return capped_task("whole", tables, recipe.num_devices[0], recipe.hardware, MEMORY_SLACK), positions


def record_of(recipe: Recipe) -> dict[str, Any]:
    """The JSON record of one suite; its tasks depend on the name of the recipe, which is the seed."""
    pool = load_pool(recipe.pool)
    kept = {"weight_dtype": recipe.weight_dtype, "optimizer": recipe.optimizer}
    tables = pool.tables.with_training(**kept, training=recipe.training)
    tables = tables.at_batch_size(recipe.batch_size or tables.workload.batch_size)
    more: dict[str, Any] = {} if recipe.track == SIMULATED else {"track": recipe.track}
    if recipe.splittable and recipe.track != SHARDING:
        more["splittable"] = True
    if not recipe.training:
        more["training"] = False
    if recipe.batch_size:
        more["batch_size"] = recipe.batch_size
    if recipe.num_tables is None:
        tasks = {"test": [whole_model_task(recipe, tables)]}
    else:
        tasks = {split: sampled_tasks(recipe, recipe.num_tables, tables, split) for split in SPLITS}
    return {
        "schema": SCHEMA,
        "name": recipe.name,
        "version": recipe.version,
        "description": recipe.description,
        "pool": recipe.pool,
        "pool_sha256": pool.sha256,
        "hardware": recipe.hardware,
        **kept,
        **more,
        "splits": {
            split: [
                _entry(f"{recipe.name}/{split}/{number}", task, positions, recipe.hardware)
                for number, (task, positions) in enumerate(members)
            ]
            for split, members in tasks.items()
        },
    }


def _entry(name: str, task: Task, positions: NDArray[np.int64], hardware: str) -> dict[str, Any]:
    dims, topology = sorted(set(task.tables.embedding_dim.tolist())), task.topology
    more: dict[str, Any] = {}
    if topology.host is not None:
        more["hbm_bytes"] = topology.host.hbm_bytes
    if not task.tables.pooled.all():
        more["sequences"] = (~task.tables.pooled).tolist()
    if task.sync_every:
        more["sync_every"] = task.sync_every
    if task.constraints is not None:
        more["constraints"] = task.constraints.to_numbers()
    own = next(name for name, profile in PROFILES.items() if profile.device is topology.device)
    if own != hardware:
        more["hardware"] = own
    return {
        "name": name,
        "tables": positions.tolist(),
        "embedding_dim": dims[0] if len(dims) == 1 else task.tables.embedding_dim.tolist(),
        "num_devices": task.num_devices,
        "memory_cap_bytes": int(topology.memory_cap_bytes[0]),
        "known_placement": None if task.known_placement is None else task.known_placement.tolist(),
        **more,
    }


def _generator(purpose: str) -> np.random.Generator:
    """A separate generator for each purpose, so that a new suite does not change the others."""
    return np.random.default_rng([ord(character) for character in purpose])
