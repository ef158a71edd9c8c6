"""`plan`, through its public door: what it returns is what `shard-gym place` prints and writes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.cli import main
from shard_gym.cli.console import as_options
from shard_gym.common.errors import (
    InvalidConstraintsError,
    InvalidOptionError,
    InvalidPlanError,
    InvalidTablesError,
    NoPlacementFoundError,
    ShardGymError,
    UnknownNameError,
)
from shard_gym.cost_models import AnalyticalShardingModel, make_cost_model
from shard_gym.hardware import hardware_profile
from shard_gym.planning import PlannedModel, answers, explain_plan, plan
from shard_gym.plans import check_plan, plan_of_placement
from shard_gym.plans.constraints_json import constraints_from_json
from shard_gym.tables import Pool, Tables, Workload, load_pool
from shard_gym.tables.pools import save_pool
from shard_gym.tasks import Task, problem_of

GIB = 2**30
A100 = hardware_profile("a100-dgx")
QUICK: dict[str, Any] = {"agent_options": {"max_queries": 300}}
WORDS = ("--option", "max_queries=300")


def tables_of(*rows: int, **more: Any) -> Tables:
    names = [f"table{each}" for each in range(len(rows))]
    count = len(rows)
    return Tables.from_zipf(rows, 64, np.full(count, 5.0), np.full(count, 1.05), Workload(65_536), names=names, **more)


FOUR = tables_of(2_000_000, 1_000_000, 500_000, 40_000)
LARGE = tables_of(80_000_000, 200_000_000, 500_000, 30_000_000)
SEQUENCES = tables_of(50_000, 24, 4_000, pooled=[False, False, True])


def pool_file(tables: Tables, folder: Path) -> Path:
    path = folder / "mine.json"
    save_pool(Pool("mine", tables, load_pool("dlrm-2021").card), path)
    return path


@pytest.mark.parametrize(
    ("name", "cost_model"), [("mlperf-dlrm-v3", "analytical-inference-v2"), ("hstu-kuairand", "analytical-v")]
)
def test_a_pool_of_a_model_that_is_served_is_costed_so_by_default(name: str, cost_model: str) -> None:
    """Tables of 1 TB and of 20 GiB on 8 devices; a task with them is, too."""
    found = plan(name, "h200-dgx", 8, **QUICK)
    assert found.explanation.cost_model.startswith(cost_model)
    assert len(found.plan.tables[0].shards) > 1
    assert plan(found.explanation.task, **QUICK).explanation.cost_model == found.explanation.cost_model
    with pytest.raises(InvalidOptionError, match="does not support tables that are served"):
        plan(load_pool("mlperf-dlrm-v3"), "h200-dgx", 8, cost_model=make_cost_model("analytical"))


@pytest.mark.parametrize(
    ("tables", "devices", "words", "options"),
    [
        (FOUR, 2, WORDS, QUICK),
        (FOUR, 16, (*WORDS, "--memory-cap-gib", "40,40,30,30" + ",20" * 12), QUICK),
        (FOUR, 4, ("--agent", "cost-greedy"), {"agent": "cost-greedy"}),
        (LARGE, 4, (*WORDS, "--memory-cap-gib", 6), QUICK | {"memory_cap_gib": 6}),
        (FOUR, 16, (*WORDS, "--sync-every", 100), QUICK | {"sync_every": 100}),
        (SEQUENCES, 4, (*WORDS, "--index-dedup"), QUICK | {"index_dedup": True}),
        (FOUR, 4, ("--whole", "--compare", "old.json"), {"whole": True, "compare": "old.json"}),
    ],
)
def test_the_text_and_the_json_are_those_of_the_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tables: Tables,
    devices: int,
    words: tuple[object, ...],
    options: dict[str, Any],
) -> None:
    """In a window that breaks no line; the command has options where the text has arguments."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "2000")
    Path("old.json").write_text(json.dumps({"placement": dict.fromkeys(tables.names, 0)}))
    path = pool_file(tables, tmp_path)
    command = ["place", "--tables", path, "--hardware", "a100-dgx", "--num-devices", devices, *words]
    assert main([str(each) for each in [*command, "--out", "plan.json"]]) == 0
    printed = capsys.readouterr()
    if "40,40,30,30" in str(words):
        options = options | {"memory_cap_gib": [40, 40, 30, 30, *[20] * 12]}
    planned = plan(path, "a100-dgx", devices, **options)
    assert json.loads(json.dumps(planned.to_json())) == json.loads(Path("plan.json").read_text())
    out = "\n".join(line.rstrip() for line in printed.out.splitlines())
    assert as_options(str(planned)) == out.partition("\n\nPlan written")[0]
    assert [as_options(str(note)) for note in planned.warnings] == printed.err.splitlines()
    assert capsys.readouterr() == ("", "")  # the function prints nothing


def test_a_model_that_fits_is_planned_with_its_numbers() -> None:
    planned = plan(FOUR, "a100-dgx", 4, memory_cap_gib=10, **QUICK)
    assert isinstance(planned, PlannedModel)
    topology = A100.topology(4, memory_cap_bytes=10 * GIB)
    check_plan(planned.plan, FOUR, topology)
    cost = AnalyticalShardingModel().estimate(planned.plan, FOUR, topology)
    assert planned.cost_ms == planned.estimate.total_ms == cost.total_ms
    assert planned.estimate.phases_ms.tolist() == cost.phases_ms.tolist()
    assert (planned.memory.total <= planned.room).all()
    assert planned.room.tolist() == [10 * GIB] * 4
    assert planned.evidence["backward"] is None
    assert planned.evidence["forward"] is not None
    assert planned.compared is None
    assert planned.host_note == ""


def test_rows_for_which_the_hbm_has_no_room_are_in_host_memory() -> None:
    planned = plan(LARGE, "a100-dgx", 4, memory_cap_gib=6, **QUICK)
    assert planned.model.has_host
    assert planned.explanation.host_bytes.sum() > 0
    assert "lie in host memory, which costs" in planned.host_note
    with pytest.raises(NoPlacementFoundError, match=r"SGD, which has no states, \(`optimizer='sgd'`\) would save"):
        plan(LARGE.with_training(optimizer="adam"), "a100-dgx", 4, memory_cap_gib=20, host_memory=0)


def test_what_must_be_added_for_replicas_is_said() -> None:
    planned = plan(SEQUENCES, "a100-dgx", 2, agent_options={"sharding_types": "data_parallel,table_wise"})
    replicated = [each.sharding_type == "data_parallel" for each in planned.plan.tables]
    assert any(replicated)
    assert "a dense optimizer has them" in planned.to_add
    assert plan(SEQUENCES, "a100-dgx", 2, replicas=False, **QUICK).to_add == ""
    on_cpu = plan(SEQUENCES, "a100-dgx", 2, device_type="cpu", **QUICK)
    assert on_cpu.to_add == ""
    assert any("`replicas=True` allows them" in str(note) for note in on_cpu.warnings)


def test_devices_and_tables_are_given_as_objects_or_by_name(tmp_path: Path) -> None:
    """A topology with the same room, a profile, and a file: the same plan."""
    room = int(0.85 * A100.device.memory_bytes)
    given = plan(FOUR, A100.topology(4, memory_cap_bytes=room), **QUICK)
    named = plan(pool_file(FOUR, tmp_path), "a100-dgx", 4, host_memory=0, **QUICK)
    pool = plan(Pool("mine", FOUR, load_pool("dlrm-2021").card), A100, 4, host_memory=0, **QUICK)
    assert given.plan == named.plan == pool.plan
    assert given.cost_ms == named.cost_ms == pool.cost_ms


def test_a_task_has_devices_of_its_own() -> None:
    task = Task("mine", FOUR, A100.topology(4, memory_cap_bytes=4 * GIB), splittable=True)
    planned = plan(task, **QUICK)
    answer = problem_of(task).checked(planned.plan, task)
    assert planned.cost_ms == problem_of(task).cost_ms(answer, task, AnalyticalShardingModel())
    whole = plan(Task("mine", FOUR, A100.topology(4)))
    assert whole.agent == "local-search"
    assert not whole.plan.split_tables
    with pytest.raises(InvalidOptionError, match=r"leave out `hardware` and `num_devices`\."):
        plan(task, "a100-dgx", 4)
    others: dict[str, Any] = {"lookups": ["log.npz"], "memory_cap_gib": 4, "cross_host_ratio": 0.5, "sync_every": 9}
    for name, value in others.items():
        with pytest.raises(InvalidOptionError, match=f"A task has tables and devices of its own; leave out `{name}`"):
            plan(task, **{name: value})


def test_agents_are_given_as_objects_and_functions_too() -> None:
    agent = plan(FOUR, "a100-dgx", 2, agent=make_agent("cost-greedy"), balance=False)
    assert agent.agent == "cost-greedy"
    assert agent.plan == plan(FOUR, "a100-dgx", 2, agent="cost-greedy", balance=False).plan

    def in_turn(task: Task) -> Any:
        return np.arange(task.num_tables) % task.num_devices

    found = plan(FOUR, "a100-dgx", 2, agent=in_turn)  # type: ignore[arg-type]
    assert (found.agent, found.plan) == ("in_turn", plan_of_placement([0, 1, 0, 1], FOUR))
    with pytest.raises(InvalidOptionError, match="`agent_options` are of an agent that is named"):
        plan(FOUR, "a100-dgx", 2, agent=make_agent("cost-greedy"), **QUICK)


def test_notes_are_told_when_they_are_known() -> None:
    told: list[str] = []

    def tells(task: Task) -> Any:
        told.append("planned")
        return [0] * task.num_tables

    planned = plan("merlin-tiny", "a100-dgx", 2, agent=tells, on_note=lambda note: told.append(str(note)))  # type: ignore[arg-type]
    assert told[-1] == "planned"
    assert told[0].startswith("Lookup statistics are")
    assert [str(note) for note in planned.notes] == told[:-1]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "says"),
    [
        ((FOUR,), {}, InvalidOptionError, "`hardware` is missing"),
        ((FOUR, "a100-dgx"), {}, InvalidOptionError, "`num_devices` must be an integer from 1 to 4096, not None."),
        ((FOUR, "a100-dgx", 0), {}, InvalidOptionError, "`num_devices` must be an integer from 1"),
        ((3, "a100-dgx", 2), {}, InvalidOptionError, "`model_or_tables` must be Tables, a pool"),
        ((FOUR, "a100-dgx", 2), {"memory_cap_gib": -1}, InvalidOptionError, "`memory_cap_gib` must be a positive"),
        ((FOUR, "a100-dgx", 2), {"memory_cap_gib": "40"}, InvalidOptionError, "`memory_cap_gib` must be a positive"),
        ((FOUR, "a100-dgx", 2), {"memory_cap_gib": [4, 5, 6]}, InvalidOptionError, "`memory_cap_gib` has 3 numbers"),
        ((FOUR, "a100-dgx", 2), {"memory_cap_gib": 4, "reserve": 0.1}, InvalidOptionError, "`reserve` both say"),
        ((FOUR, "a100-dgx", 2), {"reserve": 1.5}, InvalidOptionError, "`reserve` must be a share"),
        ((FOUR, "a100-dgx", 2), {"host_memory": -1}, InvalidOptionError, "`host_memory` must be a number of GiB"),
        ((FOUR, "a100-dgx", 2), {"host_memory": 99_999}, InvalidOptionError, "`host_memory` is 99,999, but a host"),
        ((FOUR, A100.topology(2)), {"reserve": 0.1}, InvalidOptionError, "`reserve` is 0.1, but `hardware` is a"),
        ((FOUR, A100.topology(2), 4), {}, InvalidOptionError, "`num_devices` is 4, but `hardware` is a Topology"),
        ((FOUR, "a100-dgx", 2), {"embedding_dim": 8}, InvalidOptionError, "leave out `embedding_dim`."),
        (("dlrm-2022", "a100-dgx", 2), {}, InvalidOptionError, "choose one for all with `embedding_dim`."),
        ((FOUR, "a100-dgx", 2), {"batch_size": 8}, InvalidOptionError, "`batch_size` is that of recorded lookups"),
        ((FOUR, "a100-dgx", 2), {"lookups": [3]}, InvalidOptionError, "`lookups` must be paths of NPZ or Parquet"),
        ((FOUR, "a100-dgx", 2), {"index_dedup": True}, InvalidOptionError, "`index_dedup` is for sequence tables"),
        (
            (FOUR, "a100-dgx", 4),
            {"agent": "local-search", "sync_every": 9},
            InvalidOptionError,
            "`sync_every` averages",
        ),
        ((FOUR, "a100-dgx", 8), {"agent": "cost-greedy"}, InvalidOptionError, "`num_devices` is 8, but the model has"),
        (
            (FOUR, "a100-dgx", 2),
            {"communication_dtype": "fp16", "cost_model": "measured"},
            InvalidOptionError,
            "`communication_dtype` is 'fp16', but the cost model 'measured' knows FP32 alone",
        ),
        ((SEQUENCES, "a100-dgx", 2), {"one_module": True}, InvalidOptionError, "has pooled and sequence tables"),
        (
            (FOUR, "a100-dgx", 2),
            {"replicas": False, "agent": "hugectr"},
            InvalidOptionError,
            "`replicas=False` asks for none, but",
        ),
        (
            (FOUR, "a100-dgx", 2),
            {"agent": "cost-greedy", "agent_options": {"model": 1}},
            InvalidOptionError,
            "'model': 1",
        ),
        ((FOUR, A100.topology(2)), {"devices_per_host": 2}, InvalidOptionError, "leave `devices_per_host` out."),
        ((FOUR, A100.topology(2)), {"cross_host_ratio": 0.5}, InvalidOptionError, "leave `cross_host_ratio` out."),
        ((FOUR, "a100-dgx", 2), {"pooling_factors": {"a": 1}}, InvalidOptionError, "leave `pooling_factors` out."),
        ((FOUR, "a100-dgx", 2), {"device_type": "tpu"}, InvalidOptionError, "must be 'cpu', 'cuda' or None, not 'tpu'"),
        ((FOUR, "a100-dgx", 2), {"balance": "no"}, InvalidOptionError, "`balance` must be True or False, not 'no'."),
        ((FOUR, "a100-dgx", 2), {"whole": "x"}, InvalidOptionError, "`whole` must be True or False, not 'x'."),
        ((FOUR, "a100-dgx", 2), {"one_module": "x"}, InvalidOptionError, "`one_module` must be True or False"),
        ((FOUR, "a100-dgx", 2), {"index_dedup": "no"}, InvalidOptionError, "`index_dedup` must be True or False"),
        ((FOUR, "a100-dgx", 2), {"replicas": 0}, InvalidOptionError, "`replicas` must be True, False or None, not 0."),
        ((FOUR, "a100-dgx", 2), {"agent_options": 3}, InvalidOptionError, "`agent_options` must be a mapping"),
        ((FOUR, "a100-dgx", 2), {"agent_options": {1: 2}}, InvalidOptionError, "`agent_options` must be a mapping"),
        ((FOUR, "a100-dgx", 2), {"agent_options": {"seed": 1}}, InvalidOptionError, "give it as `seed`."),
        ((FOUR, "a100-dgx", 2), {"memory_cap_gib": "40,40"}, InvalidOptionError, "for each device, not '40,40'."),
        ((FOUR, "a100-dgx", 2), {"sync_every": 10**11}, InvalidOptionError, "`sync_every` must be an integer from 0"),
        ((FOUR, "a100-dgx", 2), {"compare": 3}, InvalidOptionError, "`compare` must be a plan, what `plan` returns"),
        ((FOUR.select([0, 0]), "a100-dgx", 2), {}, InvalidTablesError, "Two tables of the model are named 'table0'"),
        ((FOUR, "no-such", 2), {}, UnknownNameError, "There is no hardware profile named 'no-such'"),
        ((FOUR, "a100-dgx", 2), {"agent": "nobody"}, UnknownNameError, "There is no agent named 'nobody'"),
        ((FOUR, "a100-dgx", 2), {"compare": {"plan": []}}, InvalidPlanError, "the old plan is no plan of these tables"),
    ],
)
def test_an_impossible_argument_is_named(
    arguments: Any, options: dict[str, Any], error: type[ShardGymError], says: str
) -> None:
    with pytest.raises(error) as refused:
        plan(*arguments, **options)
    assert says in str(refused.value)


def test_an_argument_that_does_not_exist_is_an_error_of_python() -> None:
    with pytest.raises(TypeError, match=r"^plan\(\) got .* 'memory_caps'. Did you mean 'memory_cap_gib'"):
        plan(FOUR, "a100-dgx", 2, memory_caps=3)  # type: ignore[call-arg]


def test_a_plan_to_compare_with_stands_beside_the_new_one() -> None:
    old = plan_of_placement([0, 0, 0, 3], FOUR)
    planned = plan(FOUR, "a100-dgx", 4, compare=old, **QUICK)
    assert planned.compared is not None
    before = make_cost_model("analytical").estimate([0, 0, 0, 3], FOUR, A100.topology(4)).total_ms
    assert planned.compared.comparison.before.total_ms == before
    assert planned.compared.ratio == before / planned.cost_ms
    assert planned.compared.robustness is not None
    assert "Compared with the old plan" in str(planned)
    assert planned.to_json()["compared"]["with"] == "the old plan"


def test_a_placement_in_json_has_every_table_of_two_with_one_name() -> None:
    """Tasks of suites may have a table twice."""
    task = Task("twice", replace(FOUR, names=("a", "b", "a", "c")), A100.topology(2))
    planned = plan(task, agent="size-greedy")
    assert planned.to_json()["placement"].keys() == {"a", "b", "a (2)", "c"}
    assert sorted(name for held in planned.to_json()["devices"] for name in held) == ["a", "a (2)", "b", "c"]


@pytest.mark.parametrize("agent", ["nope", "ridge"])
def test_a_refused_agent_comes_with_those_that_plan(agent: str) -> None:
    with pytest.raises(ShardGymError, match="plan-search") as refused:
        plan(FOUR, "a100-dgx", 2, agent=agent)
    assert "ski-last-day" not in str(refused.value)


def test_a_model_of_torchrec_is_planned_with_its_lookups(tmp_path: Path) -> None:
    pytest.importorskip("torchrec")
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    configs = [
        EmbeddingBagConfig(name=name, embedding_dim=16, num_embeddings=rows, feature_names=[name])
        for name, rows in (("user", 5_000), ("item", 3_000))
    ]
    model = EmbeddingBagCollection(tables=configs)
    with pytest.raises(InvalidOptionError, match="Give `lookups`, recorded ones, or `pooling_factors`"):
        plan(model, "a100-dgx", 2)
    factors = {"user": 2.0, "item": 8.0}
    assumed = plan(model, "a100-dgx", 2, pooling_factors=factors, batch_size=4096, **QUICK)
    assert assumed.model.tables.pooling_factor.tolist() == [2.0, 8.0]
    assert set(assumed.to_torchrec(model, "cpu").plan[""]) == {"user", "item"}
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "log.npz", user=rng.integers(0, 5_000, 1024), item=rng.integers(0, 3_000, 1024))
    recorded = plan(model, "a100-dgx", 2, lookups=[tmp_path / "log.npz"], batch_size=256, **QUICK)
    assert recorded.model.tables.workload.batch_size == 256
    assert recorded.model.tables.pooling_factor.tolist() == [1.0, 1.0]


def test_what_is_planned_under_a_cost_model_is_costed_by_it() -> None:
    model = AnalyticalShardingModel("fp16")
    found = plan(FOUR, "a100-dgx", 4, cost_model=model, **QUICK)
    assert found.explanation.cost_model == model.fingerprint
    same = plan(FOUR, "a100-dgx", 4, communication_dtype="fp16", **QUICK)
    assert (found.plan, found.cost_ms) == (same.plan, same.cost_ms)
    exposed = plan(FOUR, "a100-dgx", 4, cost_model="analytical-exposed-indices", **QUICK)
    assert exposed.explanation.cost_model == AnalyticalShardingModel(index_exchange="exposed").fingerprint
    served = plan(FOUR, "a100-dgx", 4, cost_model="analytical-inference", **QUICK)
    assert not served.model.tables.workload.training
    assert replace(served.model.tables.workload, training=True) == FOUR.workload


@pytest.mark.parametrize(
    ("agent", "options", "says"),
    [
        ("moldable", {"communication_dtype": "fp8"}, "moldable plans by .* does not know messages in FP8. Its plan"),
        ("dreamshard", {"index_exchange": "exposed"}, "dreamshard plans by .* not know an exposed exchange of indices"),
        ("moldable", {"cost_model": "analytical-lru", "memory_cap_gib": 0.1}, "not know caches of rows in HBM"),
        ("moldable", {"cost_model": "analytical-lru"}, ""),
        ("plan-search", {"communication_dtype": "fp8", "agent_options": {"max_queries": 50}}, ""),
    ],
)
def test_what_an_agent_does_not_know_of_the_cost_is_said(agent: str, options: dict[str, Any], says: str) -> None:
    notes = [note.text for note in plan(FOUR, "a100-dgx", 4, agent=agent, **options).notes if note.is_warning]
    assert len(notes) == bool(says)
    assert all(re.search(says, note) for note in notes)


def test_groups_are_refused_before_an_agent_is_asked() -> None:
    for agent in ("moldable", "dreamshard", "plan-search"):
        with pytest.raises(InvalidOptionError, match="'analytical-inference' does not support plans for groups of dev"):
            plan(FOUR, "a100-dgx", 16, agent=agent, cost_model="analytical-inference", sync_every=10)


@pytest.mark.parametrize("cost_ms", [0.5, 1.005])
def test_without_balance_a_less_full_answer_is_taken_only_if_it_costs_less(
    cost_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On two devices: what is found first has both tables on one, and costs 1 ms."""
    first, other = np.zeros(2, np.int64), np.arange(2)
    problem = problem_of(Task("two", tables_of(10, 20), A100.topology(2)))
    monkeypatch.setattr(
        type(problem), "costs_ms", lambda self, some, *_: np.array([1.0 if each is first else cost_ms for each in some])
    )
    monkeypatch.setattr(answers, "joined", lambda answer, *_: answer)
    monkeypatch.setattr(answers, "balanced", lambda *_, **__: other)
    agent, task = make_agent("local-search"), Task("two", tables_of(10, 20), A100.topology(2))
    found: Any = answers.FittingAnswer("local-search", agent, task, first, False, None)  # type: ignore[arg-type]
    taken, relief = answers.relieved(found, make_cost_model(additive=True), balance=False)
    assert (taken.answer is other, relief) == (cost_ms < 1.0, None)
    taken, relief = answers.relieved(found, make_cost_model(additive=True))
    assert taken.answer is other
    assert relief is not None
    assert relief.cheapest_ms == 1.0


def test_a_plan_keeps_to_constraints_and_one_that_does_not_is_told(tmp_path: Path) -> None:
    """By a record, a file, `Constraints` and a task alike; a plan that the user has may break them."""
    record = {
        "tables": {"table0": {"sharding_types": ["row_wise"]}, "table1": {"devices": [1]}},
        "apart": [["table1", "table3"]],
    }
    path = tmp_path / "constraints.json"
    path.write_text(json.dumps(record))
    limits = constraints_from_json(record, FOUR, 2)
    free = plan(FOUR, "a100-dgx", 2, **QUICK)
    old = {"placement": dict(zip(FOUR.names, [0, 1, 0, 1], strict=True))}
    found = [plan(FOUR, "a100-dgx", 2, constraints=each, compare=old, **QUICK) for each in (record, path, limits)]
    found.append(plan(replace(found[0].explanation.task), compare=old, **QUICK))
    for each in found:
        assert each.plan == found[0].plan != free.plan
        assert limits.problem_of(each.plan, FOUR) == ""
        assert each.to_json()["constraints"] == record
        assert plan(FOUR, "a100-dgx", 2, compare=each.to_json(), **QUICK).compared is not None
        told = [note.text for note in each.notes]
        assert "The plan keeps to the constraints of 3 tables." in told
        assert any("breaks the constraints: table 'table0' is table_wise" in text for text in told)
    for agent in ("cost-greedy", "random"):  # they leave tables whole
        with pytest.raises(InvalidConstraintsError, match="may be row_wise only, but must be whole"):
            plan(FOUR, "a100-dgx", 2, constraints=record, agent=agent)
    with pytest.raises(InvalidConstraintsError, match="may be row_wise only, but must be whole"):
        plan(FOUR, "a100-dgx", 2, constraints=record, whole=True)
    with pytest.raises(InvalidConstraintsError, match="constraints are of 4 tables and 2 devices, not of 4 and 4"):
        plan(FOUR, "a100-dgx", 4, constraints=limits)


def test_explained_plans_say_which_constraint_they_break() -> None:
    old = {"placement": dict(zip(FOUR.names, [0, 0, 1, 1], strict=True))}
    told = [
        note.text
        for note in explain_plan(FOUR, old, "a100-dgx", 2, constraints={"apart": [["table0", "table1"]]}).notes
    ]
    assert any("breaks the constraints: tables 'table0' and 'table1' are both on device 0" in text for text in told)


def test_tables_that_are_kept_in_hbm_have_all_rows_there() -> None:
    record = {"tables": {"table0": {"compute_kernels": ["fused"]}}}
    assert plan(FOUR, "a100-dgx", 2, constraints=record, **QUICK).model.topology.host is None
    small = {"memory_cap_gib": 12, "host_memory": 200}
    assert plan(LARGE, "a100-dgx", 2, **small, **QUICK).model.topology.host is not None
    found = plan(LARGE, "a100-dgx", 2, **small, constraints=record, **QUICK)
    assert found.model.topology.host is not None
    kept = found.explanation.shards[:, 0] == 0
    assert not found.explanation.host_bytes[kept].any()
    assert found.explanation.host_bytes.any()


def test_what_does_not_know_constraints_is_told_apart_from_them() -> None:
    """An agent that breaks them, TorchRec's plan beside one that keeps to them, and a search of too few types."""
    record = {"tables": {"table0": {"devices": [1]}, "table1": {"devices": [1]}, "table2": {"devices": [1]}}}
    with pytest.raises(InvalidPlanError, match=r"hugectr does not keep to the constraints\. Table 'table"):
        plan(FOUR, "a100-dgx", 2, constraints=record, agent="hugectr")
    found = plan(FOUR, "a100-dgx", 2, constraints=record, compare="torchrec", **QUICK)
    assert found.compared is not None
    assert any("torchrec breaks the constraints: table 'table" in note.text for note in found.notes)
    dense = {"tables": {"table3": {"compute_kernels": ["dense"]}}}
    with pytest.raises(
        NoPlacementFoundError, match="'table3' of task 'model' may be data_parallel only, and this search"
    ):
        plan(FOUR, "a100-dgx", 2, constraints=dense, replicas=False, **QUICK)


def test_tables_of_several_workloads_are_planned_in_groups_of_devices() -> None:
    own = FOUR.workload, replace(FOUR.workload, weight_dtype="fp32", optimizer="adam")
    mixed = replace(FOUR, workload=Workload.mixed(own, [0, 1, 0, 1]))
    found = plan(mixed, "a100-dgx", 4, sync_every=10**9, host_memory=0, **QUICK)
    assert found.plan.groups.count > 1  # copies that are never averaged cost nothing
    assert found.cost_ms < plan(mixed, "a100-dgx", 4, host_memory=0, **QUICK).cost_ms


def test_rows_of_tables_of_several_workloads_are_planned_in_host_memory() -> None:
    own = LARGE.workload, replace(LARGE.workload, weight_dtype="fp32", optimizer="adam")
    mixed = replace(LARGE, workload=Workload.mixed(own, [0, 1, 0, 1]))
    found = plan(mixed, "a100-dgx", 2, memory_cap_gib=12, host_memory=400, compare="torchrec", **QUICK)
    assert found.explanation.host_bytes.any()
    assert found.explanation.all_in_hbm_ms is not None
    assert found.cost_ms > found.explanation.all_in_hbm_ms
    assert found.to_json()["host_memory"]["bytes_in_host"] == found.explanation.host_bytes.sum()
