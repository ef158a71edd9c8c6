"""The points of the experiments: what is measured, and in which order; plain values, no torch.

Each experiment answers one question about the analytical cost model (cost_models/analytical.py):

    pooled   large pooled backward, of which nothing is published: dims 16 to 128, 10 to 100 lookups, batch 65,536
    mixed    one wide table with n narrow ones, fused and in two operators: does the widest decide everybody's lanes?
    machine  how fast the clock rises, how fast memory is copied, and what an empty measurement takes
    rows     forward and backward on rows that are read once: no cache, no runs
    sort     the sort of the backward alone
    updates  rows that are read 1 to 10,000 times in a batch
    reuse    a set of hot rows of 1 to 500 MB, with the L2 flushed before each phase or not
    widest   as `mixed`, over more widths, numbers and lookups
    tables   the same lookups in 1 to 128 tables: launches and the ramp of the bandwidth

`pooled` and `mixed` come first, each shuffled; the others follow, shuffled together. Points that are compared with each
other stay next to each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

FIRST = ("pooled", "mixed")
ANCHOR = "anchor"

BATCH = 65_536
BATCHES = 4
"""Batches of lookups that alternate, as in `MeasuredCostModel`."""

SGD_FP16, ADAGRAD_FP32 = ("fp16", "sgd"), ("fp32", "rowwise_adagrad")
TRAININGS = (SGD_FP16, ADAGRAD_FP32)

FREELY = 0
"""As a run length: rows are drawn independently."""

SEED = 0


@dataclass(frozen=True)
class Point:
    """One row of the results.

    Attributes:
        experiment: see the list at the top.
        parameters: JSON values that say what is measured. For operators: `batch`, `dtype`, `optimizer`, `tables` (a
            list of [number of tables, rows, dim, lookups of a sample]), `run` (how often each row occurs in a batch,
            or FREELY), `flush` (whether the L2 is flushed before each phase), `part` (fused, wide or narrow) and `of`
            (the tables of all parts).
    """

    experiment: str
    parameters: dict[str, Any]

    @property
    def key(self) -> str:
        """The same for equal points, in every call."""
        return json.dumps([self.experiment, self.parameters], sort_keys=True)


Group = tuple[Point, ...]
"""Points that are measured one after the other."""


def plan(rehearse: bool = False) -> list[Group]:
    """All groups in the order in which they are measured; with `rehearse` three small ones of each experiment."""
    rng = np.random.default_rng(SEED)
    first = [_shuffled(groups, rng) for groups in (_pooled(), _mixed("mixed", _FORTY))]
    others = [_machine(), _rows(), _sort(), _updates(), _reuse(), _mixed("widest", _MANY), _tables()]
    if rehearse:
        first, others = ([groups[:: len(groups) // 3][:3] for groups in each] for each in (first, others))
    ordered = [*first[0], *first[1], *_shuffled([group for groups in others for group in groups], rng)]
    return [tuple(map(_small, group)) for group in ordered] if rehearse else ordered


def anchor(rehearse: bool = False) -> Point:
    """The point that is measured again and again, to see whether the machine changes."""
    point = _operator(ANCHOR, [[1, 2_000_000, 64, 20]], run=FREELY)
    return _small(point) if rehearse else point


def _shuffled(groups: Sequence[Group], rng: np.random.Generator) -> list[Group]:
    return [groups[number] for number in rng.permutation(len(groups))]


def _operator(
    experiment: str,
    tables: list[list[int]],
    *,
    run: int,
    batch: int = BATCH,
    training: tuple[str, str] = ADAGRAD_FP32,
    flush: bool = False,
    part: str = "fused",
    of: list[list[int]] | None = None,
) -> Point:
    dtype, optimizer = training
    values = {"batch": batch, "dtype": dtype, "optimizer": optimizer, "tables": tables}
    return Point(experiment, {**values, "run": run, "flush": flush, "part": part, "of": of or tables})


def rows_for(lookups: int, run: int) -> int:
    """Rows of a table of which each batch reads others, each `run` times."""
    return BATCHES * -(-lookups // run)


def _pooled() -> list[Group]:
    shapes = list(product((16, 32, 64, 128), (10, 20, 50, 100)))
    cases = [(10_000_000, shape, training) for shape, training in product(shapes, TRAININGS)]
    cases += [(100_000, shape, SGD_FP16) for shape in shapes if shape[0] in (32, 128)]
    return [
        (_operator("pooled", [[1, rows, dim, lookups]], run=FREELY, training=training),)
        for rows, (dim, lookups), training in cases
    ]


_FORTY = [(wide, narrow, count, 10) for wide, narrow, count in product((64, 128, 256), (4, 8, 16, 32), (1, 4, 16))]
_FORTY += [(32, 4, count, 10) for count in (1, 4, 16)] + [(512, 4, 4, 10)]
_MANY = list(product((64, 128, 256), (4, 8, 16, 32), (1, 3, 7, 15, 31), (1, 4, 32)))
_MANY += list(product((32,), (4,), (1, 3, 7, 15, 31), (1, 4, 32))) + list(product((512,), (4, 64), (3,), (1, 4)))


def _mixed(experiment: str, cases: Sequence[tuple[int, int, int, int]]) -> list[Group]:
    """One wide table and `count` narrow ones, together and apart; batch 16,384 leaves room for 32 lookups of each."""
    groups = []
    for wide, narrow, count, lookups in cases:
        batch = BATCH if experiment == "mixed" else BATCH // 4
        one, many = [1, 1_000_000, wide, lookups], [count, 1_000_000, narrow, lookups]
        parts = {"fused": [one, many], "wide": [one], "narrow": [many]}
        groups.append(
            tuple(
                _operator(experiment, tables, run=FREELY, batch=batch, part=part, of=parts["fused"], training=SGD_FP16)
                for part, tables in parts.items()
            )
        )
    return groups


def _machine() -> list[Group]:
    cases: list[dict[str, Any]] = [{"what": "rise", "busy_ms": ms} for ms in (0, 10, 50, 200, 1000)]
    cases += [{"what": "copy", "bytes": 2**power} for power in range(12, 34, 2)]
    cases += [{"what": "nothing", "repeat": number} for number in range(4)]
    return [(Point("machine", case),) for case in cases]


def _rows() -> list[Group]:
    cases = product((4, 8, 16, 32, 64, 128), (1, 4, 16, 64), (4_096, 16_384, BATCH), TRAININGS)
    return [
        (_operator("rows", [[1, rows_for(batch * count, 1), dim, count]], run=1, batch=batch, training=training),)
        for dim, count, batch, training in cases
    ]


def _sort() -> list[Group]:
    cases = product(range(14, 28), (12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 33))
    return [(Point("sort", {"lookups": 2**power, "bits": bits}),) for power, bits in cases]


def _updates() -> list[Group]:
    lengths = (1, 2, 8, 32, 33, 1_024, 1_025, 10_000)
    trainings = list(product(("fp16", "fp32"), ("sgd", "rowwise_adagrad")))
    return [
        (_operator("updates", [[1, rows_for(BATCH * count, run), dim, count]], run=run, training=training),)
        for run, dim, training, count in product(lengths, (8, 32, 64, 128), trainings, (16, 64))
    ]


def _reuse() -> list[Group]:
    groups = []
    for megabytes, dim, count in product((1, 4, 16, 32, 48, 64, 100, 200, 500), (8, 32, 64, 128), (8, 32)):
        table = [1, megabytes * 1_000_000 // (2 * dim), dim, count]
        groups.append(
            tuple(_operator("reuse", [table], run=FREELY, training=SGD_FP16, flush=flush) for flush in (False, True))
        )
    return groups


def _tables() -> list[Group]:
    cases = product((1, 2, 4, 8, 16, 32, 64, 128), (16, 128), (2**14, 2**17, 2**20, 2**23))
    return [
        (_operator("tables", [[count, 100_000, dim, lookups // 16_384]], run=FREELY, batch=16_384 // count),)
        for count, dim, lookups in cases
    ]


# Rehearsals

_SMALL_BATCH, _SMALL_LOOKUPS, _SMALL_ROWS, _SMALL_COUNT = 128, 8, 4_096, 4


def _small(point: Point) -> Point:
    """`point` at a size for any CPU."""
    given = point.parameters
    if "tables" in given:
        batch = min(given["batch"], _SMALL_BATCH)
        tables = []
        for count, rows, dim, lookups in given["tables"]:
            fewer = min(lookups, _SMALL_LOOKUPS)
            least = rows_for(batch * fewer, given["run"]) if given["run"] else min(rows, _SMALL_ROWS)
            tables.append([min(count, _SMALL_COUNT), least, dim, fewer])
        return Point(point.experiment, {**given, "batch": batch, "tables": tables})
    limits = {"bytes": 2**20, "lookups": 2**14, "bits": 24}
    return Point(
        point.experiment, {name: min(value, limits[name]) if name in limits else value for name, value in given.items()}
    )


def rows(groups: Sequence[Group]) -> Iterator[Point]:
    """All points of the groups."""
    for group in groups:
        yield from group
