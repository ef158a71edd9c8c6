"""Entries of replanning: made, verified, replayed and ranked; all that is wrong is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import shard_gym
from shard_gym.cli import main
from shard_gym.common.io.files import write_json
from shard_gym.evaluation import Evaluation, evaluate
from shard_gym.leaderboard import EntryFolder, copies, load_leaderboards, verify, verify_all, verify_entry
from shard_gym.leaderboard.scorer import claims_of, load_scorer
from shard_gym.leaderboard.site import site_files
from shard_gym.leaderboard.store import ENTRY, LIMITS, README
from shard_gym.leaderboard.submission import format_rows
from shard_gym.leaderboard.training_data import _tables, _tables_of_split
from shard_gym.replanning import DriftSuite, DriftTask
from shard_gym.replanning.agents import tuning
from shard_gym.replanning.agents.rules import EveryHours
from shard_gym.replanning.drift.levels import SPOT
from shard_gym.replanning.env.episode_data import DECISIONS, episode_data
from shard_gym.replanning.env.oracle import best_sequence
from shard_gym.replanning.env.plan_table import PlanTable
from shard_gym.replanning.env.play import history_of
from shard_gym.tasks import PROBLEMS
from shard_gym.tasks.suites import SuiteInfo, load, records
from shard_gym.tasks.suites.bounds import write_lower_bounds
from shard_gym.tasks.suites.info import REPLANNING

SUITE, SEQUENCES = "tiny-20", "sequences.json"
FACTS = ("--author", "Ada Example", "--licence", "MIT", "--commit", "0" * 40)
DAILY = ("--agent", "every", "--option", "hours=24", "--option", "kind=0")


class Recorded:
    """Takes given actions: (N, decisions)."""

    def __init__(self, actions: Any) -> None:
        self.actions, self.decision = np.array(actions), -1

    def begin(self, count: int) -> None:
        self.decision = -1

    def act(self, observations: Any) -> Any:
        self.decision += 1
        return self.actions[:, self.decision]


@pytest.fixture(scope="module")
def suite(drift_task: Callable[..., DriftTask]) -> DriftSuite:
    tasks = [drift_task(tables=5, devices=3, seed=seed, pause_s=20.0) for seed in range(2)]
    named = tuple(replace(task, name=f"{SUITE}/test/{number}") for number, task in enumerate(tasks))
    return DriftSuite(SUITE, named, "test", sha256="ab" * 32, description="A tiny suite.")


@pytest.fixture(scope="module")
def best(suite: DriftSuite) -> list[Any]:
    """The oracle's sequences."""
    model: Any = PROBLEMS[REPLANNING].model("analytical")
    return [best_sequence(PlanTable.of(episode_data(each, model)), each.task.topology, each.pause_s) for each in suite]


@pytest.fixture
def root(
    suite: DriftSuite,
    best: Sequence[Any],
    drift_task: Callable[..., DriftTask],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Path]:
    """A folder of leaderboards without entries, where the package has one more suite, and its bounds."""
    learnt = replace(suite, split="train", tasks=(replace(drift_task(tables=5, seed=9), name=f"{SUITE}/train/0"),))
    splits = {"train": learnt, "test": suite}
    sizes: dict[str, Any] = {"tasks": {"train": 1, "test": 2}, "num_tables": (5, 5), "num_devices": (2, 3)}
    about = SuiteInfo(SUITE, 1, "A tiny suite.", "dlrm-2021", "a100-dgx", REPLANNING, suite.sha256, **sizes)
    added = SimpleNamespace(names=lambda: [SUITE], info=lambda name: about, load=lambda name, split: splits[split])
    monkeypatch.setattr(load, "FORMATS", [*load.FORMATS, added])
    monkeypatch.setattr(records, "BOUNDS", tmp_path / "bounds")
    forget()
    write_bounds(suite, best)
    folder = tmp_path / "leaderboards"
    folder.mkdir()
    (folder / README).write_text("# Leaderboards\n\n<!-- generated: leaderboards -->\n<!-- end -->\n")
    monkeypatch.chdir(tmp_path)
    yield folder
    forget()


def forget() -> None:
    for cache in (load_scorer, _tables, _tables_of_split, tuning._tuned):
        cache.cache_clear()


def write_bounds(suite: DriftSuite, best: Sequence[Any], factor: float = 1e3) -> None:
    seconds = {task.name: factor * each.seconds for task, each in zip(suite, best, strict=True)}
    write_lower_bounds([suite], seconds, PROBLEMS[REPLANNING].model("analytical"), "A test.")
    load_scorer.cache_clear()


def submit(slug: str, *more: Any, name: str = "") -> int:
    arguments = ["leaderboard", "submit", f"{REPLANNING}/{SUITE}/{slug}", "--name", name or slug, *FACTS]
    return main([*arguments, *map(str, more)])


@lru_cache(maxsize=1)
def of_daily_plans(suite: DriftSuite) -> Evaluation:
    return evaluate(EveryHours(24, 1), suite)


def submit_actions(suite: DriftSuite, actions: Any = None, slug: str = "mine") -> int:
    """Submit an evaluation of given actions, or of a plan each day."""
    found = of_daily_plans(suite) if actions is None else evaluate(Recorded(np.array(actions)), suite)
    write_json(Path("0.json"), replace(found, agent="mine").to_json())
    return submit(slug, "--evaluation", "0.json", "--deterministic", "--no-training")


def folder(root: Path, slug: str) -> EntryFolder:
    return EntryFolder(root, REPLANNING, SUITE, slug)


def findings(root: Path, slug: str) -> list[str]:
    return [str(each) for each in verify_entry(folder(root, slug))[1]]


def change(root: Path, slug: str, edit: Callable[[list[Any]], Any]) -> None:
    """Edit the rows of an entry."""
    path = folder(root, slug).path / SEQUENCES
    record = json.loads(path.read_text())
    edit(record["rows"])
    path.write_bytes(format_rows(record["rows"]))


def change_text(root: Path, slug: str, old: str, new: str, file: str = ENTRY) -> None:
    path = folder(root, slug).path / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


def test_replayed_entries_are_ranked_before_others(
    root: Path, suite: DriftSuite, best: Sequence[Any], capsys: Any
) -> None:
    assert submit("never", "--agent", "never") == 0
    assert "It is listed as not replayed, until a maintainer replays it." in " ".join(capsys.readouterr().out.split())
    assert submit("daily", *DAILY) == 0
    assert submit_actions(suite, [each.actions for each in best]) == 0
    assert "because its agent does not ship with ShardGym" in " ".join(capsys.readouterr().out.split())
    assert main(["leaderboard", "verify", "--all"]) == 0
    assert "All 3 entries are valid." in capsys.readouterr().out
    [board] = load_leaderboards(root)
    assert board.best is not None
    assert board.best.costs_ms == pytest.approx([1e3 * each.seconds for each in best])
    assert board.entries[0].verified.folder.slug == "mine"
    assert board.entries[0].gap == pytest.approx(0.0, abs=1e-9)
    never = next(each for each in board.entries if each.verified.folder.slug == "never")
    costs = np.array([result.cost_ms for result in evaluate(lambda seen: keep(seen), suite).tasks])
    assert never.gap == pytest.approx(float((costs / board.best.costs_ms).mean()) - 1.0)
    ids = [f"{REPLANNING}/{SUITE}/{slug}" for slug in ("never", "daily")]
    assert main(["leaderboard", "verify", *ids, "--replay", "2", "--keep-times"]) == 0
    [board] = load_leaderboards(root)
    assert [each.replayed_seconds is not None for each in board.entries] == [True, True, False]
    assert board.entries[0].gap <= board.entries[1].gap  # type: ignore[operator]
    assert main(["leaderboard", "render"]) == 0
    lines = [line for line in (root / README).read_text().splitlines() if line.startswith("|")][2:]
    assert ["| replayed |" in line for line in lines] == [True, True, False, False]
    assert ["**not replayed**" in line for line in lines] == [False, False, True, False]
    assert lines[-1].startswith("| oracle: the best sequence, with hindsight | 0.00% |")
    ranking = site_files([board])[f"data/{REPLANNING}/{SUITE}/ranking.js"].decode()
    assert (ranking.count('"group":"replayed"'), ranking.count('"group":"not replayed"')) == (2, 1)
    assert main(["leaderboard", "render", "--check"]) == 0


def keep(observations: Any) -> Any:
    """A plan of the last days only where one must be."""
    return np.where(observations["must_plan"][:, 0] > 0, 3, 0)


def test_tuned_agents_learn_from_training_tasks(root: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(tuning, "DATA", tmp_path / "tuned.json")
    (tmp_path / "tuned.json").write_text(json.dumps({SUITE: {"threshold": {"share": 0.1, "kind": 0}}}))
    assert submit("tuned", "--agent", "threshold") == 0
    text = (folder(root, "tuned").path / ENTRY).read_text()
    assert f'data = ["{SUITE}/train"]' in text
    assert main(["leaderboard", "verify", "--all", "--replay", "1"]) == 0
    assert "2 tasks replayed" in capsys.readouterr().out
    change_text(root, "tuned", f'data = ["{SUITE}/train"]', "data = []")
    change_text(root, "tuned", "learns = true", "learns = false")
    assert "agent.learns is false, but must be true for ShardGym's agent 'threshold'" in findings(root, "tuned")[0]
    given = ("--agent", "threshold", "--option", "share=0.2", "--option", "kind=0")
    assert submit("given", *given) == 0
    assert "learns = false" in (folder(root, "given").path / ENTRY).read_text()


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda rows: rows[1].update(sequence="0" * 335), "must be a text of 336 characters"),
        (lambda rows: rows[1].update(sequence="0" * 335 + "9"), "is '9', but must be a digit from 0 to 8"),
        (lambda rows: rows[1].update(sequence="\u0661" * 336), "is '\u0661', but must be a digit"),
        (lambda rows: rows[1].update(sequence=[0] * 336), "input should be a valid string"),
        (lambda rows: rows[1].update(cost_ms="1"), "rows.1.cost_ms is refused"),
        (lambda rows: rows[1].update(cost_ms=1e9), "cost_ms is 1000000000.0, but the sequence costs"),
        (lambda rows: rows[1].pop("cost_ms"), "It must claim cost_ms, and facts with ['pauses, s'"),
        (lambda rows: rows[1]["facts"].update(more=1.0), "It must claim cost_ms, and facts with ['pauses, s'"),
        (lambda rows: rows[1]["facts"].update(plans=400.0), "'plans': 400.0"),
        (lambda rows: rows[1]["facts"].update({"pauses, s": 1.0}), "but the sequence gives"),
        (lambda rows: rows[1].update(sequence="5" + rows[1]["sequence"][1:]), "Action 5 at decision 0 of task"),
        (lambda rows: rows[1].update(sequence="1" + rows[1]["sequence"][1:]), "but the sequence costs"),
        (lambda rows: rows[1].update(sequence=None), "It has no answer, so it claims no cost_ms and no facts"),
        (
            lambda rows: rows[1].update(sequence=None, cost_ms=None, facts={}),
            "scores.failures is 0, but 1 sequences are null",
        ),
    ],
)
def test_what_is_wrong_with_rows_is_named(root: Path, suite: DriftSuite, edit: Any, reason: str) -> None:
    assert submit_actions(suite) == 0
    change(root, "mine", edit)
    found = findings(root, "mine")
    assert any(reason in each for each in found), found


def test_other_actions_of_a_shipped_agent_are_found_by_a_replay(root: Path, capsys: Any) -> None:
    assert submit("never", "--agent", "never") == 0
    assert submit("daily", *DAILY) == 0
    scorer = load_scorer(SUITE)
    actions = "0" * 100 + "1" + "0" * 235
    costs = []

    def plan_once(rows: list[Any]) -> None:
        for number, row in enumerate(rows):
            row.update(sequence=actions, **claims_of(np.array([*map(int, actions)]), number, scorer))
            costs.append(row["cost_ms"])

    old = verify_entry(folder(root, "never"))[0]
    assert old is not None
    change(root, "never", plan_once)
    change_text(root, "never", repr(float(old.costs_ms.mean())), repr(float(np.mean(costs))))
    change_text(root, "daily", '"hours" = 24', '"hours" = 48')
    assert main(["leaderboard", "verify", "--all"]) == 0
    capsys.readouterr()
    assert main(["leaderboard", "verify", "--all", "--replay", "2"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    for slug in ("never", "daily"):
        for number in range(2):
            assert f"{slug}/{SEQUENCES}, task {SUITE}/test/{number}, seed 0: Replayed, the agent's sequence" in out


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (f'"{SUITE}"', '"other-20"', "suite.name is 'other-20', but in replanning/tiny-20 it must be 'tiny-20'"),
        ("seeds = [0]", "seeds = [1]", "seeds are [1], but a deterministic agent has exactly the seeds [0]"),
        ("stochastic = false", "stochastic = true", "agent.stochastic is true, but must be false"),
        (
            '"hours" = 24',
            '"max_seconds" = 24',
            "names ['max_seconds'], which ShardGym's agent 'every' does not take",
        ),
        ("queries = 0.0", "queries = 1.0", "agent 'every' never evaluates the cost model"),
        ("queries = 0.0", 'queries = 0.0\nleague = "search"', "the track 'replanning' has no leagues; remove it"),
        ('track = "replanning"', 'track = "simulated"', "track is 'simulated', but in replanning/tiny-20"),
        ('track = "replanning"', 'track = "races"', "track is refused: it must be one of simulated, sharding"),
    ],
)
def test_what_is_wrong_with_declarations_is_named(root: Path, old: str, new: str, reason: str) -> None:
    assert submit("daily", *DAILY) == 0
    change_text(root, "daily", old, new)
    found = findings(root, "daily")
    assert any(reason in each for each in found), found


@pytest.mark.parametrize("data", [f"{SUITE}/test", "drift-strong-600", "other: "])
def test_other_data_to_learn_from_are_refused(root: Path, suite: DriftSuite, data: str, capsys: Any) -> None:
    assert submit_actions(suite) == 0
    change_text(root, "mine", "learns = false", "learns = true")
    change_text(root, "mine", "data = []", f'data = ["{data}"]')
    assert "training.data" in findings(root, "mine")[0]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"hours": 24, "kind": 7}, "The agent makes"),
        ({"hours": 24, "kind": 99}, "kind of agent 'every' must be an integer from 0 to 7, not 99"),
        ({"hours": "x", "kind": 0}, "hours of agent 'every' must be a positive number"),
    ],
)
def test_options_that_are_none_are_found_by_a_replay(
    root: Path, options: dict[str, Any], reason: str, capsys: Any
) -> None:
    assert submit("daily", *DAILY) == 0
    written = ", ".join(f'"{key}" = {json.dumps(value)}' for key, value in options.items())
    change_text(root, "daily", 'options = {"hours" = 24, "kind" = 0}', f"options = {{{written}}}")
    assert main(["leaderboard", "verify", "--all", "--replay", "1"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "The agent cannot run as declared: " in out
    assert reason in out


def test_an_entry_below_the_bound_is_an_error_of_the_bound(root: Path, suite: DriftSuite, best: Sequence[Any]) -> None:
    assert submit("never", "--agent", "never") == 0
    write_bounds(suite, best, 2e3)
    found = findings(root, "never")
    assert len(found) == 2
    assert "is proven to be the least for this task. Please report that the bound is wrong." in found[0]
    assert submit("again", "--agent", "never") == 1
    assert sorted(each.name for each in root.iterdir()) == [README, REPLANNING]


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda record: record.update(suite="other"), "an evaluation has 2 tasks of 'other'"),
        (lambda record: record["tasks"].pop(), "an evaluation has 1 task of 'tiny-20'"),
        (lambda record: record["tasks"][1].update(sequence=5), "sequence"),
        (lambda record: record["tasks"][1].update(sequence="0"), "must be a text of 336 characters"),
        (lambda record: record["tasks"][1].update(sequence="8" * DECISIONS), "Action 8 at decision 0"),
        (lambda record: record["tasks"][1].update(cost_ms=5.0), "scores.mean_cost_ms is"),
    ],
)
def test_evaluations_that_do_not_fit_are_refused(
    root: Path, suite: DriftSuite, edit: Any, reason: str, capsys: Any
) -> None:
    record = replace(of_daily_plans(suite), agent="mine").to_json()
    edit(record)
    write_json(Path("0.json"), record)
    assert submit("mine", "--evaluation", "0.json", "--deterministic", "--no-training") != 0
    printed = capsys.readouterr()
    assert reason in " ".join((printed.out + printed.err).split())
    assert not (root / REPLANNING / SUITE).exists()


def test_suites_and_tracks_of_other_problems_are_refused(root: Path, capsys: Any) -> None:
    assert main(["leaderboard", "submit", f"simulated/{SUITE}/x", "--name", "x", *FACTS, "--agent", "random"]) == 2
    assert f"submit to replanning/{SUITE}/x" in " ".join(capsys.readouterr().err.split())
    assert submit("never", "--agent", "never") == 0
    moved = root / "simulated" / SUITE
    moved.parent.mkdir()
    (root / REPLANNING / SUITE).rename(moved)
    found = [str(each) for each in verify_all(root)[1]]
    assert any("The track 'simulated' has no suites of replanning" in each for each in found), found


def test_large_files_are_not_read(root: Path) -> None:
    assert submit("never", "--agent", "never") == 0
    (folder(root, "never").path / SEQUENCES).write_bytes(b" " * (LIMITS[SEQUENCES] + 1))
    assert findings(root, "never") == [
        f"{REPLANNING}/{SUITE}/never/{SEQUENCES}: It has 1,048,577 bytes; the limit is 1,048,576."
    ]


def test_copies_are_refused_unless_both_are_replayed(
    root: Path, suite: DriftSuite, monkeypatch: Any, capsys: Any
) -> None:
    for module in (copies, verify):
        monkeypatch.setattr(module, "MANY_TASKS", 2)
    actions = np.tile((np.arange(DECISIONS) % 24 == 0) & (np.arange(DECISIONS) > 0), (2, 1)).astype(np.int64)
    assert submit("daily", *DAILY) == 0
    assert submit_actions(suite, actions) == 1
    assert "100% of the sequences are those of replanning/tiny-20/daily" in " ".join(capsys.readouterr().out.split())
    assert not (root / REPLANNING / SUITE / "mine").exists()


def test_other_actions_at_repairs_hide_no_copy(drift_task: Callable[..., DriftTask]) -> None:
    """Where a plan must be made, 0 and 1 both make that for the last hour."""
    problem: Any = PROBLEMS[REPLANNING]
    task = drift_task(5, 4, 0, SPOT)
    daily = np.where(np.arange(DECISIONS) % 24 == 12, 1, 0)
    repairs = history_of(task, daily, problem.model("analytical")).repairs
    assert repairs.any()
    other = np.where(repairs, 1 - daily, daily)
    assert problem.canonical(other, task) == problem.canonical(daily, task)
    assert problem.canonical(np.roll(daily, 1), task) != problem.canonical(daily, task)


def test_agents_that_do_nothing_are_no_copies(root: Path, suite: DriftSuite, monkeypatch: Any) -> None:
    for module in (copies, verify):
        monkeypatch.setattr(module, "MANY_TASKS", 1)
    assert submit("never", "--agent", "never") == 0
    assert submit_actions(suite, np.zeros((2, DECISIONS), np.int64)) == 0
    assert submit("other", "--agent", "never", name="Never!") == 1


def test_the_program_of_the_page_makes_an_entry(root: Path, suite: DriftSuite, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "leaderboards.md").read_text()
    (program,) = re.findall("```py\n(.*?)```", page, re.DOTALL)
    monkeypatch.setattr(shard_gym, "evaluate", lambda agent, name: evaluate(agent, suite))
    exec(program, {"__name__": "__main__"})
    assert submit("mine", "--evaluation", "0.json", "--deterministic", "--no-training") == 0
