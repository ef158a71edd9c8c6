"""Stock MaskablePPO with its stock policy, trained on the vector environment."""

from __future__ import annotations

import numpy as np
import pytest

from shard_gym import evaluate, load_suite
from shard_gym.agents.sb3 import train_maskable_ppo
from shard_gym.errors import InvalidOptionError


def test_training_learns_and_repeats_for_equal_seeds() -> None:
    """On one small task: better than the mean of random placements, and the same twice."""
    heard: list[int] = []
    agents = [
        train_maskable_ppo("dlrm-20x4", total_timesteps=6_000, num_envs=64, seed=3, on_step=heard.append)
        for _ in range(2)
    ]
    assert agents[0].steps_trained >= 6_000
    assert heard[-1] == agents[0].steps_trained
    task = load_suite("dlrm-20x4", "train")[0]
    assert np.array_equal(agents[0].place(task), agents[1].place(task))
    trained = evaluate(agents[0], "dlrm-20x4", split="train").mean_cost_ms
    untrained = evaluate(
        train_maskable_ppo("dlrm-20x4", total_timesteps=1, num_envs=1, seed=3), "dlrm-20x4", split="train"
    )
    assert trained < 0.8 * untrained.mean_cost_ms


@pytest.mark.parametrize("arguments", [{"total_timesteps": 0}, {"num_envs": 0}, {"seed": -1}])
def test_training_refuses_what_makes_no_sense(arguments: dict[str, int]) -> None:
    with pytest.raises(InvalidOptionError):
        train_maskable_ppo("dlrm-20x4", **{"total_timesteps": 100, **arguments})
