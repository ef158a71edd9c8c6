from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import InvalidOptionError, InvalidPlacementError, MemoryExceededError, UnknownNameError
from shard_gym.cost_models import (
    COST_MODELS,
    AdditiveCostModel,
    AnalyticalCostModel,
    AnalyticalShardingModel,
    CostEstimate,
    CostModel,
    CountedCostModel,
    counted,
    make_cost_model,
)
from shard_gym.cost_models.analytical import FITTED
from shard_gym.cost_models.analytical.index_exchange import INDEX_EXCHANGES
from shard_gym.cost_models.analytical.model import OUTPUT_BYTES_SENT, Constants
from shard_gym.cost_models.analytical.sharding import (
    CODEC_MS_PER_BYTE,
    GRADIENT_BYTES,
    HOST_PARTIAL_BYTES,
    PARTIAL_BYTES,
)
from shard_gym.cost_models.base import placement_order
from shard_gym.envs.core.problem import prepare
from shard_gym.envs.core.state import advance, initial_state
from shard_gym.hardware import HostMemory, hardware_profile
from shard_gym.tables import Tables
from shard_gym.tasks import load_suite

MODEL = AnalyticalCostModel()
TOPOLOGY = hardware_profile("a100-dgx").topology(3)


def test_a_table_alone_costs_what_a_task_of_that_table_costs(four_tables: Tables) -> None:
    loads = MODEL.loads(four_tables, TOPOLOGY)
    phases = MODEL.single_tables(loads, TOPOLOGY)[0]
    costs = MODEL.single_table_costs(loads, TOPOLOGY)
    for table in range(len(four_tables)):
        estimate = MODEL.estimate(np.zeros(1, np.int64), four_tables.select([table]), TOPOLOGY)
        assert phases[table] == pytest.approx(estimate.phases_ms[0])
        assert costs[table] == pytest.approx(estimate.total_ms)


def test_tables_are_placed_by_descending_cost_and_equal_ones_in_order(four_tables: Tables) -> None:
    loads = MODEL.loads(four_tables, TOPOLOGY)
    order = placement_order(loads, TOPOLOGY, MODEL)
    costs = MODEL.single_table_costs(loads, TOPOLOGY)[order]
    assert sorted(order) == [0, 1, 2, 3]
    assert (np.diff(costs) < 0).all()
    cheap, dear = order[[2, 1]]
    equal = MODEL.loads(four_tables.select([cheap, dear] * 40), TOPOLOGY)
    assert placement_order(equal, TOPOLOGY, MODEL).tolist() == [*range(1, 80, 2), *range(0, 80, 2)]


class PerTable(AnalyticalCostModel):
    """As another model would be written: its own name, and a head of its own over the phases."""

    name = "per-table"

    def iteration_cost(self, phases: Any, loads: Any, cluster: Any) -> Any:
        return phases.sum(axis=(-1, -2))


def test_a_custom_model_can_be_registered_and_brings_its_own_head(
    monkeypatch: pytest.MonkeyPatch, four_tables: Tables
) -> None:
    assert make_cost_model(MODEL) is MODEL
    with pytest.raises(UnknownNameError, match=r"no cost model named 'analitical'. Did you mean 'analytical'\?"):
        make_cost_model("analitical")
    monkeypatch.setitem(COST_MODELS, "per-table", PerTable)
    model = make_cost_model("per-table")
    estimate = model.estimate(np.array([0, 1, 2, 0]), four_tables, TOPOLOGY)
    assert estimate.total_ms == pytest.approx(estimate.phases_ms.sum())
    counted = CountedCostModel(model).estimate(np.array([0, 1, 2, 0]), four_tables, TOPOLOGY)
    assert counted.total_ms == estimate.total_ms


def test_fast_ways_are_dropped_where_a_subclass_overrides_their_formulas() -> None:
    class Renamed(AnalyticalCostModel):
        name = "renamed"

    class Communication(AnalyticalCostModel):
        def fill_communication(self, *arguments: Any) -> None:
            super().fill_communication(*arguments)

    class Phased(Renamed):
        def device_phases(self, loads: Any) -> Any:
            return 2 * super().device_phases(loads)

    class Head:
        def iteration_cost(self, phases: Any, *others: Any) -> Any:
            return phases.sum(axis=(-1, -2))

    class Mixed(Head, AnalyticalCostModel):
        pass

    class Restated(Phased):
        @property
        def plain_costs(self) -> Any:
            return MODEL.plain_costs

    assert MODEL.plain_costs is not None
    assert Renamed.plain_costs is AnalyticalCostModel.plain_costs
    assert Restated().plain_costs == MODEL.plain_costs
    for changed in (Communication, Phased, Mixed, PerTable, type("Below", (PerTable,), {})):
        assert changed().plain_costs is None, changed
        for name in ("costs_with_one", "linear_costs"):
            plain = getattr(AdditiveCostModel, name)
            assert getattr(changed, name) is plain is not getattr(AnalyticalCostModel, name)


def test_only_valid_placements_have_an_estimate() -> None:
    task = load_suite("dlrm-20x4")[0]
    with pytest.raises(InvalidPlacementError):
        MODEL.estimate([4] * 20, task.tables, task.topology)  # type: ignore[arg-type]
    with pytest.raises(MemoryExceededError):
        MODEL.estimate([0] * 20, task.tables, task.topology)  # type: ignore[arg-type]


PRESENT = {"outputs": (), "blocks": (PARTIAL_BYTES,), "replicas": (GRADIENT_BYTES,), "codec": (CODEC_MS_PER_BYTE,)}


@pytest.mark.parametrize("devices_per_host", [1, 3, 8])
@pytest.mark.parametrize("num_devices", [1, 8, 10])
@pytest.mark.parametrize("present", ["whole tables", *PRESENT, "blocks on a host"])
@pytest.mark.parametrize("index_exchange", INDEX_EXCHANGES)
def test_one_changed_device_costs_what_all_devices_together_say(
    index_exchange: str, present: str, num_devices: int, devices_per_host: int
) -> None:
    """The ways of the analytical models in O(D), bit for bit; some devices are empty, or hold equal outputs.

    Exchanges other than that of outputs take as long on all devices, or not.
    """
    kind = AnalyticalCostModel if present == "whole tables" else AnalyticalShardingModel
    model = kind(index_exchange=index_exchange)
    cluster = hardware_profile("h100-dgx").topology(num_devices, devices_per_host=devices_per_host).cluster()
    rng = np.random.default_rng([num_devices, devices_per_host])
    for changes in 5 * (False, True):
        device_loads, new_loads = rng.random((num_devices, model.num_loads)), rng.random((12, model.num_loads))
        own, new = (loads[:, model.first_load :] for loads in (device_loads, new_loads))
        for loads in (device_loads, new_loads):
            for column in {0, OUTPUT_BYTES_SENT + 1} if model.first_load else {OUTPUT_BYTES_SENT}:
                loads[:, column] = rng.choice([0, 4096, 4096, int(10 ** rng.uniform(3, 9))], len(loads))
        own[:, PARTIAL_BYTES : CODEC_MS_PER_BYTE + 1] = new[:, PARTIAL_BYTES : CODEC_MS_PER_BYTE + 1] = 0.0
        devices = rng.integers(0, num_devices, 12)
        for column in PRESENT.get(present, () if present == "whole tables" else (HOST_PARTIAL_BYTES,)):
            own[:, column] = 8192.0
            if present == "blocks on a host":
                own[num_devices // 2 :, column] = 0.0
            new[:, column] = own[devices, column] + 4096.0 * changes
        state = cluster, device_loads, model.device_phases(device_loads), devices, new_loads
        counted = CountedCostModel(model)
        for fast, plain in zip(
            counted.costs_with_one(*state), AdditiveCostModel.costs_with_one(model, *state), strict=True
        ):
            assert fast.tolist() == plain.tolist()
        assert counted.queries == 12


def test_other_constants_have_another_fingerprint_and_senseless_ones_are_refused() -> None:
    prints = [AnalyticalCostModel(FITTED._replace(cycles_per_row=cycles)).fingerprint for cycles in (1.0, 2.0)]
    assert MODEL.fingerprint == AnalyticalCostModel(Constants(*FITTED)).fingerprint == "analytical-v2"
    assert all(each.startswith("analytical-v2-") for each in prints)
    assert prints[0] != prints[1]
    for name, value in (("sort_efficiency", 0.0), ("cycles_per_bag", float("nan"))):
        with pytest.raises(InvalidOptionError, match=f"The constant {name} must be"):
            AnalyticalCostModel(FITTED._replace(**{name: value}))


def test_a_counted_model_counts_placements_and_changes_no_number(four_tables: Tables) -> None:
    counted = CountedCostModel(MODEL)
    placement = np.array([0, 1, 2, 0])
    estimate = counted.estimate(placement, four_tables, TOPOLOGY)
    assert counted.queries == 1
    assert np.array_equal(estimate.phases_ms, MODEL.estimate(placement, four_tables, TOPOLOGY).phases_ms)
    loads = counted.loads(four_tables, TOPOLOGY)
    assert counted.bounds(loads, TOPOLOGY) == MODEL.bounds(loads, TOPOLOGY)
    assert counted.penalty_ms(four_tables, TOPOLOGY) == MODEL.penalty_ms(four_tables, TOPOLOGY)
    assert counted.queries == 1
    counted.device_costs(np.zeros((5, 2, 3, counted.num_loads)), TOPOLOGY.cluster())
    assert counted.queries == 11
    counted.single_table_costs(loads, TOPOLOGY)
    assert counted.queries == 11 + len(four_tables)
    assert counted.fingerprint == MODEL.fingerprint


def test_a_counted_model_has_the_fingerprint_of_its_model_for_some_numbers_of_devices() -> None:
    class ByDevices(AnalyticalCostModel):
        def fingerprint_for(self, num_devices: Collection[int]) -> str:
            return f"{self.fingerprint}-{max(num_devices)}"

    assert CountedCostModel(ByDevices()).fingerprint_for([2, 4]) == "analytical-v2-4"


class OnArrays(AnalyticalCostModel):
    """The same model without plain numbers."""

    plain_costs = None  # type: ignore[assignment]


def test_a_step_counts_the_same_on_plain_numbers_and_on_arrays(random_task: Any) -> None:
    problem = prepare(random_task(np.random.default_rng(0), 6, 3), MODEL, 6, 4)
    counts = []
    for model in (CountedCostModel(MODEL), CountedCostModel(OnArrays())):
        assert (model.plain_costs is None) == isinstance(model.model, OnArrays)
        state, counted = initial_state(problem, model), []
        for action in (0, 1, 1, 2, 3, 0):  # device 3 does not exist
            advance(problem, state, np.array([action]), model)
            counted.append(model.queries)
        counts.append(counted)
    assert counts[0] == counts[1]
    assert counts[0][:4] == [1, 2, 3, 4]


class BlindSharding(AnalyticalShardingModel):
    """A model of a user that does not support host memory."""

    name = "blind"
    supports = AnalyticalShardingModel.supports - {"host-memory"}

    def loads(self, shards: Any, topology: Any, sharding_type: str = "table_wise") -> Any:
        return super().loads(shards, topology, sharding_type)


class BlindEstimate(CostModel):
    """One that is not additive."""

    name, version = "blind", 1

    def estimate(self, placement: Any, tables: Any, topology: Any) -> CostEstimate:
        return MODEL.estimate(placement, tables, topology)

    def penalty_ms(self, tables: Any, topology: Any) -> float:
        return MODEL.penalty_ms(tables, topology)


def test_a_model_that_does_not_know_host_memory_refuses_it(four_tables: Tables) -> None:
    """Whatever asks for loads or costs; without host memory nothing changes."""
    placement, tiered = np.zeros(4, np.int64), replace(TOPOLOGY, host=HostMemory(2**20, 16.0, 20.0))
    sharding, other, tables = BlindSharding(), BlindEstimate(), four_tables
    asked: list[tuple[CostModel, Callable[[Any], Any]]] = [
        (sharding, lambda topology: sharding.estimate(placement, tables, topology)),
        (sharding, lambda topology: sharding.loads(tables, topology=topology)),
        (sharding, lambda topology: sharding.loads(tables, topology, "row_wise")),
        (other, lambda topology: other.estimate(placement, tables, topology)),
        (counted(other), lambda topology: counted(other).estimate(placement, tables, topology)),
        (counted(sharding), lambda topology: counted(sharding).loads(tables, topology)),
    ]
    for model, ask in asked:
        ask(TOPOLOGY)
        assert "host-memory" not in model.supports
        with pytest.raises(InvalidOptionError, match="The cost model 'blind' does not support rows in host memory"):
            ask(tiered)
    assert "host-memory" in counted(MODEL).supports
    MODEL.estimate(placement, tables, tiered)
