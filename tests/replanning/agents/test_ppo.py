"""PPO, MaskablePPO and RecurrentPPO on replanning: the environments they train in, training, and their agents."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from shard_gym.agents import load_agent
from shard_gym.agents.sb3.vec_env import ReplanningVecEnv
from shard_gym.agents.training import Learner, Report, TrainingRun, make_learner
from shard_gym.common.errors import InvalidCheckpointError, InvalidOptionError
from shard_gym.cost_models import make_cost_model
from shard_gym.replanning import DriftSuite, DriftTask
from shard_gym.replanning.agents.base import View
from shard_gym.replanning.agents.ppo import (
    ALGORITHMS,
    ARGUMENTS,
    KEEP,
    PER_PLAN,
    PolicyInputs,
    PolicyVecEnv,
    ReplanningPpoLearner,
    input_space,
    legal_actions,
    load_policy,
)
from shard_gym.replanning.drift.levels import GROWING
from shard_gym.replanning.env.episode_data import DECISIONS
from shard_gym.replanning.env.play import play
from shard_gym.replanning.env.windows import HOURS, KINDS
from shard_gym.tasks import load_suite

SMALL: dict[str, Any] = {"iterations": 2, "num_envs": 2, "width": 8}


@pytest.fixture(scope="module")
def suite(drift_task: Callable[..., DriftTask]) -> DriftSuite:
    """Two tasks whose rows drift; there is not always room for growth, and in one of them devices leave."""
    level = replace(GROWING, age_days=(3.0, 6.0), pruned=0.02)
    leaving = replace(level, departures=1.0)
    full = drift_task(tables=5, devices=2, level=level, seed=2, pause_s=5.0, cap=1.6)
    return DriftSuite("two", (full, drift_task(tables=5, devices=3, level=leaving, seed=1, pause_s=5.0)))


@pytest.fixture(autouse=True)
def _one_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An iteration learns once from each of its weeks."""
    monkeypatch.setitem(ARGUMENTS, "n_epochs", 1)


@pytest.fixture(autouse=True)
def _generators_untouched() -> Iterator[None]:
    before = torch.get_rng_state()
    yield
    assert torch.equal(before, torch.get_rng_state())


def some_actions(envs: int, kinds: int) -> Iterator[NDArray[np.int64]]:
    """Actions of an episode; a plan is made every tenth hour."""
    rng = np.random.default_rng(2)
    for _ in range(DECISIONS):
        yield np.where(rng.random(envs) < 0.1, rng.integers(1, 1 + kinds, envs), 0)


def test_policies_see_their_inputs_and_earn_days_in_excess(suite: DriftSuite) -> None:
    envs, plain = PolicyVecEnv(2, suite=suite, split="custom"), ReplanningVecEnv(2, suite=suite, reward="excess")
    for each in (envs.venv, plain):
        each.set_options([{"task": number} for number in range(2)])  # type: ignore[attr-defined]
    seen: Any = envs.reset()
    other: Any = plain.reset()
    assert np.array_equal(plain.env_method("action_masks"), other["action_mask"].astype(bool))
    assert envs.observation_space == input_space(len(KINDS))
    for actions in some_actions(2, len(KINDS)):
        assert envs.observation_space.contains(seen[0])
        view = View.of(other)
        seen, rewards, dones, infos = envs.step(actions)
        other, plain_rewards, _, _ = plain.step(legal_actions(actions, view.legal, view.must_plan))
        assert rewards == pytest.approx(plain_rewards / HOURS, rel=1e-6)
    assert dones.all()
    assert "terminal_observation" not in infos[0]


def test_inputs_count_the_regret_since_the_last_plan(view: Callable[..., View]) -> None:
    inputs = PolicyInputs()
    inputs.begin(2, 4)
    regrets = []
    for since in (0, 1, 2, 3, 1, 2, 0):
        found = inputs.of(view(since_plan=np.full(2, since / HOURS), pause=np.full(2, 0.1)))[0]
        assert found[0] == pytest.approx(np.arcsinh(0.1 * 3.0 / 0.1))
        regrets.append(round(float(np.sinh(found[PER_PLAN - 2])) * HOURS, 4))
    assert regrets == [0, 1, 2, 3, 1, 2, 0]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_run_that_was_killed_ends_like_one_that_was_not_and_its_agent_plays(
    name: str, suite: DriftSuite, tmp_path: Path
) -> None:
    whole, costs = make_learner(name, suite, seed=3, **SMALL), list[float]()
    assert isinstance(whole, ReplanningPpoLearner)
    before = {key: array.copy() for key, array in whole.weights().items()}
    assert before["action_net.bias"].tolist() == [KEEP] + [0.0] * len(KINDS)

    def keep(learner: Learner, report: Report) -> None:
        """The files of a run that is killed now."""
        costs.append(report.mean_cost_ms)
        if learner.iteration == 1:
            shutil.copytree(tmp_path / "whole", tmp_path / "killed")

    trained: Any = TrainingRun(whole, tmp_path / "whole", SMALL).run(keep)
    assert min(costs) > 0
    assert not any(np.array_equal(before[key], array) for key, array in whole.weights().items())
    again: Any = make_learner(name, suite, seed=3, **SMALL)
    with torch.random.fork_rng():
        torch.manual_seed(1)  # the global generators must not matter
        TrainingRun(again, tmp_path / "killed", SMALL, resume=True).run()
    assert again.true_cost_queries == 2 * 2 * DECISIONS
    assert all(np.array_equal(again.weights()[key], array) for key, array in whole.weights().items())
    loaded: Any = load_agent(tmp_path / "whole")
    assert (loaded.name, loaded.problems, loaded.kinds) == (name, ("replanning",), len(KINDS))
    weights = loaded.policy.state_dict()
    assert weights.keys() == trained.policy.state_dict().keys() == whole.weights().keys()
    assert all(torch.equal(array, weights[key]) for key, array in trained.policy.state_dict().items())
    assert all(np.array_equal(array, weights[key]) for key, array in whole.weights().items())
    with torch.no_grad():
        loaded.policy.action_net.weight *= 300.0  # it was trained for four weeks only
        loaded.policy.action_net.bias *= 0.5
    assert any(each.actions.any() for each in play(loaded, list(suite), "analytical"))
    small = ReplanningVecEnv(1, suite=suite, split="custom", headroom=False)
    loaded.begin(1)
    seen: Any = small.reset()
    with pytest.raises(InvalidOptionError, match="kinds of plans, and here there are"):
        loaded.act(seen)


def test_what_is_done_where_there_is_no_such_plan_or_one_must_be_made() -> None:
    legal = np.ones((5, 9), np.bool_)
    legal[:3, 5:] = False
    must = np.array([False, False, True, True, True])
    assert legal_actions(np.array([7, 0, 0, 0, 2]), legal, must).tolist() == [3, 0, 3, 7, 2]


def test_mistakes_are_told(suite: DriftSuite) -> None:
    with pytest.raises(InvalidOptionError, match="num_envs must be an integer"):
        make_learner("ppo", suite, num_envs=1)
    with pytest.raises(InvalidOptionError, match="'recurrent-ppo' learns replanning, and 'mixdim-4' is a suite of pla"):
        make_learner("recurrent-ppo", load_suite("mixdim-4", "train"))
    with pytest.raises(InvalidOptionError, match="'dreamshard' learns placement and sharding, and 'two' is a suite of"):
        make_learner("dreamshard", suite)
    with pytest.raises(InvalidOptionError, match=r"ReplanningVecEnv\(64, suite='drift-medium-120'\)"):
        ReplanningVecEnv(suite)  # type: ignore[arg-type]
    model = make_cost_model("analytical")
    with pytest.raises(InvalidCheckpointError, match="algorithm 'pop'; known are"):
        load_policy({}, {"agent": "pop", "kinds": 4, "width": 8}, model, 0)
    with pytest.raises(InvalidCheckpointError, match="lacks the array"):
        load_policy({}, {"agent": "ppo", "kinds": 4, "width": 8}, model, 0)
