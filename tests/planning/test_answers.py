"""The agent that answers, and what it leaves for buffers and on the fullest device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import Agent, make_agent
from shard_gym.agents.named import CustomAgent
from shard_gym.agents.search.restarts import restarted
from shard_gym.common.errors import InvalidOptionError, NoPlacementFoundError
from shard_gym.common.report import Notes
from shard_gym.cost_models import AnalyticalShardingModel, CountedEstimates, make_cost_model
from shard_gym.hardware import hardware_profile
from shard_gym.planning.answers import ATTEMPTS, FittingAnswer, fitting_answer, relieved
from shard_gym.planning.model import ModelOnDevices
from shard_gym.plans import ShardingPlan, column_wise, plan_of_placement, table_wise
from shard_gym.plans.memory import training_memory
from shard_gym.plans.placement import Placement
from shard_gym.plans.plan import CONTIGUOUS, STRIDED, Groups
from shard_gym.tables import Tables, Workload
from shard_gym.tasks import Task, problem_of

MIB = 2**20
BUFFERS = 16 * 2048 + 4 * 1024 * 64  # of a table: indices and offsets, twice; outputs. 0.28 MiB


def tables_of(*mib: int) -> Tables:
    """Tables of so many MiB, in batches of 1,024 samples with a lookup each."""
    rows = np.array(mib) * 4096
    names = [f"table{table}" for table in range(len(mib))]
    return Tables.from_zipf(rows, 64, 1.0, 0.0, Workload(1024, "fp32", "sgd"), names=names)


def own_model(tables: Tables, *mib: float, sync_every: int = 0) -> ModelOnDevices:
    """The tables on devices with so many MiB for tables and buffers."""
    caps = (np.array(mib) * MIB).astype(np.int64)
    topology = hardware_profile("a100-dgx").topology(len(mib), memory_cap_bytes=caps)
    return ModelOnDevices("mine", "mine.json", tables, topology, make_cost_model("analytical"), sync_every)


def planned(own: ModelOnDevices, name: str | None, make: Any, notes: Notes | None = None, **options: Any) -> Any:
    return fitting_answer(own, name, make, notes or Notes(), **options)


class FirstFit(Agent):
    """Fills one device after the other; remembers the caps that it was told."""

    name = "first-fit"

    def __init__(self) -> None:
        self.caps: list[int] = []

    def place(self, task: Task) -> Placement:
        cap = int(task.topology.memory_cap_bytes[0])
        self.caps.append(cap)
        used, placement = np.zeros(task.num_devices, np.int64), np.zeros(task.num_tables, np.int64)
        for table, size in enumerate(task.tables.memory_bytes):
            fits = np.flatnonzero(used + size <= cap)
            if not fits.size:
                raise NoPlacementFoundError("full")
            placement[table] = fits[0]
            used[fits[0]] += size
        return placement


def quick(name: str) -> Agent:
    return make_agent(name, max_queries=300)


def test_plans_are_searched_where_whole_tables_fit_too() -> None:
    """The best placement has a table with most lookups alone on a device; a plan shares it out."""
    tables = Tables.from_zipf([10_000] * 3, 64, [1, 1, 40], 0.0, Workload(4096, "fp32", "sgd"), names=["a", "b", "c"])
    own = own_model(tables, *[100] * 2)
    plan, whole = (planned(own, None, quick, whole=whole) for whole in (False, True))
    assert (plan.name, whole.name) == ("plan-search", "local-search")
    assert isinstance(plan.answer, ShardingPlan)
    assert not isinstance(whole.answer, ShardingPlan)
    costs = [problem_of(each.task).cost_ms(each.answer, each.task, AnalyticalShardingModel()) for each in (plan, whole)]
    assert costs[0] < costs[1]
    for each in (plan, whole):
        assert training_memory(each.answer, own.tables, 2).total.max() <= own.one_room
        assert each.task.topology.memory_cap_bytes.tolist() == [own.one_room] * 2


@pytest.mark.parametrize(
    ("mib", "devices", "room"),
    [
        ((1, 9, 1), 4, 5),
        ((1, 1, 1), 2, 2.3),  # Two whole tables do not fit a device; a whole one and a half of another do.
        ((1, 1), 4, 5),  # fewer tables than devices
        ((4, 1), 2, 4.1),  # It fits without its buffers.
    ],
)
def test_tables_are_split_where_whole_ones_do_not_fit(mib: tuple[int, ...], devices: int, room: float) -> None:
    own = own_model(tables_of(*mib), *[room] * devices)
    plan = planned(own, None, quick)
    assert plan.name == "plan-search"
    assert plan.answer.split_tables
    assert training_memory(plan.answer, own.tables, devices).total.max() <= own.one_room
    with pytest.raises((InvalidOptionError, NoPlacementFoundError)):
        planned(own, None, quick, whole=True)


def test_whole_tables_are_placed_where_only_they_have_a_cost() -> None:
    own = replace(own_model(tables_of(1, 1, 2), *[20] * 2), model=CountedEstimates(make_cost_model("analytical")))
    notes = Notes()
    assert planned(own, None, quick, notes).name == "local-search"
    says = "Whole tables, by local-search: the cost model 'analytical' does not cost parts of tables."
    assert [note.text for note in notes.told] == [says]


def test_whole_tables_are_the_answer_where_no_plan_leaves_room_for_buffers() -> None:
    """Parts of a table read all its indices again, so a search that splits too much finds nothing."""

    class Splits(FirstFit):
        def plan(self, task: Task) -> ShardingPlan:
            raise NoPlacementFoundError("full")

    own = own_model(tables_of(1, 1, 2), *[4] * 2)
    plan = planned(own, None, lambda name: Splits() if name == "plan-search" else quick(name))
    assert (plan.name, isinstance(plan.answer, ShardingPlan)) == ("local-search", False)


def test_an_agent_of_plans_places_whole_tables_if_asked_to() -> None:
    own = own_model(tables_of(1, 1, 2, 3), *[20] * 2)
    plan = planned(own, "plan-search", quick, whole=True)
    assert plan.name == "plan-search"
    assert not isinstance(plan.answer, ShardingPlan)
    only_plans = CustomAgent("mine", None, lambda task: None)
    with pytest.raises(InvalidOptionError, match=r"^`whole=True` asks for whole tables, and mine has plan\(task\)"):
        planned(own, "mine", lambda _: only_plans, whole=True)


def test_an_agent_that_leaves_no_room_for_buffers_plans_again_with_lower_caps() -> None:
    own, agent = own_model(tables_of(1, 1, 1, 1), *[3.2] * 2), FirstFit()
    plan = planned(own, "first-fit", lambda _: agent)
    # Three tables with buffers are 3.84 MiB, 0.64 too many.
    assert agent.caps == [own.one_room, own.one_room - (3 * (MIB + BUFFERS) - own.one_room)]
    assert np.asarray(plan.answer).tolist() == [0, 0, 1, 1]
    assert plan.lowered
    assert plan.task.topology.memory_cap_bytes.tolist() == [own.one_room] * 2


def test_an_agent_that_never_leaves_room_fails_in_numbers_after_a_few_attempts() -> None:
    class Stubborn(FirstFit):
        def place(self, task: Task) -> Placement:
            self.caps.append(int(task.topology.memory_cap_bytes[0]))
            return np.array([0, 0, 0, 1])

    own, agent = own_model(tables_of(1, 1, 1, 1), *[3.8] * 2), Stubborn()
    with pytest.raises(
        NoPlacementFoundError,
        match=r"^stubborn found no plan that leaves room for the buffers of a training step: device 0 would hold "
        r"3\.00 MiB of tables and 0\.84 MiB of buffers, and has 3\.80 MiB for both\. "
        r"Another agent may find one; or give more devices",
    ):
        planned(own, "stubborn", lambda _: agent)
    assert 1 < len(agent.caps) <= ATTEMPTS


@pytest.mark.parametrize(
    ("mib", "devices", "room", "says"),
    [
        (
            (1, 9),
            2,
            6,
            "Agent 'local-search' places whole tables, but table table1 needs 9.28 MiB with its buffers, and",
        ),
        ((1, 1), 3, 6, "`num_devices` is 3, but mine.json has 2 tables: the other devices would stay empty."),
    ],
)
def test_an_agent_of_whole_tables_is_refused_where_they_must_be_split(
    mib: tuple[int, ...], devices: int, room: float, says: str
) -> None:
    with pytest.raises(InvalidOptionError) as refused:
        planned(own_model(tables_of(*mib), *[room] * devices), "local-search", make_agent)
    assert str(refused.value).startswith(says)
    assert str(refused.value).endswith("such as plan-search, can do it: leave out `agent` and `whole`.")


@pytest.mark.parametrize("agent", [None, "plan-search", "local-search"])
@pytest.mark.parametrize(("devices", "room"), [(1, 4.2), (2, 2.5), (3, 1e-6)])
def test_what_all_devices_together_cannot_hold_is_not_tried(agent: str | None, devices: int, room: float) -> None:
    def make(name: str) -> Agent:
        assert name == agent
        return make_agent(name)

    with pytest.raises(NoPlacementFoundError, match="MiB are missing"):
        planned(own_model(tables_of(4, 1, 1), *[room] * devices), agent, make)


def test_where_no_split_is_found_numbers_say_what_would_help() -> None:
    """By bytes there is room for three tables and their buffers, but each half reads all indices again."""
    own = own_model(tables_of(2, 2, 2), *[3 * (2 * MIB + BUFFERS) / 2 / MIB] * 2)
    with pytest.raises(NoPlacementFoundError, match=r"but no plan was found that fits\. \d devices of this kind would"):
        planned(own, None, quick)


@pytest.mark.parametrize(
    ("name", "room", "why"),
    [
        (None, 4, r"tables have to be split: table table0 needs 4\.28 MiB with its buffers"),
        ("plan-search", 8, r"agent 'plan-search' splits tables\."),
    ],
)
def test_a_cost_model_without_costs_of_parts_is_refused_where_tables_are_split(
    name: str | None, room: float, why: str
) -> None:
    own = replace(own_model(tables_of(4, 1), *[room] * 2), model=CountedEstimates(make_cost_model("analytical")))
    says = rf"The cost model 'analytical' does not cost parts of tables, and {why}.*Leave out `cost_model`\.$"
    with pytest.raises(InvalidOptionError, match=says):
        planned(own, name, make_agent)


def test_a_table_larger_than_the_largest_device_is_told_of_it() -> None:
    own = own_model(tables_of(9, 1, 1), 8, 3, 3)
    says = "but table table0 needs 9.28 MiB with its buffers, and the largest device has 8.00 MiB for it"
    with pytest.raises(InvalidOptionError, match=says):
        planned(own, "local-search", make_agent)
    plan = planned(own, None, lambda name: make_agent(name, max_queries=300))
    assert isinstance(plan.answer, ShardingPlan)
    assert (training_memory(plan.answer, own.tables, 3).total <= own.rooms).all()


def test_caps_are_lowered_by_what_buffers_lack_on_the_fullest_device() -> None:
    """The agent fills the second device by bytes; then each device has 1.41 MiB less, and one may stay empty."""
    told: list[list[int]] = []

    class Fills:
        def place(self, task: Task) -> Any:
            caps = task.topology.memory_cap_bytes
            told.append(caps.tolist())
            fits = int(caps[1] // (4 * MIB))
            return np.array([1] * fits + [2] * (task.num_tables - fits))

    own = own_model(tables_of(*[4] * 6), 1, 20, 40)
    plan = planned(own, "fills", lambda _: Fills())
    over = int(1.40625 * MIB)
    assert told == [[MIB, 20 * MIB, 40 * MIB], [1, 20 * MIB - over, 40 * MIB - over]]
    assert np.asarray(plan.answer).tolist() == [1, 1, 1, 1, 2, 2]
    assert plan.task.topology.memory_cap_bytes.tolist() == own.rooms.tolist() == [MIB, 20 * MIB, 40 * MIB]
    own = own_model(tables_of(*[4] * 6), 30, 17)
    with pytest.raises(NoPlacementFoundError, match=r"device 1 would hold 16\.00 MiB of tables and 1\.12 MiB of"):
        planned(own, "fills", lambda _: Stubborn())


def test_a_plan_for_fewer_devices_has_the_caps_of_the_first_ones() -> None:
    own = own_model(tables_of(4, 4), 40, 20, 30)
    assert own.on(2).rooms.tolist() == [40 * MIB, 20 * MIB]
    with pytest.raises(InvalidOptionError, match=r"^`memory_cap_gib` has 3 numbers, and a plan for 4 devices needs as"):
        own.on(4)


class Stubborn:
    def place(self, task: Task) -> Any:
        return np.array([0, 0, 1, 1, 1, 1])


@pytest.mark.parametrize(("layout", "least"), [(STRIDED, [20, 30]), (CONTIGUOUS, [40, 20])])
def test_a_group_has_the_least_caps_of_its_copies(layout: str, least: list[int]) -> None:
    own = own_model(tables_of(4, 4), 40, 20, 60, 30, sync_every=10)
    plan = ShardingPlan(plan_of_placement([0, 1], own.tables).tables, Groups(2, layout))
    assert own.rooms_in(plan).tolist() == [each * MIB for each in least]
    assert own.explained(plan).memory_cap_bytes.tolist() == [each * MIB for each in least]


def test_plans_for_groups_have_room_in_each_of_them() -> None:
    own = own_model(tables_of(4, 4, 1), 14, 10, 14, 10, sync_every=10)
    plan = planned(own, None, lambda name: make_agent(name, max_queries=300))
    assert isinstance(plan.answer, ShardingPlan)
    has = own.rooms_in(plan.answer)
    assert (training_memory(plan.answer, own.tables, len(has)).total <= has).all()


ROWS = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652),
    *(2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
CAP_GIB = 9.35
MODEL = AnalyticalShardingModel()


@pytest.mark.parametrize("balance", [True, False])
def test_no_table_is_split_for_nothing(balance: bool) -> None:
    """All wait for the large tables on device 0, while a small one is in pieces on the others."""
    tables = Tables.from_zipf([2_000_000, 2_000_000, 2_000], 128, 1.0, 1.05, Workload(2048, "fp32", "sgd"))
    task = Task("mine", tables, hardware_profile("a100-dgx").topology(3), splittable=True)
    whole = (table_wise(tables, 0, 0), table_wise(tables, 1, 0))
    split = ShardingPlan((*whole, column_wise(tables, 2, [1, 2, 2, 1])))
    own: Any = None
    agents = [restarted(make_agent("plan-search")), make_agent("hugectr")]
    made = [relieved(FittingAnswer("one", agent, task, split, False, own), MODEL, balance=balance) for agent in agents]
    assert [relief for _, relief in made] == [None, None]
    assert made[0][0].answer.tables[:2] == whole
    assert len(made[0][0].answer.tables[2].shards) == 1
    assert made[1][0].answer is split  # an answer that was not searched is written as it is


def test_the_answers_of_other_seeds_are_balanced_too(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = Tables.from_zipf(np.array(ROWS), 256, 1.0, 1.05, Workload(2048, "fp32", "sgd"))
    topology = hardware_profile("rtx2080ti-pcie").topology(4, memory_cap_bytes=int(CAP_GIB * 2**30))
    task = Task("mine", tables, topology, splittable=True)
    agent: Any = restarted(make_agent("plan-search", max_queries=5000))
    answer = agent.plan(task)
    seen = []

    def balanced(answer: Any, *_: Any, others: Any = (), **more: Any) -> Any:
        seen.append([answer, *others])
        return answer

    monkeypatch.setattr("shard_gym.planning.answers.balanced", balanced)
    own: Any = None
    relieved(FittingAnswer("plan-search", agent, task, answer, False, own), MODEL)
    assert len(seen[0]) == len(agent.found) >= 2
    assert seen[0][1:] == [each for _, each in agent.found[1:]]
