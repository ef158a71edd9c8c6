"""The exact agent against brute force: its placement is the best, its bound is below it, its limits are kept."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ortools")

from shard_gym.agents import agent_names, make_agent
from shard_gym.agents.search.exact import ExactAgent
from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import InvalidOptionError, MissingExtraError, NoPlacementFoundError
from shard_gym.cost_models import AdditiveCostModel, AnalyticalCostModel
from shard_gym.cost_models.analytical import FITTED
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.tables import Tables, Workload
from shard_gym.tasks import Task

MODELS = [AnalyticalCostModel(), AnalyticalCostModel(FITTED._replace(overlap_loss=0.6, cycles_per_update=500.0))]


class Doubled(AnalyticalCostModel):
    def device_phases(self, loads: FloatArray) -> FloatArray:
        return 2.0 * super().device_phases(loads)


def optimum(task: Task, placements: np.ndarray, model: AdditiveCostModel) -> float:
    loads = model.loads(task.tables, task.topology)
    placed = np.stack([model.reduce(loads, placement, task.num_devices) for placement in placements])
    return float(model.costs(placed, task.topology.cluster())[1].min())


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("tables", "devices", "arguments"),
    [
        (7, 3, {}),
        (6, 3, {"dims": (128,)}),
        (7, 3, {"slack": 1.05}),  # a cap of its own for each device: no two can be exchanged
        (6, 3, {"devices_per_host": 2}),  # the last host is smaller
        (6, 4, {"devices_per_host": 2}),
        (2, 3, {}),
        (4, 1, {}),
    ],
)
def test_the_placement_is_the_best_and_the_bound_is_below_it(
    random_task: Any, valid_placements: Any, model: AnalyticalCostModel, tables: int, devices: int, arguments: Any
) -> None:
    task = random_task(np.random.default_rng(tables), tables, devices, **arguments)
    best = optimum(task, valid_placements(task), model)
    # A weak start, so that CP-SAT has to find the placement.
    solution = ExactAgent(model, gap=1e-5, max_queries=1).solve(task)
    assert solution.proven
    assert best * (1 - 1e-12) <= solution.cost_ms <= best * (1 + 1e-5)
    assert best * (1 - 1e-5 - 1e-9) <= solution.lower_bound_ms <= best * (1 + 1e-12)
    assert model.estimate(solution.placement, task.tables, task.topology).total_ms == solution.cost_ms


@pytest.mark.parametrize(
    ("tables", "devices", "share", "arguments"),
    [(7, 3, 0.05, {}), (7, 3, 0.3, {"slack": 1.05}), (6, 3, 0.02, {"devices_per_host": 2}), (4, 1, 0.1, {})],
)
def test_with_host_memory_the_placement_is_the_best_too(
    random_task: Any, in_host: Any, valid_placements: Any, tables: int, devices: int, share: float, arguments: Any
) -> None:
    task = in_host(random_task(np.random.default_rng(tables), tables, devices, **arguments), share)
    best = optimum(task, valid_placements(task), MODELS[0])
    solution = ExactAgent(MODELS[0], gap=1e-5, max_queries=1).solve(task)
    assert solution.proven
    assert best * (1 - 1e-12) <= solution.cost_ms <= best * (1 + 1e-5)
    assert best * (1 - 1e-5 - 1e-9) <= solution.lower_bound_ms <= best * (1 + 1e-12)
    without = optimum(replace(task, topology=replace(task.topology, host=None)), valid_placements(task), MODELS[0])
    assert best > 1.02 * without


def test_an_interrupted_search_has_a_bound_and_no_proof(random_task: Any, valid_placements: Any) -> None:
    model = AnalyticalCostModel()
    task = random_task(np.random.default_rng(2), 8, 3)
    best = optimum(task, valid_placements(task), model)
    agent = ExactAgent(model, max_work=1e-4, max_queries=1)
    solution = agent.solve(task)
    assert not solution.proven
    assert 0 < solution.lower_bound_ms <= best <= solution.cost_ms
    assert agent.last_bound_ms == solution.lower_bound_ms


def test_equal_seeds_give_equal_placements_and_bounds(random_task: Any) -> None:
    task = random_task(np.random.default_rng(3), 30, 4)
    found = [ExactAgent(AnalyticalCostModel(), max_work=0.2, max_queries=200, seed=5).solve(task) for _ in range(2)]
    assert np.array_equal(found[0].placement, found[1].placement)
    assert found[0].lower_bound_ms == found[1].lower_bound_ms


def test_it_finds_a_placement_where_the_greedy_agents_find_none(dead_end: Task) -> None:
    solution = ExactAgent().solve(dead_end)
    assert solution.proven
    assert solution.placement[1] == solution.placement[2] != solution.placement[0]


@pytest.mark.parametrize(
    ("rows", "devices", "cap"),
    [
        ([54817, 3203, 12798, 13459, 11386, 37402, 12017, 23472, 26146, 9500, 48631], 3, 84277),
        ([10], 5, 20),
    ],
)
def test_it_finds_and_proves_where_links_are_slow_and_nothing_is_known(
    monkeypatch: pytest.MonkeyPatch, rows: list[int], devices: int, cap: int
) -> None:
    """The exchange takes more than a thousand times as long as all compute."""
    profile = hardware_profile("a100-dgx")
    links = replace(profile.links, intra_host_gb_per_s=0.01, inter_host_gb_per_s=0.01)
    topology = Topology(profile.device, links, devices, memory_cap_bytes=np.array(8 * cap))
    task = Task("slow links", Tables.from_zipf(rows, 4, 1.0, 0.0, Workload(65536)), topology)
    agent = ExactAgent(max_work=10.0)
    monkeypatch.setattr(agent, "start", lambda task: None)
    solution = agent.solve(task)
    assert solution.proven
    assert solution.cost_ms / (1 + 1e-4) <= solution.lower_bound_ms <= solution.cost_ms


def test_it_is_made_by_name_and_left_out_of_the_tables_of_all_agents(random_task: Any) -> None:
    assert "exact" not in agent_names("placement")
    agent: Any = make_agent("exact", seed=3, max_work=2.0, workers=2, max_queries=9)
    assert (agent.name, agent.seed, agent.max_work, agent.workers) == ("exact", 3, 2.0, 2)
    agent.place(random_task(np.random.default_rng(0), 4, 2))
    assert agent.true_cost_queries(AnalyticalCostModel().fingerprint) > 0
    assert make_agent("random").last_bound_ms is None


def test_another_cost_model_is_refused(random_task: Any) -> None:
    with pytest.raises(InvalidOptionError, match=r"linear pieces.*local-search"):
        ExactAgent(Doubled()).solve(random_task(np.random.default_rng(0), 3, 2))


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"max_work": 0}, "max_work must be a positive number, not 0"),
        ({"max_seconds": -1.0}, "max_seconds must be a positive number"),
        ({"workers": 0}, "workers must be an integer from 1 to 1024"),
        ({"gap": 1.0}, "gap must be a number from 0 to below 1"),
        ({"depth": 3}, "Agent 'exact' cannot be made with the options"),
    ],
)
def test_impossible_limits_are_refused(option: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOptionError, match=says):
        make_agent("exact", **option)


def test_without_ortools_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("ortools")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(MissingExtraError, match=r"shard-gym\[exact\]"):
        make_agent("exact")


def test_a_task_without_a_placement_is_proven_to_have_none_and_seeds_may_be_large(random_task: Any) -> None:
    """Three equal tables, of which two do not fit a device."""
    tables = random_task(np.random.default_rng(0), 1, 1).tables.select([0, 0, 0])
    cap = int(tables.memory_bytes[0] * 1.6)
    task = Task("full", tables, hardware_profile("a100-dgx").topology(2, memory_cap_bytes=cap))
    with pytest.raises(NoPlacementFoundError, match="has no valid placement, which is proven"):
        ExactAgent(seed=2**31).place(task)
