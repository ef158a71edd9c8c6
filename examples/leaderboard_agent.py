"""A stochastic agent in ten lines, evaluated for the leaderboards: once for each of five seeds.

docs/leaderboards.md describes how its files become an entry.
"""

from pathlib import Path

import numpy as np

from shard_gym import evaluate
from shard_gym.common.io.files import write_json


class MyAgent:
    name = "my-agent"

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def place(self, task):
        used, placement = np.zeros(task.num_devices), np.zeros(task.num_tables, int)
        for table in self.rng.permutation(task.num_tables):
            placement[table] = used.argmin()
            used[placement[table]] += task.tables.memory_bytes[table]
        return placement


if __name__ == "__main__":
    for seed in range(5):
        write_json(Path(f"runs/{seed}.json"), evaluate(MyAgent(seed), "dlrm-20x4").to_json())
