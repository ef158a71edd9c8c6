"""`compare` and `explain_plan`, through their public doors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.cli import main
from shard_gym.cli.console import as_options
from shard_gym.common.errors import InvalidOptionError, InvalidPlanError
from shard_gym.cost_models import AnalyticalCostModel, AnalyticalShardingModel, InferenceCostModel
from shard_gym.hardware import hardware_profile
from shard_gym.interop import plan_files
from shard_gym.interop.torchrec_json import torchrec_json
from shard_gym.planning import compare, explain_plan, plan, robustness
from shard_gym.plans import ShardingPlan, plan_of_placement, row_wise
from shard_gym.plans.plan import Groups
from shard_gym.tables import Pool, Tables, Workload, load_pool
from shard_gym.tables.pools import save_pool

GIB = 2**30
A100 = hardware_profile("a100-dgx")
FOUR = Tables.from_zipf(
    [2_000_000, 1_000_000, 500_000, 40_000],
    64,
    np.full(4, 5.0),
    np.full(4, 1.05),
    Workload(65_536),
    names=["a", "b", "c", "d"],
)
OLD, NEW = plan_of_placement([0, 0, 0, 3], FOUR), plan_of_placement([0, 1, 2, 3], FOUR)


def cost_of(placement: list[int], devices: int) -> float:
    return AnalyticalCostModel().estimate(placement, FOUR, A100.topology(devices)).total_ms


def test_two_plans_are_compared_in_numbers() -> None:
    compared = compare(FOUR, OLD, NEW, "a100-dgx", 4)
    assert compared.comparison.before.total_ms == cost_of([0, 0, 0, 3], 4)
    assert compared.comparison.after.total_ms == cost_of([0, 1, 2, 3], 4)
    assert compared.ratio == cost_of([0, 0, 0, 3], 4) / cost_of([0, 1, 2, 3], 4)
    assert [FOUR.names[change.table] for change in compared.comparison.changes] == ["b", "c"]
    found = robustness(OLD, NEW, FOUR, A100.topology(4))
    assert compared.robustness == found
    assert compared.to_json()["with"] == "the old plan"
    assert f"the old plan costs {found.ratio:.2f} times as much as this plan" in str(compared)


def test_a_plan_with_a_table_that_must_be_in_host_memory_is_read_again() -> None:
    kept = {"tables": {"group0_table0": {"compute_kernels": ["fused_uvm"]}}}
    found = plan("merlin-tiny", "a100-dgx", 4, constraints=kept, agent="lane-greedy")
    explained = explain_plan("merlin-tiny", json.loads(json.dumps(found.to_json())), "a100-dgx", 4, constraints=kept)
    assert explained.explanation.total_ms == found.cost_ms


def test_what_it_prints_is_the_end_of_what_place_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "2000")
    save_pool(Pool("mine", FOUR, load_pool("dlrm-2021").card), tmp_path / "mine.json")
    Path("old.json").write_text(json.dumps({"placement": dict(zip(FOUR.names, [0, 0, 0, 3], strict=True))}))
    words = "place --tables mine.json --hardware a100-dgx --num-devices 4 --agent cost-greedy --compare old.json --out"
    assert main([*words.split(), "cost-greedy"]) == 0
    printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
    compared = compare("mine.json", "old.json", "cost-greedy", "a100-dgx", 4)
    assert printed.partition("\n\nPlan written")[0].endswith(as_options(str(compared)))


def test_each_plan_is_on_its_own_devices() -> None:
    old = {"placement": {"a": 0, "b": 1, "c": 0, "d": 1}, "hosts": [0, 0]}
    compared = compare(FOUR, old, NEW, "a100-dgx", 4)
    assert compared.comparison.before.task.num_devices == 2
    assert compared.comparison.before.total_ms == cost_of([0, 1, 0, 1], 2)
    says = "the old plan is a plan for 2 devices, and the new one is for 4. Each is costed on its own devices."
    assert [str(note) for note in compared.warnings] == [says]


def test_plans_of_groups_and_of_torchrec_are_compared() -> None:
    blocks = ShardingPlan((row_wise(FOUR, 0, A100.topology(4)), *NEW.tables[1:]))
    record = torchrec_json(blocks, FOUR, A100.topology(4), "ebc")
    assert compare(FOUR, record, blocks, "a100-dgx", 4).ratio == 1.0
    grouped = ShardingPlan(plan_of_placement([0, 1, 0, 1], FOUR).tables, Groups(2, "strided"))
    compared = compare(FOUR, NEW, grouped, "a100-dgx", 4, sync_every=10, host_memory=0)
    assert not compared.comparison.same_groups
    assert compared.robustness is not None
    with pytest.raises(InvalidOptionError, match="Say with `sync_every` after how many iterations"):
        compare(FOUR, NEW, grouped, "a100-dgx", 4)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (
            {"placement": {"a": 0}},
            NEW,
            "the old plan is no plan of these tables on 1 device. The plan has no table 'b'",
        ),
        (OLD, {"placement": {"a": 0}}, "the new plan is no plan of these tables on 4 devices. The plan has no table"),
        (OLD, {"tables": []}, "the new plan has no plan. Known are the JSON"),
        (OLD, plan_of_placement([0, 1, 2, 9], FOUR), "the new plan is no plan of these tables on 4 devices."),
    ],
)
def test_what_is_no_plan_is_named(before: Any, after: Any, says: str) -> None:
    with pytest.raises(InvalidPlanError) as refused:
        compare(FOUR, before, after, "a100-dgx", 4)
    assert says in str(refused.value)


def test_a_plan_is_explained_as_show_prints_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "2000")
    save_pool(Pool("mine", FOUR, load_pool("dlrm-2021").card), tmp_path / "mine.json")
    Path("old.json").write_text(json.dumps({"placement": dict(zip(FOUR.names, [0, 0, 0, 3], strict=True))}))
    words = "show --tables mine.json --plan old.json --hardware a100-dgx --num-devices 4 --memory-cap-gib 0.4"
    assert main(words.split()) == 0
    printed = capsys.readouterr()
    shown = explain_plan("mine.json", "old.json", "a100-dgx", 4, memory_cap_gib=0.4)
    assert as_options(str(shown)) == "\n".join(line.rstrip() for line in printed.out.splitlines())
    assert [str(note) for note in shown.warnings] == printed.err.splitlines()
    assert shown.over
    assert (shown.cost_ms, shown.plan) == (cost_of([0, 0, 0, 3], 4), OLD)


def test_a_plan_is_explained_under_the_cost_model_that_is_asked_for() -> None:
    """With its exchange of indices and its dtype, unless others are asked for."""
    exposed = explain_plan(FOUR, NEW, "a100-dgx", 4, cost_model="analytical-exposed-indices")
    assert (
        exposed.cost_ms == AnalyticalCostModel(index_exchange="exposed").estimate(NEW, FOUR, A100.topology(4)).total_ms
    )
    hidden = explain_plan(FOUR, NEW, "a100-dgx", 4, cost_model="analytical-exposed-indices", index_exchange="hidden")
    assert hidden.cost_ms == cost_of([0, 1, 2, 3], 4) < exposed.cost_ms
    half = explain_plan(FOUR, NEW, "a100-dgx", 4, cost_model=AnalyticalShardingModel("fp16"))
    assert half.cost_ms == explain_plan(FOUR, NEW, "a100-dgx", 4, communication_dtype="fp16").cost_ms
    served = explain_plan(FOUR, NEW, "a100-dgx", 4, cost_model="analytical-inference", communication_dtype="fp16")
    assert served.explanation.cost_model == InferenceCostModel("fp16").fingerprint


def test_placements_and_results_of_plan_are_plans() -> None:
    planned = plan(FOUR, "a100-dgx", 4, agent="cost-greedy", compare=[0, 0, 0, 3])
    assert planned.compared is not None
    assert planned.compared.comparison.before.total_ms == cost_of([0, 0, 0, 3], 4)
    assert explain_plan(FOUR, planned, "a100-dgx", 4).plan == planned.plan
    shown = explain_plan(FOUR, np.array([0, 0, 0, 3]), "a100-dgx", 4)
    assert shown.plan == OLD
    assert compare(FOUR, shown, planned, "a100-dgx", 4).ratio == shown.cost_ms / planned.cost_ms
    with pytest.raises(InvalidPlanError, match="the old plan has 1 device, and the model has 4 tables"):
        compare(FOUR, [0], NEW, "a100-dgx", 4)
    for argument, plans in (("before", (3, NEW)), ("after", (OLD, [0.5]))):
        with pytest.raises(InvalidOptionError, match=f"`{argument}` must be a plan, what `plan` returns, a placement"):
            compare(FOUR, *plans, "a100-dgx", 4)  # type: ignore[arg-type]


def test_a_plan_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = tmp_path / "old.json", plan_files.read_json
    path.write_text(json.dumps({"placement": dict(zip(FOUR.names, [0, 0, 0, 3], strict=True))}))
    files: list[Path] = []

    def counted(file: Path) -> Any:
        files.append(file)
        return read(file)

    monkeypatch.setattr(plan_files, "read_json", counted)
    explain_plan(FOUR, path, "a100-dgx", 4)
    assert files == [path]
    plan(FOUR, "a100-dgx", 4, agent="cost-greedy", compare=path)
    compare(FOUR, path, NEW, "a100-dgx", 4)
    assert files == [path] * 3


def test_rows_that_a_plan_keeps_in_host_memory_are_costed_there() -> None:
    large = Tables.from_zipf(
        [80_000_000, 200_000_000], 128, [5.0, 5.0], [1.05, 1.05], Workload(65_536), names=["a", "b"]
    )
    planned = plan(large, "a100-dgx", 2, memory_cap_gib=20, agent_options={"max_queries": 200})
    shown = explain_plan(large, planned.to_json(), "a100-dgx", 2, memory_cap_gib=20)
    assert shown.cost_ms == planned.cost_ms
    assert shown.explanation.host_bytes.tolist() == planned.explanation.host_bytes.tolist()
    assert shown.topology.host is not None
