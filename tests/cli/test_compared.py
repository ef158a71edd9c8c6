"""The plan that a user has: shown alone, and beside a new one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import AGENTS, Agent, AgentEntry
from shard_gym.common.errors import InvalidOptionError, NoPlacementFoundError, missing_torchrec
from shard_gym.common.text import format_bytes, format_ms
from shard_gym.cost_models import CountedEstimates, make_cost_model
from shard_gym.hardware import hardware_profile
from shard_gym.interop.torchrec_json import torchrec_json
from shard_gym.planning import explain, explain_plan
from shard_gym.plans import ShardingPlan, column_wise, plan_of_placement, plan_to_json, row_wise, table_wise
from shard_gym.tables import Pool, Tables, Workload, load_pool
from shard_gym.tables.pools import save_pool
from shard_gym.tasks import Task

MIB, GIB = 2**20, 2**30
ROWS, DIMS = np.array([1_000_000, 2_000_000, 500_000]), np.array([32, 128, 64])
MODEL = ("--hardware", "a100-dgx", "--num-devices", "16")  # two hosts of eight
OLD, NEW = [0, 8, 0], [0, 8, 9]

AGENT = """
from shard_gym.plans import plan_of_placement

class Mine:
    def plan(self, task):
        return plan_of_placement([0, 8, 9], task.tables)
"""


@pytest.fixture
def tables() -> Tables:
    workload = Workload(65_536, weight_dtype="fp32", optimizer="sgd")
    return Tables.from_zipf(ROWS, DIMS, np.ones(3), np.zeros(3), workload, names=("a", "[bold]b", "c"))


@pytest.fixture
def file(tables: Tables, tmp_path: Path) -> Path:
    path = tmp_path / "mine.json"
    save_pool(Pool("mine", tables, load_pool("dlrm-2021").card), path)
    (tmp_path / "mine.py").write_text(AGENT)
    return path


@pytest.fixture
def old(tables: Tables, tmp_path: Path) -> Path:
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"placement": dict(zip(tables.names, OLD, strict=True))}))
    return path


@pytest.fixture
def show(run: Any, file: Path) -> Callable[..., Any]:
    return lambda *more, **how: run.ok("show", "--tables", file, *MODEL, *more, **how)


@pytest.fixture
def place(run: Any, file: Path) -> Callable[..., Any]:
    return lambda *more, **how: run.ok(
        "place", "--tables", file, *MODEL, "--agent", f"{file.parent}/mine.py:Mine", *more, **how
    )


def explained(tables: Tables, placement: list[int]) -> Any:
    return explain(Task("mine", tables, hardware_profile("a100-dgx").topology(16)), placement)


def row(out: str, begin: str) -> list[str]:
    """The cells of the last line that begins so."""
    return next(line for line in reversed(out.splitlines()) if line.strip().startswith(begin)).split()


def test_hosts_and_traffic_are_those_counted_by_hand(
    place: Callable[..., Any], show: Callable[..., Any], old: Path
) -> None:
    """Outputs of 65,536 samples have 8, 32 and 16 MiB; each device gets a 16th, and sends as many gradients back."""
    out = show("--plan", old).out
    # Tables a and c, 1.5 MiB for each peer: 7 in the host, 8 beyond; and gradients of b, 2 MiB, to device 8.
    assert row(out, "device 0")[2:] == ["0", "10.5", "14.0"]
    assert row(out, "device 7")[2:] == ["0", "1.5", "2.0"]
    assert row(out, "device 8")[2:] == ["1", "14.0", "17.5"]
    assert row(out, "device 15")[2:] == ["1", "2.0", "1.5"]
    assert row(out, "all devices")[2:] == ["49.0", "56.0"]  # 7 and 8 of 16 parts of 56 MiB, twice
    assert [row(out, f"{device} ")[1] for device in (0, 7, 8, 15)] == ["0", "0", "1", "1"]
    new = json.loads(place().out)
    assert new["hosts"] == [0] * 8 + [1] * 8
    # Now c, 1 MiB for each peer, is on device 9.
    assert new["sent_mib"]["inside_its_host"] == [3.5, *[0.5] * 7, 14.0 + 1.0, 7.0 + 2.0, *[3.0] * 6]
    assert new["sent_mib"]["to_other_hosts"] == [4.0 + 3.0, *[3.0] * 7, 16.0 + 0.5, 8.0 + 0.5, *[0.5] * 6]
    assert "compared" not in new


def test_both_plans_stand_side_by_side(place: Callable[..., Any], tables: Tables, old: Path, tmp_path: Path) -> None:
    out = place("--compare", old, "--out", tmp_path / "new.json").out
    before, after = explained(tables, OLD), explained(tables, NEW)
    ratio = after.total_ms / before.total_ms
    assert row(out, "cost, ms")[2:] == [format_ms(before.total_ms), format_ms(after.total_ms), f"{ratio:.2f}"]
    # Fullest is device 8 with b: weights, two batches of inputs, outputs
    fullest = 4 * 2_000_000 * 128 + 2 * 8 * (65_536 + 65_536) + 4 * 65_536 * 128
    assert row(out, "memory of the fullest")[-3:] == [f"{fullest / GIB:.2f}"] * 2 + ["1.00"]
    assert row(out, "sent inside hosts")[-3:] == ["49.0", "49.0", "1.00"]
    assert row(out, "sent across hosts")[-3:] == ["56.0", "56.0", "1.00"]
    assert "1 of 3 tables change" in out
    assert row(out, "c ")[1] == "122.1"  # MiB of 4 x 500,000 x 64 bytes
    assert "2 tables without a change" in out
    written = json.loads((tmp_path / "new.json").read_text())["compared"]
    assert (written["with"], written["cost_ms"]) == (str(old), before.total_ms)
    assert written["new_cost_over_this"] == ratio
    assert list(written["phases_ms"].values()) == before.phases_ms.max(axis=0).tolist()
    assert written["fullest_device"] == {"device": 8, "bytes": fullest}
    assert written["sent_mib"] == {"inside_hosts": 49.0, "across_hosts": 56.0}
    assert written["unchanged_tables"] == 2
    whole = [0, 500_000, 0, 64]
    assert written["changed_tables"] == [
        {
            "table": "c",
            "moved_bytes": 4 * 500_000 * 64,
            "before": {"sharding_type": "table_wise", "shards": [[0, *whole]]},
            "after": {"sharding_type": "table_wise", "shards": [[9, *whole]]},
        }
    ]


def test_a_plan_for_fewer_devices_is_costed_on_its_own_and_its_moves_are_told(
    place: Callable[..., Any], tables: Tables, tmp_path: Path
) -> None:
    """Row-wise over 8 devices, which 16 would refuse; b moves to another host, and the halves of c are dropped."""
    topology = hardware_profile("a100-dgx").topology(8)
    plan = ShardingPlan((table_wise(tables, 0, 0), table_wise(tables, 1, 0), row_wise(tables, 2, topology)))
    for number, value in enumerate(
        ({"plan": plan_to_json(plan, tables)}, torchrec_json(plan, tables, topology, "ebc")), start=1
    ):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(value))
        outcome = place("--compare", path, "--out", tmp_path / "new.json")
        assert f"{path} is a plan for 8 devices, and the new one is for 16." in " ".join(outcome.err.split())
        assert row(outcome.out, "devices")[1:] == ["8", "16", "2.00"]
        on_eight = explain(Task("mine", tables, topology, splittable=True), plan)
        assert row(outcome.out, "cost, ms")[2] == format_ms(on_eight.total_ms)
        written = json.loads((tmp_path / "new.json").read_text())["compared"]
        assert (written["num_devices"], written["cost_ms"]) == (8, on_eight.total_ms)
        migration = written["migration"]
        sizes = [4 * rows * dim for rows, dim in zip(ROWS, DIMS, strict=True)]
        assert migration["received_bytes"] == [0] * 8 + [sizes[1], sizes[2]] + [0] * 6
        assert migration["sent_bytes"] == [sizes[1] + sizes[2] // 8] + [sizes[2] // 8] * 7 + [0] * 8
        across = hardware_profile("a100-dgx").links.inter_host_gb_per_s * 1e9
        assert migration["seconds"] == pytest.approx((sizes[1] + sizes[2] // 8) / across, rel=1e-9)
        ratio = on_eight.total_ms / explained(tables, NEW).total_ms
        assert f"{path} costs {ratio:.2f} times as much as this plan" in " ".join(outcome.out.split())


def test_a_plan_that_names_few_devices_is_taken_for_one_of_whole_hosts(
    place: Callable[..., Any], show: Callable[..., Any], tables: Tables, tmp_path: Path
) -> None:
    path = tmp_path / "few.json"
    path.write_text(json.dumps({"placement": dict(zip(tables.names, (0, 6, 2), strict=True))}))
    outcome = place("--compare", path)
    said = f"{path} names no device above 6, so it is taken for a plan for 8 devices, and the new one is for 16."
    assert said in " ".join(outcome.err.split())
    assert json.loads(outcome.out)["compared"]["num_devices"] == 8
    shown = show("--plan", path)
    assert f"{path} names no device above 6; the others of 16 devices hold nothing." in " ".join(shown.err.split())
    assert row(shown.out, "cost")[1] == format_ms(explained(tables, [0, 6, 2]).total_ms)


def test_a_plan_is_shown_on_the_devices_that_it_says_it_is_for(
    run: Any, file: Path, tables: Tables, tmp_path: Path
) -> None:
    for count in (8, 32):
        topology, path = hardware_profile("a100-dgx").topology(count), tmp_path / f"{count}.json"
        plan = ShardingPlan(tuple(row_wise(tables, table, topology) for table in range(3)))
        path.write_text(json.dumps({"plan": plan_to_json(plan, tables)}))
        shown = run.ok("show", "--tables", file, *MODEL, "--plan", path)
        said = f"{path} is a plan for {count} devices, not for 16. What follows is of these."
        assert said in " ".join(shown.err.split())
        cost = explain(Task("mine", tables, topology, splittable=True), plan).total_ms
        assert row(shown.out, "cost")[1] == format_ms(cost)


def test_without_a_file_the_comparison_leaves_the_json_alone(place: Callable[..., Any], old: Path) -> None:
    outcome = place("--compare", old)
    assert json.loads(outcome.out)["compared"]["unchanged_tables"] == 2
    assert "1 of 3 tables change" in outcome.err
    torchrec = place("--compare", old, "--format", "torchrec", "--module", "m")
    assert list(json.loads(torchrec.out)) == ["plan"]
    assert "1 of 3 tables change" in torchrec.err


def test_equal_plans_are_called_so(place: Callable[..., Any], tmp_path: Path) -> None:
    place("--out", tmp_path / "new.json")
    out = place("--compare", tmp_path / "new.json", "--out", tmp_path / "again.json").out
    assert "Both plans are the same for all 3 tables." in out
    assert json.loads((tmp_path / "again.json").read_text())["compared"]["new_cost_over_this"] == 1.0


def test_only_the_largest_changes_are_listed(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    tables = load_pool("dlrm-2021").tables.select(np.arange(20)).with_dims(16)
    save_pool(Pool("many", tables, load_pool("dlrm-2021").card), tmp_path / "many.json")
    path.write_text(json.dumps({"placement": dict.fromkeys(tables.names, 1)}))
    model = ("--tables", tmp_path / "many.json", "--hardware", "a100-dgx", "--num-devices", 2)
    outcome = run.ok("place", *model, "--agent", "size-greedy", "--compare", path)
    moved = [name for name, device in json.loads(outcome.out)["placement"].items() if device == 0]
    sizes = dict(zip(tables.names, tables.memory_bytes.tolist(), strict=True))
    moved.sort(key=lambda name: -sizes[name])
    lines = outcome.err.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith(moved[0]))
    assert [line.split()[0] for line in lines[first : first + 8]] == moved[:8]
    assert f"and {len(moved) - 8} more; {counted(20 - len(moved))} without a change" in outcome.err


def counted(count: int) -> str:
    return f"{count} table{'s' * (count != 1)}"


def test_plans_that_split_come_back_from_both_forms(
    run: Any, show: Callable[..., Any], place: Callable[..., Any], file: Path, tables: Tables, tmp_path: Path
) -> None:
    topology = hardware_profile("a100-dgx").topology(16)
    whole = plan_of_placement(NEW, tables).tables
    plan = ShardingPlan((row_wise(tables, 0, topology), column_wise(tables, 1, [8, 3]), whole[2]))
    (tmp_path / "plan.json").write_text(json.dumps({"plan": plan_to_json(plan, tables)}))
    (tmp_path / "mine.py").write_text(
        "import json\nfrom shard_gym.plans import plan_from_json\n"
        f"def plan(task):\n    with open({str(tmp_path / 'plan.json')!r}) as file:\n"
        "        return plan_from_json(json.load(file)['plan'], task.tables, task.topology)\n"
        "class Mine:\n    def plan(self, task):\n        return plan(task)\n"
    )
    place("--format", "torchrec", "--module", "m", "--out", tmp_path / "torchrec.json")
    place("--out", tmp_path / "shard-gym.json")
    shown = [show("--plan", tmp_path / f"{name}.json").out for name in ("plan", "shard-gym", "torchrec")]
    cost = json.loads((tmp_path / "shard-gym.json").read_text())["cost_ms"]
    for name, out in zip(("plan", "shard-gym", "torchrec"), shown, strict=True):
        assert row(out, "cost")[1] == format_ms(cost)
        assert out.replace(f"{name}.json", "plan.json") == shown[0]
    assert "1 row_wise, 1 column_wise, 1 table_wise" in shown[0]


def planner_that(monkeypatch: pytest.MonkeyPatch, plans: Callable[[Task], ShardingPlan]) -> None:
    """Put it in place of TorchRec's planner."""

    class Planner(Agent):
        name = "torchrec"

        def place(self, task: Task) -> Any:
            raise NotImplementedError

        def plan(self, task: Task) -> ShardingPlan:
            return plans(task)

    monkeypatch.setitem(AGENTS, "torchrec", AgentEntry(Planner))


def test_the_plan_of_torchrec_is_asked_for_by_its_name(
    place: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the settings that it ships with, whatever the options of the other agent are."""
    planner_that(monkeypatch, lambda task: plan_of_placement(OLD, task.tables))
    compared = json.loads(place("--compare", "torchrec").out)["compared"]
    assert compared["with"] == "torchrec"
    assert [change["table"] for change in compared["changed_tables"]] == ["c"]


def test_a_planner_that_fails_is_told_in_a_line_and_the_new_plan_is_written(
    place: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(task: Task) -> ShardingPlan:
        raise NoPlacementFoundError("TorchRec's planner found no plan that fits.\nA paragraph follows.")

    planner_that(monkeypatch, fails)
    outcome = place("--compare", "torchrec")
    assert "There is nothing to compare with. TorchRec's planner found no plan that fits.\n" in outcome.err
    assert "paragraph" not in outcome.err
    content = json.loads(outcome.out)
    assert "compared" not in content
    assert content["cost_ms"] > 0


def test_a_comparison_that_cannot_be_made_is_refused_before_the_work(
    run: Any, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def maker() -> Agent:
        raise missing_torchrec("The agent")

    monkeypatch.setitem(AGENTS, "torchrec", AgentEntry(maker))
    monkeypatch.setattr("shard_gym.planning.planned.fitting_answer", None)
    for given, says in (("torchrec", "needs the package 'torchrec'"), (tmp_path / "none.json", "none.json")):
        run.refused(says, "place", "--tables", file, *MODEL, "--compare", given)


def test_a_plan_that_exceeds_the_memory_is_shown_with_its_excess(
    show: Callable[..., Any], place: Callable[..., Any], old: Path, tmp_path: Path
) -> None:
    outcome = show("--plan", old, "--memory-cap-gib", "0.5")
    buffers = 2 * 8 * (65_536 + 65_536) + 4 * 65_536 * 128
    held = 4 * 2_000_000 * 128
    over = format_bytes(held + buffers - GIB // 2)
    assert (
        f"old.json exceeds the memory: device 8 would hold {format_bytes(held)} of tables and {format_bytes(buffers)} "
        f"of buffers, {over} more than the 512.00 MiB for both.\n"
    ) in outcome.err
    assert "nearly full" not in outcome.err
    assert "0.95/0.50" in row(outcome.out, "8 ")
    # Beside a new plan that fits, an old one that would not
    (tmp_path / "all.json").write_text(json.dumps({"placement": {"a": 8, "[bold]b": 8, "c": 8}}))
    outcome = place("--compare", tmp_path / "all.json", "--memory-cap-gib", "1.05")
    assert "all.json exceeds the memory: device 8 would hold 1.19 GiB of tables" in outcome.err
    assert json.loads(outcome.out)["compared"]["fullest_device"]["device"] == 8


def test_wrong_files_are_refused_before_the_agent_plans(run: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shard_gym.planning.planned.fitting_answer", None)  # calling it would be a TypeError
    model = ("--tables", file, *MODEL)
    run.refused("mine.json has tables, but no plan.", "place", *model, "--compare", file)
    run.refused("there.json cannot be read", "show", *model, "--plan", file.with_name("there.json"))
    few = file.with_name("few.json")
    few.write_text('{"placement": {"a": 0}}')
    run.refused("is no plan of these tables on 16 devices. The plan has no table", "show", *model, "--plan", few)


def test_parts_of_tables_need_a_cost_model_that_knows_them(
    show: Callable[..., Any], old: Path, tables: Tables, machine: Any
) -> None:
    """With measured costs, plans are executed, those that split tables, too."""
    out = show("--plan", old, "--cost-model", "measured").out
    assert len(machine.jobs) == 1
    assert "costed by measured" in out
    profile = hardware_profile("a100-dgx")
    blocks = row_wise(tables, 0, profile.topology(16))
    plan = ShardingPlan((blocks, *plan_of_placement(OLD, tables).tables[1:]))
    old.write_text(json.dumps({"plan": plan_to_json(plan, tables)}))
    assert "costed by measured" in show("--plan", old, "--cost-model", "measured").out
    assert len(machine.jobs) == 2
    model = CountedEstimates(make_cost_model("analytical"))  # it costs placements alone
    with pytest.raises(InvalidOptionError, match=r"splits tables, and the cost model 'analytical' does not cost parts"):
        explain_plan(tables, plan, "a100-dgx", 16, cost_model=model)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "--suite is missing. show explains an answer to a task, with --suite and --agent, or a plan of your own"),
        (("--suite", "dlrm-20x4"), "--agent is missing."),
        (("--tables", "t.json"), "--plan is missing."),
        (("--plan", "p.json"), "--tables is missing."),
        (("--plan", "p.json", "--agent", "random"), "--agent is an option of a task of a suite."),
        (("--plan", "p.json", "--split", "train"), "--split is an option of a task of a suite."),
        (("--plan", "p.json", "--task", "1"), "--task is an option of a task of a suite."),
        (("--plan", "p.json", "--option", "a=1"), "--option is an option of a task of a suite."),
    ],
)
def test_a_suite_and_a_plan_of_own_tables_do_not_mix(run: Any, options: tuple[str, ...], says: str) -> None:
    run.refused(says, "show", *options)


def test_a_picture_has_the_hosts_and_the_traffic(show: Callable[..., Any], old: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    show("--plan", old, "--picture", tmp_path / "plan.svg", "--memory-cap-gib", "0.5")
    assert (tmp_path / "plan.svg").stat().st_size > 1000
    from shard_gym.envs.placement.rendering.figure import draw
    from shard_gym.planning.explanation import view_of

    tables = load_pool("dlrm-2021").tables.select([0, 1]).with_dims(16)
    for count, words in ((16, {"host", "in host", "to others"}), (8, {"sent, MiB"}), (1, set[str]())):
        task = Task("few", tables, hardware_profile("a100-dgx").topology(count))
        texts = {text.get_text() for text in draw(view_of(explain(task, [0, count - 1]))).axes[0].texts}
        assert texts & {"host", "in host", "to others", "sent, MiB"} == words
