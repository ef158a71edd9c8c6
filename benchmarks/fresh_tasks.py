"""Fresh tasks in training: drawn for each episode, or some hundreds at once that are played several times.

    python benchmarks/fresh_tasks.py [ENVIRONMENTS]

Prints steps a second, three times, of the vector environment on a suite and on both, in one process: take the ratios.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.tables import load_pool
from shard_gym.tasks import TaskSampler, TaskSuite

TASKS, PLAYS = 256, 16  # drawn at once, and episodes of each


def steps_a_second(env: EmbeddingPlacementVectorEnv, episodes: int, begun: float) -> float:
    """Of so many episodes of random legal actions, since the clock showed `begun`."""
    rng, ended, steps = np.random.default_rng(0), 0, 0
    env.reset(seed=0)
    while ended < episodes:
        masks = env.action_masks()
        _, _, terminated, _, _ = env.step((rng.random(masks.shape, np.float32) * masks).argmax(axis=1))
        ended, steps = ended + int(terminated.sum()), steps + env.num_envs
    return steps / (time.perf_counter() - begun)


def main(count: int) -> None:
    """Print the table."""
    sampler, rng = TaskSampler(load_pool("dlrm-2021"), (50, 50), (4, 4)), np.random.default_rng(1)
    suite, pool, drawn = (
        EmbeddingPlacementVectorEnv(count, source, observation="features") for source in ("dlrm-50x4", sampler, sampler)
    )
    steps_a_second(suite, TASKS, 0.0)
    print(f"{'a suite':>12} {'played again':>12} {'drawn each':>12}   share of the first")
    for _ in range(3):
        found = [steps_a_second(suite, TASKS * PLAYS, time.perf_counter())]
        begun = time.perf_counter()
        pool.set_attr("tasks", TaskSuite("drawn", tuple(sampler.sample(rng) for _ in range(TASKS))))
        found.append(steps_a_second(pool, TASKS * PLAYS, begun))
        found.append(steps_a_second(drawn, 2 * TASKS, time.perf_counter()))
        shares = " ".join(f"{each / found[0]:.2f}" for each in found[1:])
        print(" ".join(f"{each:12,.0f}" for each in found), f"  {shares}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 256)
