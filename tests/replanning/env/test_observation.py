"""What an agent of replanning sees: every key computed anew, of complete hours, and nothing of the future."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import make_cost_model
from shard_gym.replanning import DriftTask, EmbeddingReplanningEnv
from shard_gym.replanning.drift.levels import GROWING
from shard_gym.replanning.drift.processes import INTERVALS_PER_DAY
from shard_gym.replanning.drift.tasks import HISTORY_DAYS
from shard_gym.replanning.env import observation as module
from shard_gym.replanning.env.episode_data import DECISIONS, HOUR_SECONDS_PER_MS, EpisodeData, Plan
from shard_gym.replanning.env.windows import HOURS, KINDS, LAST_DAYS, WINDOWS, window_means

MakeEnv = Callable[..., EmbeddingReplanningEnv]
Tasks = dict[str, DriftTask]
NAMES = ("growing", "spot", "split")
MODEL = make_cost_model(additive=True, splits=True)
W = len(WINDOWS)


@pytest.mark.parametrize("name", NAMES)
def test_every_key_is_what_the_class_says(
    kinds_of_tasks: Tasks, env_for: MakeEnv, play_out: Any, write_out: Any, random_legal: Any, name: str
) -> None:
    task, rng = kinds_of_tasks[name], np.random.default_rng(1)
    env = env_for(task, max_devices=5, max_parts=50)
    actions, _, seen, _ = play_out(env, lambda mask: random_legal(mask, rng))
    data, devices, kinds = env.data, task.task.num_devices, env.action_space.n - 1
    assert kinds == (len(KINDS) if task.grows else W)
    written = write_out(data, task.pause_s, actions)
    plans = [(data.first_plan, LAST_DAYS, 0), *written.plans]  # in action before each decision
    noise = 1.0 + task.noise
    measured = np.concatenate([data.interval_ms(data.first_plan, -1).ravel(), *written.costs]) * noise
    for decision in [*rng.integers(DECISIONS, size=40).tolist(), 0, DECISIONS - 1]:
        obs, (plan, kind, since), (day, hour) = seen[decision], plans[decision], divmod(decision, HOURS)
        expected = write_observation(data, plan, lookups_before(task, since)[KINDS[kind].window], decision)
        options = data.options(day)
        for key in ("device_costs", "device_memory", "device_used", "lookup_changes"):
            assert obs[key] == pytest.approx(expected[key], rel=1e-6, abs=1e-6)
        costs = obs["replayed_costs"].reshape(1 + kinds, W)
        assert costs[0] == pytest.approx(expected["replayed_costs"], rel=1e-6)
        for each in range(kinds):
            possible = bool(options.possible[hour, each])
            ahead = options.replayed_ms[hour, each] / data.reference_ms if possible else np.zeros(W)
            assert costs[1 + each] == pytest.approx(ahead, rel=1e-6)
            assert obs["action_mask"][1 + each] == possible
        assert obs["action_mask"][0] == 1
        last_day = measured[4 * decision : 4 * decision + INTERVALS_PER_DAY]
        assert obs["measured_costs"] == pytest.approx(last_day / data.reference_ms, rel=1e-6)
        assert obs["device_mask"].tolist() == [1] * devices + [0] * (5 - devices)
        there = task.available[decision].astype(int).tolist()
        assert obs["device_available"].tolist() == there + [0] * (5 - devices)
        assert obs["made_for"].tolist() == np.eye(kinds, dtype=int)[kind].tolist()
        assert obs["since_plan"][0] == pytest.approx((decision - since) / HOURS)
        assert obs["must_plan"][0] == (not data.can_run(plan, day)[hour])
        seconds = HOURS * HOUR_SECONDS_PER_MS * data.reference_ms
        assert obs["pause"][0] == pytest.approx(task.pause_s / seconds, rel=1e-6)
        weekday = task.drift.first_weekday + HISTORY_DAYS + day + hour / 24
        angles = 2 * np.pi * hour / 24, 2 * np.pi * weekday / 7
        circle = [np.sin(angles[0]), np.sin(angles[1]), np.cos(angles[0]), np.cos(angles[1])]
        assert obs["time"] == pytest.approx([*circle, decision / DECISIONS], abs=1e-5)


def write_observation(data: EpisodeData, plan: Plan, lookups_then: np.ndarray, decision: int) -> dict[str, np.ndarray]:
    """The keys that depend on the plan, from the loads of the parts and the lookups that it was made for."""
    day, devices = decision // HOURS, len(plan.devices)
    fixed, lookups = data.on(devices), lookups_before(data.task, decision)
    loads, everywhere = fixed.parts.loads(HISTORY_DAYS + day, lookups)
    reduced = np.stack([MODEL.reduce(each, plan.placement, devices) for each in loads])
    phases, costs = MODEL.costs(MODEL.add(reduced, everywhere[:, None]), fixed.parts.topology.cluster())
    device_costs, memory, used = np.zeros((5, 4)), np.zeros(5), np.zeros(5)
    device_costs[plan.devices] = phases[0] / data.reference_ms
    caps, free = fixed.parts.topology.memory_cap_bytes, fixed.parts.free(HISTORY_DAYS + day)
    sizes = fixed.parts.bytes_of(HISTORY_DAYS + day)
    for position, device in enumerate(plan.devices):
        own = int(sizes[plan.placement == position].sum())
        memory[device], used[device] = (own + caps[position] - free[position]) / caps[position], 1.0
    return {
        "device_costs": device_costs.ravel(),
        "device_memory": memory,
        "device_used": used,
        "replayed_costs": costs / data.reference_ms,
        "lookup_changes": np.array(
            [
                *(change(each, lookups_then) for each in lookups),
                *(np.log((each.sum() + 0.01) / (lookups_then.sum() + 0.01)) for each in lookups),
            ]
        ),
    }


def lookups_before(task: DriftTask, decision: int) -> np.ndarray:
    """(W, T) mean lookups of each window."""
    return np.asarray(window_means(task.drift.lookups, HISTORY_DAYS * HOURS + decision, 1)[0])


def change(now: np.ndarray, before: np.ndarray) -> float:
    """The root of the mean square of the logarithms of ratios, weighted by the lookups before."""
    total = sum(weight * np.log((new + 0.01) / weight) ** 2 for new, weight in zip(now, before + 0.01, strict=True))
    return float(np.sqrt(total / (before + 0.01).sum()))


def test_the_means_of_windows_are_those_of_the_complete_hours_before_a_decision() -> None:
    rng = np.random.default_rng(0)
    lookups = rng.exponential(size=(400, 3))
    hourly = lookups.reshape(100, 4, 3).mean(axis=1)
    found = window_means(lookups, 75, 20)
    assert found.shape == (20, len(WINDOWS), 3)
    for decision in (0, 7, 19):
        hour = 75 + decision
        expected = [hourly[hour - 1], hourly[hour - 24 : hour], hourly[hour - 72 : hour], hourly[hour - 24 : hour - 12]]
        for window, each in enumerate(expected):
            assert found[decision, window] == pytest.approx(np.atleast_2d(each).mean(axis=0), rel=1e-9)


@pytest.mark.parametrize("at", [0, 7, 30])
def test_nothing_depends_on_the_future(
    drift_task: Callable[..., DriftTask], env_for: MakeEnv, same: Any, at: int
) -> None:
    """Two tasks with the same drift up to a decision, and other lookups from then on; other rows from the next day."""
    level = replace(GROWING, age_days=(3.0, 6.0), departures=2.0)
    one, other = (drift_task(6, 3, level=level) for _ in range(2))
    assert one.task is not other.task  # so they share no data
    lookups = other.drift.lookups.copy()
    lookups[(HISTORY_DAYS * HOURS + at) * 4 :] *= np.random.default_rng(0).uniform(0.2, 5.0, 6)
    rows, exponent, tomorrow = other.drift.rows.copy(), other.drift.exponent.copy(), HISTORY_DAYS + at // HOURS + 1
    rows[tomorrow:] *= 1.5
    exponent[tomorrow:] *= 1.1
    object.__setattr__(other, "drift", replace(other.drift, lookups=lookups, rows=rows, exponent=exponent))
    available = other.available.copy()
    available[at + 1 :] = ~available[at + 1 :]
    available[at + 1 :, 0] = True
    object.__setattr__(other, "available", available)
    envs = [env_for(task) for task in (one, other)]
    seen = [env.reset(seed=0) for env in envs]
    rng = np.random.default_rng(0)
    for decision in range(at + 1):
        assert same(seen[0][0], seen[1][0]), decision
        assert same(seen[0][1], seen[1][1]), decision
        action = int(rng.integers(9)) if rng.random() < 0.3 else 0
        seen = [env.step(action)[::4] for env in envs]
    assert not same(seen[0][0], seen[1][0])


def test_rows_of_days_are_kept_up_to_a_number(
    kinds_of_tasks: Tasks, env_for: MakeEnv, monkeypatch: pytest.MonkeyPatch, same: Any
) -> None:
    free = env_for(kinds_of_tasks["spot"])
    monkeypatch.setattr(module, "KEPT_DAYS", 2)
    few = env_for(kinds_of_tasks["spot"])
    for env in (free, few):
        env.reset()
    for _ in range(HOURS * 4):
        assert same(free.step(0), few.step(0))
    assert len(few._episodes._observe._given) == 2
