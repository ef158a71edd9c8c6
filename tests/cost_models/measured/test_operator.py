"""An executed iteration computes what plain torch computes: pooled outputs, their exchange, and updated weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shard_gym.cost_models.measured import Session

pytest.importorskip("torch")
pytest.importorskip("fbgemm_gpu", reason="the extra real is not installed")


pytestmark = pytest.mark.usefixtures("forked_workers")


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
    session: Session, training: dict[str, str], rtol: float, small_tables: Any, check_iteration: Any
) -> None:
    tables = small_tables(6, **training)
    check_iteration(session, [tables.select(rows) for rows in ([0, 3, 4], [1], [2, 5])], 10, rtol, exchange=True)


@pytest.mark.parametrize(
    ("parts", "exchange"),
    [([[0, 1], None, [2]], True), ([[0, 2], [1, 3]], True), ([[0, 1, 2]], False)],
    ids=["an empty device", "fewer devices than workers", "a device alone"],
)
def test_other_groups_of_devices_compute_the_same(
    session: Session, parts: list[list[int] | None], exchange: bool, small_tables: Any, check_iteration: Any
) -> None:
    tables = small_tables(4, weight_dtype="fp32", optimizer="rowwise_adagrad")
    given = [None if rows is None else tables.select(rows) for rows in parts]
    check_iteration(session, given, 7, 1e-5, exchange=exchange)
