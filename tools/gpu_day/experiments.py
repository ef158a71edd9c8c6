"""Measures the points of `points` until the time is up, and writes one Parquet file. Needs torch, FBGEMM and pyarrow.

    python -m tools.gpu_day.experiments --out FILE [--earlier FOLDER] --minutes 8

Points that a file of the folder `--earlier` has are not measured again. Every fiftieth row is the anchor. The file is
written every twenty seconds, so a call that is killed loses little.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import math
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as parquet
import torch

from shard_gym import __version__
from shard_gym.cost_models.measured.machine import this_machine
from shard_gym.io.files import write_atomically
from tools.gpu_day.measuring import Bench, Row
from tools.gpu_day.points import ANCHOR, Point, anchor, plan

ANCHOR_EVERY = 50
WRITE_EVERY_S = 20.0
MAX_FAILURES = 10
"""Failures in a row after which the experiments end: a CUDA context does not recover from every error."""

RESERVED_SHARE = 0.3
"""Of the device's memory that torch may keep between points."""

_KINDS = {"float": arrow.float64(), "list[float]": arrow.list_(arrow.float64()), "int": arrow.int64()}
SCHEMA = arrow.schema(
    [
        ("experiment", arrow.string()),
        ("parameters", arrow.string()),  # JSON, see points.Point
        ("number", arrow.int64()),  # of the row in this file
        ("begin_s", arrow.float64()),  # since the first row
        ("seconds", arrow.float64()),  # that the whole point took
        ("failure", arrow.string()),  # why there are no times; else empty
        *((each.name, _KINDS[str(each.type)]) for each in fields(Row)),
    ]
)


class Results:
    """The rows of one call, and their file."""

    def __init__(self, path: Path, about: dict[str, str]) -> None:
        self._path, self._about = path, about
        self._written, self._begin = 0.0, time.monotonic()
        self.rows: list[dict[str, Any]] = []

    def measure(self, bench: Bench, point: Point) -> str:
        """Measure a point and add its row; why it failed, or "". Writes the file now and then."""
        begin, failure, row = time.monotonic(), "", Row()
        try:
            row = bench.measure(point)
        except RuntimeError as error:  # whatever CUDA, torch and FBGEMM refuse, full memory included
            failure = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        parameters = json.dumps(point.parameters, sort_keys=True)
        place = {"number": len(self.rows), "begin_s": begin - self._begin, "seconds": time.monotonic() - begin}
        self.rows.append(
            {"experiment": point.experiment, "parameters": parameters, **place, "failure": failure, **vars(row)}
        )
        if time.monotonic() - self._written > WRITE_EVERY_S:
            self.write()
        return failure

    def write(self) -> None:
        """Write all rows."""
        table = arrow.Table.from_pylist(self.rows, SCHEMA.with_metadata(self._about))
        buffer = io.BytesIO()
        parquet.write_table(table, buffer, compression="zstd")
        write_atomically(self._path, buffer.getvalue())
        self._written = time.monotonic()


def summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines that say whether the rows can be believed: the anchor, the SM clock, and iterations that were late."""
    good = [row for row in rows if not row["failure"]]
    anchors = [row for row in good if row["experiment"] == ANCHOR]
    lines = []
    for phase in ("forward_ms", "backward_ms"):
        times = [row[phase] for row in anchors] or [math.nan]
        drift = max(times) / min(times) - 1
        lines.append(f"Anchor, {phase}: {min(times):.4f} to {max(times):.4f} in {len(times)} rows ({drift:.1%})")
    clocks = [row["sm_clock_mhz"] for row in good if row["experiment"] != "machine" and row["sm_clock_mhz"] > 0]
    if clocks:
        lines.append(f"SM clock: {min(clocks):.0f} to {max(clocks):.0f} MHz, median {statistics.median(clocks):.0f}")
    late = sum(row["late"] > 0 for row in good)
    return [*lines, f"Rows with time of the host: {late} of {len(good)}. Failed: {len(rows) - len(good)}"]


def measured_before(folder: Path | None, about: dict[str, str]) -> set[str]:
    """The keys of points that files of `folder` have, measured on this machine with these versions."""
    keys = set()
    for path in sorted(folder.glob("*.parquet")) if folder is not None else ():
        table = parquet.read_table(path, use_threads=False, pre_buffer=False)
        if {name.decode(): text.decode() for name, text in (table.schema.metadata or {}).items()} != about:
            print(f"{path} comes from another machine or other versions; its points are measured again.")
            continue
        columns = (table[name].to_pylist() for name in ("experiment", "parameters", "failure"))
        rows = zip(*columns, strict=True)
        keys |= {Point(name, json.loads(text)).key for name, text, failure in rows if name != ANCHOR and not failure}
    return keys


def _free(device: str) -> None:
    """Give memory back, so that the tables of one point leave room for the next."""
    gc.collect()
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        if free < (1 - RESERVED_SHARE) * total:
            torch.cuda.empty_cache()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_day.experiments", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    parser.add_argument("--earlier", type=Path, help="folder with the files of earlier calls")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which no point begins")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rehearse", action="store_true", help="a few small points of each experiment")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    deadline = time.monotonic() + 60.0 * chosen.minutes
    about = {"machine": this_machine(chosen.device).fingerprint, "shard_gym": __version__}
    done = measured_before(chosen.earlier, about)
    groups = [[point for point in group if point.key not in done] for group in plan(chosen.rehearse)]
    left = [point for group in groups for point in group]
    print(f"{len(done):,} points are measured, {len(left):,} are left.", flush=True)
    if not left:
        return 0
    results, fixed = Results(chosen.out, about), anchor(chosen.rehearse)
    in_a_row = measured = 0
    try:
        bench = Bench(chosen.device)
        gc.freeze()  # collecting after every point need not walk over all that is imported
        for point in left:
            if time.monotonic() >= deadline or in_a_row == MAX_FAILURES:
                break
            for each in (fixed, point) if len(results.rows) % ANCHOR_EVERY == 0 else (point,):
                failure = results.measure(bench, each)
                _free(chosen.device)
            measured += 1
            in_a_row = in_a_row + 1 if failure else 0
            if failure:
                print(f"{point.experiment} failed: {failure}", flush=True)
            if measured % ANCHOR_EVERY == 0:
                print(f"{measured:,} of {len(left):,} points", flush=True)
    except KeyboardInterrupt:
        print("Interrupted; what was measured is written.")
    finally:
        if results.rows:
            results.write()
            print(*summary(results.rows), sep="\n")
    print(f"{measured:,} points measured, {len(left) - measured:,} left. Written: {chosen.out}.", flush=True)
    return int(in_a_row == MAX_FAILURES)


if __name__ == "__main__":
    sys.exit(main())
