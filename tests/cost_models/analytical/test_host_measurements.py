"""Published measurements of rows in host memory, and what both host policies say of them: the table of the card."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import lgamma
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.analytical.host_cache import INDEX_BYTES, LOOKUP_MS, SLOT_BYTES, WAYS
from shard_gym.cost_models.base import COMPUTE
from shard_gym.hardware import hardware_profile
from shard_gym.tables import RowPopularity, RowSteps, Tables, Workload
from shard_gym.tables.row_popularity import reuse_statistics

CARD = Path(__file__).parents[3] / "docs" / "cost-model.md"
H100 = hardware_profile("h100-dgx")
DIM, CYCLE = 128, 100
ROW = DIM * 4
LOOKUPS, LARGE, SMALL = 104_857, 26_843_545, 1_677_721  # of each of the ten tables of dynamicemb's benchmark
EXPONENT, SHIFT = 1.05, 0.5  # it rounds a continuous power law down, so row k has the lookups of k to k + 1


def tables(rows: int, count: int, pooling: int, batch_size: int, optimizer: str, q: float, s: float) -> Tables:
    laws = [q] * count, [s] * count
    statistics = reuse_statistics([rows] * count, [batch_size * pooling] * count, *laws)
    return Tables(
        num_embeddings=np.full(count, rows),
        embedding_dim=np.full(count, DIM),
        pooling_factor=np.full(count, float(pooling)),
        workload=Workload(batch_size, "fp32", optimizer),
        num_features=np.ones(count, np.int64),
        popularity=RowPopularity(*map(np.array, laws)),
        **statistics._asdict(),
    )


def ms(of: Tables, policy: str, hbm_bytes: int) -> np.ndarray:
    """(2,) ms of forward and backward on an H100 with so much HBM for the tables."""
    topology = H100.topology(1, memory_cap_bytes=hbm_bytes, host_memory_bytes=2**41)
    phases = AnalyticalCostModel(host_policy=policy).estimate(np.zeros(len(of), np.int64), of, topology).phases_ms
    return np.asarray(phases[0, COMPUTE])


@cache
def in_cycle() -> tuple[np.ndarray, np.ndarray, float]:
    """Rows and lookups of a table by how many of 100 batches read them, and the rows that are read at all."""
    share, count = RowPopularity(np.array([SHIFT]), np.array([EXPONENT])).steps(np.array([float(LARGE)]))
    rate = share[0] * LOOKUPS
    read = -np.expm1(-rate)
    batches = np.arange(CYCLE, 0, -1)
    choices = [lgamma(CYCLE + 1) - lgamma(n + 1) - lgamma(CYCLE - n + 1) for n in batches]
    binomials = [
        np.exp(choice + n * np.log(read) - rate * (CYCLE - n)) for choice, n in zip(choices, batches, strict=True)
    ]
    rows = np.array([(count[0] * binomial).sum() for binomial in binomials])
    lookups = np.append(0.0, rows[1:] * -np.log1p(-batches[1:] / CYCLE))
    lookups[0] = LOOKUPS - lookups.sum()  # the rows of all batches have the rest
    return np.append(rows, LARGE - rows.sum()), np.append(lookups, 0.0), float(rows.sum())


def cached(optimizer: str, share: float) -> np.ndarray:
    """(2,) ms with a cache for this share of all rows of 100 batches."""
    of = tables(LARGE, 10, 1, LOOKUPS, optimizer, SHIFT, EXPONENT)
    rows, lookups, touched = in_cycle()
    of = replace(of, popularity=RowSteps(np.tile(rows, (10, 1)), np.tile(lookups / lookups.sum(), (10, 1))))
    return ms(of, "lru", int(10 * (touched * share * (ROW + SLOT_BYTES) + LARGE * INDEX_BYTES)))


@cache
def batches_in_cycle() -> np.ndarray:
    """(100, N) the rows that the lookups of a table read."""
    low, high = 1.0, float(LARGE) ** (1.0 - EXPONENT)
    drawn = np.random.default_rng(1).random((CYCLE, LOOKUPS))
    return ((low + drawn * (high - low)) ** (1.0 / (1.0 - EXPONENT))).astype(np.int32)


@cache
def missed_in_cycle(share: float) -> float:
    """Rows that ten tables miss when the same 100 batches come again and again, from the caches of a few sets."""
    rng, sampled = np.random.default_rng(0), 400
    sets = int(in_cycle()[2] * share) // WAYS
    home = rng.integers(sets, size=LARGE + 1, dtype=np.int32)
    batches = [np.unique(rows[home[rows] < sampled]).tolist() for rows in batches_in_cycle()]
    held: list[dict[int, None]] = [{} for _ in range(sampled)]
    missed = 0
    for turn in range(3):
        for batch in batches:
            for row in batch:
                of_set = held[home[row]]
                missed += turn == 2 and row not in of_set
                of_set.pop(row, None)
                if len(of_set) == WAYS:
                    del of_set[next(iter(of_set))]
                of_set[row] = None
    return 10 * missed / CYCLE * sets / sampled


@pytest.fixture(scope="module")
def rows(markdown_rows: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = markdown_rows(CARD.read_text(encoding="utf-8"), "### Rows in host memory")
    return found


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_rows_of_the_h100(rows: dict[str, list[str]], optimizer: str) -> None:
    small, large = (tables(each, 10, 1, LOOKUPS, optimizer, SHIFT, EXPONENT) for each in (SMALL, LARGE))
    assert small.distinct_rows.sum() == pytest.approx(350_280, rel=0.005)  # what the benchmark counted
    assert large.distinct_rows.sum() == pytest.approx(433_723, rel=0.005)
    expected = {
        "in HBM": ms(small, "static", 2**38),
        "cache 1.0": cached(optimizer, 1.0),
        "cache 0.8": cached(optimizer, 0.8),
        "in place": ms(large, "static", 1),
    }
    for name, phases in expected.items():
        measured, modelled, factors = rows[f"H100, {optimizer.upper()}, {name}"]
        assert modelled == " + ".join(f"{value:.2f}" for value in phases)
        both = [float(value) for value in measured.split(" + ")]
        assert factors == ", ".join(f"{value / other:.2f}" for value, other in zip(phases, both, strict=True))


@pytest.mark.parametrize("share", [1.0, 0.8])
def test_a_cycle_of_batches_misses_more_than_independent_ones(rows: dict[str, list[str]], share: float) -> None:
    missed = missed_in_cycle(share)
    in_hbm = ms(tables(LARGE, 10, 1, LOOKUPS, "sgd", SHIFT, EXPONENT), "static", 2**40)[0]
    assert H100.host is not None
    forward = in_hbm + 10 * LOOKUPS * LOOKUP_MS + missed * ROW / (H100.host.update_gb_per_s * 1e6)
    measured, modelled, factor = rows[f"the forward with the misses of a cycle, cache {share}"]
    assert forward == pytest.approx(float(modelled), rel=0.03)
    assert float(factor) == pytest.approx(float(modelled) / float(measured), abs=0.01)


def test_the_rows_of_pull_request_4614(rows: dict[str, list[str]]) -> None:
    of = tables(100_000, 32, 20, 512, "rowwise_adagrad", 0.0, 0.0)
    in_hbm = ms(of, "static", 2**38)
    slots, indexed = 3_200_000 // 5, 3_200_000 * (INDEX_BYTES + 4)
    with_cache = ms(of, "lru", slots * (ROW + SLOT_BYTES) + indexed)
    expected = {
        "in place": ms(of, "static", 3_200_000 * 4 + 1).sum(),
        "prefetch": with_cache[0] - in_hbm[0],
        "after the prefetch": in_hbm[0] + with_cache[1],
    }
    for name, value in expected.items():
        measured, modelled, factor = rows[f"pull request 4614, {name}"]
        assert modelled == f"{value:.2f}"
        assert factor == f"{value / float(measured):.2f}"
