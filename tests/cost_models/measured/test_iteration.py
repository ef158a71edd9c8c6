"""An executed iteration computes what plain torch computes: pooled outputs, their exchange, and updated weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shard_gym.cost_models.measured.job import output_width, shares
from shard_gym.cost_models.measured.session import Session

pytest.importorskip("torch")
pytest.importorskip("fbgemm_gpu", reason="the extra real is not installed")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Three workers for all tests of this file."""
    session = Session("cpu", 3, threads=1, timeout_s=60.0)
    yield session
    session.close()


@pytest.mark.parametrize(
    ("training", "rtol"),
    [
        ({"weight_dtype": "fp32", "optimizer": "rowwise_adagrad"}, 1e-5),
        ({"weight_dtype": "fp32", "optimizer": "sgd"}, 1e-5),
        ({"weight_dtype": "fp16", "optimizer": "sgd"}, 2e-3),  # FP16 has 11 bits, and rounds at random
    ],
)
def test_processes_exchange_what_plain_torch_pools(
    session: Session, training: dict[str, str], rtol: float, small_tables: Any, traced: Any, require_equal: Any
) -> None:
    tables = small_tables(6, **training)
    parts = [tables.select([0, 3, 4]), tables.select([1]), tables.select([2, 5])]
    require_equal(traced(session, parts, 10, exchange=True), rtol)


def test_an_empty_device_receives_and_sends_nothing(
    session: Session, small_tables: Any, traced: Any, require_equal: Any
) -> None:
    tables = small_tables(3, weight_dtype="fp32", optimizer="rowwise_adagrad")
    answers = traced(session, [tables.select([0, 1]), None, tables.select([2])], 8, exchange=True)
    require_equal(answers, 1e-5)
    assert answers[1]["weights"] == []
    assert len(answers[1]["arrived"]) == shares(8, 3)[1] * sum(output_width(tables.select([k])) for k in range(3))


def test_a_group_of_fewer_devices_than_workers(
    session: Session, small_tables: Any, traced: Any, require_equal: Any
) -> None:
    tables = small_tables(4, weight_dtype="fp32", optimizer="sgd")
    require_equal(traced(session, [tables.select([0, 2]), tables.select([1, 3])], 7, exchange=True), 1e-5)


def test_devices_in_turn_compute_the_same(session: Session, small_tables: Any, traced: Any, require_equal: Any) -> None:
    tables = small_tables(5, weight_dtype="fp32", optimizer="rowwise_adagrad")
    for rows in ([0, 1, 2], [3, 4]):
        require_equal(traced(session, [tables.select(rows)], 9, exchange=False), 1e-5)
