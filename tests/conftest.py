"""Builders shared by all tests: random tables and tasks, tasks with a planted optimum, tasks that drift, all
placements of a tiny task; and comparisons of whatever an environment returns.

They are fixtures that return functions; all randomness comes from the generator or seed they are given.
"""

from __future__ import annotations

import copy
import itertools
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray

from shard_gym.agents.search.balance import balanced
from shard_gym.agents.search.plan_search import PlanSearchAgent
from shard_gym.hardware import HostMemory, Topology, hardware_profile
from shard_gym.plans import SHARDING_TYPES, ShardingPlan, TableSharding
from shard_gym.plans import plan as plans
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.placement import memory_used
from shard_gym.replanning import DriftTask
from shard_gym.replanning.drift.levels import STRONG, DriftLevel
from shard_gym.tables import NUM_BINS, RowPopularity, Tables, Workload, load_pool
from shard_gym.tasks import Task

# Deterministic examples, and no deadline: the tests share few cores with others.
settings.register_profile(
    "shard_gym",
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shard_gym")

DIMS = (4, 8, 16, 32, 64, 128)


def _random_tables(
    rng: np.random.Generator,
    count: int,
    *,
    dims: tuple[int, ...] = DIMS,
    batch_size: int = 65_536,
    **training: Any,
) -> Tables:
    """`count` different tables with consistent statistics; one in eight is never read."""
    rows = rng.integers(1_000, 1_000_000, count)
    pooling = np.exp(rng.uniform(-2, 4, count)) * (rng.random(count) > 0.125)
    lookups = pooling * batch_size
    read = (lookups > 0)[:, None]
    return Tables(
        num_embeddings=rows,
        embedding_dim=rng.choice(dims, count),
        pooling_factor=pooling,
        distinct_rows=np.minimum(rows, lookups) * rng.uniform(0.05, 1.0, count),
        reuse_histogram=rng.dirichlet(np.full(NUM_BINS, 0.3), count) * read,
        access_histogram=rng.dirichlet(np.full(NUM_BINS, 0.3), count) * read,
        workload=Workload(batch_size, **training),
        num_features=rng.integers(1, 3, count),
    )


def _random_task(
    rng: np.random.Generator,
    num_tables: int,
    num_devices: int,
    *,
    slack: float | None = None,
    profile: str = "a100-dgx",
    devices_per_host: int = 8,
    name: str = "random",
    dims: tuple[int, ...] = DIMS,
) -> Task:
    """A task with a known placement.

    With `slack`, every device has a cap of its own: so many times what the known placement, a random one, puts there
    (at least 1 MiB). Without, the caps are the devices' memory and never matter.
    """
    tables = _random_tables(rng, num_tables, dims=dims)
    known = rng.integers(num_devices, size=num_tables)
    caps = None
    if slack is not None:
        caps = np.maximum((memory_used(known, tables, num_devices) * slack).astype(np.int64), 2**20)
    hardware = hardware_profile(profile)
    topology = hardware.topology(num_devices, devices_per_host=devices_per_host, memory_cap_bytes=caps)
    return Task(name, tables, topology, known)


def _random_constraints(rng: np.random.Generator, task: Task, *, types: bool = False) -> Constraints:
    """Constraints that the known placement of `task` meets; with `types` some sharding types are not allowed, either,
    and then no placement may meet them.
    """
    known, count, devices = task.known_placement, task.num_tables, task.num_devices
    assert known is not None
    allowed = (rng.random((count, devices)) < 0.6) | (np.arange(devices) == known[:, None])
    allowed[rng.random(count) < 0.5] = True
    shuffled = rng.permutation(count).tolist()
    by_device = [[table for table in shuffled if known[table] == device] for device in range(devices)]
    together = [tuple(tables[:2]) for tables in by_device[:1] if len(tables) > 1]
    apart = tuple(tables[-1] for tables in by_device if tables and tables[-1] not in {*sum(together, ())})
    kinds, least = np.ones((count, len(SHARDING_TYPES)), np.bool_), np.zeros(count, np.int64)
    if types:
        free = [table for table in shuffled if allowed[table].all() and table not in {*sum(together, apart)}]
        kinds[free] = rng.random((len(free), len(SHARDING_TYPES))) < 0.5
        kinds[~kinds.any(axis=1), 0] = True
        least = rng.choice([0, 0, 8, 16, 32], count)
    return Constraints(kinds, least, allowed, tuple(together), (apart,) if len(apart) > 1 else ())


def _in_host(task: Task, share: float, read: float = 16.0, update: float = 20.0) -> Task:
    """The task with HBM for a share of an even part of its tables; the memory caps stay."""
    hbm = max(1, int(share * task.tables.memory_bytes.sum() / task.num_devices))
    return replace(task, topology=replace(task.topology, host=HostMemory(hbm, read, update)))


def _tiered_task(rng: np.random.Generator, num_tables: int, num_devices: int, **options: Any) -> Task:
    """A task of `_random_task` with HBM for 5 to 60% of an even part of the tables; the rest of a cap is the host's."""
    task = _random_task(rng, num_tables, num_devices, **options)
    hbm = max(int(rng.uniform(0.05, 0.6) * task.tables.memory_bytes.sum() / num_devices), 2**16)
    return replace(
        task, topology=replace(task.topology, host=HostMemory(hbm, read_gb_per_s=16.0, update_gb_per_s=20.0))
    )


def _planted_task(rng: np.random.Generator, per_device: int, num_devices: int) -> tuple[Task, NDArray[np.int64]]:
    """A task of `num_devices` copies of the same `per_device` tables of one width, shuffled, and its best placement.

    One copy of each table on every device spreads all loads evenly, and nothing is cheaper than that.
    """
    group = _random_tables(rng, per_device, dims=(16,))
    shuffle = rng.permutation(per_device * num_devices)
    tables = group.select(np.tile(np.arange(per_device), num_devices)[shuffle])
    planted = np.repeat(np.arange(num_devices), per_device)[shuffle]
    return Task("planted", tables, hardware_profile("a100-dgx").topology(num_devices)), planted


def _drift_task(
    tables: int = 6,
    devices: int = 2,
    seed: int = 0,
    level: DriftLevel = STRONG,
    pause_s: float = 60.0,
    *,
    cap: float | None = None,
    splittable: bool = False,
    devices_per_host: int = 8,
) -> DriftTask:
    """A task of a few tables of `dlrm-2021` with mixed dims; with `cap`, devices have so much of all tables' memory."""
    pool, rng = load_pool("dlrm-2021"), np.random.default_rng([seed, 77])
    assert pool.popularity is not None
    chosen = rng.choice(len(pool.tables), tables, replace=False)
    drifting = pool.tables.select(chosen).with_dims(rng.choice([16, 32, 64, 128], tables))
    caps = None if cap is None else int(cap * drifting.memory_bytes.sum())
    topology = hardware_profile("a100-dgx").topology(devices, devices_per_host=devices_per_host, memory_cap_bytes=caps)
    task = Task(f"drift {seed}", drifting, topology, splittable=splittable)
    law = RowPopularity(pool.popularity.q[chosen], pool.popularity.s[chosen])
    return DriftTask(f"drift {seed}", task, law, level, seed, pause_s)


def _valid_placements(task: Task) -> NDArray[np.int64]:
    """(M, T) int64, every placement that fits the memory, one by one and in plain integers."""
    needed, caps = task.tables.memory_bytes.tolist(), task.topology.memory_cap_bytes.tolist()
    found = []
    for placement in itertools.product(range(task.num_devices), repeat=task.num_tables):
        used = [0] * task.num_devices
        for table, device in enumerate(placement):
            used[device] += needed[table]
        if all(have <= cap for have, cap in zip(used, caps, strict=True)):
            found.append(placement)
    return np.array(found, np.int64)


def _random_sharding(
    rng: np.random.Generator, tables: Tables, table: int, topology: Topology, sharding_types: tuple[str, ...]
) -> TableSharding:
    """A random sharding of one table, of one of the types that are possible for it."""
    rows, dim, devices = tables.num_embeddings[table], int(tables.embedding_dim[table]), topology.num_devices
    size = plans.devices_of_hosts(topology)
    possible = [t for t in sharding_types if t != plans.ROW_WISE or plans.has_equal_blocks(rows, devices)]
    if not size or not plans.has_equal_blocks(rows, size):
        possible = [t for t in possible if t != plans.TABLE_ROW_WISE]
    chosen = str(rng.choice(possible))
    if chosen == plans.TABLE_WISE:
        return plans.table_wise(tables, table, int(rng.integers(devices)))
    if chosen == plans.COLUMN_WISE:
        cuts = np.sort(rng.choice(dim // 4 - 1, min(dim // 4 - 1, int(rng.integers(1, 4))), replace=False) + 1)
        widths = (4 * np.diff(np.concatenate([[0], cuts, [dim // 4]]))).tolist() if dim > 4 else [4]
        return plans.column_wise(tables, table, rng.integers(devices, size=len(widths)).tolist(), widths)
    if chosen == plans.ROW_WISE:
        return plans.row_wise(tables, table, topology)
    if chosen == plans.TABLE_ROW_WISE:
        return plans.table_row_wise(tables, table, topology, int(rng.integers(devices // size)))
    return plans.data_parallel(tables, table, topology)


def _random_plan(
    rng: np.random.Generator, tables: Tables, topology: Topology, sharding_types: tuple[str, ...] = SHARDING_TYPES
) -> ShardingPlan:
    """A random plan; its memory is not looked at. Column shards have random widths."""
    shardings = [_random_sharding(rng, tables, table, topology, sharding_types) for table in range(len(tables))]
    return ShardingPlan(tuple(shardings))


def _markdown_rows(text: str, heading: str) -> dict[str, list[str]]:
    """The rows of the first Markdown table below a heading, by their first cell."""
    lines = text.split(f"{heading}\n", 1)[1].splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("|") and not set(line) - set("|-: "))
    found = {}
    for line in lines[start + 1 :]:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        found[name] = cells
    return found


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> Iterator[None]:
    """What is written is in the files at once, but nobody waits until it would survive a loss of power."""
    connect = sqlite3.connect

    def connected(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(sqlite3, "connect", connected)
        yield


def _content(value: Any) -> Any:
    """All that an object of dataclasses, arrays and plain values holds, as a key of a dictionary."""
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), tuple(_content(getattr(value, each.name)) for each in fields(value))
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return tuple((key, _content(each)) for key, each in value.items())
    return tuple(map(_content, value)) if isinstance(value, (list, tuple)) else value


@pytest.fixture(scope="session")
def _searches() -> dict[Any, Any]:
    """What was found by searches, the queries that they took and what ended them, by all that they depend on."""
    return {}


@pytest.fixture
def same_searches_once(_searches: dict[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of `plan-search`, or for a less full plan, is made once for all tests that use this, as the same one
    always finds the same plan.

    (tests/agents/search/test_plan_search.py tests that it does.)
    """
    plan, split = PlanSearchAgent.plan, PlanSearchAgent._split

    def once(agent: Any, key: Any, search: Any) -> Any:
        model, options = agent.cost_model, (agent.max_shards, agent.max_queries, agent.max_seconds, agent.seed)
        key = _content((agent.name, key, agent.sharding_types, type(model.model), model.fingerprint, *options))
        before = agent.queries
        if key not in _searches:
            best = search()
            _searches[key] = best, agent.queries - before, agent.ended
            return best
        best, queries, agent.ended = _searches[key]
        model.queries += queries
        return best

    def planned(agent: Any, task: Task) -> Any:
        return once(agent, ("plan", task), lambda: plan(agent, task)) if task.sync_every else plan(agent, task)

    def parts(agent: Any, task: Task, types: tuple[str, ...]) -> Any:
        return once(agent, ("parts", task, types), lambda: split(agent, task, types))

    monkeypatch.setattr(PlanSearchAgent, "plan", planned)
    monkeypatch.setattr(PlanSearchAgent, "_split", parts)

    def relieved(answer: Any, task: Task, model: Any, **forms: Any) -> Any:
        key = _content((answer, task, type(model), model.fingerprint, forms))
        if key not in _searches:
            less_full = balanced(answer, task, model, **forms)
            _searches[key] = None if less_full is answer else less_full
        return answer if _searches[key] is None else _searches[key]

    monkeypatch.setattr("shard_gym.planning.answers.balanced", relieved)


@pytest.fixture(scope="session")
def forks() -> Iterator[Any]:
    """The module workers/forks.py. Its folder stays on the path of this process, which other processes get."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent / "workers")
        module = import_module("forks")
        module.start()
        yield module


@pytest.fixture
def forked_workers(forks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that measure, and start in a test, are forks of a process that has imported torch and FBGEMM."""
    monkeypatch.setattr("shard_gym.cost_models.measured.session.subprocess", forks)


@pytest.fixture
def started_quick_workers(forks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements are made by the workers of workers/quick_worker.py, which import little; times are random."""
    monkeypatch.setattr("shard_gym.cost_models.measured.session.WORKER", "quick_worker")


@pytest.fixture
def quick_workers(started_quick_workers: None, forked_workers: None) -> None:
    """The same, as forks of a process that has imported what they need."""


@pytest.fixture(scope="session")
def code() -> ModuleType:
    """tools/dependency_diagram.py, which reads the imports of the package, each file once, and knows its layers."""
    path = Path(__file__).parents[1] / "tools" / "dependency_diagram.py"
    spec = spec_from_file_location("dependency_diagram", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _same(one: Any, other: Any) -> bool:
    """Equal in every element, in type and in dtype."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, np.ndarray) and one.dtype == object:
        return other.dtype == object and one.shape == other.shape and _same(one.tolist(), other.tolist())
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


@pytest.fixture(scope="session")
def same() -> Callable[[Any, Any], bool]:
    # It must be able to say no.
    assert not _same({"a": np.zeros(2)}, {"a": np.array([0.0, 1e-12])})
    assert not _same(np.zeros(2, np.float32), np.zeros(2))
    assert not _same([1, 2], [1])
    assert not _same(np.array([None, {"a": np.zeros(2)}]), np.array([None, {"a": np.ones(2)}]))
    assert _same({"a": (np.ones(3), "b")}, copy.deepcopy({"a": (np.ones(3), "b")}))
    return _same


def _arrays(value: Any) -> list[np.ndarray]:
    """Every array in nested dicts, lists, tuples and arrays of objects."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [value, *_arrays(value.tolist())]
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict):
        return [array for each in value.values() for array in _arrays(each)]
    if isinstance(value, (list, tuple)):
        return [array for each in value for array in _arrays(each)]
    return []


def _row_probabilities(num_embeddings: int, q: float, s: float) -> np.ndarray:
    """The definition of a row popularity: (num_embeddings,) probabilities of the rows 1 to num_embeddings."""
    weights = (np.arange(1, num_embeddings + 1) + q) ** -s
    return np.asarray(weights / weights.sum())


@pytest.fixture(scope="session")
def four_tables() -> Tables:
    """Small and large, narrow and wide, read seldom and often."""
    return Tables.from_popularity(
        num_embeddings=[1_000, 10**7, 10**5, 10**6],
        embedding_dim=[128, 16, 64, 32],
        pooling_factor=[1.0, 20.0, 5.0, 60.0],
        popularity=RowPopularity.zipf([1.05] * 4),
        workload=Workload(4096, "fp32", "sgd"),
    )


def _packing_task(sizes: Sequence[int], caps: Sequence[int], pooling: Sequence[float] | None = None) -> Task:
    """A task of tables with the given MiB and pooling (by default the dearest first) on devices with the given MiB."""
    count, rows = len(sizes), np.array(sizes) * 2**15  # MiB at dim 16 in FP16
    bins = np.tile(np.eye(17)[3], (count, 1))
    lookups = 2.0 ** np.arange(count, 0, -1) if pooling is None else pooling
    names = tuple("abcdefgh"[:count])
    tables = Tables(rows, [16] * count, lookups, [100.0] * count, bins, bins, Workload(1024), names=names)
    caps_bytes = np.array(caps) * 2**20
    return Task("packing", tables, hardware_profile("a100-dgx").topology(len(caps), memory_cap_bytes=caps_bytes))


def _given(function: Callable[..., Any]) -> Any:
    """A fixture that gives tests this function."""
    return pytest.fixture(scope="session")(lambda: function)


def _gone(process: int) -> bool:
    """Whether a process has ended, within ten seconds; one that nobody has waited for counts."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


arrays_in = _given(_arrays)
gone = _given(_gone)
drift_task = _given(_drift_task)
markdown_rows = _given(_markdown_rows)
packing_task = _given(_packing_task)
planted_task = _given(_planted_task)
random_plan = _given(_random_plan)
random_tables = _given(_random_tables)
random_task = _given(_random_task)
random_constraints = _given(_random_constraints)
in_host = _given(_in_host)
tiered_task = _given(_tiered_task)
row_probabilities = _given(_row_probabilities)
valid_placements = _given(_valid_placements)


@pytest.fixture(scope="session")
def killed() -> Callable[..., None]:
    """Runs a training run until one of the iterations that are given is saved, and ends it there."""

    def kill(run: Any, *iterations: int) -> None:
        def stop(learner: Any, _: object) -> None:
            if learner.iteration in iterations:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run.run(stop)

    return kill
