"""Masks of the environments keep episodes to the constraints of their tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from shard_gym.plans import SHARDING_TYPES
from shard_gym.plans.constraints import Constraints
from shard_gym.tasks import Task, TaskSuite, problem_of

IDS = ("EmbeddingPlacement-v0", "EmbeddingSharding-v0")


@pytest.fixture
def suite(random_task: Callable[..., Task], random_constraints: Callable[..., Constraints]) -> Callable[..., TaskSuite]:
    """Tasks of three sizes; all but the last have constraints."""

    def made(splits: bool) -> TaskSuite:
        rng, tasks = np.random.default_rng(2), []
        for number, (tables, devices) in enumerate(((8, 4), (10, 2), (6, 4), (8, 4))):
            task = random_task(rng, tables, devices, devices_per_host=2, name=f"task {number}")
            limits = random_constraints(rng, task, types=splits) if number < 3 else None
            tasks.append(replace(task, splittable=splits, known_placement=None, constraints=limits))
        return TaskSuite("constrained", tuple(tasks))

    return made


@pytest.mark.parametrize("env_id", IDS)
def test_every_episode_that_completes_meets_the_constraints(env_id: str, suite: Callable[..., TaskSuite]) -> None:
    splits = env_id == IDS[1]
    tasks, rng, complete, forms = suite(splits), np.random.default_rng(0), 0, set()
    env: Any = gym.make(env_id, suite=tasks).unwrapped
    for episode in range(60):
        task = tasks[episode % len(tasks)]
        env.reset(seed=episode, options={"task": task.name})
        over = False
        while not over:
            _, _, over, _, info = env.step(int(rng.choice(np.flatnonzero(env.action_masks()))))
        if failure := env.failure():
            assert failure["reason"] == "dead_end"
            assert ("Its task has constraints." in failure["message"]) == (task.constraints is not None)
            continue
        complete += 1
        answer = env.plan if splits else info["placement"][: task.num_tables]
        problem_of(task).checked(answer, task)
        forms |= {each.sharding_type for each in env.plan.tables} if splits else set()
    assert complete > 30
    assert not splits or forms == set(SHARDING_TYPES)


@pytest.mark.parametrize("env_id", IDS)
def test_many_environments_have_the_masks_of_single_ones(
    env_id: str, suite: Callable[..., TaskSuite], same: Callable[[Any, Any], bool]
) -> None:
    tasks, rng = suite(env_id == IDS[1]), np.random.default_rng(1)
    many: Any = gym.make_vec(env_id, num_envs=len(tasks), vectorization_mode="vector_entry_point", suite=tasks)
    single: list[Any] = [gym.make(env_id, suite=tasks).unwrapped for _ in tasks]
    numbers = np.arange(len(tasks))
    _, infos = many.reset(seed=0, options={"tasks": numbers.tolist()})
    for number, env in zip(numbers.tolist(), single, strict=True):
        env.reset(seed=0, options={"task": number})
    over, narrowed = np.zeros(len(tasks), np.bool_), 0
    while not over.all():
        masks = infos["action_mask"].astype(np.bool_)
        for number, env in enumerate(single):
            if not over[number]:
                assert np.array_equal(masks[number], env.action_masks())
                narrowed += not masks[number][: tasks[number].num_devices].all()
        actions = np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])
        _, _, ended, _, infos = many.step(actions)
        for number, env in enumerate(single):
            if not over[number]:
                assert env.step(int(actions[number]))[2] == ended[number]
        over |= ended
    assert narrowed > 5


def test_an_action_that_constraints_forbid_ends_the_episode(random_task: Callable[..., Task]) -> None:
    task = random_task(np.random.default_rng(3), 4, 3)
    devices = np.tile(np.arange(3) == 1, (4, 1))
    limits = replace(Constraints.none(4, 3), devices=devices)
    task = replace(task, known_placement=None, constraints=limits)
    env: Any = gym.make(IDS[0], suite=TaskSuite("one", (task,))).unwrapped
    env.reset(seed=0)
    assert env.action_masks().tolist() == [False, True, False]
    _, _, over, _, _ = env.step(0)
    assert over
    assert env.failure()["reason"] == "illegal_action"


def test_the_first_of_tables_that_stay_together_goes_where_all_fit(random_tables: Callable[..., Any]) -> None:
    tables = random_tables(np.random.default_rng(4), 1, dims=(16,)).select(np.zeros(3, np.int64))
    size = int(tables.memory_bytes[0])
    template: Any = gym.make(IDS[0]).unwrapped
    template.reset(seed=0)
    topology = replace(template.task.topology, num_devices=2, memory_cap_bytes=np.array([3 * size, 2 * size]))
    limits = replace(Constraints.none(3, 2), together=((0, 1, 2),))
    env: Any = gym.make(IDS[0], suite=TaskSuite("one", (Task("t", tables, topology, constraints=limits),))).unwrapped
    env.reset(seed=0)
    for _ in range(3):
        assert env.action_masks().tolist() == [True, False]
        env.step(0)
    assert env.failure() is None
