"""The designed loads read what they say; they are executed on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("fbgemm_gpu", reason="the extra real is not installed")


def test_batches_read_the_rows_of_the_load(tool: Callable[[str], ModuleType]) -> None:
    module = tool("measure_operators")
    bench = module.Bench("cpu")
    for same in (False, True):
        load = module.Load("hot", (module.Table(256, 8, 4, 16), module.Table(1024, 8, 2)), 32, same_rows=same)
        (first, offsets), (second, _) = bench.batches(load)[:2]
        assert offsets.diff().tolist() == [4] * 32 + [2] * 32
        assert first[:128].unique(return_counts=True)[1].tolist() == [8] * 16
        assert len(first[128:].unique()) == 64
        assert (set(first[:128].tolist()) & set(second[:128].tolist()) != set()) == same
        record = bench.measure(replace(load, iterations=2))
        assert record["phases"] == ["forward", "backward"]
        assert min(record["ms"]) > 0


def test_no_batch_of_the_design_reads_a_row_of_another(tool: Callable[[str], ModuleType]) -> None:
    module = tool("measure_operators")
    loads = [load for part in module.DESIGN.values() for load in part()]
    assert len(loads) == 237
    for load in loads:
        for table in load.tables:
            distinct = table.distinct or load.batch_size * table.pooling
            assert table.rows & (table.rows - 1) == 0
            assert distinct * (1 if load.same_rows else module.BATCHES) <= table.rows
