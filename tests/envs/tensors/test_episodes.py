"""Episodes as tensors are those of the NumPy environment: masks, costs, rewards, observations and placements."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.common.errors import InvalidConstraintsError, InvalidOptionError, TableTooLargeError, UnknownNameError
from shard_gym.cost_models import AdditiveCostModel, make_cost_model
from shard_gym.cost_models.analytical.sharding import AnalyticalShardingModel
from shard_gym.envs.placement.observation import COST_FREE, OBSERVATIONS
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.envs.sharding.vector import EmbeddingShardingVectorEnv
from shard_gym.envs.tensors import TensorPlacementEnv, TensorShardingEnv
from shard_gym.envs.tensors.placement import REWARDS
from shard_gym.hardware import HostMemory
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.plan import Groups
from shard_gym.tables import load_pool
from shard_gym.tasks import Task, TaskSampler, TaskSuite, load_suite
from shard_gym.tasks.groups import task_of_group

CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("dlrm-20x4", "full", "dense", {}),
    ("generalize", "set", "terminal", {}),
    ("mixdim-8", "compact", "normalized", {}),
    ("tier-4", "set", "dense", {}),
    ("tier-8", "compact", "terminal", {}),
    ("shard-4", "full", "dense", {"max_shards": 4}),
    ("shard-generalize", "set", "terminal", {}),
    ("shard-generalize", "compact", "dense", {"sharding_types": ("table_wise", "column_wise")}),
    ("tier-generalize", "set", "dense", {"sharding_types": ("table_wise", "row_wise", "data_parallel")}),
    ("sequence-16", "features", "normalized", {}),
    ("inference-8", "full", "dense", {"max_shards": 2}),
    ("constrained-8", "set", "terminal", {}),
    ("shard-constrained-8", "features", "dense", {}),
    ("shard-constrained-8", "set", "terminal", {"max_shards": 2}),
]
"""Suite, observation, reward, and the options of splitting; those that have none place whole tables."""

SPLITTING = ("shard", "sequence", "inference")


def pair(suite: Any, observation: str, reward: str, count: int = 32, **splits: Any) -> tuple[Any, Any]:
    """The environment of NumPy and that of tensors."""
    named = {"observation": observation, "reward": reward, **splits}
    both: tuple[Any, Any] = EmbeddingPlacementVectorEnv, TensorPlacementEnv
    if splits or (isinstance(suite, str) and suite.startswith(SPLITTING)):
        both = EmbeddingShardingVectorEnv, TensorShardingEnv
    return both[0](count, suite, autoreset_mode="DISABLED", **named), both[1](count, suite, **named)


def require_same_observations(tensors: dict[str, torch.Tensor], arrays: dict[str, np.ndarray]) -> None:
    assert set(tensors) == set(arrays)
    for key, array in arrays.items():
        found = tensors[key].numpy().reshape(array.shape)
        np.testing.assert_allclose(found.astype(np.float64), array.astype(np.float64), rtol=2e-6, atol=1e-7)
        assert tensors[key].dtype in (torch.float32, torch.bool, torch.int64), key


@pytest.mark.parametrize(("suite", "observation", "reward", "splits"), CASES)
def test_episodes_are_those_of_numpy(suite: str, observation: str, reward: str, splits: dict[str, Any]) -> None:
    require_same_episodes(*pair(suite, observation, reward, **splits))


def require_same_episodes(envs: Any, own: Any) -> None:
    """Of random actions, of which some are illegal; episodes that are over are left alone, and some begin anew."""
    tasks, rng, count = len(envs.tasks), np.random.default_rng(0), envs.num_envs
    numbers = rng.integers(tasks, size=count)
    arrays, infos = envs.reset(seed=0, options={"tasks": numbers.tolist()})
    tensors = own.reset(tasks=torch.tensor(numbers))
    require_same_observations(tensors, arrays)
    ended = np.zeros(count, np.bool_)
    ended_so_far = 0
    for step in range(min(own.max_tables, 150) + 60):
        masks = envs.action_masks()
        assert np.array_equal(own.action_mask().numpy(), masks)
        actions = np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=1)
        actions = np.where(rng.random(count) < 0.01, rng.integers(own.num_actions), actions)
        arrays, rewards, ended, _, infos = envs.step(actions)
        tensors, own_rewards, over = own.step(torch.tensor(actions))
        require_same_observations(tensors, arrays)
        np.testing.assert_allclose(own_rewards.numpy(), rewards, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(own.cost_ms.numpy(), infos["cost_ms"], rtol=1e-12)
        np.testing.assert_allclose(own.phases_ms.numpy(), infos["phase_costs_ms"], rtol=1e-12, atol=1e-15)
        assert np.array_equal(over.numpy(), ended)
        assert np.array_equal(own.status.numpy(), envs.episodes.state.status)
        complete = ended & (infos["failure"] == 0)
        assert np.array_equal(own.placements().numpy()[complete], infos["placement"][complete])
        ended_so_far += int(complete.sum())
        if isinstance(own, TensorShardingEnv):
            for number in np.flatnonzero(complete)[:1].tolist():
                assert own.plan(number) == envs.episodes.plan(number)
        if ended.all() or step % 7 == 6:
            anew = ended & (rng.random(count) < 0.7) if not ended.all() else ended
            if anew.any():
                numbers = np.where(anew, rng.integers(tasks, size=count), numbers)
                options = {"tasks": numbers.tolist(), "reset_mask": anew}
                arrays, infos = envs.reset(options=options)
                require_same_observations(own.reset(torch.tensor(anew), torch.tensor(numbers)), arrays)
    assert ended_so_far > 0


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    devices=st.sampled_from((2, 4)),
    kinds=st.sets(st.sampled_from(("host memory", "sequences", "groups", "full", "whole"))),
    reward=st.sampled_from(REWARDS),
)
def test_episodes_of_any_small_task_are_those_of_numpy(
    random_task: Callable[..., Task], seed: int, devices: int, kinds: set[str], reward: str
) -> None:
    """Rows in host memory, sequence tables, replicas in other groups of devices, little memory, whole tables."""
    rng, tasks, groups = np.random.default_rng(seed), list[Task](), kinds >= {"groups"} and "host memory" not in kinds
    for number in range(3):
        slack = 1.2 if "full" in kinds else None
        task = random_task(rng, int(rng.integers(2, 8)), devices, slack=slack, devices_per_host=2, name=str(number))
        if "sequences" in kinds:
            tables = replace(task.tables, pooled=rng.random(task.num_tables) < 0.5)
            task = replace(task, tables=tables)
        task = replace(task, splittable=True, known_placement=None)
        if "host memory" in kinds:
            hbm = max(int(0.3 * task.tables.memory_bytes.sum() / devices), 2**16)
            task = replace(task, topology=replace(task.topology, host=HostMemory(hbm, 16.0, 20.0)))
        if groups:
            topology = replace(task.topology, memory_cap_bytes=2 * task.topology.memory_cap_bytes)
            task = replace(task, topology=topology, sync_every=int(rng.integers(1, 100)))
            task = task_of_group(task, Groups(2))
        tasks.append(task)
    model = make_cost_model("analytical", splits=True)
    assert isinstance(model, AnalyticalShardingModel)
    used: AdditiveCostModel = model.with_replicas() if groups else model
    splits = {} if "whole" in kinds else {"max_shards": int(rng.choice([2, 4]))}
    require_same_episodes(*pair(TaskSuite("small", tuple(tasks)), "set", reward, 8, cost_model=used, **splits))


@pytest.mark.parametrize("splits", [{}, {"max_shards": 4}])
def test_constraints_permit_what_they_do_in_numpy(
    random_task: Callable[..., Task], random_constraints: Callable[..., Constraints], splits: dict[str, Any]
) -> None:
    """Random ones on small tasks: devices, hosts, sharding types, sets of tables together and apart."""
    tasks, rng = list[Task](), np.random.default_rng(0)
    while len(tasks) < 24:
        task = random_task(rng, 9, 4, slack=2.0, devices_per_host=2, name=str(len(tasks)))
        limits = random_constraints(rng, task, types=bool(splits))
        with suppress(TableTooLargeError, InvalidConstraintsError):
            task = replace(task, constraints=limits, known_placement=None, splittable=True)
            pair(TaskSuite("one", (task,)), "set", "dense", 1, **splits)
            tasks.append(task)
    assert any(task.constraints.together for task in tasks if task.constraints)
    assert any(task.constraints.apart for task in tasks if task.constraints)
    require_same_episodes(*pair(TaskSuite("limits", tuple(tasks)), "set", "dense", **splits))


@pytest.mark.parametrize(("kind", "suite"), [(TensorPlacementEnv, "generalize"), (TensorShardingEnv, "shard-4")])
def test_episodes_go_on_from_a_state_alone_and_several_times(kind: type[TensorPlacementEnv], suite: str) -> None:
    env, other = (kind(4, suite, observation="set", reward="dense", seed=seed) for seed in (0, 1))

    def played(env: TensorPlacementEnv, repeats: int) -> list[torch.Tensor]:
        draw, seen = torch.Generator().manual_seed(5), []
        for _ in range(7):
            scores = torch.rand(4, env.num_actions, generator=draw).repeat_interleave(repeats, dim=0)
            obs, rewards, over = env.step(torch.where(env.action_mask(), scores, -1.0).argmax(dim=1))
            seen += [rewards, over, env.cost_ms, *obs.values()]
        return seen

    env.reset(seed=2)
    played(env, 1)
    state = env.state()
    kept = {name: value.clone() for name, value in state.items()}
    first = played(env, 1)
    assert all(torch.equal(value, kept[name]) for name, value in state.items())
    env.load(state)
    other.load(state)
    assert all(map(torch.equal, first, played(env, 1)))
    assert all(map(torch.equal, first, played(other, 1)))
    env.load({name: value.repeat_interleave(3, dim=0) for name, value in state.items()})
    assert env.batch_size == (12,)
    assert all(
        torch.equal(one.repeat_interleave(3, dim=0), each) for one, each in zip(first, played(env, 3), strict=True)
    )
    with pytest.raises(InvalidOptionError, match="A state is what"):
        env.load({"task": state["task"]})


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: None,
        lambda state: {name: value.tolist() for name, value in state.items()},
        lambda state: {**state, "task": state["task"] + 1000},
        lambda state: {**state, "task": state["task"] - 1},
        lambda state: {**state, "status": state["status"].float()},
        lambda state: {**state, "phases_ms": state["phases_ms"][:, :2]},
        lambda state: TensorPlacementEnv(4, "dlrm-20x4").state(),
    ],
)
def test_a_state_of_another_environment_is_refused_and_changes_nothing(damage: Callable[[Any], Any]) -> None:
    env = TensorPlacementEnv(4, "dlrm-40x8")
    env.reset(tasks=torch.zeros(4, dtype=torch.int64))
    with pytest.raises(InvalidOptionError, match=r"^(A state is what state|tasks must be)"):
        env.load(damage(env.state()))
    assert env.num_envs == 4
    env.step(torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize(("kind", "suite"), [(TensorPlacementEnv, "dlrm-20x4"), (TensorShardingEnv, "shard-4")])
def test_tasks_are_assigned_for_a_curriculum_and_arguments_are_not(kind: type[TensorPlacementEnv], suite: str) -> None:
    """As of the other environments; all episodes begin anew."""
    env, test = kind(4, suite, observation="features", reward="dense"), load_suite(suite, "test")
    env.tasks = TaskSuite("few", test.tasks[:3])
    assert env.tasks == test.tasks[:3]
    numbers = torch.tensor([2, 0, 1, 2])
    other = kind(4, suite, "test", observation="features", reward="dense")
    for each in (env, other):
        each.reset(tasks=numbers)
        while not bool((each.status != 0).all()):
            each.step(each.action_mask().long().argmax(dim=1))
    assert torch.equal(env.cost_ms, other.cost_ms)
    with pytest.raises(InvalidOptionError, match="numbers from 0 to 2"):
        env.reset(tasks=torch.full((4,), 3))
    env.tasks = suite  # by name; the split is that of the environment
    assert env.tasks == load_suite(suite, "train").tasks
    for name, value in (("cost_model", None), ("reward", "terminal"), ("num_envs", 3), ("max_tables", 3), ("suite", 1)):
        with pytest.raises(InvalidOptionError, match=f"^{name} is an argument of {kind.__name__}"):
            setattr(env, name, value)
    for wrong in ((), test.tasks[:2], "drift-medium-120"):
        with pytest.raises((InvalidOptionError, UnknownNameError)):
            env.tasks = wrong  # type: ignore[assignment]
    with pytest.raises(InvalidOptionError, match="tables"):
        env.tasks = load_suite("groups-256" if kind is TensorShardingEnv else "dlrm-100x4", "test")


def test_a_sampler_that_is_assigned_fills_the_pool_again() -> None:
    sampler = TaskSampler(load_pool("dlrm-2021"), (4, 8), (2, 4))
    env = TensorPlacementEnv(4, sampler, pool=5)
    first = env.tasks
    env.tasks = sampler
    assert len(env.tasks) == 5
    assert {task.name for task in first}.isdisjoint(task.name for task in env.tasks)


def test_only_complete_episodes_have_plans() -> None:
    env = TensorShardingEnv(2, "shard-4", "test")
    for number in (0, 2, -1):
        with pytest.raises(InvalidOptionError, match="Only a complete episode has a plan"):
            env.plan(number)


@pytest.mark.parametrize("device", ["foo", "", None, 3.5, "cuda:99"])
def test_a_device_that_torch_has_not_is_refused(device: Any) -> None:
    with pytest.raises(InvalidOptionError, match=r"^device must be one that torch can use here"):
        TensorPlacementEnv(2, "dlrm-20x4", device=device)


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_observations_without_costs_have_none(observation: str) -> None:
    seen = TensorPlacementEnv(2, "dlrm-20x4", observation=observation).reset()
    assert any("cost" in key for key in seen) == (observation not in COST_FREE)


def test_a_sampler_fills_a_pool_and_equal_seeds_draw_equal_tasks() -> None:
    source = TaskSampler(load_pool("dlrm-2021"), (4, 9), (2, 3), memory_slack=1.2)
    one, other, third = (TensorPlacementEnv(64, source, pool=10, seed=seed) for seed in (3, 3, 4))
    assert [task.name for task in one.tasks] == [task.name for task in other.tasks]
    assert len(one.tasks) == 10
    assert [task.name for task in one.tasks] != [task.name for task in third.tasks]
    assert torch.equal(one.reset()["table_features"], other.reset()["table_features"])
    assert set(one.task.tolist()) == set(range(10))
    assert one.batch_size == (64,)
    numpy, own = pair(TaskSuite("drawn", one.tasks), "features", "terminal", count=10)
    arrays, _ = numpy.reset(options={"tasks": list(range(10))})
    require_same_observations(own.reset(tasks=torch.arange(10)), arrays)


def test_no_number_of_a_tensor_is_asked_in_a_step() -> None:
    """On `meta` there are none; so a graph can hold a step."""
    for env in (TensorPlacementEnv(8, "generalize", device="meta"), TensorShardingEnv(8, "shard-8", device="meta")):
        env._begin_with(env.task)  # a reset draws tasks, which `meta` cannot
        obs, rewards, over = env.step(torch.zeros(8, dtype=torch.int64, device="meta"))
        assert (rewards.shape, over.shape, obs["action_mask"].shape) == ((8,), (8,), (8, env.num_actions))


@pytest.mark.parametrize(("kind", "suite"), [(TensorPlacementEnv, "constrained-8"), (TensorShardingEnv, "sequence-16")])
def test_a_step_is_one_graph(kind: type[TensorPlacementEnv], suite: str) -> None:
    """So `torch.compile` takes it as it is, and episodes are those of before."""
    env = kind(8, suite)
    env.reset(seed=0)

    def step(state: dict[str, torch.Tensor], actions: torch.Tensor) -> tuple[Any, ...]:
        env.load(state)
        return *env.step(actions), env.state()

    state, actions = env.state(), env.action_mask().int().argmax(dim=1)
    observations, rewards, over, after = torch.compile(step, backend="eager", fullgraph=True)(state, actions)
    own_observations, own_rewards, own_over, own_after = step(state, actions)
    assert torch.equal(rewards, own_rewards)
    assert torch.equal(over, own_over)
    assert all(torch.equal(after[name], value) for name, value in own_after.items())
    assert all(torch.equal(observations[name], value) for name, value in own_observations.items())


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"reward": "balance"}, UnknownNameError, "reward of tensors"),
        ({"observation": "half"}, UnknownNameError, "observation of tensors"),
        ({"num_envs": 0}, InvalidOptionError, "num_envs"),
        ({"illegal": "redirect"}, InvalidOptionError, "TensorPlacementEnv has no option 'illegal'"),
        ({"max_shards": 4}, InvalidOptionError, "TensorPlacementEnv has no option 'max_shards'"),
        ({"suite": "drift-medium-120"}, InvalidOptionError, "its environment is EmbeddingReplanning-v0"),
    ],
)
def test_what_it_does_not_play_is_named(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        TensorPlacementEnv(**{"num_envs": 2, "suite": "dlrm-20x4", **arguments})
    assert "balance" not in REWARDS


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda env: env.reset(tasks=torch.tensor([0])), "tasks must be a tensor of 4 int64, not torch.int64 of the"),
        (lambda env: env.reset(tasks=torch.tensor([0, 1, 2, -1])), "tasks must be numbers from 0 to 49, not -1 to 2"),
        (lambda env: env.begin(torch.tensor([50])), "tasks must be numbers from 0 to 49, not 50 to 50"),
        (lambda env: env.reset(mask=torch.tensor([True])), "mask must be a tensor of 4 bool"),
        (lambda env: env.step([0, 1, 2, 3]), "actions must be a tensor of 4 int64, not list"),
        (lambda env: env.step(torch.zeros(4)), "actions must be a tensor of 4 int64, not torch.float32"),
        (lambda env: env.step(torch.zeros(4, 1, dtype=torch.int64)), r"not torch.int64 of the shape \(4, 1\)"),
    ],
)
def test_tensors_of_another_shape_or_kind_are_refused(call: Callable[[Any], Any], says: str) -> None:
    env = TensorPlacementEnv(4, "dlrm-20x4", "test")
    with pytest.raises(InvalidOptionError, match=says):
        call(env)
    assert len(env.step(env.action_mask().int().argmax(dim=1))[1]) == 4  # the episodes are as before
