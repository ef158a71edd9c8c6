"""What a training step holds: by hand for each sharding type, and as TorchRec's planner counts it where both agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from shard_gym.common.errors import InvalidOptionError
from shard_gym.hardware import hardware_profile
from shard_gym.hardware.profile_files import RESERVE, usable_bytes
from shard_gym.plans import (
    Shard,
    ShardingPlan,
    TableSharding,
    column_wise,
    data_parallel,
    plan_memory_used,
    row_wise,
    table_row_wise,
    table_wise,
)
from shard_gym.plans.memory import row_block_bytes, training_memory, whole_table_bytes
from shard_gym.plans.plan import READ_TYPES
from shard_gym.tables import Tables, Workload

DEVICES = 4
TOPOLOGY = hardware_profile("a100-dgx").topology(DEVICES, devices_per_host=2)
ROWS, DIM, POOLING = 10, 8, 2.5


def one_table(weight_dtype: str = "fp16", optimizer: str = "rowwise_adagrad", features: int = 2) -> Tables:
    """In a batch of 100 samples: 250 lookups, and 200 bags with two features."""
    workload = Workload(100, weight_dtype, optimizer)
    return Tables.from_zipf([ROWS], DIM, POOLING, 0.0, workload, num_features=[features])


# Bytes of weights and states, of inputs, of outputs and of gradients, of each shard in order.
BY_HAND = {
    # 10 rows of 8 x 2 + 4 bytes; twice 8 bytes for 250 indices and 200 offsets; 4 bytes for 200 bags of 8 columns
    "table_wise": [(200, 7200, 6400, 0)],
    # 4 columns: 10 rows of 4 x 2 + 4 bytes; all indices and offsets; 200 bags of 4 columns
    "column_wise": [(120, 7200, 3200, 0), (120, 7200, 3200, 0)],
    # 3, 3, 3 and 1 of 10 rows; 62.5 indices and all offsets, twice; all bags
    "row_wise": [(60, 4200, 6400, 0)] * 3 + [(20, 4200, 6400, 0)],
    # 5 rows on each device of a host; 125 indices
    "table_row_wise": [(100, 5200, 6400, 0)] * 2,
    # the table; 62.5 indices and 50 offsets; 50 bags; and a gradient of 10 x 8 x 2 bytes
    "data_parallel": [(200, 1800, 1600, 160)] * 4,
    "table_column_wise": [(120, 7200, 3200, 0), (120, 7200, 3200, 0)],
    # 4 columns on each of two hosts, 5 rows on each device of a host: 125 indices and all offsets; bags of 4 columns
    "grid_shard": [(60, 5200, 3200, 0)] * 4,
}


def plan_of(kind: str, tables: Tables) -> ShardingPlan:
    sharding = {
        "table_wise": lambda: table_wise(tables, 0, 1),
        "column_wise": lambda: column_wise(tables, 0, [3, 1]),
        "row_wise": lambda: row_wise(tables, 0, TOPOLOGY),
        "table_row_wise": lambda: table_row_wise(tables, 0, TOPOLOGY, 1),
        "data_parallel": lambda: data_parallel(tables, 0, TOPOLOGY),
        "table_column_wise": lambda: replace(column_wise(tables, 0, [3, 2]), sharding_type=kind),
        "grid_shard": lambda: TableSharding(
            kind, tuple(Shard(2 * host + block, 5 * block, 5, 4 * host, 4) for host in (1, 0) for block in range(2))
        ),
    }[kind]()
    return ShardingPlan((sharding,))


@pytest.mark.parametrize("kind", BY_HAND)
def test_each_sharding_type_by_hand(kind: str) -> None:
    tables = one_table()
    memory = training_memory(plan_of(kind, tables), tables, DEVICES)
    assert list(map(tuple, memory.of_shards.tolist())) == BY_HAND[kind]
    assert memory.movable.tolist() == [kind in ("table_wise", "column_wise", "table_column_wise")] * len(BY_HAND[kind])
    on = {
        "table_wise": [1],
        "column_wise": [3, 1],
        "table_row_wise": [2, 3],
        "table_column_wise": [3, 2],
        "grid_shard": [2, 3, 0, 1],
    }.get(kind, [0, 1, 2, 3])
    assert memory.devices.tolist() == on
    total = np.zeros(DEVICES)
    for device, shard in zip(on, BY_HAND[kind], strict=True):
        total[device] += sum(shard)
    assert memory.total.tolist() == total.tolist() == (memory.tables + memory.buffers).tolist()


@pytest.mark.parametrize(("weight_dtype", "weight"), [("fp16", 2), ("bf16", 2), ("fp32", 4)])
@pytest.mark.parametrize(("optimizer", "state"), [("sgd", 0), ("rowwise_adagrad", 4 * ROWS), ("adam", 8 * ROWS * DIM)])
def test_a_replica_has_a_gradient_in_the_dtype_of_its_weights(
    weight_dtype: str, weight: int, optimizer: str, state: int
) -> None:
    tables = one_table(weight_dtype, optimizer)
    held, _, outputs, gradient = training_memory(plan_of("data_parallel", tables), tables, DEVICES).of_devices[0]
    assert (held, gradient) == (ROWS * DIM * weight + state, ROWS * DIM * weight)
    assert outputs == 4 * 50 * DIM  # FP32 whatever the weights are


@pytest.mark.parametrize("kind", BY_HAND)
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adam"])
def test_torchrec_counts_the_same_but_for_offsets_and_gradients(kind: str, optimizer: str) -> None:
    """Of a pipelined training step at its peak. With rowwise Adagrad TorchRec shares a row's state among its column
    shards; here each has its own, as FBGEMM allocates it.
    """
    pytest.importorskip("torchrec")
    import torch
    from torchrec import optim
    from torchrec.distributed.planner.shard_estimators import calculate_shard_storages
    from torchrec.distributed.planner.types import SharderData, StorageUsageType
    from torchrec.distributed.types import PipelineType

    tables = one_table("fp32", optimizer)
    memory = training_memory(plan_of(kind, tables), tables, DEVICES)
    shards = plan_of(kind, tables).shard_arrays()
    weights = torch.empty(ROWS, DIM, device="meta")
    weights._optimizer_classes = [  # type: ignore[attr-defined]
        {"sgd": optim.SGD, "rowwise_adagrad": optim.RowWiseAdagrad, "adam": optim.Adam}[optimizer]
    ]
    storages = calculate_shard_storages(
        sharder_data=SharderData({}, {}, StorageUsageType.DEFAULT),
        sharding_type=kind,
        tensor=weights,
        compute_device="cuda",
        compute_kernel="dense" if kind == "data_parallel" else "fused",
        shard_sizes=shards[:, [3, 5]].tolist(),
        batch_sizes=[100 // DEVICES] * 2,
        world_size=DEVICES,
        local_world_size=2,
        input_lengths=[POOLING / 2] * 2,
        num_poolings=[1.0] * 2,
        caching_ratio=1.0,
        is_pooled=True,
        input_data_type_size=8,
        output_data_type_size=4,
        pipeline_type=PipelineType.TRAIN_SPARSE_DIST,
        count_ephemeral_storage_cost=True,
    )
    offsets = 2 * 8 * (50 if kind == "data_parallel" else 200)
    halves = kind in READ_TYPES or kind == "column_wise"
    shared = 4 * shards[:, 3] // 2 if halves and optimizer == "rowwise_adagrad" else 0
    ours = memory.of_shards.sum(axis=1) - offsets - memory.of_shards[:, 3] - shared
    assert [storage.hbm for storage in storages] == ours.tolist()


def test_a_block_without_rows_has_no_indices_and_the_partial_sums_of_all_bags() -> None:
    """4 rows on 3 devices: 2, 2 and 0, so that both blocks with rows get half of 250 indices, and 200 offsets."""
    tables = replace(one_table(), num_embeddings=[4], distinct_rows=[4.0])
    blocks = (Shard(0, 0, 2, 0, DIM), Shard(1, 2, 2, 0, DIM), Shard(2, 4, 0, 0, DIM))
    memory = training_memory(ShardingPlan((TableSharding("row_wise", blocks),)), tables, 3)
    assert memory.of_shards.tolist() == [[40, 5200, 6400, 0], [40, 5200, 6400, 0], [0, 3200, 6400, 0]]
    sequence = replace(tables, pooled=[False])  # an output for each of 125 lookups, and an offset
    memory = training_memory(ShardingPlan((TableSharding("row_wise", blocks),)), sequence, 3)
    assert memory.of_shards.tolist() == [[40, 4000, 4000, 0], [40, 4000, 4000, 0], [0, 0, 0, 0]]


def test_no_plan_holds_less_than_whole_tables(random_tables, random_plan) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        tables = random_tables(rng, 8, weight_dtype=str(rng.choice(["fp16", "fp32"])), optimizer="rowwise_adagrad")
        plan = random_plan(rng, tables, TOPOLOGY)
        memory = training_memory(plan, tables, DEVICES)
        assert memory.total.sum() >= whole_table_bytes(tables).sum()
        assert memory.tables.tolist() == plan_memory_used(plan, tables, DEVICES).tolist()
        placement = rng.integers(DEVICES, size=8)
        whole = training_memory(placement, tables, DEVICES).total
        assert whole.tolist() == np.bincount(placement, whole_table_bytes(tables), DEVICES).tolist()


def test_the_first_row_block_is_the_largest(random_tables) -> None:
    tables = random_tables(np.random.default_rng(1), 5)
    plan = ShardingPlan(tuple(row_wise(tables, table, TOPOLOGY) for table in range(5)))
    memory = training_memory(plan, tables, DEVICES)
    assert memory.total.max() == memory.total[0] == row_block_bytes(tables, DEVICES).sum()


def test_the_shard_to_move_is_the_smallest_that_is_enough(random_tables) -> None:
    """Found by trying all of them; none where no move is enough."""
    seen, rng = set(), np.random.default_rng(2)
    for _ in range(60):
        tables = random_tables(rng, 6)
        placement = rng.integers(DEVICES, size=6)
        memory = training_memory(placement, tables, DEVICES)
        device, sizes = int(memory.total.argmax()), whole_table_bytes(tables)
        limits = np.full(DEVICES, int(memory.total[device] * rng.uniform(0.3, 0.99)))
        found = memory.shard_to_move(device, limits)
        left = limits - memory.total
        target = max((other for other in range(DEVICES) if other != device), key=lambda other: left[other])
        fit = [table for table in np.flatnonzero(placement == device) if sizes[table] <= left[target]]
        enough = [table for table in fit if memory.total[device] - sizes[table] <= limits[device]]
        assert found == ((min(enough, key=sizes.__getitem__), target) if enough else None)
        if found is not None:
            moved = placement.copy()
            moved[found[0]] = found[1]
            after = training_memory(moved, tables, DEVICES).total
            assert (after[[device, target]] <= limits[[device, target]]).all()
        seen.add((bool(fit), bool(enough)))
    assert len(seen) == 3


@pytest.mark.parametrize("make", [lambda plan: plan("row_wise"), lambda plan: plan("data_parallel")])
def test_row_blocks_and_replicas_are_not_moved(make: Callable[..., ShardingPlan]) -> None:
    tables = one_table()
    memory = training_memory(make(lambda kind: plan_of(kind, tables)), tables, DEVICES)
    assert memory.shard_to_move(0, np.full(DEVICES, 2**40)) is None


def test_a_reserve_leaves_the_rest_of_a_device() -> None:
    assert usable_bytes(1000, 0.15) == usable_bytes(1000) == 850
    assert RESERVE == 0.15
    assert usable_bytes(1000, 0) == 1000
    assert usable_bytes(1001, 0.5) == 500
    profile = hardware_profile("a100-dgx")
    assert profile.topology(2, reserve=0.15).memory_cap_bytes.tolist() == [68 * 2**30] * 2
    assert profile.topology(2).memory_cap_bytes.tolist() == [80 * 2**30] * 2
    with pytest.raises(InvalidOptionError, match="not both"):
        profile.topology(2, reserve=0.15, memory_cap_bytes=9)
    for wrong in (1.0, -0.1, float("nan"), float("inf"), "a", None, True, 1 - 1e-12):
        with pytest.raises(InvalidOptionError, match="must be a share of a device's memory of at least 0 and below 1"):
            usable_bytes(1000, wrong)  # type: ignore[arg-type]
