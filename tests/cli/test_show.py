from __future__ import annotations

import re
from pathlib import Path

import pytest

from shard_gym.agents import AGENTS, AgentEntry, LocalSearchAgent, make_agent
from shard_gym.cli import show
from shard_gym.cli.options import placing_agent
from shard_gym.common.text import format_ms
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.measured import MeasuredCostModel
from shard_gym.planning import explain
from shard_gym.planning.answers import proven_bound
from shard_gym.replanning import DriftSuite
from shard_gym.tasks import load_suite
from shard_gym.tasks.suites import best_known, bounds, records

MODEL = AnalyticalCostModel()
ARGS = ("show", "--suite", "dlrm-40x8", "--task", "3", "--agent", "size-greedy")
TASK = load_suite("dlrm-40x8").task(3)
EXPLANATION = explain(TASK, make_agent("size-greedy").place(TASK), MODEL)


def rows(out: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}


@pytest.mark.parametrize("columns", [50, 80, 120])
def test_critical_devices_carry_a_star_and_numbers_are_whole_in_any_window(run, columns: int) -> None:
    out = run.ok(*ARGS, columns=columns).out
    assert columns < 80 or max(map(len, out.splitlines())) <= columns
    for device in range(TASK.num_devices):
        shown = rows(out)[str(device)]
        for phase in range(4):
            star = "*" if EXPLANATION.critical[device, phase] else ""
            assert shown[1 + phase] == format_ms(EXPLANATION.phases_ms[device, phase]) + star
        assert shown[6] == str(len(EXPLANATION.shards_on(device)))
        assert columns < 80 or shown[8] == TASK.tables.names[EXPLANATION.shards_on(device)[0]]
    assert f"{format_ms(EXPLANATION.total_ms)} ms" in rows(out)["cost"][1] + " ms"
    assert EXPLANATION.lower_bound_ms is not None
    stored = bounds.lower_bounds(load_suite("dlrm-40x8"), MODEL)[TASK.name]
    assert rows(out)["lower"][2] == format_ms(max(EXPLANATION.lower_bound_ms, stored))


def test_a_stored_bound_and_that_of_an_agent_replace_a_lower_one(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ortools")
    from shard_gym.agents.search.exact import ExactAgent

    monkeypatch.setattr(records, "BOUNDS", tmp_path)
    quick = AgentEntry(lambda cost_model: ExactAgent(cost_model, max_work=0.01, max_queries=9))
    monkeypatch.setitem(AGENTS, "exact", quick)
    assert EXPLANATION.lower_bound_ms is not None
    stored = EXPLANATION.lower_bound_ms * 1.001
    bounds.write_lower_bounds([load_suite("dlrm-40x8")], {TASK.name: stored}, MODEL, "Made up.")
    assert rows(run(*ARGS).out)["lower"][2] == format_ms(stored)
    agent = ExactAgent(max_work=0.01, max_queries=9)
    task = load_suite("mixdim-4")[0]
    simple = explain(task, agent.place(task), MODEL).lower_bound_ms
    assert simple is not None
    assert agent.last_bound_ms is not None
    assert agent.last_bound_ms > 1.01 * simple
    out = run("show", "--suite", "mixdim-4", "--task", "0", "--agent", "exact").out
    assert rows(out)["lower"][2] == format_ms(agent.last_bound_ms)


def test_a_bound_holds_for_the_model_that_the_agent_planned_under(monkeypatch: pytest.MonkeyPatch) -> None:
    """With measured costs, `exact` plans under the analytical model, whose bounds are none of measured costs."""
    monkeypatch.setattr(LocalSearchAgent, "last_bound_ms", 1.0)
    agent = placing_agent("local-search", MeasuredCostModel("cpu"), 0)
    assert proven_bound(agent, TASK, MODEL) == 1.0
    assert proven_bound(agent, TASK, MeasuredCostModel("cpu")) is None


def test_a_bound_of_whole_tables_is_none_of_plans(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of whole tables stands beside the bound of plans alone; that of a placement says whose it is."""
    monkeypatch.setattr(LocalSearchAgent, "last_bound_ms", 1e6)
    asked = ("show", "--task", 0, "--agent", "local-search", "--option", "max_queries=300", "--suite")
    splittable = load_suite("shard-4")
    stored = bounds.lower_bounds(splittable, MODEL)[splittable[0].name]
    beside = re.findall("^lower bound +(.*)$", run.ok(*asked, "shard-4").out, re.MULTILINE)
    assert [line.split()[0] for line in beside] == [format_ms(stored)]
    assert "may cost less" not in beside[0]
    whole = re.findall("^lower bound +(.*)$", run.ok(*asked, "mixdim-4").out, re.MULTILINE)
    assert [line.split()[0] for line in whole] == [format_ms(1e6)]
    assert whole[0].endswith("; split tables may cost less")


def test_the_moves_are_listed_largest_gain_first(run) -> None:
    _, out, _ = run(*ARGS, "--moves", "3")
    listed = out[out.index("Moves of one table that gain") :]
    for move in EXPLANATION.moves[:3]:
        name = TASK.tables.names[move.shard]
        assert rows(listed)[name][1:4] == [str(move.source), str(move.target), format_ms(move.gain_ms)]
    assert TASK.tables.names[EXPLANATION.moves[3].shard] not in listed


def test_moves_that_gain_nothing_are_not_listed(run) -> None:
    out = run("show", "--suite", "dlrm-20x4", "--task", "0", "--agent", "local-search").out
    assert "No move of a table on a starred device gains" in " ".join(out.split())


def test_a_task_has_a_number_and_a_name(run) -> None:
    assert run(*ARGS[:4], TASK.name, *ARGS[5:]) == run(*ARGS)


def test_the_best_known_cost_stands_beside_the_cost(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_known, "BEST_KNOWN", tmp_path)
    assert "best" not in rows(run(*ARGS).out)
    suite = load_suite("dlrm-40x8")
    best_known.write_best_known([suite], {TASK.name: EXPLANATION.devices}, MODEL, "")
    assert rows(run(*ARGS).out)["best"][2:] == [format_ms(EXPLANATION.total_ms), "ms", "this", "placement", "+0.0%"]


def test_beside_hosts_tables_are_told_apart_in_80_columns(run) -> None:
    suite = ("show", "--suite", "shard-generalize", "--task", 3, "--agent", "hugectr", "--moves", 0)
    for columns, name in ((80, r"\d\.\d+ …ble_\d{3}"), (110, r"\d\.\d+ table_\d{3} rows 1/9")):
        out = run.ok(*suite, columns=columns).out
        assert len(set(re.findall(f"{name}$", out, re.MULTILINE))) > 1


def test_with_many_devices_the_critical_ones_are_shown(run) -> None:
    critical = [str(device) for device in EXPLANATION.critical.any(axis=1).nonzero()[0]]
    out = run.ok(*ARGS, "--devices", len(critical)).out
    assert f"{TASK.num_devices - len(critical)} left out." in out
    assert [line.split()[0] for line in out.splitlines() if line[:3].strip().isdigit()] == critical


def test_no_moves_and_no_names_hide_what_would_list_them(run) -> None:
    out = run(*ARGS, "--moves", "0", "--names", "0").out
    assert [word for word in ("Moves", "costliest", "table_") if word in out] == []


@pytest.mark.parametrize(("option", "value", "least"), [("devices", 0, 1), ("names", -1, 0), ("moves", -1, 0)])
def test_impossible_counts_are_refused(run, option: str, value: int, least: int) -> None:
    says = f"--{option} must be an integer of at least {least}, not {value}.\n"
    assert run(*ARGS, f"--{option}", value) == (2, "", says)


def test_a_picture_is_drawn(run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = run.ok(*ARGS, "--picture", tmp_path / "p.png", columns=500).out
    assert str(tmp_path / "p.png") in out
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "says"), [("p.xyz", "its name must end in one of .pdf, .png, .svg"), ("folder.png", "it is a folder")]
)
def test_a_picture_that_cannot_be_is_refused_before_any_work(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    (tmp_path / "folder.png").mkdir()
    monkeypatch.setattr("shard_gym.cli.show.load_suite", None)  # calling it would be a TypeError
    run.refused(says, *ARGS, "--picture", tmp_path / name, columns=500)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("50", "has tasks 0 to 49; there is no task 50"),
        ("dlrm-40x8/test/x", "Did you mean"),
        ("nobody", "tasks 0 to 49, or names like 'dlrm-40x8/test/0'"),
    ],
)
def test_an_unknown_task_is_named_without_a_list_of_all_of_them(run, task: str, says: str) -> None:
    err = run.refused(says, *ARGS[:4], task, *ARGS[5:]).err
    assert len(err) < 300


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            ("--agent", "never", "--devices", "3"),
            "of the cost model, --index-exchange, --devices",
        ),
        (("--agent", "never", "--cost-model", "measured"), "are shown with analytical costs"),
        (("--agent", "oracle", "--option", "foo=3"), "The oracle has no options, but got foo"),
        (
            ("--agent", "every", "--option", "hours=0", "--option", "kind=1"),
            "hours of agent 'every' must be a positive",
        ),
        (("--agent", "every", "--option", "hours=5", "--option", "kind=6"), "here are the kinds 0 to 3 only"),
    ],
)
def test_what_an_episode_of_replanning_does_not_use_is_refused(
    run, more: tuple[str, ...], reason: str, drift_task, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = drift_task(4, 2, 0)
    monkeypatch.setattr(show, "load_suite", lambda *_: DriftSuite("drift-medium-30", (task,)))
    run.refused(reason, "show", "--suite", "drift-medium-30", "--task", "0", *more)
