"""Lines per second of the importer of Criteo's day files, on made-up lines: `python benchmarks/criteo.py`.

The tables have the rows of MLPerf's DLRM; row k is read with a probability of about 1 / k, and one value in thirty is
empty. As in the first hours of a log, many rows are new.
"""

from __future__ import annotations

import gzip
import tempfile
import time
from pathlib import Path

import numpy as np

from shard_gym.drift.criteo import WORKLOAD, read_intervals
from shard_gym.pools import load_pool

BATCHES, BATCHES_PER_INTERVAL = 9, 3
REPEATS = 3
EMPTY = 1 / 30


def lines(count: int) -> bytes:
    """`count` lines of a day file."""
    rng = np.random.default_rng(0)
    numbers = np.floor(np.exp(rng.exponential(2.0, (13, count)))).astype(np.int64) - 2
    columns = [(rng.random(count) < 0.03).astype(np.int64).astype(str).tolist()]
    columns += [[str(number) for number in column] for column in numbers.tolist()]
    for rows in load_pool("mlperf-dlrm-dcnv2").tables.num_embeddings.tolist():
        values = np.int64(rows ** rng.random(count)) * 2_654_435_761 % 2**32
        given = (rng.random(count) >= EMPTY).tolist()
        columns.append([f"{value:08x}" * has for value, has in zip(values.tolist(), given, strict=True)])
    return "".join("\t".join(sample) + "\n" for sample in zip(*columns, strict=True)).encode()


def main() -> None:
    """Print the rates of a plain and of a gzip file."""
    count = BATCHES * WORKLOAD.batch_size
    with tempfile.TemporaryDirectory() as folder:
        plain, packed = Path(folder) / "day_0", Path(folder) / "day_0.gz"
        plain.write_bytes(lines(count))
        packed.write_bytes(gzip.compress(plain.read_bytes(), compresslevel=6))
        for path in (plain, packed):
            rates = []
            for _ in range(REPEATS):
                start = time.perf_counter()
                for _ in read_intervals(path, samples_per_interval=BATCHES_PER_INTERVAL * WORKLOAD.batch_size):
                    pass
                rates.append(count / (time.perf_counter() - start))
            print(f"{path.name}: {min(rates):,.0f} to {max(rates):,.0f} lines per second")


if __name__ == "__main__":
    main()
