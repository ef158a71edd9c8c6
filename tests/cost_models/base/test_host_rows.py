"""Rows in host memory: the closed form is the best split of rows, found by sorting, and by trying every split."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.cost_models import AdditiveCostModel, AnalyticalCostModel, AnalyticalShardingModel
from shard_gym.cost_models.base import COMPUTE
from shard_gym.cost_models.base.host_rows import THRESHOLDS, UPDATE_TIMES, host_loads, host_read_ms, rows_by_threshold
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.plans.hbm_rows import best_split
from shard_gym.plans.plan import COLUMN_WISE, DATA_PARALLEL, ROW_WISE, TABLE_WISE
from shard_gym.plans.statistics import shard_tables
from shard_gym.tables import RowPopularity, RowSteps, Tables, Workload
from shard_gym.tables.tables import ANYWHERE, CACHED, IN_HBM, IN_HOST

PLACEMENT, SHARDING = AnalyticalCostModel(), AnalyticalShardingModel()
READ, UPDATE = 16.0, 20.0  # GB/s of an A100's host


def with_host(hbm: float, devices: int = 1) -> Topology:
    """A100s with so many bytes of HBM for tables, and more host memory than any table needs."""
    return hardware_profile("a100-dgx").topology(
        devices, memory_cap_bytes=max(int(hbm), 1), host_memory_bytes=devices * 2**42
    )


def steps_of(rng: np.random.Generator, num_embeddings: np.ndarray, steps: int) -> RowSteps:
    """Random steps of so many rows; half of the tables have rows that are never read."""
    rows = np.stack([rng.multinomial(each - steps, np.full(steps, 1 / steps)) + 1 for each in num_embeddings])
    each = -np.sort(-np.exp(rng.uniform(-14, 0, rows.shape)), axis=1)
    each[::2, -1] = 0.0
    return RowSteps(rows, each * rows / (each * rows).sum(axis=1, keepdims=True))


def any_tables(rng: np.random.Generator, law: bool, count: int = 6, most: int = 40_000, **training: Any) -> Tables:
    """Tables with laws or steps of popularity, some read less than once a row and some many times."""
    rows = np.exp(rng.uniform(np.log(min(1_000, most)), np.log(most), count)).astype(np.int64)
    dims, pooling = rng.choice([4, 16, 64, 128], count), np.exp(rng.uniform(-3, 4, count))
    laws = RowPopularity(np.where(rng.random(count) < 0.5, 0.0, rng.uniform(0, 300, count)), rng.uniform(0, 1.6, count))
    tables = Tables.from_popularity(
        num_embeddings=rows,
        embedding_dim=dims,
        pooling_factor=pooling,
        popularity=laws,
        workload=Workload(2048, **{"weight_dtype": "fp32", **training}),
    )
    return tables if law else replace(tables, popularity=steps_of(rng, rows, 100))


def probabilities(shards: Tables, number: int) -> np.ndarray:
    """For each row of a shard, that a batch reads it: written down from the definitions, row by row."""
    popularity, rows = shards.popularity, int(shards.num_embeddings[number])
    if isinstance(popularity, RowPopularity):
        weights = (np.arange(1.0, rows + 1) + popularity.q[number]) ** -popularity.s[number]
        share = weights / weights.sum()
    else:
        assert popularity is not None
        count, shares = popularity.rows[number], popularity.shares[number]
        share = np.repeat(shares / np.maximum(count, 1), np.round(count).astype(int))
    return -np.expm1(-share * shards.lookups_per_batch[number])


def sorted_split(read: list[np.ndarray], row_bytes: np.ndarray, hbm: float) -> float:
    """Bytes that a batch reads from the host if the rows read most are in HBM; of the last one, a part may be."""
    every, size = np.concatenate(read), np.repeat(row_bytes, [len(each) for each in read]).astype(float)
    order = np.argsort(-every, kind="stable")
    every, size = every[order], size[order]
    outside = 1.0 - np.clip((hbm - (np.cumsum(size) - size)) / size, 0.0, 1.0)
    return float((every * size * outside).sum())


def host_bytes(shards: Tables, kind: str, topology: Topology, model: AnalyticalShardingModel = SHARDING) -> float:
    """Those that the cost model charges the first device for, if it has all of these shards."""
    loads = model.loads(shards, topology, kind)
    device = model.reduce(loads, np.zeros(len(shards), np.int64), 1)[0, model.num_loads :]
    assert topology.host is not None
    return float(host_read_ms(device)) * topology.host.read_gb_per_s * 1e6


def draws(law: bool, seed: int) -> Any:
    """A shard kind, shards of it, a topology and the bytes of the sorted split, many times."""
    rng = np.random.default_rng(seed)
    for number in range(24):
        kind = (TABLE_WISE, COLUMN_WISE, ROW_WISE, DATA_PARALLEL)[number % 4]
        tables = any_tables(rng, law)
        widths = np.full(len(tables), 4) if kind == COLUMN_WISE else None
        shards = shard_tables(tables, kind, with_host(1, 4), widths)
        read = [probabilities(shards, each) for each in range(len(shards))]
        if kind == ROW_WISE and not law:  # rows of a block are a part of those of each step
            continue
        if kind == DATA_PARALLEL:
            read = [np.ones_like(each) for each in read]
        for share in np.exp(rng.uniform(np.log(0.01), np.log(0.7), 3)):
            hbm = int(share * shards.memory_bytes.sum())
            yield host_bytes(shards, kind, with_host(hbm, 4)), sorted_split(read, 4 * shards.embedding_dim, hbm)


@pytest.mark.parametrize("law", [True, False], ids=["law", "steps"])
def test_it_is_the_sorted_split(law: bool) -> None:
    found, truth = np.array(list(draws(law, 3))).T
    errors = found / truth - 1.0
    assert errors.max() < 2e-4  # never too high, but for the quadrature of a law
    assert errors.min() > -0.04
    assert errors.mean() > -0.007


def tiny_tables(rng: np.random.Generator, count: int) -> Tables:
    """Tables of two to five rows, each of which has a popularity of its own."""
    steps = 5
    rows = (np.arange(steps) < rng.integers(2, steps + 1, count)[:, None]).astype(float)
    each = -np.sort(-(rng.exponential(size=rows.shape) ** 3), axis=1) * rows
    tables = Tables.from_zipf(
        rows.sum(axis=1).astype(int), rng.choice([4, 8], count), rng.uniform(0.1, 2.0, count), 0.0, Workload(8, "fp32")
    )
    return replace(tables, popularity=RowSteps(rows, each / each.sum(axis=1, keepdims=True)))


@pytest.mark.parametrize("seed", range(6))
def test_no_split_of_rows_reads_less_from_the_host(seed: int) -> None:
    """All 2^n sets of rows that fit; the sorted split is the best one where it fills the HBM with whole rows."""
    tables = tiny_tables(np.random.default_rng(seed), 3)
    row_bytes = 4 * tables.embedding_dim
    read = [probabilities(tables, each) for each in range(3)]
    every, size = np.concatenate(read), np.repeat(row_bytes, [len(each) for each in read])
    inside = np.array(list(product([False, True], repeat=len(every))))
    bytes_inside, from_host = inside @ size, (~inside) @ (every * size)
    order = np.argsort(-every)
    for hbm in range(4, int(size.sum()) + 1, 4):
        best = from_host[bytes_inside <= hbm].min()
        found = host_bytes(tables, TABLE_WISE, with_host(hbm))
        assert found <= sorted_split(read, row_bytes, hbm) * (1 + 1e-12) <= best * (1 + 1e-9) + 1e-15
        if hbm in np.cumsum(size[order]):
            assert sorted_split(read, row_bytes, hbm) == pytest.approx(best, abs=1e-12)
            split = best_split(tables, np.zeros(3, np.int64), np.zeros(3, bool), with_host(hbm))
            assert split.hbm_rows @ row_bytes == hbm
            assert split.host_reads @ row_bytes == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "kept", [(IN_HBM, ANYWHERE, ANYWHERE), (ANYWHERE, IN_HOST, CACHED), (IN_HBM, ANYWHERE, IN_HOST)]
)
def test_no_split_that_keeps_tables_in_their_memory_reads_less(seed: int, kept: tuple[int, ...]) -> None:
    """All sets of rows that fit and have all rows of a table that is kept in HBM, and none of one in the host."""
    tables = tiny_tables(np.random.default_rng(seed), 3).with_rows_in(np.array(kept))
    row_bytes, owner = 4 * tables.embedding_dim, np.repeat(np.arange(3), tables.num_embeddings)
    every, size = np.concatenate([probabilities(tables, each) for each in range(3)]), row_bytes[owner]
    inside = np.array(list(product([False, True], repeat=len(every))))
    for where, is_inside in ((IN_HBM, True), (IN_HOST, False)):
        inside = inside[(inside[:, tables.are_in(where)[owner]] == is_inside).all(axis=1)]
    bytes_inside, from_host = inside @ size, (~inside) @ (every * size)
    shared = tables.are_in(ANYWHERE, CACHED)[owner]
    full = int(size[tables.are_in(IN_HBM)[owner]].sum()) + np.cumsum(size[shared][np.argsort(-every[shared])])
    for hbm in range(int(bytes_inside.min()) or 4, int(size.sum()) + 1, 4):
        best = from_host[bytes_inside <= hbm].min()
        split = best_split(tables, np.zeros(3, np.int64), np.zeros(3, bool), with_host(hbm))
        assert host_bytes(tables, TABLE_WISE, with_host(hbm)) <= split.host_reads @ row_bytes * (1 + 1e-9)
        assert split.host_reads @ row_bytes <= best * (1 + 1e-9) + 1e-15
        if hbm in full:
            assert split.host_reads @ row_bytes == pytest.approx(best, abs=1e-9)
        assert split.hbm_rows[tables.are_in(IN_HBM)].tolist() == tables.num_embeddings[tables.are_in(IN_HBM)].tolist()
        assert not split.hbm_rows[tables.are_in(IN_HOST)].any()


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adam"])
def test_tables_that_are_kept_leave_the_others_the_rest_of_the_hbm(optimizer: str) -> None:
    """Those in HBM take their bytes and cost nothing, those in the host cost all of their reads, at every width."""
    rng = np.random.default_rng(4)
    tables = any_tables(rng, law=False, optimizer=optimizer)
    hbm = int(0.4 * tables.memory_bytes.sum())
    in_hbm, in_host = np.argsort(tables.memory_bytes)[:2]
    rows_in = np.full(6, ANYWHERE)
    rows_in[[in_hbm, in_host]] = IN_HBM, IN_HOST
    kept, others = tables.with_rows_in(rows_in), np.flatnonzero(rows_in == ANYWHERE)
    states = 4 * int(tables.num_embeddings[in_host]) * (optimizer == "rowwise_adagrad")
    for columns in (4, 16):
        shards = kept.with_dims(np.minimum(kept.embedding_dim, columns))
        rest = shards.select(others)
        less = with_host(hbm - int(shards.memory_bytes[in_hbm]) - states)
        always = probabilities(tables, in_host).sum() * shards.embedding_dim[in_host] * 4
        found = host_bytes(shards, TABLE_WISE, with_host(hbm))
        assert found == pytest.approx(host_bytes(rest, TABLE_WISE, less) + always, rel=1e-9, abs=hbm * 2.0**-23)


@pytest.mark.parametrize("law", [True, False], ids=["law", "steps"])
def test_the_best_split_is_the_sorted_one_of_each_device(law: bool) -> None:
    rng = np.random.default_rng(8)
    tables, devices = any_tables(rng, law), np.arange(6) % 2
    topology = with_host(0.2 * tables.memory_bytes.sum(), 2)
    assert topology.host is not None
    split = best_split(tables, devices, np.zeros(6, bool), topology)
    for device in range(2):
        here = np.flatnonzero(devices == device)
        read = [probabilities(tables, each) for each in here]
        row_bytes = 4 * tables.embedding_dim[here]
        truth = sorted_split(read, row_bytes, topology.host.hbm_bytes)
        assert split.host_reads[here] @ row_bytes == pytest.approx(truth, rel=1e-3)
        expected = [each.sum() for each in read]
        assert split.hbm_reads[here] + split.host_reads[here] == pytest.approx(expected, rel=1e-4)
        assert split.hbm_rows[here] @ row_bytes <= topology.host.hbm_bytes
    everything = best_split(tables, devices, np.zeros(6, bool), replace(topology, host=None))
    assert everything.hbm_rows.tolist() == tables.num_embeddings.tolist()
    assert not everything.host_reads.any()


def test_the_states_of_rows_are_in_hbm_and_those_of_weights_move_with_them() -> None:
    rng = np.random.default_rng(0)
    plain = any_tables(rng, law=True)
    read = [probabilities(plain, each) for each in range(len(plain))]
    for optimizer, of_weight, of_row in (("sgd", 0, 0), ("rowwise_adagrad", 0, 4), ("adam", 8, 0)):
        tables = plain.with_training(optimizer=optimizer)
        hbm = int(0.3 * tables.memory_bytes.sum())
        free = hbm - of_row * tables.num_embeddings.sum()
        weights = sorted_split(read, (4 + of_weight) * tables.embedding_dim, free) * 4 / (4 + of_weight)
        topology = with_host(hbm)
        assert host_bytes(tables, TABLE_WISE, topology) == pytest.approx(weights, rel=0.04)
        updated = host_loads(tables, topology)[:, UPDATE_TIMES] * weights / READ * UPDATE
        assert updated == pytest.approx(weights * (4 + of_weight) / 4)  # of weights and states, at the other rate


def test_a_fourth_of_the_rate_takes_four_times_as_long() -> None:
    tables = any_tables(np.random.default_rng(1), law=True)
    topology = with_host(0.2 * tables.memory_bytes.sum())
    assert topology.host is not None
    host, placement = topology.host, np.zeros(len(tables), np.int64)
    in_hbm, both, slow_reads, slow_updates = (
        PLACEMENT.estimate(placement, tables, replace(topology, host=each)).phases_ms[0]
        for each in (
            None,
            host,
            replace(host, read_gb_per_s=host.read_gb_per_s / 4),
            replace(host, update_gb_per_s=host.update_gb_per_s / 4),
        )
    )
    added = (both - in_hbm)[COMPUTE]
    assert (added > 0).all()
    assert added[0] * READ == pytest.approx(added[1] * UPDATE)
    assert (slow_reads - in_hbm)[COMPUTE] == pytest.approx(added * [4, 1])
    assert (slow_updates - in_hbm)[COMPUTE] == pytest.approx(added * [1, 4])


# Shards


def test_columns_have_their_part_of_the_bytes() -> None:
    tables = any_tables(np.random.default_rng(2), law=True).with_dims(np.full(6, 64))
    topology = with_host(10**6, 4)
    whole, part = (
        SHARDING.loads(tables.with_dims(np.full(6, width)), topology, kind)
        for width, kind in ((64, TABLE_WISE), (16, COLUMN_WISE))
    )
    assert whole[:, SHARDING.num_loads + 2 :] == pytest.approx(4 * part[:, SHARDING.num_loads + 2 :], rel=1e-12)


@pytest.mark.parametrize("law", [True, False], ids=["law", "steps"])
def test_blocks_of_rows_have_together_the_curve_of_the_table(law: bool) -> None:
    """Each row is read as often as before, and a block has a D-th of them."""
    tables, topology = any_tables(np.random.default_rng(3), law, most=400_000), with_host(10**6, 4)
    blocks = shard_tables(tables, ROW_WISE, topology)
    errors = 4 * rows_by_threshold(blocks) / rows_by_threshold(tables) - 1.0
    assert np.abs(errors).mean() < 0.01
    assert np.abs(errors).max() < 0.15  # a block has no quarter of the first row of a steep law
    single = SHARDING.loads(blocks, topology, ROW_WISE)[:, SHARDING.num_loads :]
    assert np.array_equal(single, host_loads(blocks, topology))


def test_replicas_are_updated_in_full_where_there_are_several() -> None:
    tables = any_tables(np.random.default_rng(4), law=True)
    for devices in (1, 4):
        topology = with_host(10**6, devices)
        replicas = shard_tables(tables, DATA_PARALLEL, topology)
        loads = SHARDING.loads(replicas, topology, DATA_PARALLEL)[:, SHARDING.num_loads + 2 :]
        rows = loads / loads[:, :1] * tables.num_embeddings[:, None]
        if devices == 1:
            assert np.array_equal(loads, host_loads(tables, topology)[:, 2:])
        else:
            assert rows == pytest.approx(THRESHOLDS * tables.num_embeddings[:, None], rel=1e-12)
    few = rows_by_threshold(tables.at_batch_size(512))
    assert (few < rows_by_threshold(tables)).any()  # a replica's samples read fewer rows
    assert (few <= rows_by_threshold(tables)).all()


# The loads beside the others


@pytest.mark.parametrize("model", [PLACEMENT, SHARDING], ids=["placement", "sharding"])
@pytest.mark.parametrize("law", [True, False], ids=["law", "steps"])
@pytest.mark.parametrize("most", [500, 40_000])
def test_where_all_rows_fit_no_bit_changes(model: AdditiveCostModel, law: bool, most: int) -> None:
    rng = np.random.default_rng(most)
    for _ in range(20):
        tables, placement = any_tables(rng, law, most=most), rng.integers(3, size=6)
        fullest = np.bincount(placement, tables.memory_bytes).max()  # it fills the HBM to the last byte
        topology = with_host(fullest, 3)
        plain = replace(topology, host=None)
        loads = model.loads(tables, topology)
        assert model.loads(tables, plain).tobytes() == loads[:, : model.num_loads].tobytes()
        assert loads.shape[1] == model.num_loads_with(host_memory=True)
        costs = [model.estimate(placement, tables, each) for each in (topology, plain)]
        assert costs[0].phases_ms.tobytes() == costs[1].phases_ms.tobytes()
        assert costs[0].total_ms == costs[1].total_ms


@given(seed=st.integers(0, 2**32 - 1), law=st.booleans(), model=st.sampled_from([PLACEMENT, SHARDING]))
def test_a_table_more_never_makes_a_device_faster(seed: int, law: bool, model: AdditiveCostModel) -> None:
    rng = np.random.default_rng(seed)
    tables, devices = any_tables(rng, law, 7, 3_000), int(rng.integers(1, 4))
    topology = with_host(np.exp(rng.uniform(-5, 0.5)) * tables.memory_bytes.sum() / devices, devices)
    loads, placement = model.loads(tables, topology), rng.integers(devices, size=7)
    few, more = (model.reduce(loads[:count], placement[:count], devices) for count in (6, 7))
    before, after = (model.costs(each, topology.cluster()) for each in (few, more))
    assert (after[0] >= before[0] * (1 - 1e-12)).all()
    assert after[1] >= before[1] * (1 - 1e-12)
    assert model.add(few[placement[6]], loads[6]) == pytest.approx(more[placement[6]], rel=1e-12)


def test_more_hbm_never_makes_a_device_slower() -> None:
    tables = any_tables(np.random.default_rng(5), law=False)
    shares = np.linspace(0.01, 1.01, 30) * tables.memory_bytes.sum()
    found = [host_bytes(tables, TABLE_WISE, with_host(hbm)) for hbm in shares]
    assert (np.diff(found) <= 0).all()
    assert found[0] > 0 == found[-1]
