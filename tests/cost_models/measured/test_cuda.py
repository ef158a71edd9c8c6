"""Measurements on CUDA GPUs; skipped where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models.measured.diagnostics.diagnosis import operator_failure
from shard_gym.cost_models.measured.model import PARALLEL, SEQUENTIAL, MeasuredCostModel
from shard_gym.cost_models.measured.session import Session
from shard_gym.errors import DeviceMemoryError, InvalidOptionError
from shard_gym.hardware import hardware_profile
from shard_gym.pools import load_pool
from shard_gym.tables import Tables

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
    ],
)
def test_one_gpu_computes_what_plain_torch_computes(
    session: Session, training: dict[str, str], rtol: float, small_tables: Any, check_iteration: Any
) -> None:
    parts = small_tables(6, **training)
    for rows in ([0, 3, 4], [1], [2, 5]):
        check_iteration(session, [parts.select(rows)], 10, rtol, exchange=False)


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
