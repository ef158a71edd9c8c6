from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import AGENTS, AgentEntry, GreedyAgent, make_agent
from shard_gym.agents.search.heuristics import dim_score, size_score
from shard_gym.common.errors import NoPlacementFoundError
from shard_gym.common.text import format_ms
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.evaluation import evaluate
from shard_gym.evaluation.evaluations import penalty_ms
from shard_gym.plans.placement import placement_from_json
from shard_gym.tasks import Task, TaskSuite, load_suite, save_suite
from shard_gym.tasks.suites import best_known

MODEL = AnalyticalCostModel()
SUITE = load_suite("dlrm-20x4")
SCORES = {"size": size_score, "dim": dim_score}
KEYS = ["suite", "sha256", "split", "agent", "cost_model", "mean_cost_ms", "interval_ms", "failures", "tasks"]
TASK_KEYS = [
    *("task", "cost_ms", "valid", "seconds", "true_cost_queries"),
    *("placement", "failure", "plan", "sequence", "answered_by"),
]


class StubbornAgent(GreedyAgent):
    """Gives up on every second task."""

    def place(self, task: Task) -> np.ndarray:
        if int(task.name.rpartition("/")[2]) % 2:
            raise NoPlacementFoundError(f"I do not like {task.name} [red].")
        return super().place(task)


@pytest.fixture
def _stubborn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AGENTS, "stubborn", AgentEntry(lambda: StubbornAgent("stubborn", size_score)))


def test_the_json_holds_placements_that_reproduce_its_costs(run, tmp_path: Path) -> None:
    out = tmp_path / "new" / "r.json"
    run.ok("evaluate", "--agent", "cost-greedy", "--suite", "dlrm-20x4", "--out", out)
    record = json.loads(out.read_text())
    assert list(record) == KEYS
    assert (record["suite"], record["sha256"], record["split"]) == ("dlrm-20x4", SUITE.sha256, "test")
    assert (record["agent"], record["cost_model"], record["failures"]) == ("cost-greedy", MODEL.fingerprint, 0)
    assert [entry["task"] for entry in record["tasks"]] == [task.name for task in SUITE]
    for entry, task in zip(record["tasks"], SUITE, strict=True):
        assert list(entry) == TASK_KEYS
        placement = placement_from_json(entry["placement"], task.tables, task.topology)
        assert MODEL.estimate(placement, task.tables, task.topology).total_ms == entry["cost_ms"]
    assert record["mean_cost_ms"] == pytest.approx(np.mean([entry["cost_ms"] for entry in record["tasks"]]))
    assert record["interval_ms"][0] < record["mean_cost_ms"] < record["interval_ms"][1]


def test_several_agents_make_a_list_and_one_table_with_the_cheapest_first(run, tmp_path: Path) -> None:
    args = ("--agent", "size-lookup-greedy", "--agent", "cost-greedy", "--agent", "cost-greedy")
    code, out, err = run("evaluate", *args, "--suite", "dlrm-20x4", "--out", tmp_path / "r.json")
    assert (code, err) == (0, "")
    records = json.loads((tmp_path / "r.json").read_text())
    assert [record["agent"] for record in records] == ["size-lookup-greedy", "cost-greedy"]
    assert out.index("cost-greedy ") < out.index("size-lookup-greedy ")
    assert "\nrandom " not in out
    assert "mean over the tasks of each task's own ratio of costs" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


def test_the_columns_are_what_their_heads_say(run, agent_rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_known, "BEST_KNOWN", tmp_path)
    best_known.write_best_known([SUITE], {t.name: make_agent("cost-greedy").place(t) for t in SUITE}, MODEL, "")
    out = run.ok("evaluate", "--agent", "random", "--agent", "cost-greedy", "--suite", "dlrm-20x4").out
    random, greedy = (evaluate(make_agent(name), SUITE) for name in ("random", "cost-greedy"))
    change = 100 * float((greedy.costs_ms / random.costs_ms).mean() - 1)
    gap = 100 * float((random.costs_ms / greedy.costs_ms).mean() - 1)
    mean, interval, to_random, to_best, failures = agent_rows(out)["cost-greedy"][:5]
    assert mean == format_ms(greedy.mean_cost_ms)
    assert interval == "-".join(map(format_ms, greedy.interval_ms))
    assert (to_random, to_best, failures) == (f"{change:+.1f}%", "+0.0%", "0")
    assert agent_rows(out)["random"][2:4] == ["+0.0%", f"{gap:+.1f}%"]
    queries = np.mean([result.true_cost_queries for result in greedy.tasks])
    assert agent_rows(out)["cost-greedy"][-1] == f"{queries:,.0f}"


def test_an_agent_with_options_is_another_than_the_reference(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AGENTS, "random", AgentEntry(lambda by="size": GreedyAgent(by, SCORES[by])))
    out = run("evaluate", "--agent", "random", "--option", "by=dim", "--suite", "dlrm-20x4", columns=120).out
    (row,) = [line for line in out.splitlines() if line.startswith("random by=dim")]
    assert "+0.0%" not in row


@pytest.mark.parametrize("columns", [40, 60])
def test_in_a_narrow_window_numbers_stay_whole_and_long_names_are_folded(run, columns: int) -> None:
    _, out, _ = run("evaluate", "--agent", "size-lookup-greedy", "--suite", "dlrm-20x4", columns=columns)
    mean = evaluate(make_agent("size-lookup-greedy"), SUITE).mean_cost_ms
    first, second = [line.split() for line in out[out.index("───") :].splitlines()[1:3]]
    assert first[0] + second[0] == "size-lookup-greedy"
    assert first[1] == format_ms(mean)
    assert "…" not in out


def test_names_of_agents_are_whole_in_a_window_of_80_columns(run) -> None:
    agents = ("--agent", "size-lookup-greedy", "--agent", "local-search")  # with a column of queries
    lines = run.ok("evaluate", *agents, "--suite", "dlrm-20x4", "--tasks", 2, columns=80).out.splitlines()
    assert any(line.startswith("size-lookup-greedy ") for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.usefixtures("_stubborn")
def test_failures_are_counted_shown_and_charged_and_the_exit_code_is_0(
    run, agent_rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(best_known, "BEST_KNOWN", tmp_path)
    args = ("--agent", "stubborn", "--suite", "dlrm-20x4", "--out", tmp_path / "r.json")
    out = run.ok("evaluate", *args, columns=200).out
    assert agent_rows(out)["stubborn"][2] == "25"  # no gaps, because a penalty is no cost, and it asks no cost model
    assert "gap to" not in out
    assert "queries" not in out
    assert "stubborn failed on 25 of 50 tasks" in out
    assert "dlrm-20x4/test/1: I do not like dlrm-20x4/test/1 [red]." in out
    assert "and 20 more." in out
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["failures"] == 25
    assert record["tasks"][1]["placement"] is None
    assert record["tasks"][1]["cost_ms"] == penalty_ms(SUITE[1], MODEL)


@pytest.mark.usefixtures("_stubborn")
def test_rivals_that_fail_are_told_in_a_line_each(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a reason of several lines; an agent of the user, and one alone, with the tasks."""

    class Planner(StubbornAgent):
        def place(self, task: Task) -> Any:
            raise NoPlacementFoundError(f"No plan of {task.name}.\nA paragraph\nfollows.")

    monkeypatch.setitem(AGENTS, "planner", AgentEntry(lambda: Planner("planner", size_score)))
    tasks = ("--suite", "dlrm-20x4", "--tasks", 2)
    out = run.ok("evaluate", "--agent", "planner", "--agent", "stubborn", "--agent", "dim-greedy", *tasks).out
    assert [line for line in out.splitlines() if "failed on" in line or "paragraph" in line] == [
        "planner failed on 2 of 2 tasks: No plan of dlrm-20x4/test/0. A paragraph follows.",
        "stubborn failed on 1 of 2 tasks: I do not like dlrm-20x4/test/1 [red].",
    ]
    assert "  dlrm-20x4/test/1: No plan of" in run.ok("evaluate", "--agent", "planner", *tasks).out


def test_the_first_tasks_of_a_split_are_evaluated(run, agent_rows, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(best_known, "BEST_KNOWN", tmp_path)
    best_known.write_best_known([SUITE], {t.name: make_agent("cost-greedy").place(t) for t in SUITE}, MODEL, "")
    options = ("--suite", "dlrm-20x4", "--tasks", 3, "--out", tmp_path / "r.json")
    out = run.ok("evaluate", "--agent", "cost-greedy", *options).out
    assert "dlrm-20x4 test, 3 tasks," in out
    assert agent_rows(out)["cost-greedy"][3] == "+0.0%"
    assert [entry["task"] for entry in json.loads((tmp_path / "r.json").read_text())["tasks"]] == [
        task.name for task in SUITE.tasks[:3]
    ]
    code, _, err = run("evaluate", "--agent", "random", "--suite", "dlrm-20x4", "--tasks", 51)
    assert (code, err) == (2, "--tasks must be from 1 to 50, or 0 for all; it is 51.\n")


def test_equal_seeds_give_equal_results_and_others_do_not(run, tmp_path: Path) -> None:
    costs = []
    for seed in (0, 0, 1):
        run("evaluate", "--agent", "random", "--suite", "dlrm-20x4", "--seed", seed, "--out", tmp_path / "r.json")
        costs.append([entry["cost_ms"] for entry in json.loads((tmp_path / "r.json").read_text())["tasks"]])
    assert costs[0] == costs[1] != costs[2]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"suite": "dlrm-20x5"}, "There is no suite named 'dlrm-20x5'. Did you mean 'dlrm-20x4'?"),
        ({"agent": "cost-greed"}, "There is no agent named 'cost-greed'. Did you mean 'cost-greedy'?"),
        ({"cost-model": "analytic"}, "There is no cost model named 'analytic'. Did you mean 'analytical'?"),
        ({"split": "dev"}, "has the splits ['test', 'train'], not 'dev'."),
        ({"agent": "ridge"}, "Agent 'ridge' answers replanning, not placement. Those that do: random, size-greedy,"),
        ({"suite": "drift-medium-30"}, "'random' answers placement, not replanning. Those that do: never, every,"),
        (
            {"suite": "drift-medium-30", "agent": "neuroshard"},
            "answers placement, not replanning. Those that do: never",
        ),
        ({"suite": "drift-medium-30", "agent": "ppo"}, "Known without training: adwin, every, kswin, never,"),
        ({"suite": "drift-medium-30", "agent": "nevr"}, "Did you mean 'never'? Known: adwin, every, kswin, never,"),
        (
            {"suite": "shard-4", "agent": "ppo"},
            "Known without training: blind-search, dreamshard, hugectr, moldable, plan-search, stepwise, torchrec,",
        ),
        ({"agent": "oracle"}, "only shard-gym show takes it"),
        ({"agent": None}, "Name an agent with --agent NAME. Known: blind-search, cost-greedy,"),
    ],
)
def test_an_unknown_name_is_a_sentence_and_exit_code_2(run, change: dict[str, str | None], says: str) -> None:
    options = {"suite": "dlrm-20x4", "agent": "random"} | change
    flags = (part for key, value in options.items() if value for part in (f"--{key}", value))
    run.refused(says, "evaluate", *flags)


def test_a_custom_agent_is_listed_without_its_file(
    run, agent_rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("def in_turn(task):\n    return [n % 4 for n in range(task.num_tables)]\n")
    monkeypatch.chdir(tmp_path)
    outcome = run.ok("evaluate", "--agent", "mine.py:in_turn", "--suite", "dlrm-20x4", columns=120)
    assert "in_turn" in agent_rows(outcome.out)


def test_a_suite_in_a_file_is_used_by_commands(run, tmp_path: Path) -> None:
    tasks = load_suite("dlrm-20x4").tasks[:3]
    save_suite(tmp_path / "mine.json", TaskSuite("mine", tasks, "test"))
    outcome = run.ok("evaluate", "--agent", "lookup-greedy", "--suite", tmp_path / "mine.json", columns=120)
    assert "mine" in outcome.out
    assert "3 tasks" in outcome.out
