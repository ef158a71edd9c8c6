"""`advance`, the one step: equal for one row and for many, and no change once a row is over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.cost_models import AdditiveCostModel, AnalyticalCostModel, PlainCosts, make_cost_model
from shard_gym.envs.core.episode_state import UNPLACED, PlacementState, Status
from shard_gym.envs.core.problem import EnvProblem, prepare
from shard_gym.envs.core.state import MAX_PLAIN_DEVICES, action_mask, advance, begin, initial_state
from shard_gym.envs.placement.observation import OBSERVATIONS, make_observation
from shard_gym.plans.placement import memory_used
from shard_gym.tables import Workload

MODEL = make_cost_model("analytical", additive=True)
MAX_TABLES, MAX_DEVICES = 12, 9


def mixed_tasks(random_task: Any, rng: np.random.Generator, count: int, most_per_host: int = 8) -> list[Any]:
    """Tasks of all sizes, half of them with little memory."""
    return [
        random_task(
            rng,
            int(rng.integers(1, MAX_TABLES + 1)),
            int(rng.integers(1, MAX_DEVICES + 1)),
            slack=None if row % 2 else 1.1,
            devices_per_host=int(rng.integers(1, most_per_host + 1)) if most_per_host < 9 else MAX_DEVICES,
        )
        for row in range(count)
    ]


def prepared(task: Any, host_memory: bool = False, model: AdditiveCostModel = MODEL, num_groups: int = 1) -> EnvProblem:
    return prepare(task, model, MAX_TABLES, MAX_DEVICES, host_memory, num_groups=num_groups)


def in_groups(task: Any, rng: np.random.Generator) -> Any:
    """The task with tables of three workloads, and memory for them."""
    own = [replace(task.tables.workload, weight_dtype=dtype) for dtype in ("fp16", "bf16", "fp32")]
    workload = Workload.mixed(own, rng.integers(3, size=task.num_tables))
    caps = 2 * task.topology.memory_cap_bytes
    return replace(
        task, tables=replace(task.tables, workload=workload), topology=replace(task.topology, memory_cap_bytes=caps)
    )


def mostly_legal(mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(N,) actions, one in ten of them any device."""
    picks = np.where(mask, rng.random(mask.shape), -1.0).argmax(axis=1)
    return np.where(rng.random(len(picks)) < 0.1, rng.integers(mask.shape[1], size=len(picks)), picks)


def under_way(random_task: Any, together: Any, seed: int, count: int, steps: int) -> tuple[EnvProblem, PlacementState]:
    """`count` placements after `steps` steps, on several hosts; some of them over."""
    rng = np.random.default_rng(seed)
    tasks = [random_task(rng, 3 + row % 9, 2 + row % 7, devices_per_host=3) for row in range(count)]
    problem = together(tasks, MAX_TABLES, MAX_DEVICES)
    state = initial_state(problem, MODEL)
    for _ in range(steps):
        advance(problem, state, mostly_legal(action_mask(problem, state), rng), MODEL)
    return problem, state


def differing(one: PlacementState, other: PlacementState, rows: Any = slice(None)) -> list[str]:
    """The arrays that are not equal bit for bit, zeros of different sign included, or not of one dtype."""
    pairs = [(name, value, getattr(other, name)) for name, value in vars(one).items()]
    return [n for n, a, b in pairs if a.dtype != b.dtype or a[rows].tobytes() != b[rows].tobytes()]


def assert_same_bits(one: np.ndarray, other: np.ndarray) -> None:
    """Zeros of different sign and dtypes included."""
    assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


# One step


@pytest.mark.parametrize("count", [1, 4, 33])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("hosts", "cost_model"),
    [
        ("one or several", "analytical"),
        ("one", "analytical"),
        ("one or several with memory", "analytical"),
        ("one or several with memory", "analytical-exposed-indices"),
        ("one or several with groups", "analytical"),
        ("one or several with groups and memory", "analytical-exposed-indices"),
    ],
)
def test_many_rows_step_exactly_as_each_would_alone(
    random_task: Any, in_host: Any, together: Any, count: int, seed: int, hosts: str, cost_model: str
) -> None:
    """The single ones on plain numbers, the many on arrays: state and observations bit by bit, after every step."""
    rng = np.random.default_rng([seed, count])
    tasks = mixed_tasks(random_task, rng, count, 9 if hosts == "one" else 8)
    memory = hosts.endswith("memory")
    if memory:  # of all tasks but each third
        tasks = [task if row % 3 == 2 else in_host(task, rng.uniform(0.01, 1.1)) for row, task in enumerate(tasks)]
    groups = 3 if "groups" in hosts else 1
    if groups > 1:  # of the tasks without host memory every second, or each third
        tasks = [
            in_groups(task, rng) if task.topology.host is None and (memory or row % 2) else task
            for row, task in enumerate(tasks)
        ]
    model = make_cost_model(cost_model, additive=True)
    problems, many = (
        [prepared(task, memory, model, len(tasks[0].tables.workloads) if count == 1 else groups) for task in tasks],
        together(tasks, MAX_TABLES, MAX_DEVICES, cost_model=cost_model),
    )
    if hosts == "one" or count > 1:
        assert many.cluster.crosses_domains.any() == (hosts != "one")
    state, alone = initial_state(many, model), [initial_state(problem, model) for problem in problems]
    for _ in range(MAX_TABLES + 2):  # goes on after the last row is over
        actions = mostly_legal(action_mask(many, state), rng)
        before = state.copy()
        advance(many, state, actions, model)
        assert not differing(before, state, before.over)
        for i, (problem, row) in enumerate(zip(problems, alone, strict=True)):
            advance(problem, row, actions[i : i + 1], model)
            assert not differing(row, PlacementState(**{name: value[i, None] for name, value in vars(state).items()}))
        for observation in OBSERVATIONS:
            observe = make_observation(observation, memory)
            seen, own = observe(many, state), [observe(*each) for each in zip(problems, alone, strict=True)]
            for name, value in seen.items():
                assert_same_bits(value, np.concatenate([each[name] for each in own]))
    assert (state.status != Status.RUNNING).all()
    if count == 33:  # the comparison saw every way to end
        assert set(state.status.tolist()) == {Status.COMPLETE, Status.ILLEGAL_ACTION, Status.DEAD_END}


@given(seed=st.integers(0, 2**32 - 1))
def test_the_state_is_what_the_assignment_says(random_task: Any, together: Any, seed: int) -> None:
    """Loads, memory, phases and cost of every row, recomputed from scratch after every step."""
    rng = np.random.default_rng(seed)
    tasks = mixed_tasks(random_task, rng, 3)
    problem = together(tasks, MAX_TABLES, MAX_DEVICES)
    state = initial_state(problem, MODEL)
    for _ in range(MAX_TABLES):
        advance(problem, state, mostly_legal(action_mask(problem, state), rng), MODEL)
        for row, task in enumerate(tasks):
            done = int(state.step[row])
            assert (state.assignment[row, :done] >= 0).all()
            assert (state.assignment[row, done:] == UNPLACED).all()
            chosen = problem.order[row, :done]
            if not done:
                assert not state.memory_used[row].any()
                continue
            placing, tables = state.assignment[row, :done], task.tables.select(chosen)
            estimate = MODEL.estimate(placing, tables, task.topology)
            assert state.cost_ms[row] == pytest.approx(estimate.total_ms, rel=1e-9)
            assert state.phases_ms[row, : task.num_devices] == pytest.approx(estimate.phases_ms, rel=1e-9)
            used = memory_used(placing, tables, task.num_devices)
            assert state.memory_used[row, : task.num_devices].tolist() == used.tolist()
            assert (used <= task.topology.memory_cap_bytes).all()
            assert not state.phases_ms[row, task.num_devices :].any()
            assert not state.memory_used[row, task.num_devices :].any()


def test_a_step_writes_into_the_state_and_nothing_else(random_task: Any, together: Any) -> None:
    problem, state = under_way(random_task, together, 5, 33, 2)
    assert problem.cluster.crosses_domains.any()
    for record in (problem, problem.tables, problem.cluster):
        for value in vars(record).values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
    arrays, before = dict(vars(state)), state.copy()
    advance(problem, state, action_mask(problem, state).argmax(axis=1), MODEL)
    assert differing(before, state)
    assert all(array is getattr(state, name) for name, array in arrays.items())


# Where a state begins


def test_to_begin_again_touches_only_the_rows_given(random_task: Any, together: Any) -> None:
    problem, state = under_way(random_task, together, 9, 12, 4)
    assert len(set(state.status.tolist())) >= 2
    before, fresh = state.copy(), initial_state(problem, MODEL)
    again = np.array([11, 2, 3])
    begin(problem, state, again)
    assert not differing(state, fresh, again)
    assert not differing(state, before, np.setdiff1d(np.arange(12), again))
    assert differing(state, before, again)


@pytest.mark.parametrize("count", [1, 2])
def test_a_table_that_fills_a_device_exactly_fits(random_task: Any, together: Any, count: int) -> None:
    """One episode steps on plain numbers, two on arrays."""
    task = random_task(np.random.default_rng(0), 2, 2)
    first, second = prepared(task).tables.memory[0, :2]
    for caps, before, after in (
        ([first, first + second], [True, True], [False, True]),
        ([first + second, second], [True, bool(first <= second)], [True, True]),
        ([first + second - 1, second], [True, bool(first <= second)], [False, True]),
    ):
        topology = replace(task.topology, memory_cap_bytes=np.array(caps))
        exact = replace(task, topology=topology, known_placement=None)
        problem = together([exact] * count, MAX_TABLES, MAX_DEVICES)
        state = initial_state(problem, MODEL)
        assert state.fits[:, :2].tolist() == [before] * count
        advance(problem, state, np.zeros(count, np.int64), MODEL)
        assert state.fits[:, :2].tolist() == [after] * count


class Watched(AnalyticalCostModel):
    """Counts the steps on plain numbers and those on arrays."""

    def __init__(self) -> None:
        self.plain = self.arrays = 0

    def fill_communication(self, *arguments: Any) -> None:
        self.arrays += 1
        super().fill_communication(*arguments)

    @property
    def plain_costs(self) -> PlainCosts:
        self.plain += 1
        return super().plain_costs


@pytest.mark.parametrize(("devices", "steps"), [(MAX_PLAIN_DEVICES, (1, 0)), (MAX_PLAIN_DEVICES + 1, (0, 1))])
def test_one_environment_steps_on_plain_numbers_unless_it_has_many_devices(
    random_task: Any, devices: int, steps: tuple[int, int]
) -> None:
    model = Watched()
    problem = prepare(random_task(np.random.default_rng(0), 3, 2), model, 3, devices)
    state = initial_state(problem, model)
    model.arrays = 0
    advance(problem, state, np.array([1]), model)
    assert (model.plain, model.arrays) == steps
