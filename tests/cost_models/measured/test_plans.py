"""Plans are executed: outputs and updated weights are those of plain torch, whatever the sharding type."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models.measured import MeasuredCostModel, Session
from shard_gym.cost_models.measured.job import Job, Repeats
from shard_gym.cost_models.measured.model import modelled_exchange_ms
from shard_gym.cost_models.measured.operator import LOOKUP_WEIGHT
from shard_gym.cost_models.measured.parts import KINDS, exchange_of, parts_of, widths_of
from shard_gym.cost_models.measured.shard_streams import streams_of
from shard_gym.cost_models.measured.streams import HistogramStream
from shard_gym.cost_models.measured.worker import LEARNING_RATE
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.plans import (
    ShardingPlan,
    column_wise,
    data_parallel,
    plan_of_placement,
    row_wise,
    table_row_wise,
    table_wise,
)
from shard_gym.plans.plan import COLUMN_WISE, DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE
from shard_gym.tables import Tables, Workload

torch = pytest.importorskip("torch")
pytest.importorskip("fbgemm_gpu", reason="the extra real is not installed")

BATCH, EPS = 16, 1e-8
REPEATS = Repeats(iterations=1, warmup=0, batches=1, seed=3)
FOUR = hardware_profile("cpu").topology(4, devices_per_host=2)  # two hosts of two devices
OWN = (
    Workload(BATCH, "fp16", "sgd"),
    Workload(BATCH, "fp32", "adagrad", weighted=True),
    Workload(BATCH, "fp32", "rowwise_adagrad"),
)


def some_tables(optimizer: str = "rowwise_adagrad") -> Tables:
    """Nine tables of several widths, two of them with two features."""
    count = 9
    dims, features = np.resize([8, 16, 12], count), np.resize([1, 1, 2, 1], count)
    workload = Workload(BATCH, "fp32", optimizer)
    return Tables.from_zipf(np.arange(count) * 7 + 30, dims, np.resize([2.0, 1.5, 3.0], count), 1.0, workload, features)


def mixed_tables() -> Tables:
    """The same in three groups; of each kind of shard that some device has, it has two or three."""
    return replace(some_tables(), workload=Workload.mixed(OWN, [0, 1, 1, 0, 2, 0, 1, 2, 0]))


def every_type(tables: Tables, topology: Topology, host: int = 1) -> ShardingPlan:
    """Two tables of each type but one; one host has all tables of a host."""
    types = [
        *(table_wise(tables, table, device) for table, device in ((0, 0), (1, 2))),
        column_wise(tables, 2, [3, 0, 3]),
        column_wise(tables, 3, [1, 1]),
        *(row_wise(tables, table, topology) for table in (4, 5)),
        table_row_wise(tables, 6, topology, host),
        *(data_parallel(tables, table, topology) for table in (7, 8)),
    ]
    return ShardingPlan(tuple(types))


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    session = Session("cpu", 4, threads=1, timeout_s=60.0)
    yield session
    session.close()


def workload_of(tables: Tables, table: int) -> Workload:
    return tables.workloads[tables.group[table]]


class Expected:
    """What plain torch computes for whole tables with random weights."""

    def __init__(self, tables: Tables) -> None:
        rng = np.random.default_rng(5)
        shapes = zip(tables.num_embeddings.tolist(), tables.embedding_dim.tolist(), strict=True)
        self.weights = [rng.uniform(-1, 1, shape).astype(np.float16).astype(np.float32) for shape in shapes]
        self.outputs: list[Any] = []  # (B, features * dim) of each table
        self.gradients: list[Any] = []
        for table, given in enumerate(self.weights):
            found = HistogramStream(tables, table, REPEATS.seed).lookups(0, BATCH)
            weight = torch.tensor(given, requires_grad=True)
            offsets = torch.tensor(np.concatenate([[0], np.cumsum(found.lengths.ravel())[:-1]]))
            bags = torch.nn.functional.embedding_bag(torch.tensor(found.indices), weight, offsets, mode="sum")
            if workload_of(tables, table).weighted:
                bags = LOOKUP_WEIGHT * bags
            outputs = bags.view(found.lengths.shape[0], BATCH, -1)
            (0.5 * (outputs**2).sum()).backward()
            self.outputs.append(outputs.detach().transpose(0, 1).numpy())  # (B, features, dim)
            self.gradients.append(weight.grad.numpy())

    def after(self, tables: Tables, table: int, rows: slice, columns: slice, replicas: int) -> Any:
        """The weights of a shard after a step."""
        step = self.gradients[table][rows, columns] / replicas
        optimizer = workload_of(tables, table).optimizer
        if optimizer == "rowwise_adagrad":
            step = step / (np.sqrt((step**2).mean(axis=1, keepdims=True)) + EPS)
        elif optimizer == "adagrad":
            step = step / (np.abs(step) + EPS)
        return self.weights[table][rows, columns] - LEARNING_RATE * step


def executed(session: Session, plan: ShardingPlan, tables: Tables, topology: Topology) -> tuple[Any, Any, Any]:
    """What is expected, the cells of the shards of each device and kind, by group, and what the workers answer."""
    expected, parts = Expected(tables), parts_of(plan, tables, topology)
    widths = widths_of(parts, topology)
    arrays, types = plan.shard_arrays(), [sharding.sharding_type for sharding in plan.tables]
    cells: list[dict[str, list[tuple[int, slice, slice]]]] = [{} for _ in parts]
    for table, device, row, rows, column, columns in arrays.tolist():
        kind = COLUMN_WISE if types[table] == "table_wise" else types[table]
        shard = (table, slice(row, row + rows), slice(column, column + columns))
        cells[device].setdefault(kind, []).append(shard)
    commands = []
    for own, shards in zip(parts, cells, strict=True):
        for of_kind in shards.values():
            of_kind.sort(key=lambda shard: int(tables.group[shard[0]]))  # and in the order of the plan
        in_order = iter(
            [expected.weights[t][rows, columns] for kind in KINDS for t, rows, columns in shards.get(kind, ())]
        )
        given = [list(islice(in_order, len(part.tables))) for part in own]
        job = Job(own, topology.num_devices, BATCH, widths, REPEATS, exchange=True)
        commands.append(("run_iteration", {"job": job, "weights": given}))
    subjects = [f"device {device}" for device in range(len(parts))]
    join = topology.num_devices, max(len(widths.host_partial), 1)
    return expected, cells, session.ask(commands, subjects, join=join)


def flat(expected: Expected, samples: Any, shards: list[tuple[int, slice, slice]]) -> Any:
    """(samples * width,) outputs of shards, sample by sample."""
    outputs = [expected.outputs[table][samples, :, columns].reshape(len(samples), -1) for table, _, columns in shards]
    return np.concatenate(outputs, axis=1).ravel() if outputs else np.empty(0)


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "sgd", "of each group"])
@pytest.mark.parametrize("host", [0, 1])
def test_all_types_compute_what_plain_torch_does(
    forked_workers: None, session: Session, optimizer: str, host: int
) -> None:
    """Tables of several workloads, too: a kind of shard is exchanged once, whatever its groups."""
    mixed = optimizer == "of each group"
    tables = mixed_tables() if mixed else some_tables(optimizer)
    plan = every_type(tables, FOUR, host)
    expected, cells, answers = executed(session, plan, tables, FOUR)
    samples = np.split(np.arange(BATCH), 4)
    for device, (outputs, weights) in enumerate(answers):
        wanted = {
            COLUMN_WISE: [flat(expected, samples[device], own.get(COLUMN_WISE, [])) for own in cells],
            ROW_WISE: [flat(expected, samples[device], cells[0][ROW_WISE])],
            TABLE_ROW_WISE: [flat(expected, samples[device], cells[2 * host][TABLE_ROW_WISE])],
            DATA_PARALLEL: [flat(expected, samples[device], cells[0][DATA_PARALLEL])],
        }
        assert len(outputs) == len(KINDS)
        for found, kind in zip(outputs, KINDS, strict=True):
            np.testing.assert_allclose(found, np.concatenate(wanted[kind]), rtol=1e-4, atol=1e-5, err_msg=kind)
        own = [(kind, shard) for kind in KINDS for shard in cells[device].get(kind, ())]
        operators = {(kind, tables.group[shard[0]]) for kind, shard in own}
        assert len(weights) == len(operators)
        for (kind, shard), found in zip(own, [each for after in weights for each in after], strict=True):
            step = expected.after(tables, *shard, replicas=4 if kind == DATA_PARALLEL else 1)
            tolerance = 4e-3 if workload_of(tables, shard[0]).weight_dtype == "fp16" else 1e-5  # rounded at random
            np.testing.assert_allclose(found, step, rtol=10 * tolerance, atol=tolerance, err_msg=kind)


@pytest.mark.parametrize(
    ("training", "rtol"),
    [
        ({"weight_dtype": "fp32", "optimizer": "rowwise_adagrad"}, 1e-4),
        ({"weight_dtype": "fp16", "optimizer": "sgd"}, 4e-3),
    ],
)
def test_one_worker_computes_the_parts_of_each_device(
    forked_workers: None, session: Session, training: dict[str, str], rtol: float, check_parts: Any
) -> None:
    check_parts(session, rtol, **training)


def test_the_lookups_of_the_blocks_are_those_of_the_table() -> None:
    """Each lookup is in one block, in its bag; the samples of `table_row_wise` are in another order."""
    tables = some_tables()
    for make in (lambda t: row_wise(tables, t, FOUR), lambda t: table_row_wise(tables, t, FOUR, 0)):
        plan = ShardingPlan(tuple(make(table) for table in range(len(tables))))
        for table in range(len(tables)):
            whole = HistogramStream(tables, table, 7).lookups(0, BATCH)
            bags: list[list[list[int]]] = []
            for own in parts_of(plan, tables, FOUR):
                for part in own:
                    found = streams_of(part, HistogramStream, 7)[table].lookups(0, BATCH)
                    rows = np.split(np.asarray(found.indices) + part.first_row[table], np.cumsum(found.lengths)[:-1])
                    assert found.lengths.sum() == len(found.indices)
                    bags.append([bag.tolist() for bag in rows])
            joined = [sorted(row for bag in each for row in bag) for each in zip(*bags, strict=True)]
            ends = np.cumsum(whole.lengths)[:-1]
            expected = [sorted(bag.tolist()) for bag in np.split(np.asarray(whole.indices), ends)]
            if len(bags) == 2:  # device 0 of host 0, device 0 of host 1, device 1 of host 0, ...
                order = np.arange(BATCH).reshape(2, 2, -1).transpose(1, 0, 2).ravel()
                features = len(expected) // BATCH
                expected = [expected[f * BATCH + s] for f in range(features) for s in order]
            assert joined == expected


def test_replicas_read_the_samples_of_their_device() -> None:
    tables = some_tables().at_batch_size(BATCH - 2)  # the first two devices have one more
    plan = ShardingPlan(tuple(data_parallel(tables, table, FOUR) for table in range(len(tables))))
    parts = parts_of(plan, tables, FOUR)
    assert [own[0].samples for own in parts] == [(0, 4), (4, 4), (8, 3), (11, 3)]
    whole = HistogramStream(tables, 0, 7).lookups(0, BATCH - 2)
    read = [streams_of(own[0], HistogramStream, 7)[0].lookups(0, BATCH - 2).indices for own in parts]
    np.testing.assert_array_equal(np.concatenate(read), whole.indices)


def test_what_measures_alike_has_one_key() -> None:
    """Whole tables are those of the placement; the widths of an all-to-all have no order."""
    tables, two = some_tables(), hardware_profile("cpu").topology(2)
    placement = np.arange(9) % 2
    whole = parts_of(plan_of_placement(placement, tables), tables, two)
    assert [own[0].to_key()["names"] for own in whole] == [tables.names[::2], tables.names[1::2]]
    one = hardware_profile("cpu").topology(1)
    for make in (row_wise, data_parallel):
        split = ShardingPlan(tuple(make(tables, table, one) for table in range(9)))
        assert [part.kind for part in parts_of(split, tables, one)[0]] == [COLUMN_WISE]
    on_a_host = ShardingPlan(tuple(table_row_wise(tables, table, two, 0) for table in range(9)))
    assert [part.kind for part in parts_of(on_a_host, tables, two)[0]] == [ROW_WISE]
    swapped = parts_of(plan_of_placement(1 - placement, tables), tables, two)
    both = [exchange_of(parts, widths_of(parts, two), BATCH) for parts in (whole, swapped)]
    assert both[0] == both[1]


QUICK: dict[str, Any] = {"iterations": 3, "warmup": 1, "batches": 2, "timeout_s": 60.0}


@pytest.fixture(scope="module")
def sequential() -> Iterator[MeasuredCostModel]:
    with MeasuredCostModel("cpu", layout="sequential", **QUICK) as model:
        yield model


def test_a_plan_of_whole_tables_measures_what_the_placement_does(
    forked_workers: None, sequential: MeasuredCostModel
) -> None:
    tables, placement = some_tables(), np.arange(9) % 4
    placed = sequential.estimate(placement, tables, FOUR)
    planned = sequential.estimate(plan_of_placement(placement, tables), tables, FOUR)
    assert planned.seconds == 0  # from the cache
    assert planned.phases_ms.tolist() == placed.phases_ms.tolist()


def test_every_device_is_measured_and_the_exchange_is_that_of_the_model(
    forked_workers: None, sequential: MeasuredCostModel
) -> None:
    tables = some_tables()
    plan = every_type(tables, FOUR)
    found = sequential.estimate(plan, tables, FOUR)
    assert (found.phases_ms > 0).all()
    assert found.phases_ms[:, 1:3].tolist() == modelled_exchange_ms(plan, tables, FOUR).tolist()
    assert found.total_ms == pytest.approx(found.phases_ms.max(axis=0).sum())
    assert found.total_ms < sequential.penalty_ms(tables, FOUR, splits=True)
    again = sequential.measure_again(plan, tables, FOUR)
    assert again.iterations_ms.tolist() != found.iterations_ms.tolist()
    assert sequential.estimate(plan, tables, FOUR).iterations_ms.tolist() == again.iterations_ms.tolist()


def test_groups_of_a_device_are_executed_and_those_that_are_alone_are_tables_of_one_workload(
    forked_workers: None, sequential: MeasuredCostModel
) -> None:
    tables = mixed_tables()
    group, whole = tables.group, plan_of_placement(np.arange(9) % 4, tables)
    found = sequential.estimate(whole, tables, FOUR)
    assert (found.phases_ms > 0).all()
    assert found.phases_ms[:, 1:3].tolist() == modelled_exchange_ms(whole, tables, FOUR).tolist()
    parts = parts_of(whole, tables, FOUR)
    assert [[part.tables.workload for part in own] for own in parts] == [
        [OWN[each] for each in sorted(set(group[device::4].tolist()))] for device in range(4)
    ]
    by_group = plan_of_placement(group, tables)  # a device for each group
    apart = sequential.estimate(by_group, tables, FOUR)
    of_one = replace(tables.select(np.flatnonzero(group == 2)), workload=OWN[2])
    alone = sequential.estimate(np.full(len(of_one), 2), of_one, FOUR)
    assert alone.phases_ms[2, [0, 3]].tolist() == apart.phases_ms[2, [0, 3]].tolist()  # it was not measured again


def test_a_group_that_is_not_executed_is_named(sequential: MeasuredCostModel) -> None:
    """All groups take one dtype or optimizer only if it is asked for."""
    own = [OWN[0], replace(OWN[1], optimizer="lamb")]
    tables = replace(some_tables(), workload=Workload.mixed(own, np.arange(9) % 2))
    with pytest.raises(InvalidOptionError, match="does not train with the optimizer lamb on a CPU"):
        sequential.estimate(np.zeros(9, np.int64), tables, FOUR)
    assert [each.optimizer for each in MeasuredCostModel("cpu", optimizer="sgd").as_measured(tables).workloads] == [
        "sgd",
        "sgd",
    ]


@pytest.mark.parametrize("layout", ["sequential", "parallel"])
def test_equal_shards_have_one_time_which_the_cache_has_too(quick_workers: None, layout: str) -> None:
    table, two = some_tables().select([1]), hardware_profile("cpu").topology(2)
    halves = ShardingPlan((column_wise(table, 0, [0, 1]),))
    with MeasuredCostModel("cpu", layout=layout, **QUICK) as model:
        first = model.estimate(halves, table, two)
        again = model.estimate(halves, table, two)
    assert again.seconds == 0
    assert again.iterations_ms.tolist() == first.iterations_ms.tolist()
    assert first.phases_ms[0, [0, 3]].tolist() == first.phases_ms[1, [0, 3]].tolist()


def test_the_dtype_of_replicas_is_part_of_their_exchange() -> None:
    keys = []
    for dtype in ("fp32", "fp16"):
        tables = some_tables().with_training(weight_dtype=dtype)
        parts = parts_of(ShardingPlan(tuple(data_parallel(tables, table, FOUR) for table in range(9))), tables, FOUR)
        keys.append(exchange_of(parts, widths_of(parts, FOUR), BATCH))
    assert keys[0] != keys[1]


def test_times_of_tables_without_weights_keep_their_keys() -> None:
    tables, topology = some_tables(), hardware_profile("cpu").topology(1)
    for kind in (COLUMN_WISE, DATA_PARALLEL):
        weighted = [False, True]
        own = [replace(tables, workload=replace(tables.workload, weighted=each)) for each in weighted]
        ((part,), (other,)) = (parts_of(plan_of_placement([0] * 9, each), each, topology)[0] for each in own)
        keys = [replace(each, kind=kind).to_key() for each in (part, other)]
        workloads = [key.get("tables", key)["workload"] for key in keys]
        assert [each.pop("weighted", None) for each in workloads] == [None, True]
        assert workloads[0] == workloads[1] == {**tables.workload.to_json(), "training": True}


def test_parallel_devices_execute_the_collectives_and_the_dense_update(forked_workers: None) -> None:
    """The all-reduce of large replicas takes the exchange of the gradients longer than that of the outputs."""
    tables, two = some_tables(), hardware_profile("cpu").topology(2)
    large = replace(tables, num_embeddings=np.full(9, 50_000))
    replicas = ShardingPlan(tuple(data_parallel(large, table, two) for table in range(9)))
    with MeasuredCostModel("cpu", layout="parallel", **QUICK) as model:
        found = model.estimate(replicas, large, two)
        rows = model.estimate(ShardingPlan(tuple(row_wise(large, t, two) for t in range(9))), large, two)
    assert (found.phases_ms[:, 1] == 0).all()  # every device has the outputs of its samples
    assert (found.phases_ms[:, 2] > 0).all()
    assert found.phases_ms[:, 3].max() > 3 * rows.phases_ms[:, 3].max()  # all rows are updated
    assert (rows.phases_ms > 0).all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda plan, tables: (plan, tables.at_batch_size(14)), "4 devices do not divide a batch of 14"),
        (lambda plan, tables: (plan, tables.with_training(training=False)), "does not support tables that are served"),
        (lambda plan, tables: (plan, replace(tables, pooled=np.arange(9) > 0)), "does not support sequence tables"),
    ],
)
def test_what_is_not_executed_is_refused(sequential: MeasuredCostModel, change: Any, says: str) -> None:
    tables = some_tables()
    plan, given = change(every_type(tables, FOUR), tables)
    with pytest.raises(InvalidOptionError, match=says):
        sequential.estimate(plan, given, FOUR)


def test_the_memory_of_one_plan_is_there_for_the_next() -> None:
    """A worker holds the operators of one device; those of the devices and plans before are freed.

    It starts as those of users do: its environment says how glibc keeps memory.
    """
    two, mib = hardware_profile("cpu").topology(2), 2**20
    with MeasuredCostModel("cpu", layout="sequential", **QUICK) as model:
        held = []
        for number in range(6):
            large = replace(some_tables(), num_embeddings=np.full(9, 60_000 + number))  # about 25 MiB in all
            kinds = [data_parallel(large, t, two) if t % 2 else row_wise(large, t, two) for t in range(9)]
            model.estimate(ShardingPlan(tuple(kinds)), large, two)
            assert model._session is not None
            status = Path(f"/proc/{model._session.pids[0]}/statm")
            held.append(int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // mib)
    assert max(held) < held[0] + 200, held  # six plans together would be 480 MiB; glibc keeps some between them
