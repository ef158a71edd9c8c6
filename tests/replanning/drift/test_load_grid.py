"""The grid of loads: between its nodes it is close to the loads of the tables themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.cost_models import make_cost_model
from shard_gym.cost_models.analytical.model import FORWARD_DRAM_MS
from shard_gym.hardware import hardware_profile
from shard_gym.replanning.drift.load_grid import NODES, ROUNDING, LoadGrid, TableGrid, drifted_tables
from shard_gym.replanning.drift.processes import HIGHEST, LOWEST
from shard_gym.tables import RowPopularity, Tables, load_pool

MODEL = make_cost_model("analytical", additive=True)
TOPOLOGY = hardware_profile("a100-dgx").topology(4)
POOL = load_pool("dlrm-2021")
CHOSEN = np.arange(0, len(POOL.tables), 40)
assert POOL.popularity is not None
TABLES = POOL.tables.select(CHOSEN).with_dims(np.resize([16, 64, 128], len(CHOSEN)))
POPULARITY = RowPopularity(POOL.popularity.q[CHOSEN], POOL.popularity.s[CHOSEN])
SAME = np.ones(len(TABLES))


def loads_of(tables: Tables) -> np.ndarray:
    return MODEL.loads(tables, TOPOLOGY)


def grid_of(lowest: np.ndarray, highest: np.ndarray, rows: np.ndarray = SAME, exponent: np.ndarray = SAME) -> LoadGrid:
    tables = TableGrid.of(TABLES, POPULARITY, lowest, highest, rows, exponent)
    return tables.with_loads(loads_of(tables.tables))


@pytest.fixture(scope="module")
def grid() -> LoadGrid:
    """All nodes."""
    return grid_of(0.0 * SAME, HIGHEST * SAME)


@pytest.mark.parametrize("node", [0, 1, 20, len(NODES) - 1])
def test_at_a_node_the_loads_are_those_of_the_tables(grid: LoadGrid, node: int) -> None:
    drifted = drifted_tables(TABLES, POPULARITY, np.full(len(TABLES), NODES[node]))
    assert grid.at(np.full(len(TABLES), NODES[node])) == pytest.approx(loads_of(drifted), rel=1e-12)


def test_the_grid_has_the_rows_and_exponents_of_a_day() -> None:
    rng = np.random.default_rng(0)
    rows, exponent = np.exp(rng.normal(0.0, 0.3, (2, len(TABLES))))
    lookups = NODES[rng.integers(1, len(NODES), len(TABLES))]
    exact = loads_of(drifted_tables(TABLES, POPULARITY, lookups, rows, exponent))
    assert grid_of(lookups, lookups, rows, exponent).at(lookups) == pytest.approx(exact, rel=1e-9)
    assert not np.allclose(grid_of(lookups, lookups).at(lookups), exact, rtol=1e-3, atol=0.0)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=6)
def test_between_nodes_loads_and_costs_are_close(grid: LoadGrid, seed: int) -> None:
    """What passes the L2 cache has steps between the nodes; all else is nearly linear."""
    rng = np.random.default_rng(seed)
    lookups = np.exp(rng.uniform(np.log(0.03), np.log(40.0), len(TABLES)))
    exact = loads_of(drifted_tables(TABLES, POPULARITY, lookups))
    assert np.delete(grid.at(lookups), FORWARD_DRAM_MS, 1) == pytest.approx(
        np.delete(exact, FORWARD_DRAM_MS, 1), rel=2e-3
    )
    assert grid.at(lookups) == pytest.approx(exact, rel=0.03)
    placement = rng.integers(4, size=len(TABLES))
    costs = [
        MODEL.costs(MODEL.reduce(loads, placement, 4), TOPOLOGY.cluster())[1] for loads in (grid.at(lookups), exact)
    ]
    assert costs[0] == pytest.approx(costs[1], rel=2e-3)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=6)
def test_a_grid_of_few_nodes_says_the_same(grid: LoadGrid, seed: int) -> None:
    rng = np.random.default_rng(seed)
    some = np.sort(np.exp(rng.uniform(np.log(LOWEST), np.log(HIGHEST), (3, len(TABLES)))), axis=0)
    some[:, rng.integers(len(TABLES))] = 0.0  # a feature that has not arrived
    few = grid_of(some[0], some[-1])
    np.testing.assert_allclose(few.at(some), grid.at(some), rtol=1e-12)
    assert np.array_equal(grid.at(some)[1], grid.at(some[1]))
    assert few.loads.shape[1] < grid.loads.shape[1]


def test_more_rows_and_another_exponent_change_distinct_rows_as_the_law_says() -> None:
    count = len(TABLES)
    same = drifted_tables(TABLES, POPULARITY, np.ones(count))  # nothing drifts
    assert loads_of(same) == pytest.approx(loads_of(TABLES), rel=1e-3)
    assert same.memory_bytes.tolist() == TABLES.memory_bytes.tolist()
    grown = drifted_tables(TABLES, POPULARITY, np.ones(count), rows=np.full(count, 2.0))
    assert (grown.num_embeddings == 2 * TABLES.num_embeddings).all()
    assert (grown.distinct_rows >= TABLES.distinct_rows * 0.999).all()
    steeper = drifted_tables(TABLES, POPULARITY, np.ones(count), exponent=np.full(count, 1.3))
    assert steeper.distinct_rows.sum() < TABLES.distinct_rows.sum()


@pytest.mark.parametrize(
    ("lowest", "highest", "nodes"),
    [
        (0.0, LOWEST / 2, [0, 1]),
        (NODES[20], NODES[20], [19, 20, 21]),
        (NODES[20], NODES[23], [19, 20, 21, 22, 23, 24]),
        (NODES[20] * (1 + 2 * ROUNDING), NODES[21] * (1 - 2 * ROUNDING), [20, 21]),
        (NODES[20] * (1 + ROUNDING / 2), NODES[21] * (1 - ROUNDING / 2), [19, 20, 21, 22]),
        (LOWEST, LOWEST, [0, 1, 2]),
        (HIGHEST, HIGHEST, [48, 49]),
    ],
)
def test_only_the_nodes_around_the_lookups_are_computed(lowest: float, highest: float, nodes: list[int]) -> None:
    tables = TableGrid.of(TABLES, POPULARITY, lowest * SAME, highest * SAME, SAME, SAME)
    assert {tuple(np.flatnonzero(row).tolist()) for row in tables.needed} == {tuple(nodes)}
    assert len(tables.tables) == len(TABLES) * len(nodes)
    loads = tables.with_loads(loads_of(tables.tables))
    for lookups in (lowest * (1 - ROUNDING / 2), highest * (1 + ROUNDING / 2)):  # as means may be
        exact = loads_of(drifted_tables(TABLES, POPULARITY, np.full(len(TABLES), lookups)))
        assert loads.at(np.full(len(TABLES), lookups)) == pytest.approx(exact, rel=0.03, abs=2e-3)
    chosen = np.array([3, 0, 0, 5])  # a selection repeats the nodes of its tables
    some = tables.select(chosen)
    part = some.with_loads(loads_of(some.tables))
    assert np.array_equal(part.at(highest * np.ones(4)), loads.at(highest * SAME)[chosen])
