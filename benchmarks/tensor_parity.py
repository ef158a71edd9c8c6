"""Random episodes of every suite of placement and sharding, as tensors and in NumPy: masks, costs and rewards.

    python benchmarks/tensor_parity.py [EPISODES]

Prints for each suite the episodes, the steps, and the largest relative difference of a cost; ends with 1 if masks, ends
or failures differ, or a cost differs by more than 1e-6 of it. Episodes are spread evenly over all suites; of those with
large tasks, by tables times devices, there are a few.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.envs.sharding.vector import EmbeddingShardingVectorEnv
from shard_gym.envs.tensors import TensorPlacementEnv, TensorShardingEnv
from shard_gym.tasks import load_suite, suite_names

LARGE = 20_000  # tables times devices
AT_ONCE, FEW = 100, 4  # episodes side by side; of large tasks
ILLEGAL = 0.0003  # the chance that any action is drawn in a step, legal or not
MOST = 1e-6


def compared(kinds: tuple[Any, Any], suite: str, count: int, seed: int) -> tuple[int, float]:
    """The steps of `count` random episodes, and the largest relative difference of a cost."""
    options = {"split": "test", "observation": "features", "reward": "dense"}
    arrays, tensors = kinds[0](count, suite, autoreset_mode="DISABLED", **options), kinds[1](count, suite, **options)
    rng = np.random.default_rng(seed)
    numbers = rng.integers(len(arrays.tasks), size=count)
    arrays.reset(seed=0, options={"tasks": numbers.tolist()})
    tensors.reset(tasks=torch.tensor(numbers))
    ended, steps, worst = np.zeros(count, np.bool_), 0, 0.0
    while not ended.all():
        masks = arrays.action_masks()
        if not np.array_equal(tensors.action_mask().numpy(), masks):
            raise SystemExit(f"{suite}: the masks differ after {steps} steps.")
        actions = np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=1)
        actions = np.where(rng.random(count) < ILLEGAL, rng.integers(tensors.num_actions, size=count), actions)
        _, rewards, ended, _, infos = arrays.step(actions)
        _, own, over = tensors.step(torch.tensor(actions))
        steps += 1
        if not np.array_equal(over.numpy(), ended) or not np.array_equal(
            tensors.status.numpy(), arrays.episodes.state.status
        ):
            raise SystemExit(f"{suite}: the ends differ after {steps} steps.")
        scale = np.maximum(np.abs(infos["cost_ms"]), 1e-9)
        worst = max(worst, float((np.abs(tensors.cost_ms.numpy() - infos["cost_ms"]) / scale).max()))
        worst = max(worst, float((np.abs(own.numpy() - rewards) / np.maximum(scale, np.abs(rewards))).max()))
    return steps, worst


def main(episodes: int) -> int:
    """Compare so many episodes, or a few more."""
    cases = [(name, EmbeddingPlacementVectorEnv, TensorPlacementEnv) for name in suite_names("simulated")]
    cases += [(name, EmbeddingShardingVectorEnv, TensorShardingEnv) for name in suite_names("sharding")]
    large = {
        suite
        for suite, *_ in cases
        if max(task.num_tables * task.num_devices for task in load_suite(suite, "test")) > LARGE
    }
    done, worst = 0, 0.0
    for suite, *kinds in cases:
        wanted = FEW if suite in large else -(-(episodes - FEW * len(large)) // (len(cases) - len(large)))
        found, steps, differ = 0, 0, 0.0
        while found < wanted:
            count = min(AT_ONCE, wanted - found)
            more, each = compared((kinds[0], kinds[1]), suite, count, found)
            found, steps, differ = found + count, steps + more, max(differ, each)
        done, worst = done + found, max(worst, differ)
        print(f"{suite:28} {found:6} episodes {steps:6} steps  {differ:.1e}", flush=True)
    print(f"{done:,} episodes; largest relative difference {worst:.1e}")
    return int(worst > MOST)


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000))
