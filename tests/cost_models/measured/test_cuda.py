"""Measurements on CUDA GPUs; skipped where there is none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import DeviceMemoryError, InvalidOptionError
from shard_gym.cost_models.measured import PARALLEL, SEQUENTIAL, MeasuredCostModel, Session, operator_failure
from shard_gym.cost_models.measured.arrays import TorchArrays
from shard_gym.cost_models.measured.clock import GpuClock, Peers
from shard_gym.cost_models.measured.streams import BatchCache, HistogramStream, draw_batches
from shard_gym.hardware import hardware_profile
from shard_gym.plans import ShardingPlan, column_wise, data_parallel, row_wise
from shard_gym.tables import Tables, load_pool

torch = pytest.importorskip("torch")
pytest.importorskip("fbgemm_gpu", reason="the extra real is not installed")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")

GPUS = torch.cuda.device_count()
QUICK: dict[str, Any] = {"batch_size": 4096, "iterations": 5, "warmup": 2}


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    session = Session("cuda", GPUS, threads=1, timeout_s=60.0)
    yield session
    session.close()


def tables(count: int = 20) -> Tables:
    return load_pool("dlrm-2021").tables.select(np.arange(count))


def test_the_operator_is_right() -> None:
    assert operator_failure("cuda") == ""


@pytest.mark.parametrize(
    ("training", "rtol"),
    [
        ({"weight_dtype": "fp32", "optimizer": "rowwise_adagrad"}, 1e-4),
        ({"weight_dtype": "fp32", "optimizer": "sgd"}, 1e-4),
        ({"weight_dtype": "fp16", "optimizer": "sgd"}, 2e-3),
        ({"weight_dtype": "fp16", "optimizer": "rowwise_adagrad"}, 2e-3),
        ({"weight_dtype": "fp32", "optimizer": "adam"}, 1e-4),
    ],
)
def test_one_gpu_computes_what_plain_torch_computes(
    session: Session, training: dict[str, str], rtol: float, small_tables: Any, check_iteration: Any
) -> None:
    parts = small_tables(6, **training)
    for rows in ([0, 3, 4], [1], [2, 5]):
        check_iteration(session, [parts.select(rows)], 10, rtol, exchange=False)


@pytest.mark.parametrize(
    ("training", "rtol"),
    [
        ({"weight_dtype": "fp32", "optimizer": "rowwise_adagrad"}, 1e-4),
        ({"weight_dtype": "fp32", "optimizer": "adam"}, 1e-4),
        ({"weight_dtype": "fp16", "optimizer": "sgd"}, 4e-3),
    ],
)
def test_one_gpu_computes_the_shards_of_a_plan(
    session: Session, training: dict[str, str], rtol: float, check_parts: Any
) -> None:
    check_parts(session, rtol, **training)


def test_one_gpu_measures_the_devices_of_a_plan() -> None:
    some, topology = tables(8), hardware_profile("h200-dgx").topology(4)
    plan = ShardingPlan(
        (
            *(column_wise(some, table, [table % 4, 3]) for table in range(4)),
            *(row_wise(some, table, topology) for table in (4, 5)),
            *(data_parallel(some, table, topology) for table in (6, 7)),
        )
    )
    with MeasuredCostModel("cuda", layout=SEQUENTIAL, **QUICK) as model:
        found = model.estimate(plan, some, topology)
    assert (found.phases_ms > 0).all()
    assert found.late == 0  # the dense update does not wait for the GPU either


def test_the_speed_of_rows_in_the_host_is_below_that_of_hbm(session: Session) -> None:
    ((read, update),) = session.ask([("host_speed", {})], ["rows in host memory"])
    assert 1 < update < 1500
    assert 1 < read < 1500


@pytest.mark.skipif(GPUS < 2, reason="there is one GPU only")
def test_gpus_exchange_what_plain_torch_pools(session: Session, small_tables: Any, check_iteration: Any) -> None:
    parts = small_tables(5, weight_dtype="fp32", optimizer="rowwise_adagrad")
    check_iteration(session, [parts.select([0, 3, 4]), parts.select([1, 2])], 10, 1e-4, exchange=True)


def test_one_gpu_stands_for_many_devices() -> None:
    topology = hardware_profile("h200-dgx").topology(4)
    with MeasuredCostModel("cuda", layout=SEQUENTIAL, **QUICK) as model:
        found = model.estimate(np.arange(20) % 4, tables(), topology)
    assert (found.phases_ms > 0).all()
    assert found.spread < 1.0
    assert found.late == 0  # FBGEMM never waits for the GPU within an iteration
    assert 0.2 < found.clock_ghz < 4.0


def kernels(python_s: float = 0.0, *, wait: bool = False) -> None:
    """Two short kernels, with Python and perhaps a wait for the GPU between them."""
    torch.cuda._sleep(50_000)
    if wait:
        torch.cuda.synchronize()
    time.sleep(python_s)
    torch.cuda._sleep(50_000)


def test_python_is_not_timed() -> None:
    phases = (kernels, None, partial(kernels, 0.003))
    found = GpuClock(torch.cuda).measure(lambda _: phases, 3, 5, Peers())
    assert found.late == 0
    assert found.clock_ghz is not None
    for short, nothing, long in found.ms:
        assert short == pytest.approx(0.1 / found.clock_ghz, rel=0.5)
        assert nothing == 0
        assert long == pytest.approx(short, rel=0.5)


def test_a_phase_that_waits_for_the_gpu_is_told() -> None:
    found = GpuClock(torch.cuda).measure(lambda _: (partial(kernels, wait=True),), 3, 4, Peers())
    assert (len(found.ms), found.late) == (4, 4)


@pytest.mark.parametrize("pool", ["dlrm-2021", "merlin-tiny"])
def test_lookups_drawn_on_a_gpu_are_those_of_numpy(pool: str) -> None:
    some = load_pool(pool).tables.select(range(12))
    batch_size = some.workload.batch_size
    arrays = TorchArrays(torch.device("cuda"))
    expected = list(draw_batches([HistogramStream(some, table, 5) for table in range(12)], 4, batch_size))
    cache = BatchCache(arrays=arrays)
    with ThreadPoolExecutor(8) as threads:
        streams = [cache.stream(some, table, 5) for table in range(12)]
        found = list(draw_batches(streams, 4, batch_size, arrays=arrays, threads=threads))
    for (indices, offsets), wanted in zip(found, expected, strict=True):
        assert indices.is_cuda
        np.testing.assert_array_equal(indices.cpu().numpy(), wanted[0])
        np.testing.assert_array_equal(offsets, wanted[1])


def test_the_memory_of_one_measurement_is_there_for_the_next() -> None:
    topology = hardware_profile("h200-dgx").topology(1)
    room = torch.cuda.mem_get_info()[0]
    with MeasuredCostModel("cuda", layout=SEQUENTIAL, **QUICK, weight_dtype="fp32", optimizer="sgd") as model:
        for share in (0.6, 0.55, 0.65):
            large = replace(tables(1), num_embeddings=np.array([int(share * room) // (16 * 4)])).with_dims(16)
            assert model.estimate(np.zeros(1, np.int64), large, topology).total_ms > 0


def test_more_devices_than_gpus_are_refused_unless_sequential() -> None:
    with pytest.raises(InvalidOptionError, match="layout='sequential'"):
        MeasuredCostModel("cuda", layout=PARALLEL).layout_of(GPUS + 1)
    assert MeasuredCostModel("cuda").layout_of(GPUS + 1) == SEQUENTIAL
    assert MeasuredCostModel("cuda").layout_of(GPUS) == PARALLEL


def test_a_gpu_without_room_says_so_and_goes_on() -> None:
    topology = hardware_profile("h200-dgx").topology(1)
    room = torch.cuda.get_device_properties(0).total_memory
    rows = np.full(2, room // (16 * 4))
    large = replace(tables(2), num_embeddings=rows)
    with MeasuredCostModel("cuda", layout=SEQUENTIAL, **QUICK, weight_dtype="fp32") as model:
        with pytest.raises(DeviceMemoryError, match=r"device 0 \(2 tables"):
            model.estimate(np.zeros(2, np.int64), large, topology)
        assert model.estimate(np.zeros(20, np.int64), tables(), topology).total_ms > 0
