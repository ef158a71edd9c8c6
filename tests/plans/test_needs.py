"""Needs: what tasks need, who supports it, and the sentence of a refusal."""

from dataclasses import replace

import numpy as np
import pytest

from shard_gym import Task
from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models import COST_MODELS, CostEstimate, CostModel, make_cost_model
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
    assert all(repr(model) in str(refused.value) for model in NEEDS[name].models)


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
