"""Measures how long the groups of a CPU take together and one by one, each as if it were alone, in CPU seconds.

    python tools/measured_groups.py --loads 10 --rounds 5

A load is twelve tables of a task of `cpu-40x4` in groups at random: FP32 with rowwise Adagrad, FP16 with SGD, and FP32
with Adagrad and weights of lookups. Their ms are the least of all iterations, as what else runs only adds to the time.
The cost model takes the sum.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np
import torch

from shard_gym.common.arrays import FloatArray
from shard_gym.common.io.markdown import table
from shard_gym.cost_models.measured.clock import HostClock, Peers
from shard_gym.cost_models.measured.iteration import Iteration
from shard_gym.cost_models.measured.job import Widths
from shard_gym.cost_models.measured.machine import this_machine
from shard_gym.cost_models.measured.operator import new_operator
from shard_gym.cost_models.measured.parts import parts_of
from shard_gym.cost_models.measured.shard_streams import streams_of
from shard_gym.cost_models.measured.streams import BatchCache, draw_batches
from shard_gym.cost_models.measured.worker import LEARNING_RATE
from shard_gym.hardware import hardware_profile
from shard_gym.plans import plan_of_placement
from shard_gym.tables import Tables, Workload
from shard_gym.tasks import load_suite

SUITE, COUNT = "cpu-40x4", 12  # tables of a load
BATCHES, WARMUP, ITERATIONS = 4, 2, 8
FORWARD, BACKWARD = 0, 3
CPU, ONE = torch.device("cpu"), hardware_profile("cpu").topology(1, memory_cap_bytes=2**40)


def load_of(number: int) -> Tables:
    """Twelve tables in three groups, none of them empty."""
    rng, suite = np.random.default_rng(number), load_suite(SUITE)
    tables = suite[number % len(suite)].tables
    batch = tables.workload.batch_size
    own = [
        Workload(batch, "fp32", "rowwise_adagrad"),
        Workload(batch, "fp16", "sgd"),
        Workload(batch, "fp32", "adagrad", weighted=True),
    ]
    chosen = tables.select(rng.choice(len(tables), COUNT, replace=False))
    return replace(chosen, workload=Workload.mixed(own, rng.permutation(np.arange(COUNT) % len(own))))


def iterations_of(tables: Tables, cache: BatchCache) -> FloatArray:
    """(n, 2) CPU ms of the forward and the backward of `tables` on one device."""
    batch = tables.workload.batch_size
    (parts,) = parts_of(plan_of_placement(np.zeros(len(tables), np.int64), tables), tables, ONE)
    operators = [new_operator(part, CPU, LEARNING_RATE) for part in parts]
    batches = [
        [operator.batch(*each) for each in draw_batches(streams_of(operator.part, cache.stream, 0), BATCHES, batch)]
        for operator in operators
    ]
    iteration = Iteration(operators, CPU, None, Widths((0,)), batch, 1)
    timing = HostClock(time.process_time).measure(
        lambda number: iteration.phases([each[number % BATCHES] for each in batches]), WARMUP, ITERATIONS, Peers()
    )
    return np.array(timing.ms)[:, [FORWARD, BACKWARD]]


def main() -> None:
    """Print a table of ratios, together over sum of the groups."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rng, ratios = np.random.default_rng(0), []
    for number in range(given.loads):
        tables, cache = load_of(number), BatchCache()
        subjects = [tables, *(tables.select(np.flatnonzero(tables.group == group)) for group in range(3))]
        least = np.full((len(subjects), 2), np.inf)
        for _ in range(given.rounds):
            for subject in rng.permutation(len(subjects)):
                took = iterations_of(subjects[subject], cache).min(axis=0)
                least[subject] = np.minimum(least[subject], took)
        ratios.append([*(least[0] / least[1:].sum(axis=0)), least[0].sum() / least[1:].sum()])
        print(f"load {number}: {least[:, 0].round(2)} forward, {least[:, 1].round(2)} backward", flush=True)
    rows = [
        [name, f"{np.median(own):.2f}", f"{own.min():.2f} to {own.max():.2f}"]
        for name, own in zip(("forward", "backward", "both"), np.array(ratios).T, strict=True)
    ]
    print(f"\n{this_machine('cpu').name}\n")
    print(table(("phase", "together / sum of the groups", f"range over {given.loads} loads"), rows))


if __name__ == "__main__":
    main()
