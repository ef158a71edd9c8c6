"""Needs: what tasks need, who supports it, and the sentence of a refusal."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym import Task
from shard_gym.agents import make_agent
from shard_gym.common.errors import InvalidOptionError, UnknownNameError
from shard_gym.cost_models import (
    COST_MODELS,
    AdditiveCostModel,
    AnalyticalCostModel,
    CostEstimate,
    CostModel,
    counted,
    make_cost_model,
)
from shard_gym.hardware import HostMemory, Replicas, Topology, hardware_profile
from shard_gym.plans import ShardingPlan, column_wise, table_wise
from shard_gym.plans.needs import NEEDS, needs_of, require_supported, unsupported
from shard_gym.tables import Tables, Workload

DEVICES = hardware_profile("a100-dgx").topology(4)


def tables_of(count: int = 3) -> Tables:
    return Tables.from_zipf(np.full(count, 1000), np.full(count, 16), np.full(count, 5.0), 1.0, Workload(4096))


CASES = {
    "training": (tables_of(), DEVICES),
    "serving": (tables_of().with_training(training=False), DEVICES),
    "sequences": (replace(tables_of(), pooled=np.array([True, False, True])), DEVICES),
    "host-memory": (tables_of(), replace(DEVICES, host=HostMemory(2**20, 16.0, 20.0))),
    "replicas": (tables_of(), replace(DEVICES, replicas=Replicas(2, 1, 10))),
    "compression": (tables_of(), replace(DEVICES, cross_host_ratio=0.5)),
    "weighted": (replace(tables_of(), workload=Workload(4096, weighted=True)), DEVICES),
    "mixed": (
        replace(tables_of(), workload=Workload.mixed([Workload(4096), Workload(4096, "fp32")], [0, 1, 0])),
        DEVICES,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_tables_on_devices_need_what_they_have(name: str) -> None:
    tables, topology = CASES[name]
    learned = {"training"} if tables.workload.training else set()
    assert needs_of(tables, topology) == learned | {name}


def test_tasks_need_what_their_answers_may_be() -> None:
    assert Task("a", tables_of(), DEVICES).needs == {"training"}
    assert Task("a", tables_of(), DEVICES, splittable=True).needs == {"training", "splits"}
    assert Task("a", tables_of(), DEVICES, splittable=True, sync_every=9).needs == {"training", "splits", "groups"}


class Nothing(CostModel):
    """Supports the training of pooled tables alone, which is the default."""

    name, version = "nothing", 1

    def estimate(self, answer: object, tables: Tables, topology: Topology) -> CostEstimate:
        return CostEstimate(np.zeros((topology.num_devices, 4)), 0.0)

    def penalty_ms(self, tables: Tables, topology: Topology, *, splits: bool = False) -> float:
        return 1.0


@pytest.mark.parametrize("name", [name for name in CASES if name != "training"])
def test_a_cost_model_that_does_not_support_a_need_refuses_it_and_names_one_that_does(name: str) -> None:
    tables, topology = CASES[name]
    with pytest.raises(InvalidOptionError, match="The cost model 'nothing' does not support") as refused:
        Nothing().estimate(np.zeros(3, np.int64), tables, topology=topology)
    assert NEEDS[name].what in str(refused.value)
    able = {model for model in NEEDS[name].models if (model == "analytical-inference") == (name == "serving")}
    assert {model for model in NEEDS[name].models if repr(model) in str(refused.value)} == able


def test_plans_are_costed_by_models_of_splits_and_plans_of_whole_tables_by_all() -> None:
    tables = tables_of()
    whole = ShardingPlan(tuple(table_wise(tables, table, table) for table in range(3)))
    halved = ShardingPlan((column_wise(tables, 0, [0, 1]), *whole.tables[1:]))
    assert Nothing().estimate(whole, tables, DEVICES).total_ms == 0.0
    with pytest.raises(InvalidOptionError, match="'nothing' does not support split tables"):
        Nothing().estimate(halved, tables, DEVICES)
    analytical = make_cost_model()
    placement = analytical.estimate(np.arange(3), tables, DEVICES)
    assert analytical.estimate(whole, tables, DEVICES).total_ms == placement.total_ms
    with pytest.raises(InvalidOptionError, match="does not support split tables"):
        analytical.estimate(halved, tables, DEVICES)
    assert make_cost_model(splits=True).estimate(whole, tables, DEVICES).total_ms == placement.total_ms
    assert make_cost_model(splits=True).estimate(halved, tables, DEVICES).total_ms > 0


@pytest.mark.parametrize("name", NEEDS)
def test_the_models_that_a_refusal_names_support_the_need(name: str) -> None:
    for model in NEEDS[name].models:
        supports = make_cost_model(COST_MODELS[model](), splits=name in ("splits", "groups")).supports
        assert name in supports


@pytest.mark.parametrize("name", NEEDS)
def test_the_sentence_names_who_lacks_what_and_the_way_out(name: str) -> None:
    everything = frozenset(NEEDS)
    assert unsupported(everything, everything) is None
    assert unsupported(everything, everything - {name}) is NEEDS[name]
    with pytest.raises(InvalidOptionError) as refused:
        require_supported("A test", {name}, everything - {name})
    text, (first, *others) = str(refused.value), NEEDS[name].instead
    assert text == f"A test does not support {NEEDS[name].what}. {first.upper()}{''.join(others)}."


class Old(AdditiveCostModel):
    """Additive over whole tables, with a method for these alone."""

    name, version, num_loads, num_sum_loads = "old", 1, 1, 1

    def loads(self, tables: Tables, topology: Topology) -> Any:  # type: ignore[override]
        return tables.embedding_dim[:, None].astype(float)

    def device_phases(self, loads: Any) -> Any:
        phases = np.zeros((*loads.shape[:-1], 4))
        phases[..., 0] = loads[..., 0]
        return phases

    def bounds(self, loads: Any, topology: Topology, variants: Any = None) -> tuple[float, float]:
        return 0.0, float(loads.sum())


def test_a_model_of_whole_tables_needs_no_argument_for_others() -> None:
    tables, placement = tables_of(), np.arange(3)
    whole = ShardingPlan(tuple(table_wise(tables, table, table) for table in range(3)))
    for model in (Old(), counted(Old())):
        assert model.estimate(placement, tables, DEVICES).total_ms == 16.0
        assert model.estimate(whole, tables, DEVICES).total_ms == 16.0
        with pytest.raises(InvalidOptionError, match="'old' does not support split tables"):
            model.loads(tables, DEVICES, "row_wise")
    assert make_agent("local-search", cost_model=Old()).place(Task("a", tables, DEVICES)).shape == (3,)
    with pytest.raises(InvalidOptionError, match="'old' does not support split tables"):
        counted(Old()).penalty_ms(tables, DEVICES, splits=True)


def test_classes_of_cost_models_support_what_their_methods_take() -> None:
    with pytest.raises(TypeError, match="Plans supports splits, so its penalty_ms must have an argument splits"):

        class Plans(Nothing):
            supports = frozenset({"training", "splits"})

            def penalty_ms(self, tables: Tables, topology: Topology) -> float:  # type: ignore[override]
                return 1.0

    with pytest.raises(TypeError, match="Loads supports splits, so its loads must have an argument sharding_type"):

        class Loads(Old):
            supports = frozenset({"training", "splits"})

            def loads(self, tables: Tables, topology: Topology) -> Any:  # type: ignore[override]
                return tables.embedding_dim[:, None].astype(float)

    with pytest.raises(TypeError, match="Inherits supports splits, so its loads must have an argument sharding_type"):
        type("Inherits", (Old,), {"supports": {"training", "splits"}})
    for wrong in ("training", {"trainings"}, 5):
        with pytest.raises(TypeError, match="supports of Wrong must be a set of names in"):
            type("Wrong", (Nothing,), {"supports": wrong})
    assert type("Right", (Nothing,), {"supports": ["training"]}).supports == {"training"}


def test_wrong_models_and_sharding_types_are_told() -> None:
    with pytest.raises(InvalidOptionError, match="model must be a CostModel"):
        counted("analytical")  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="There is no sharding type named 'rowwise'"):
        make_cost_model(additive=True, splits=True).loads(tables_of(), DEVICES, "rowwise")

    class Claims(AnalyticalCostModel):
        supports = AnalyticalCostModel.supports | {"splits"}

    with pytest.raises(InvalidOptionError, match="not of row_wise shards"):
        Claims().loads(tables_of(), DEVICES, "row_wise")
