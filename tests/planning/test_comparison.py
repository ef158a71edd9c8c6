"""Which tables two plans shard differently, and how many bytes are new on their devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shard_gym.hardware import hardware_profile
from shard_gym.planning import Comparison, explain
from shard_gym.planning.comparison import Migration
from shard_gym.plans import (
    Shard,
    ShardingPlan,
    TableSharding,
    column_wise,
    data_parallel,
    row_wise,
    table_row_wise,
    table_wise,
)
from shard_gym.tables import Tables, Workload
from shard_gym.tasks import Task

TOPOLOGY = hardware_profile("a100-dgx").topology(4, devices_per_host=2)


def tables_of(rows: list[int], dims: list[int]) -> Tables:
    """Tables of `rows` and `dims`, FP32 with SGD, so of 4 bytes a cell; one lookup for each of 8 samples."""
    count = len(rows)
    workload = Workload(8, weight_dtype="fp32", optimizer="sgd")
    return Tables.from_zipf(np.array(rows), np.array(dims), np.ones(count), np.zeros(count), workload)


def test_bytes_that_are_new_on_their_devices_are_counted_cell_by_cell() -> None:
    tables = tables_of([40] * 9, [8] * 9)  # 1,280 bytes each
    whole = [table_wise(tables, table, 0) for table in range(9)]
    pairs = [
        (whole[0], whole[0], None),
        (whole[1], table_wise(tables, 1, 3), 1280),
        (whole[2], TableSharding("column_wise", (Shard(0, 0, 40, 0, 8),)), None),  # the same by another name
        (whole[3], row_wise(tables, 3, TOPOLOGY), 960),  # three of four blocks
        (column_wise(tables, 4, [0, 1]), column_wise(tables, 4, [1, 0]), 1280),  # the halves change places
        (whole[5], column_wise(tables, 5, [0, 1]), 640),
        (data_parallel(tables, 6, TOPOLOGY), whole[6], 0),  # three replicas are dropped
        (whole[7], data_parallel(tables, 7, TOPOLOGY), 3840),  # and three are new
        (row_wise(tables, 8, TOPOLOGY), table_row_wise(tables, 8, TOPOLOGY, 0), 960),  # 0 to 9 of 0 to 19 are kept on 0
    ]
    plans = [ShardingPlan(tuple(pair[side] for pair in pairs)) for side in (0, 1)]
    shuffled = replace(plans[0].tables[4], shards=plans[0].tables[4].shards[::-1])
    same = ShardingPlan((*plans[0].tables[:4], shuffled, *plans[0].tables[5:]))
    task = Task("nine", tables, TOPOLOGY, splittable=True)
    old, new, again = (explain(task, plan) for plan in (*plans, same))
    comparison = Comparison(old, new, "old", "new")
    moved = {change.table: change.moved_bytes for change in comparison.changes}
    assert moved == {table: wanted for table, (_, _, wanted) in enumerate(pairs) if wanted is not None}
    assert list(moved) == sorted(moved, key=lambda table: (-moved[table], table))
    for change in comparison.changes:
        assert (change.before, change.after) == pairs[change.table][:2]
    assert Comparison(old, again, "old", "new").changes == ()


def test_what_each_device_sends_and_receives_is_counted_by_hand() -> None:
    """Four devices in hosts of two; 1,280 bytes a table, each of another kind of move."""
    tables, gb_per_s = tables_of([40] * 4, [8] * 4), TOPOLOGY.links.inter_host_gb_per_s
    task = Task("four", tables, TOPOLOGY, splittable=True)

    def migration(*pairs: tuple[TableSharding, TableSharding]) -> Migration:
        chosen = replace(task, tables=tables.select(list(range(len(pairs)))))
        old, new = (ShardingPlan(tuple(pair[side] for pair in pairs)) for side in (0, 1))
        found = Comparison(explain(chosen, old), explain(chosen, new), "old", "new").migration
        assert found is not None
        return found

    found = migration((table_wise(tables, 0, 1), table_wise(tables, 0, 3)))
    assert (found.sent_bytes.tolist(), found.received_bytes.tolist()) == ([0, 1280, 0, 0], [0, 0, 0, 1280])
    assert found.seconds == pytest.approx(1280 / gb_per_s / 1e9, rel=1e-12)
    # Three of four blocks leave device 0, and three replicas are made of one table; the table on all devices stays.
    found = migration(
        (table_wise(tables, 0, 0), row_wise(tables, 0, TOPOLOGY)),
        (table_wise(tables, 1, 2), data_parallel(tables, 1, TOPOLOGY)),
        (data_parallel(tables, 2, TOPOLOGY), table_wise(tables, 2, 3)),
    )
    assert found.sent_bytes.tolist() == [960, 0, 3840, 0]
    assert found.received_bytes.tolist() == [1280, 320 + 1280, 320, 320 + 1280]
    assert found.seconds == pytest.approx(2 * 1280 / gb_per_s / 1e9, rel=1e-12)  # two replicas leave the host
    nothing = migration((table_wise(tables, 0, 0), table_wise(tables, 0, 0)))
    assert (nothing.sent_bytes.tolist(), nothing.received_bytes.tolist(), nothing.seconds) == ([0] * 4, [0] * 4, 0.0)


@pytest.mark.parametrize("more_before", [False, True])
def test_plans_for_other_numbers_of_devices_are_compared_on_the_devices_of_both(more_before: bool) -> None:
    tables = tables_of([40, 40, 40], [8, 8, 8])
    four, two = (
        Task("other", tables, hardware_profile("a100-dgx").topology(n, devices_per_host=2), splittable=True)
        for n in (4, 2)
    )
    on = {
        task: ShardingPlan(
            (row_wise(tables, 0, task.topology), data_parallel(tables, 1, task.topology), table_wise(tables, 2, last))
        )
        for task, last in ((four, 3), (two, 1))
    }
    old, new = (four, two) if more_before else (two, four)
    comparison = Comparison(explain(old, on[old]), explain(new, on[new]), "old", "new")
    assert [each.num_devices for each in comparison.totals] == ([4, 2] if more_before else [2, 4])
    assert not comparison.renumbered
    migration = comparison.migration
    assert migration is not None
    if more_before:  # device 0 gets block 1, device 1 gets blocks 2 and 3, and the whole table comes from device 3
        assert migration.sent_bytes.tolist() == [0, 320, 320, 320 + 1280]
        assert migration.received_bytes.tolist() == [320, 640 + 1280, 0, 0]
    else:  # blocks of ten rows go on to 1, 2 and 3; replicas come from both old devices
        assert migration.sent_bytes.tolist() == [320 + 1280, 640 + 1280 + 1280, 0, 0]
        assert migration.received_bytes.tolist() == [0, 320, 320 + 1280, 320 + 1280 + 1280]
    assert sum(change.moved_bytes for change in comparison.changes) == migration.sent_bytes.sum()


def test_totals_are_those_of_the_fullest_device_and_of_all_that_is_sent() -> None:
    tables = tables_of([40, 80, 20], [8, 4, 16])
    task = Task("three", tables, TOPOLOGY)
    old, new = (explain(task, placement) for placement in ([0, 2, 2], [1, 0, 0]))
    before, after = Comparison(old, new, "old", "new").totals
    assert (before.cost_ms, after.cost_ms) == (old.total_ms, new.total_ms)
    assert before.phases_ms.tolist() == old.phases_ms.max(axis=0).tolist()
    # Weights, indices and offsets of two batches, and outputs of 8 samples
    held = [4 * rows * dim + 2 * 8 * (8 + 8) + 4 * 8 * dim for rows, dim in ((40, 8), (80, 4), (20, 16))]
    assert (before.fullest_device, before.memory_bytes) == (2, held[1] + held[2])
    assert (after.fullest_device, after.memory_bytes) == (0, held[1] + held[2])
    # 8 samples of 28 columns of 4 bytes: a fourth stays, a fourth goes to the host's other device; and back again.
    outputs = 8 * 28 * 4
    assert before.sent_bytes.tolist() == after.sent_bytes.tolist() == [2 * outputs / 4, 2 * outputs / 2]


def test_plans_that_differ_in_the_numbers_of_devices_alone_are_recognised() -> None:
    """Two tables on one host are others than two on two hosts, whatever the numbers."""
    tables = tables_of([40, 80, 20], [8, 4, 16])
    task = Task("three", tables, TOPOLOGY, splittable=True)

    def renumbered(old: ShardingPlan, new: ShardingPlan) -> bool:
        return Comparison(explain(task, old), explain(task, new), "old", "new").renumbered

    def plan(first: int, second: int, host: int) -> ShardingPlan:
        pair = table_wise(tables, 0, first), table_wise(tables, 1, second)
        return ShardingPlan((*pair, table_row_wise(tables, 2, TOPOLOGY, host)))

    assert renumbered(plan(0, 1, 1), plan(3, 2, 0))
    assert not renumbered(plan(0, 1, 1), plan(3, 2, 1))
    assert not renumbered(plan(0, 1, 1), plan(0, 3, 1))
    whole = [ShardingPlan((*plan(0, second, 0).tables[:2], table_wise(tables, 2, 0))) for second in (1, 2, 3)]
    assert renumbered(whole[1], whole[2])
    assert not renumbered(whole[0], whole[1])
