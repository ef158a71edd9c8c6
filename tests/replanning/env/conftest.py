"""Tasks of all kinds for tests of replanning, and whole episodes written out step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from shard_gym.replanning import DriftSuite, DriftTask, EmbeddingReplanningEnv
from shard_gym.replanning.drift.levels import GROWING, SPOT, STRONG
from shard_gym.replanning.env.episode_data import EpisodeData, Plan
from shard_gym.replanning.env.windows import HOURS, LAST_DAYS, LAST_HOUR

QUICK = replace(GROWING, age_days=(3.0, 6.0), pruned=0.02)
"""Tables grow so fast that plans become too large."""

OFTEN = replace(SPOT, departures=4.0, away_hours=(2.0, 8.0))
"""Devices leave and return often."""


@pytest.fixture(scope="session")
def short() -> Callable[..., DriftTask]:
    """Gives a task caps of a share of the least with which all tables can have room on all days."""

    def capped(task: DriftTask, share: float = 1.3) -> DriftTask:
        need = task.task.tables.memory_bytes * task.drift.rows.max(axis=0)
        least = need.sum() / task.task.num_devices
        cap = int(share * (least if task.task.splittable else max(least, need.max())))
        topology = replace(task.task.topology, memory_cap_bytes=np.full(task.task.num_devices, cap))
        return replace(task, task=replace(task.task, topology=topology))

    return capped


@pytest.fixture(scope="session")
def kinds_of_tasks(drift_task: Callable[..., DriftTask], short: Callable[..., DriftTask]) -> dict[str, DriftTask]:
    """A task of each kind, of several sizes."""
    found = {
        "plain": drift_task(6, 2, 0, STRONG),
        "growing": short(drift_task(8, 2, 6, QUICK, 600.0), 1.15),
        "spot": drift_task(7, 4, 2, OFTEN, 120.0),
        "split": drift_task(5, 3, 4, STRONG, 30.0, splittable=True),
        "growing spot": drift_task(5, 3, 5, replace(QUICK, departures=2.0), splittable=True),
    }
    return {name: replace(task, name=name) for name, task in found.items()}


@pytest.fixture(scope="session")
def env_for() -> Callable[..., EmbeddingReplanningEnv]:
    """Makes an environment over the tasks given."""

    def make(*tasks: DriftTask, **arguments: Any) -> EmbeddingReplanningEnv:
        return EmbeddingReplanningEnv(DriftSuite("own", tasks), **arguments)

    return make


@dataclass
class Written:
    """An episode step by step; lists have an element for each hour.

    Attributes:
        plans: in action in the hour, with its kind and the decision at which it was made.
        costs: (4,) ms in each interval.
        seconds: of iterations, of the pause, of the migration.
        made: whether a plan was made, and whether it had to be.
    """

    plans: list[tuple[Plan, int, int]] = field(default_factory=list)
    costs: list[np.ndarray] = field(default_factory=list)
    seconds: list[tuple[float, float, float]] = field(default_factory=list)
    made: list[tuple[bool, bool]] = field(default_factory=list)


@pytest.fixture(scope="session")
def write_out() -> Callable[..., Written]:
    """Plays actions on the data of an episode, hour by hour, without an environment."""

    def play(data: EpisodeData, pause_s: float, actions: Sequence[int]) -> Written:
        written, plan, kind, since = Written(), data.first_plan, LAST_DAYS, 0
        for decision, action in enumerate(actions):
            day, hour = divmod(decision, HOURS)
            must = not data.can_run(plan, day)[hour]
            pause = migration = 0.0
            if action or must:
                kind, since = action - 1 if action else LAST_HOUR, decision
                new = data.plan(decision, kind)
                pause, migration = pause_s, data.migration_seconds(plan, new, day)
                plan = new
            costs = data.run(plan, day).interval_ms[hour]
            written.plans.append((plan, kind, since))
            written.costs.append(costs)
            written.seconds.append((float(costs.mean()) * 100_000 / 24 / 1000, pause, migration))
            written.made.append((bool(action or must), bool(must)))
        return written

    return play


class Played(NamedTuple):
    """Actions and rewards of a whole episode; observations and infos with those of the reset."""

    actions: list[int]
    rewards: list[float]
    observations: list[dict[str, Any]]
    infos: list[dict[str, Any]]


@pytest.fixture(scope="session")
def play_out() -> Callable[..., Played]:
    """Plays a whole episode with the actions that a function chooses by the mask."""

    def play(env: EmbeddingReplanningEnv, choose: Callable[[np.ndarray], int]) -> Played:
        obs, info = env.reset(seed=0)
        played, over = Played([], [], [obs], [info]), False
        while not over:
            action = choose(info["action_mask"])
            obs, reward, over, truncated, info = env.step(action)
            assert not truncated
            for kept, new in zip(played, (action, reward, obs, info), strict=True):
                kept.append(new)
        return played

    return play


@pytest.fixture(scope="session")
def random_legal() -> Callable[..., int]:
    """Draws a legal action: keep in most hours, since plans are many otherwise."""

    def draw(mask: np.ndarray, rng: np.random.Generator, share: float = 0.1) -> int:
        return int(rng.choice(np.flatnonzero(mask))) if rng.random() < share else 0

    return draw
