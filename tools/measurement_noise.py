"""How exact measurements on this CPU are, and why: `python tools/measurement_noise.py` writes a page; takes 10 minutes.

Every load is the tables of one device of a placement, measured alone by one process (layout `sequential`). Loads are
measured in turn, in random order in each round, so that what slows the machine for a while slows all of them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np

from shard_gym import load_suite
from shard_gym.cost_models.base import COMPUTE, FloatArray
from shard_gym.cost_models.data.dataset import concatenate_tables
from shard_gym.cost_models.measured.model import MeasuredCostModel
from shard_gym.io.files import write_atomically
from shard_gym.io.markdown import table
from shard_gym.tables import Tables
from shard_gym.text import counted, format_bytes, format_ms
from shard_gym.topology import Topology

SUITE = "cpu-40x4"
OUT = Path("docs/results")
FLOAT_BYTES = 4

BUSY = "while True: pass"
STREAMING = "import numpy as np\na = np.zeros(2**26)\nwhile True: a += 1.0"

Loads = Mapping[str, Tables]


def measured(model: MeasuredCostModel, loads: Loads, topology: Topology, rounds: int) -> dict[str, FloatArray]:
    """(rounds, 2) ms of each load: forward and backward. The first round is not counted: it warms the worker up."""
    alone = replace(topology, num_devices=1, memory_cap_bytes=np.array([2**40]))
    rng, found = np.random.default_rng(0), {name: np.zeros((rounds + 1, 2)) for name in loads}
    for number in range(rounds + 1):
        for name in rng.permutation(list(loads)).tolist():
            tables = loads[name]
            result = model.measure_again(np.zeros(len(tables), np.int64), tables, alone)
            found[name][number] = result.phases_ms[0, COMPUTE]
    return {name: ms[1:] for name, ms in found.items()}


@contextmanager
def other_programs(code: str, cpus: Sequence[int]) -> Iterator[None]:
    """Run `code` in a process on each of `cpus`."""
    started = []
    for cpu in cpus:
        pinned = f"import os\nos.sched_setaffinity(0, {{{cpu}}})\n{code}"
        started.append(subprocess.Popen([sys.executable, "-c", pinned]))
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def device_loads(count: int) -> tuple[Loads, Topology]:
    """The tables of device 0 in a random placement of each of the first test tasks."""
    rng, suite = np.random.default_rng(0), load_suite(SUITE, "test")
    loads = {}
    for task in suite.tasks[:count]:
        placement = rng.integers(task.num_devices, size=task.num_tables)
        loads[task.name] = task.tables.select(np.flatnonzero(placement == 0))
    return loads, suite.tasks[0].topology


def noise(model: MeasuredCostModel, rounds: int) -> str:
    """The table of what other programs do to a measurement."""
    loads, topology = device_loads(5)
    own, *others = sorted(os.sched_getaffinity(0))  # the worker takes the first
    conditions = {"none": ("", []), "one computes, on the worker's CPU": (BUSY, [own])}
    if others:
        conditions |= {
            "one computes, on another CPU": (BUSY, others[:1]),
            "one streams through 0.5 GiB, on another CPU": (STREAMING, others[:1]),
        }
    rows, quiet = [], None
    for name, (code, cpus) in conditions.items():
        with other_programs(code, cpus):
            costs = np.array([ms.sum(axis=1) for ms in measured(model, loads, topology, rounds).values()])
        medians = np.median(costs, axis=1)
        quiet = medians if quiet is None else quiet
        spread = np.abs(costs / medians[:, None] - 1.0)
        rows.append([name, f"{(medians / quiet).mean():.2f}", f"{spread.mean():.1%}", f"{spread.max():.1%}"])
    header = ("other programs", "cost, against none", "mean difference from the median", "largest")
    return table(header, rows)


def halves(model: MeasuredCostModel, rounds: int) -> str:
    """The table of loads measured whole, and as the sum of two halves."""
    loads, topology = device_loads(10)
    rng, parts = np.random.default_rng(1), dict(loads)
    for name, tables in loads.items():
        order = rng.permutation(len(tables))
        parts[f"{name}/a"], parts[f"{name}/b"] = (tables.select(np.sort(own)) for own in np.array_split(order, 2))
    medians = {name: np.median(ms, axis=0) for name, ms in measured(model, parts, topology, rounds).items()}
    ratios = np.array([medians[name] / (medians[f"{name}/a"] + medians[f"{name}/b"]) for name in loads])
    rows = [
        [phase, f"{own.mean():.2f}", f"{own.min():.2f} to {own.max():.2f}"]
        for phase, own in zip(("forward", "backward"), ratios.T, strict=True)
    ]
    return table(("phase", "whole / sum of the halves", "range over 10 loads"), rows)


def copies(model: MeasuredCostModel, rounds: int) -> str:
    """The table of what copies of a table cost against one, by the bytes of the rows that a batch reads."""
    tables = concatenate_tables([task.tables for task in load_suite(SUITE, "test").tasks])
    read = tables.distinct_rows * tables.embedding_dim * FLOAT_BYTES
    chosen = [int(np.abs(np.log(read / wanted)).argmin()) for wanted in (2**18, 2**20, 2**22, 2**24, 2**26)]
    counts, loads = (1, 2, 4, 8), {}
    for one in chosen:
        for count in counts:
            same = tables.select(np.full(count, one))
            loads[f"{one}x{count}"] = replace(same, names=tuple(f"{same.names[0]}-{k}" for k in range(count)))
    topology = load_suite(SUITE, "test").tasks[0].topology
    medians = {name: np.median(ms, axis=0) for name, ms in measured(model, loads, topology, rounds).items()}
    rows = []
    for one in chosen:
        ratios = [medians[f"{one}x{count}"] / medians[f"{one}x1"] for count in counts[1:]]
        cells = [f"{forward:.1f} / {backward:.1f}" for forward, backward in ratios]
        rows.append(
            [
                format_bytes(read[one]),
                str(tables.embedding_dim[one]),
                " / ".join(map(format_ms, medians[f"{one}x1"])),
                *cells,
            ]
        )
    header = ("bytes of the rows read", "dim", "one table, ms", *(f"{count} copies" for count in counts[1:]))
    return table(header, rows)


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the page")
    parser.add_argument("--rounds", type=int, default=10, help="measurements of each load")
    options = parser.parse_args()
    with MeasuredCostModel("cpu", layout="sequential", iterations=5) as model:
        blocks = [
            "<!-- Generated by `python tools/measurement_noise.py`; do not edit. -->",
            "# How exact measurements on a CPU are",
            f"Made on {date.today():%B %-d, %Y}, on {model.hardware} with {counted(os.cpu_count() or 1, 'CPU')}, by "
            f"`python tools/measurement_noise.py --rounds {options.rounds}`. Loads are the tables of one device of "
            f"random placements of `{SUITE}`, each measured {counted(options.rounds, 'time')} in turn.",
            "## Other programs",
            "The worker has a CPU of its own as long as there are enough. What runs on that CPU, too, takes "
            "turns with it; what runs on another one shares only caches and memory.",
            noise(model, options.rounds),
            "## Caches",
            "A fused operator runs table after table. A load costs more than its halves where the rows of the whole, "
            "with their optimizer state, no longer stay in a cache from one iteration to the next.",
            halves(model, max(options.rounds // 2, 3)),
            "Copies of a table have rows of their own. Without caches, k copies would cost k times as much as one. "
            "Forward / backward, against one table:",
            copies(model, max(options.rounds // 2, 3)),
        ]
    write_atomically(options.out / "measurement-noise-cpu.md", ("\n\n".join(blocks) + "\n").encode())


if __name__ == "__main__":
    main()
