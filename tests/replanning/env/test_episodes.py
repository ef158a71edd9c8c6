"""Episodes of replanning: what hours take and what is charged, written out; repairs, illegal actions, ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from shard_gym.common.errors import InvalidActionError, InvalidCostError
from shard_gym.cost_models import AnalyticalShardingModel
from shard_gym.replanning import DriftTask, EmbeddingReplanningEnv
from shard_gym.replanning.drift.levels import DriftLevel
from shard_gym.replanning.env.episode_data import DECISIONS, HOUR_SECONDS_PER_MS
from shard_gym.replanning.env.episodes import REDIRECT_PENALTY
from shard_gym.replanning.env.history import NO_PLAN
from shard_gym.replanning.env.windows import HOURS, LAST_HOUR

MakeEnv = Callable[..., EmbeddingReplanningEnv]
Tasks = dict[str, DriftTask]
NAMES = ("plain", "spot", "growing spot")


def hour_s(env: EmbeddingReplanningEnv) -> float:
    """Seconds of an hour at the reference cost."""
    return env.data.reference_ms * HOUR_SECONDS_PER_MS


@pytest.mark.parametrize("name", NAMES)
def test_an_episode_takes_what_its_hours_take(
    kinds_of_tasks: Tasks, env_for: MakeEnv, play_out: Any, write_out: Any, random_legal: Any, name: str
) -> None:
    """Iterations, pauses and migrations, hour by hour; infos, history and noise-free costs."""
    task, rng = kinds_of_tasks[name], np.random.default_rng(0)
    env = env_for(task)
    actions, rewards, observations, infos = play_out(env, lambda mask: random_legal(mask, rng))
    written = write_out(env.data, task.pause_s, actions)
    assert len(rewards) == DECISIONS
    seconds = np.array(written.seconds)
    assert -np.array(rewards) * hour_s(env) == pytest.approx(seconds.sum(axis=1), rel=1e-9)
    assert all(env.observation_space.contains(obs) for obs in observations)
    last = infos[-1]
    parts = [last["running_s"], last["paused_s"], last["moved_s"]]
    assert parts == pytest.approx(seconds.sum(axis=0), rel=1e-9)
    assert -sum(rewards) * hour_s(env) == pytest.approx(sum(parts), rel=1e-9)
    made = np.array(written.made)
    assert (last["plans"], last["repairs"]) == tuple(made.sum(axis=0).tolist())
    assert last["failure"] == last["redirected"] == 0
    assert (last["repairs"] > 0) == (name != "plain")
    for info in infos[:-1]:
        assert {info[key] for key in ("running_s", "paused_s", "moved_s", "plans", "repairs")} == {0}
    before = env.data.interval_ms(env.data.first_plan, -1).ravel()[-4:].mean()
    means = [before, *(costs.mean() for costs in written.costs)]
    assert [info["cost_ms"] for info in infos] == pytest.approx(means, rel=1e-12)
    for info, (plan, _, _) in zip(infos[1:], written.plans, strict=True):
        assert info["placement"][: env.data.num_parts].tolist() == plan.where.tolist()
        assert (info["placement"][env.data.num_parts :] == -1).all()
    history = env.history()
    assert history.hourly_ms == pytest.approx(means[1:], rel=1e-12)
    assert history.seconds == pytest.approx(seconds, rel=1e-9, abs=1e-12)
    assert history.repairs.tolist() == made[:, 1].tolist()
    assert history.kinds.tolist() == [
        kind if new else NO_PLAN for (_, kind, _), new in zip(written.plans, made[:, 0], strict=True)
    ]


def test_without_drift_an_hour_takes_an_hour_and_a_pause_if_a_plan_is_made(drift_task: Any, env_for: MakeEnv) -> None:
    env = env_for(drift_task(level=DriftLevel(), pause_s=45.0))
    env.reset()
    seconds = [-env.step(action)[1] * hour_s(env) for action in (0, 3)]  # 3: the same plan again, nothing moves
    assert seconds == pytest.approx([hour_s(env), hour_s(env) + 45.0], rel=1e-9)


def test_a_plan_that_must_be_made_is_a_repair_whichever_action_makes_it(
    kinds_of_tasks: Tasks, env_for: MakeEnv
) -> None:
    env = env_for(kinds_of_tasks["spot"])
    obs, _ = env.reset()
    over, forced = False, 0
    while not over:
        forced += int(obs["must_plan"][0])
        obs, _, over, _, info = env.step(2 if obs["must_plan"][0] else 0)
    assert info["plans"] == info["repairs"] == forced > 5
    assert set(env.history().kinds.tolist()) == {NO_PLAN, 1}


def test_excess_differs_from_time_by_what_no_action_changes(
    kinds_of_tasks: Tasks, env_for: MakeEnv, play_out: Any, random_legal: Any
) -> None:
    differences = []
    for seed in (0, 1):
        rewards = []
        for reward in ("time", "excess"):
            rng = np.random.default_rng(seed)
            env = env_for(kinds_of_tasks["growing spot"], reward=reward)
            rewards.append(play_out(env, lambda mask, rng=rng: random_legal(mask, rng)).rewards)
        differences.append(np.subtract(rewards[1], rewards[0]))
    assert differences[0] == pytest.approx(differences[1], abs=1e-9)
    data = env.data
    for decision in (*range(24), 150, DECISIONS - 1):
        day, hour = divmod(decision, HOURS)
        always_ms = data.run(data.plan(decision, LAST_HOUR), day).interval_ms[hour].mean()
        assert differences[0][decision] == pytest.approx(always_ms / data.reference_ms, rel=1e-9)


def first_illegal(env: EmbeddingReplanningEnv) -> int:
    """Keeps the plan until an action is illegal; returns it."""
    env.reset(seed=0)
    for _ in range(DECISIONS):
        if not env.action_masks().all():
            return int(env.action_masks().argmin())
        env.step(0)
    raise AssertionError("all actions are legal")


def test_an_illegal_action_costs_more_than_any_legal_play(
    kinds_of_tasks: Tasks, env_for: MakeEnv, random_legal: Any, same: Any
) -> None:
    env = env_for(kinds_of_tasks["growing"], info_text=True)
    action = first_illegal(env)
    assert action >= 5
    at = len(env.history().hourly_ms)
    others = [env.clone() for _ in range(3)]
    before, _ = env._observation(), env.history()
    obs, penalty, terminated, truncated, info = env.step(action)
    assert (terminated, truncated) == (True, False)
    assert info["failure"] == 1
    assert "no plan of the kind" in info["failure_message"]
    failure = env.failure()
    assert failure is not None
    assert failure["reason"] == "illegal_action"
    assert info["running_s"] == pytest.approx(env.history().seconds[:, 0].sum())
    assert len(env.history().hourly_ms) == at
    assert same(obs, before)  # of the decision at which it was, not of the hours after it
    assert env.action_masks().tolist() == before["action_mask"].astype(bool).tolist()
    with pytest.raises(ResetNeeded):
        env.step(0)
    rng, returns = np.random.default_rng(0), []
    for number, other in enumerate(others):
        total, over = 0.0, False
        while not over:
            mask = other.action_masks()
            chosen = random_legal(mask, rng, 0.5) if number < 2 else int(np.flatnonzero(mask)[-1])
            _, reward, over, _, _ = other.step(chosen)
            total += reward
        returns.append(total)
    assert penalty < min(returns)
    expected = 1.1 * (DECISIONS - at) * (env.data.highest_hour_seconds + 600.0) / hour_s(env)
    assert penalty == pytest.approx(-expected, rel=1e-9)


def test_actions_with_headroom_are_illegal_where_no_table_grows(kinds_of_tasks: Tasks, env_for: MakeEnv) -> None:
    env = env_for(kinds_of_tasks["plain"], headroom=True)
    obs, _ = env.reset()
    assert obs["action_mask"].tolist() == [1] * 5 + [0] * 4
    assert env.step(5)[2]
    env.reset()
    with pytest.raises(
        InvalidActionError, match="An action is 0 to keep the plan, or from 1 to 8 to make one of a kind"
    ):
        env.step(9)


@pytest.mark.parametrize("reward", ["time", "excess"])
def test_a_redirected_action_makes_the_plan_without_headroom(
    kinds_of_tasks: Tasks, env_for: MakeEnv, reward: str
) -> None:
    env = env_for(kinds_of_tasks["growing"], illegal="redirect", reward=reward)
    for action in range(first_illegal(env), 9):
        if env.action_masks()[action]:
            continue
        one, other = env.clone(), env.clone()
        obs, charged, over, _, info = one.step(action)
        _, expected, _, _, legal = other.step(action - 4)
        assert not over
        assert charged == pytest.approx(expected - REDIRECT_PENALTY, rel=1e-12)
        assert np.array_equal(info["placement"], legal["placement"])
        assert (info["redirected"], legal["redirected"], info["failure"]) == (1, 0, 0)
        assert obs["made_for"][action - 5] == 1
        assert one.history().kinds[-1] == action - 5


def test_after_the_last_decision_nothing_goes_on(
    kinds_of_tasks: Tasks, env_for: MakeEnv, play_out: Any, same: Any
) -> None:
    env = env_for(kinds_of_tasks["plain"])
    actions, _, observations, infos = play_out(env, lambda mask: 0)
    assert len(actions) == DECISIONS
    assert same(observations[-1], observations[-2])  # of the last decision again, with the same plan
    assert infos[-1]["cost_ms"] == env.history().hourly_ms[-1]
    with pytest.raises(ResetNeeded, match="over"):
        env.step(0)
    assert len(env.history().hourly_ms) == DECISIONS
    obs, info = env.reset(seed=0)
    assert same(obs, observations[0])
    assert same(info, infos[0])
    assert len(env.history().hourly_ms) == 0


def test_a_clone_is_independent(kinds_of_tasks: Tasks, env_for: MakeEnv, random_legal: Any, same: Any) -> None:
    env = env_for(kinds_of_tasks["growing spot"], illegal="redirect")
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(50):
        env.step(random_legal(env.action_masks(), rng))
    clone, again = env.clone(), env.clone()
    before = env._observation(), env._info(), env.history()
    for _ in range(60):
        clone.step(random_legal(clone.action_masks(), rng, 0.5))
    assert same(before, (env._observation(), env._info(), env.history()))
    for _ in range(30):
        assert same(env.step(1), again.step(1))
    assert not same(env._observation(), clone._observation())


class Broken(AnalyticalShardingModel):
    """A model that says NaN for the whole iteration."""

    name = "broken"

    def iteration_cost(self, phases: Any, shared: Any, cluster: Any) -> Any:
        return super().iteration_cost(phases, shared, cluster) * np.nan


def test_costs_that_are_no_numbers_are_refused_at_the_end(drift_task: Any, env_for: MakeEnv) -> None:
    env = env_for(drift_task(3), cost_model=Broken())
    env.reset()
    for _ in range(DECISIONS - 1):
        env.step(0)
    with pytest.raises(InvalidCostError, match="says nan s for task 'drift 0'; every cost must be a finite number"):
        env.step(0)


def test_history_and_data_need_an_episode(kinds_of_tasks: Tasks, env_for: MakeEnv) -> None:
    env = env_for(replace(kinds_of_tasks["plain"], seed=3))
    for ask in (env.history, lambda: env.data, env.failure, env.action_masks):
        with pytest.raises(ResetNeeded, match="reset"):
            ask()
