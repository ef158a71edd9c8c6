"""PPO, MaskablePPO and RecurrentPPO on replanning: the environments they train in, training, and their players."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecMonitor

from shard_gym.agents.replanning.base import View
from shard_gym.agents.replanning.plan_table import PlanTable
from shard_gym.agents.replanning.policy_inputs import PER_PLAN, PolicyInputs, input_space
from shard_gym.agents.replanning.sb3 import ALGORITHMS, KEEP, Sb3Player, load_player, save_player, train
from shard_gym.agents.replanning.table_episodes import TableEpisodes
from shard_gym.agents.replanning.training_envs import PlayedVecEnv, TableVecEnv, legal_actions
from shard_gym.agents.sb3.vec_env import ReplanningVecEnv
from shard_gym.agents.training.torch_arrays import module_arrays
from shard_gym.cost_models import make_sharding_cost_model
from shard_gym.drift.levels import GROWING
from shard_gym.drift.suites import DriftSuite
from shard_gym.drift.tasks import DriftTask
from shard_gym.envs.replanning.env import EmbeddingReplanningEnv
from shard_gym.envs.replanning.episode_data import DECISIONS, HOUR_SECONDS_PER_MS, episode_data
from shard_gym.envs.replanning.history import NO_PLAN
from shard_gym.envs.replanning.play import play
from shard_gym.envs.replanning.windows import HOURS, KINDS
from shard_gym.errors import InvalidCheckpointError, InvalidOptionError, UnknownNameError
from shard_gym.io.arrays import Arrays, save_arrays

MODEL = make_sharding_cost_model("analytical")


@pytest.fixture(scope="module")
def suite(drift_task: Callable[..., DriftTask]) -> DriftSuite:
    """Two tasks whose rows drift; there is not always room for growth, and in one of them devices leave."""
    level = replace(GROWING, age_days=(3.0, 6.0), pruned=0.02)
    leaving = replace(level, departures=1.0)
    full = drift_task(tables=5, devices=2, level=level, seed=2, pause_s=5.0, cap=1.6)
    return DriftSuite("two", (full, drift_task(tables=5, devices=3, level=leaving, seed=1, pause_s=5.0)))


@pytest.fixture(scope="module")
def episodes(suite: DriftSuite) -> TableEpisodes:
    """Their tables of plans."""
    return TableEpisodes.of([PlanTable.of(episode_data(task, MODEL)) for task in suite])


@pytest.fixture(scope="module")
def trained(suite: DriftSuite, episodes: TableEpisodes) -> dict[str, Sb3Player]:
    """A player of each algorithm after two weeks of training."""
    envs = TableVecEnv(episodes, suite[0].pause_s)
    return {name: train(name, envs, steps=2 * DECISIONS, width=8, seed=3) for name in ALGORITHMS}


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


def test_the_adapter_returns_what_the_environments_return(suite: DriftSuite) -> None:
    vec = ReplanningVecEnv(2, suite=suite, split="custom", reward="excess", illegal="redirect")
    vec.set_options([{"task": number} for number in (1, 0)])
    seen: Any = vec.reset()
    scalars = [EmbeddingReplanningEnv(suite, "custom", reward="excess", illegal="redirect") for _ in range(2)]
    for number, (env, task) in enumerate(zip(scalars, (1, 0), strict=True)):
        first, _ = env.reset(options={"task": task})
        assert all(np.array_equal(first[key], seen[key][number]) for key in first)
    for hour, actions in enumerate(some_actions(2, len(KINDS))):
        assert np.array_equal(vec.env_method("action_masks"), [env.action_masks() for env in scalars])
        seen, rewards, dones, infos = vec.step(actions)
        for number, env in enumerate(scalars):
            observation, reward, over, _, info = env.step(int(actions[number]))
            assert (np.float32(reward), over) == (rewards[number], dones[number])
            last = infos[number]["terminal_observation"] if over else {key: seen[key][number] for key in seen}
            assert all(np.array_equal(observation[key], last[key]) for key in observation)
            assert all(np.array_equal(info[key], infos[number][key]) for key in info if over)
        assert dones.all() == (hour == DECISIONS - 1)


def test_tables_replay_the_inputs_and_rewards_of_the_environment(suite: DriftSuite, episodes: TableEpisodes) -> None:
    replayed, played = TableVecEnv(episodes, suite[0].pause_s), PlayedVecEnv(2, suite=suite, split="custom")
    played.venv.set_options([{"task": number} for number in range(2)])
    assert replayed.observation_space == played.observation_space == input_space(len(KINDS))
    one: Any = replayed.reset()
    other: Any = played.reset()
    kinds = replayed.env_method("action_masks")[0].size - 1
    hour_s = episodes.day_s / HOURS
    earned = np.zeros(2)
    for actions in some_actions(2, kinds):
        assert np.allclose(one, other, atol=2e-3)
        assert np.array_equal(replayed.env_method("action_masks"), played.env_method("action_masks"))
        one, first, over, ended = replayed.step(actions)
        other, second, dones, infos = played.step(actions)
        earned += first - second
        assert np.array_equal(over, dones)
        if not over.any():
            assert replayed.observation_space.contains(one[0])
    assert all(set(info) == {"seconds"} for info in ended)
    migrations = np.array([info["moved_s"] for info in infos])
    assert earned * HOURS == pytest.approx(migrations / hour_s, rel=1e-3, abs=1e-3)
    assert [info["seconds"] for info in ended] == pytest.approx(
        [info["running_s"] + info["paused_s"] for info in infos], rel=1e-9
    )
    assert "terminal_observation" not in infos[0]
    assert infos[1]["plans"] > infos[0]["plans"]


def test_inputs_count_the_regret_since_the_last_plan() -> None:
    replayed = np.full((1, 5, 4), 0.9)
    replayed[:, 0] = 1.0
    inputs = PolicyInputs()
    inputs.begin(1, 4)
    regrets = []
    for since in (0, 1, 2, 3, 1, 2, 0):
        view = View(
            replayed,
            np.ones((1, 5), np.bool_),
            np.array([since / HOURS]),
            np.array([0.1]),
            np.zeros(1, np.bool_),
            np.zeros((1, 4)),
            np.array([9.0]),
            np.ones(1),
            np.ones(1),
            np.zeros((1, 0)),
        )
        found = inputs.of(view)[0]
        assert found[0] == pytest.approx(np.arcsinh(0.1 * 3.0 / 0.1))
        regrets.append(round(float(np.sinh(found[PER_PLAN - 2])) * HOURS, 4))
    assert regrets == [0, 1, 2, 3, 1, 2, 0]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_training_changes_all_weights_and_equal_seeds_give_equal_ones(
    name: str, suite: DriftSuite, episodes: TableEpisodes, trained: dict[str, Sb3Player]
) -> None:
    first: Arrays = {}
    steps = []

    def keep(done: int, player: Sb3Player) -> None:
        steps.append(done)
        if not first:
            first.update(module_arrays(player.policy))

    again = train(name, TableVecEnv(episodes, suite[0].pause_s), steps=2 * DECISIONS, width=8, seed=3, on_update=keep)
    assert steps == [DECISIONS, 2 * DECISIONS]
    assert first["action_net.bias"].tolist() == [KEEP] + [0.0] * again.kinds
    found = module_arrays(again.policy)
    assert all(np.array_equal(found[key], array) for key, array in module_arrays(trained[name].policy).items())
    assert not any(np.array_equal(found[key], array) for key, array in first.items())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_saved_player_acts_the_same(
    name: str, suite: DriftSuite, episodes: TableEpisodes, trained: dict[str, Sb3Player], tmp_path: Path
) -> None:
    save_player(tmp_path / "player.safetensors", trained[name])
    player = load_player(tmp_path / "player.safetensors")
    with torch.no_grad():
        player.policy.action_net.weight *= 300.0  # it was trained for two weeks only
        player.policy.action_net.bias *= 0.5
    save_player(tmp_path / "player.safetensors", player)
    loaded = load_player(tmp_path / "player.safetensors")
    assert (loaded.name, loaded.kinds, loaded.width) == (name, player.kinds, 8)
    seconds = episodes.play(player, suite[0].pause_s)
    assert episodes.play(loaded, suite[0].pause_s).tolist() == seconds.tolist()
    [played] = play(loaded, list(suite)[1:])
    assert played.history.seconds[:, :2].sum() == pytest.approx(seconds[1], rel=1e-9)
    assert (played.history.kinds != NO_PLAN).any()


def test_what_is_done_where_there_is_no_such_plan_or_one_must_be_made() -> None:
    legal = np.ones((5, 9), np.bool_)
    legal[:3, 5:] = False
    must = np.array([False, False, True, True, True])
    assert legal_actions(np.array([7, 0, 0, 0, 2]), legal, must).tolist() == [3, 0, 3, 7, 2]
    assert legal_actions(np.array([0, 4, 0, 1, 0]), legal[:, :5], must).tolist() == [0, 4, 3, 1, 3]


def test_a_player_of_other_kinds_of_plans_is_refused(suite: DriftSuite, trained: dict[str, Sb3Player]) -> None:
    envs = ReplanningVecEnv(1, suite=suite, split="custom", headroom=False)
    player = trained["ppo"]
    player.begin(1)
    seen: Any = envs.reset()
    with pytest.raises(InvalidOptionError, match="kinds of plans, and here there are"):
        player.act(seen)


def test_mistakes_are_told(suite: DriftSuite, episodes: TableEpisodes, tmp_path: Path) -> None:
    envs = TableVecEnv(episodes, suite[0].pause_s)
    with pytest.raises(UnknownNameError, match="maskable-ppo"):
        train("pop", envs)
    with pytest.raises(InvalidOptionError, match="steps must be an integer"):
        train("ppo", envs, steps=0)
    with pytest.raises(InvalidOptionError, match=r"ReplanningVecEnv\(64, suite='drift-medium-120'\)"):
        ReplanningVecEnv(envs)  # type: ignore[arg-type]
    path = tmp_path / "other.safetensors"
    save_arrays(path, "replanning-policy", {}, {"algorithm": "pop", "kinds": 4, "width": 8})
    with pytest.raises(InvalidCheckpointError, match="algorithm 'pop'; known are"):
        load_player(path)
    save_arrays(path, "replanning-policy", {}, {"algorithm": "ppo", "kinds": 4, "width": 8})
    with pytest.raises(InvalidCheckpointError, match="lacks the array"):
        load_player(path)


def test_stock_wrappers_of_sb3_take_it(suite: DriftSuite, episodes: TableEpisodes) -> None:
    envs = VecMonitor(TableVecEnv(episodes, suite[0].pause_s))
    envs.reset()
    for _ in range(DECISIONS):
        _, _, dones, infos = envs.step(np.zeros(2, np.int64))
    assert dones.all()
    assert infos[0]["episode"]["l"] == DECISIONS
    hour_s = HOUR_SECONDS_PER_MS * episode_data(suite[0], MODEL).reference_ms
    assert infos[0]["seconds"] > 0.5 * DECISIONS * hour_s
