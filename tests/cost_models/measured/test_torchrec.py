"""A plan that is executed computes what TorchRec's `DistributedModelParallel` computes: outputs, and weights after a
step, of every sharding type; and TorchRec's steps are timed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from shard_gym.cost_models.measured import Session
from shard_gym.cost_models.measured.job import Job, Repeats
from shard_gym.cost_models.measured.parts import KINDS, parts_of, widths_of
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.interop import torchrec_timing
from shard_gym.interop.torchrec_timing import TorchRecProcesses
from shard_gym.plans import ShardingPlan, check_plan, column_wise, data_parallel, row_wise, table_row_wise, table_wise
from shard_gym.plans.plan import COLUMN_WISE, ROW_WISE, TABLE_ROW_WISE, TABLE_WISE
from shard_gym.tables import Tables, Workload

pytest.importorskip("torchrec")

BATCH = 16
REPEATS = Repeats(iterations=2, warmup=1, batches=2, seed=3)
CLOSE = {"rtol": 1e-5, "atol": 2e-6}  # sums of the same numbers in another order
TWO = hardware_profile("cpu").topology(2)
FOUR = hardware_profile("cpu").topology(4, devices_per_host=2)  # two hosts of two devices


def some_tables(optimizer: str) -> Tables:
    """Ten tables of several widths, two of them with two features."""
    count = 10
    dims, features = np.resize([8, 16, 12], count), np.resize([1, 1, 2, 1, 1], count)
    workload = Workload(BATCH, "fp32", optimizer)
    return Tables.from_zipf(np.arange(count) * 7 + 30, dims, np.resize([2.0, 1.5, 3.0], count), 1.0, workload, features)


def every_type(tables: Tables, topology: Topology) -> ShardingPlan:
    """Tables of each type; the last host has all tables of a host."""
    last = topology.num_devices - 1
    types = [
        *(table_wise(tables, table, device) for table, device in ((0, 0), (1, last))),
        column_wise(tables, 2, [last, 0, last]),
        column_wise(tables, 3, [1, 1]),
        *(row_wise(tables, table, topology) for table in (4, 5)),
        *(table_row_wise(tables, table, topology, topology.num_hosts - 1) for table in (6, 7)),
        *(data_parallel(tables, table, topology) for table in (8, 9)),
    ]
    return check_plan(ShardingPlan(tuple(types)), tables, topology)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    session = Session("cpu", 4, threads=1, timeout_s=60.0)
    yield session
    session.close()


@pytest.fixture(scope="module", params=[TWO, FOUR], ids=["2 devices", "2 hosts of 2 devices"])
def topology(request: pytest.FixtureRequest) -> Topology:
    found: Topology = request.param
    return found


@pytest.fixture(scope="module")
def torchrec(topology: Topology, forks: Any) -> Iterator[TorchRecProcesses]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torchrec_timing.multiprocessing, "get_context", lambda method: forks.CONTEXT)
        processes = TorchRecProcesses(topology)
    with processes:
        yield processes


class Shard(NamedTuple):
    """The cells of a table on a device."""

    table: int
    row: int
    rows: int
    column: int
    columns: int

    def of(self, whole: Any) -> Any:
        return whole[self.row : self.row + self.rows, self.column : self.column + self.columns]


def shards_of(plan: ShardingPlan, topology: Topology) -> list[dict[str, list[Shard]]]:
    """The shards of each device, by the kind of the part that has them; on one host, those of a host are blocks."""
    alike = {TABLE_WISE: COLUMN_WISE} | ({TABLE_ROW_WISE: ROW_WISE} if topology.num_hosts == 1 else {})
    found: list[dict[str, list[Shard]]] = [{} for _ in range(topology.num_devices)]
    for table, device, *cells in plan.shard_arrays().tolist():
        kind = plan.tables[table].sharding_type
        found[device].setdefault(alike.get(kind, kind), []).append(Shard(table, *cells))
    return found


def executed(session: Session, plan: ShardingPlan, tables: Tables, topology: Topology, weights: list[Any]) -> Any:
    """The outputs and the weights after a step that each worker answers."""
    parts, shards = parts_of(plan, tables, topology), shards_of(plan, topology)
    widths = widths_of(parts, topology)
    commands = []
    for own, by_kind in zip(parts, shards, strict=True):
        given = [[shard.of(weights[shard.table]) for shard in by_kind[part.kind]] for part in own]
        job = Job(own, topology.num_devices, BATCH, widths, REPEATS, exchange=True)
        commands.append(("run_iteration", {"job": job, "weights": given}))
    subjects = [f"device {device}" for device in range(len(parts))]
    return session.ask(commands, subjects, join=(topology.num_devices, max(len(widths.host_partial), 1)))


def flat(outputs: list[Any], shards: list[Shard]) -> Any:
    """The outputs of some shards, sample by sample, from (samples, features, dim) of each whole table."""
    columns = [outputs[each.table][..., each.column : each.column + each.columns] for each in shards]
    return np.concatenate([part.reshape(len(part), -1) for part in columns], axis=1).ravel() if shards else np.empty(0)


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_a_step_is_that_of_torchrec(
    forked_workers: None, session: Session, torchrec: TorchRecProcesses, topology: Topology, optimizer: str
) -> None:
    tables, rng = some_tables(optimizer), np.random.default_rng(5)
    plan = every_type(tables, topology)
    shapes = zip(tables.num_embeddings.tolist(), tables.embedding_dim.tolist(), strict=True)
    weights = [rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]
    ours = executed(session, plan, tables, topology, weights)
    theirs = torchrec.run_step(plan, tables, topology, REPEATS, weights)
    shards = shards_of(plan, topology)
    kinds = [kind for kind in KINDS if any(kind in own for own in shards)]
    assert len(kinds) == (3 if topology is TWO else 4)
    for own, (outputs, after), (pooled, updated) in zip(shards, ours, theirs, strict=True):
        senders = {
            COLUMN_WISE: [each.get(COLUMN_WISE, []) for each in shards],
            TABLE_ROW_WISE: [shards[-1].get(TABLE_ROW_WISE, [])],
        }
        assert len(outputs) == len(kinds)
        for found, kind in zip(outputs, kinds, strict=True):
            wanted = np.concatenate([flat(pooled, sent) for sent in senders.get(kind, [own.get(kind, [])])])
            np.testing.assert_allclose(found, wanted, **CLOSE, err_msg=kind)
        there = {(table, row, column): weight for table, row, column, weight in updated}
        assert len(there) == sum(map(len, own.values()))
        for kind, found_weights in zip([kind for kind in KINDS if kind in own], after, strict=True):
            for shard, found in zip(own[kind], found_weights, strict=True):
                np.testing.assert_allclose(found, there[shard.table, shard.row, shard.column], **CLOSE, err_msg=kind)
                assert (np.asarray(found) != shard.of(weights[shard.table])).any()


def test_steps_are_timed(torchrec: TorchRecProcesses, topology: Topology) -> None:
    tables = some_tables("rowwise_adagrad")
    ms = torchrec.step_ms(every_type(tables, topology), tables, topology, REPEATS)
    assert ms.shape == (REPEATS.iterations,)
    assert (ms > 0).all()
