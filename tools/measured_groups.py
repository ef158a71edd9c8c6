"""Measures how long the groups of a device take together and one by one, each as if it were alone.

    python tools/measured_groups.py --device cpu --loads 10 --rounds 5

A load is twelve tables of a task of `cpu-40x4` in groups at random: FP32 with rowwise Adagrad, FP16 with SGD, and FP32
with Adagrad and weights of lookups. Their ms are the least of all iterations, as other programs only add to the time.
The cost model takes the sum. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from shard_gym.common.io.markdown import table
from shard_gym.cost_models.measured import MeasuredCostModel
from shard_gym.hardware import hardware_profile
from shard_gym.tables import Tables, Workload
from shard_gym.tasks import load_suite

SUITE, COUNT = "cpu-40x4", 12  # tables of a load
FORWARD, BACKWARD = 0, 3


def load_of(number: int) -> Tables:
    """Twelve tables in three groups, none of them empty."""
    rng = np.random.default_rng(number)
    suite = load_suite(SUITE)
    tables = suite[number % len(suite)].tables
    batch = tables.workload.batch_size
    own = [
        Workload(batch, "fp32", "rowwise_adagrad"),
        Workload(batch, "fp16", "sgd"),
        Workload(batch, "fp32", "adagrad", weighted=True),
    ]
    chosen = tables.select(rng.choice(len(tables), COUNT, replace=False))
    return replace(chosen, workload=Workload.mixed(own, rng.permutation(np.arange(COUNT) % len(own))))


def alone(tables: Tables, group: int) -> Tables:
    """The tables of a group as the only ones of the workloads, so that they keep dtype and optimizer."""
    here = np.flatnonzero(tables.group == group)
    return replace(tables.select(here), workload=Workload.mixed(tables.workloads, tables.group[here]))


def main() -> None:
    """Print a table of ratios, together over sum of the groups."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--loads", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    one = hardware_profile("cpu" if given.device == "cpu" else "a100-dgx").topology(1, memory_cap_bytes=2**40)
    rng, ratios, noise = np.random.default_rng(0), [], []
    with MeasuredCostModel(given.device, layout="sequential", timeout_s=300.0) as model:
        for number in range(given.loads):
            tables = load_of(number)
            subjects = [tables, *(alone(tables, group) for group in range(len(tables.workloads)))]
            took = np.zeros((given.rounds, len(subjects), 2))
            for each in took:
                for subject in rng.permutation(len(subjects)):
                    placement = np.zeros(len(subjects[subject]), np.int64)
                    found = model.measure_again(placement, subjects[subject], one).iterations_ms[:, 0]
                    each[subject] = found.min(axis=0)[[FORWARD, BACKWARD]]
            least = took.min(axis=0)
            ratios.append([*(least[0] / least[1:].sum(axis=0)), least[0].sum() / least[1:].sum()])
            noise.append((np.sort(took, axis=0)[1] / least - 1).mean())
            print(f"load {number}: {least[:, 0].round(2)} forward, {least[:, 1].round(2)} backward", flush=True)
    rows = [
        [name, f"{np.median(own):.2f}", f"{own.min():.2f} to {own.max():.2f}"]
        for name, own in zip(("forward", "backward", "both"), np.array(ratios).T, strict=True)
    ]
    print(
        f"{model.hardware}; the second least of {given.rounds} measurements is {np.mean(noise):.1%} above the least\n"
    )
    print(table(("phase", "together / sum of the groups", f"range over {given.loads} loads"), rows))


if __name__ == "__main__":
    main()
