"""Describe the tables of a custom model and write the file that `shard-gym place --tables` reads.

What has to be known of a table is its size, its pooling factor, and how skewed its lookups are. Here the skew is a Zipf
law; with recorded lookups, count them instead (`shard-gym place --lookups`).
"""

from pathlib import Path

import numpy as np

from shard_gym import Tables, Workload
from shard_gym.tables import Pool, RowPopularity
from shard_gym.tables.pools import PoolCard, save_pool

ROWS = np.array([40_000_000, 2_000_000, 500_000, 10_000, 100])
DIMS = np.array([64, 64, 32, 16, 16])
POOLING_FACTORS = np.array([20.0, 5.0, 80.0, 1.0, 1.0])
SKEW = np.array([1.05, 1.05, 0.9, 0.0, 0.0])  # exponent of the Zipf law; 0 is uniform


def make_pool() -> Pool:
    workload = Workload(batch_size=65536, weight_dtype="fp16", optimizer="rowwise_adagrad")
    names = ("user", "item", "history", "shop", "hour")
    tables = Tables.from_zipf(ROWS, DIMS, POOLING_FACTORS, SKEW, workload, names=names)
    card = PoolCard("My model", source="our logs of May", how_made="examples/make_tables.py")
    return Pool("my-model", tables, card, RowPopularity.zipf(SKEW))


if __name__ == "__main__":
    path = Path("my_tables.json")
    save_pool(make_pool(), path)
    print(f"Written: {path}. Next:")
    print(f"shard-gym place --tables {path} --hardware a100-dgx --num-devices 2 --out plan.json")
