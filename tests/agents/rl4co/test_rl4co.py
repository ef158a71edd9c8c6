"""The environment of RL4CO, and agents with its policies. `make check-libraries-rl4co` runs these."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("rl4co")

from rl4co.models import POMO, AttentionModel, AttentionModelPolicy
from rl4co.models.zoo import AMPPO
from rl4co.utils.decoding import random_policy, rollout

from shard_gym.agents.rl4co import RL4CoAgent, RL4CoEnv, embeddings
from shard_gym.common.errors import InvalidOptionError, NoPlacementFoundError
from shard_gym.envs.core.episode_state import COMPLETE
from shard_gym.envs.tensors import TensorPlacementEnv, TensorShardingEnv
from shard_gym.evaluation import evaluate
from shard_gym.tasks import TaskSuite, load_suite


def env_of(suite: str, observation: str = "set") -> RL4CoEnv:
    kind = TensorShardingEnv if suite.startswith("shard") else TensorPlacementEnv
    return RL4CoEnv(kind(1, suite, observation=observation, reward="normalized", seed=0))


def policy_for(env: RL4CoEnv, seed: int = 0) -> AttentionModelPolicy:
    torch.manual_seed(seed)
    sizes = {"embed_dim": 16, "num_heads": 2, "feedforward_hidden": 16, "num_encoder_layers": 1}
    return AttentionModelPolicy(env_name=env.name, **sizes, **embeddings(env, 16))


@pytest.mark.parametrize("suite", ["generalize", "shard-generalize", "tier-4"])
@pytest.mark.parametrize("observation", ["set", "full"])
def test_rewards_and_masks_are_those_of_the_episodes(suite: str, observation: str) -> None:
    env = env_of(suite, observation)
    torch.manual_seed(3)
    numbers = env.generator([12])
    reward, last, actions = rollout(env, env.reset(numbers), random_policy)
    assert bool(last["done"].all())
    assert not last["action_mask"][:, env.episodes.num_actions :].any()
    alone = type(env.episodes)(12, suite, observation=observation, reward="normalized", seed=0)
    alone.reset(tasks=numbers["task"])
    returns = torch.zeros(12, dtype=torch.float64)
    for step in actions.T:
        running = alone.status == 0
        assert bool((alone.action_mask().gather(1, step[:, None])[:, 0] | ~running).all())
        returns += alone.step(step)[1]
    assert torch.allclose(reward, returns.float(), rtol=1e-6)
    assert torch.equal(last["state", "cost_ms"], alone.cost_ms)
    assert bool((alone.status == COMPLETE).any())


def test_the_episodes_that_pomo_compares_begin_with_each_legal_action() -> None:
    env = env_of("generalize")
    td = env.reset(env.generator.every()[:5])
    starts = env.select_start_nodes(td, 8).reshape(8, 5)
    for episode in range(5):
        legal = td["action_mask"][episode].nonzero()[:, 0].tolist()
        assert starts[:, episode].tolist() == [legal[start % len(legal)] for start in range(8)]
    env = env_of("shard-4")
    td = env.reset(env.generator.every()[:1])
    legal, kinds = td["action_mask"][0].nonzero()[:, 0], td["action_kind"][0]
    starts = env.select_start_nodes(td, len(legal))
    assert sorted(starts.tolist()) == legal.tolist()
    count = len({*kinds[legal].tolist()})
    assert count > 2
    assert len({*kinds[starts[:count]].tolist()}) == count


def test_an_answer_does_not_depend_on_the_other_tasks() -> None:
    """Which may have one name."""
    env = env_of("mixdim-4")
    agent, tasks = RL4CoAgent("untrained", policy_for(env, 1), env), load_suite("mixdim-4").tasks[:8]
    alone = [agent.place(task) for task in tasks]
    for answers in (agent.answers(tasks), agent.answers([*tasks, tasks[0]])):
        assert all(np.array_equal(one, other) for one, other in zip(alone, answers, strict=False))


@pytest.mark.parametrize("suite", ["dlrm-20x4", "shard-4"])
def test_agents_answer_tasks_of_any_size(suite: str) -> None:
    """One by one as side by side, and evaluation agrees with the reward."""
    env = env_of(suite)
    agent = RL4CoAgent("untrained", policy_for(env, 1), env)
    assert agent.splits == (suite == "shard-4")
    tasks = TaskSuite("three", load_suite(suite).tasks[1:4])
    found, together = evaluate(agent, tasks, "analytical").tasks, agent.answers(list(tasks))
    assert any(each.valid for each in found)
    for task, each, answer in zip(tasks, found, together, strict=True):
        assert each.valid == (not isinstance(answer, NoPlacementFoundError))
        if each.valid:
            alone = agent.plan(task) if agent.splits else agent.place(task)
            assert np.array_equal(answer, alone) if not agent.splits else answer == alone
    other = load_suite("generalize" if suite == "dlrm-20x4" else "shard-8").tasks[1:4]
    assert any(each.valid for each in evaluate(agent, TaskSuite("other", other), "analytical").tasks)


def test_a_task_without_room_is_an_error_that_names_it() -> None:
    class First(torch.nn.Module):
        """Puts all tables on the first device."""

        def forward(self, td: Any, env: RL4CoEnv, **_: Any) -> dict[str, torch.Tensor]:
            return {"actions": torch.zeros(len(td), env.episodes.max_tables, dtype=torch.int64)}

    task = load_suite("dlrm-20x4")[0]
    caps = task.topology.memory_cap_bytes
    agent = RL4CoAgent("first", First(), env_of("dlrm-20x4"))
    most = int(task.tables.memory_bytes.sum())
    wide = replace(task, topology=replace(task.topology, memory_cap_bytes=np.full_like(caps, most)))
    assert agent.place(wide).tolist() == [0] * task.num_tables
    short = replace(task, name="short", topology=replace(task.topology, memory_cap_bytes=np.full_like(caps, most - 1)))
    with pytest.raises(NoPlacementFoundError, match="policy of first left a table of task 'short'"):
        agent.place(short)
    [fits, error] = agent.answers([wide, short])
    assert fits.tolist() == [0] * task.num_tables
    assert isinstance(error, NoPlacementFoundError)


def test_tasks_that_show_other_things_than_in_training_are_errors() -> None:
    """Of host memory, either way; no tasks have no answers."""
    env = env_of("dlrm-20x4")
    agent = RL4CoAgent("plain", policy_for(env), env)
    assert agent.answers([]) == []
    with pytest.raises(NoPlacementFoundError, match=r"plain learned from observations that differ .* hbm_gib"):
        agent.place(load_suite("tier-4")[0])
    tiered = env_of("tier-4")
    with pytest.raises(NoPlacementFoundError, match="else without"):
        RL4CoAgent("tiered", policy_for(tiered), tiered).place(load_suite("mixdim-4")[0])


def test_observations_must_have_all_tables_and_agents_see_no_costs() -> None:
    with pytest.raises(InvalidOptionError, match="take an observation of set, full; got 'compact'"):
        RL4CoEnv(TensorPlacementEnv(1, "dlrm-20x4", observation="compact"))
    with pytest.raises(InvalidOptionError, match="episodes"):
        RL4CoEnv("dlrm-20x4")
    env = env_of("dlrm-20x4", "full")
    with pytest.raises(InvalidOptionError, match="train it with observation='set'; got 'full'"):
        RL4CoAgent("sees-costs", policy_for(env), env)


@pytest.mark.parametrize("model", [POMO, AttentionModel, AMPPO])
def test_models_learn_as_they_are(model: Any) -> None:
    """One update changes the policy, and its losses are finite."""
    from rl4co.utils import RL4COTrainer

    env = env_of("dlrm-20x4")
    policy = policy_for(env)
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    own = {
        POMO: {"num_augment": 0, "num_starts": 4},
        AttentionModel: {"baseline": "exponential"},
        AMPPO: {"critic_kwargs": {"embed_dim": 16}},
    }[model]
    sizes = {"batch_size": 8, "train_data_size": 8, "val_data_size": 2, "test_data_size": 2}
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = RL4COTrainer(max_epochs=1, accelerator="cpu", precision="32-true", **quiet)
    trainer.fit(model(env, policy, optimizer_kwargs={"lr": 1e-2}, **own, **sizes))
    after = list(policy.parameters())
    assert all(bool(parameter.isfinite().all()) for parameter in after)
    assert any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))
