"""Entries of replanning: made, verified, replayed and ranked; all that is wrong is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents.replanning import tuned
from shard_gym.agents.replanning.forecasters import SEASONAL
from shard_gym.agents.replanning.neural_forecast import NUM_WEIGHTS
from shard_gym.agents.replanning.oracle import best_sequence
from shard_gym.agents.replanning.plan_table import PlanTable
from shard_gym.agents.replanning.rules import EveryHours, Never
from shard_gym.cli import main
from shard_gym.drift import oracle_seconds
from shard_gym.drift.suites import DriftSuite
from shard_gym.drift.tasks import DriftTask
from shard_gym.envs.replanning.episode_data import DECISIONS, episode_data
from shard_gym.envs.replanning.play import Recorded, play
from shard_gym.errors import DamagedFileError, UnknownNameError, unknown_name
from shard_gym.leaderboard import sequence_entries, sequence_files, sequence_tables, sequences
from shard_gym.leaderboard.markdown import README, write_pages
from shard_gym.leaderboard.sequence_entries import write_actions
from shard_gym.leaderboard.sequence_files import scoring_model
from shard_gym.leaderboard.sequence_tables import load_sequence_boards
from shard_gym.leaderboard.sequence_tables import sequence_tables as tables_of
from shard_gym.leaderboard.sequences import verify_all_sequences, verify_sequences
from shard_gym.leaderboard.site import site_files
from shard_gym.leaderboard.store import ENTRY, LIMITS, REPLANNING, SEQUENCES, EntryFolder

SUITE = "tiny-20"
FACTS = ("--author", "Ada Example", "--licence", "MIT", "--commit", "0" * 40)


@pytest.fixture(scope="module")
def suite(drift_task: Callable[..., DriftTask]) -> DriftSuite:
    tasks = [drift_task(tables=5, devices=3, seed=seed, pause_s=20.0) for seed in range(2)]
    named = tuple(replace(task, name=f"{SUITE}/test/{number}") for number, task in enumerate(tasks))
    return DriftSuite(SUITE, named, "test", sha256="ab" * 32, description="A tiny suite.")


@pytest.fixture(scope="module")
def best(suite: DriftSuite) -> list[Any]:
    """The oracle's sequences."""
    model = scoring_model()
    return [best_sequence(PlanTable.of(episode_data(each, model)), each.task.topology, each.pause_s) for each in suite]


@pytest.fixture
def root(suite: DriftSuite, best: Sequence[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of leaderboards without entries, where the package has one suite, and the oracle's data of it."""

    def load(name: str, split: str = "test") -> DriftSuite:
        if name != SUITE:
            raise unknown_name("suite of drifting tasks", name, [SUITE])
        return suite

    for module in (sequence_files, sequence_entries, oracle_seconds):
        monkeypatch.setattr(module, "load_drift_suite", load)
    for other in (sequence_files, sequence_tables):
        monkeypatch.setattr(other, "drift_suite_names", lambda: [SUITE])
    monkeypatch.setattr(oracle_seconds, "ORACLE", tmp_path / "oracle")
    sequence_files.scored_suite.cache_clear()
    write_oracle(suite, best)
    folder = tmp_path / "leaderboards"
    folder.mkdir()
    (folder / README).write_text("# Leaderboards\n\n<!-- generated: leaderboards -->\n<!-- end -->\n")
    monkeypatch.chdir(tmp_path)
    return folder


def write_oracle(suite: DriftSuite, best: Sequence[Any], factor: float = 1.0) -> Path:
    seconds = {task.name: factor * each.seconds for task, each in zip(suite, best, strict=True)}
    sequence_files.scored_suite.cache_clear()
    return oracle_seconds.write_oracle_seconds(suite, seconds, scoring_model(), "a test")


def submit(slug: str, *more: Any, name: str = "") -> int:
    arguments = ["leaderboard", "submit", f"{REPLANNING}/{SUITE}/{slug}", "--name", name or slug, *FACTS]
    return main([*arguments, *map(str, more)])


def folder(root: Path, slug: str) -> EntryFolder:
    return EntryFolder(root, REPLANNING, SUITE, slug)


def findings(root: Path, slug: str) -> list[str]:
    return [str(each) for each in verify_sequences(folder(root, slug))[1]]


def change(root: Path, slug: str, edit: Callable[[list[Any]], Any]) -> None:
    """Edit the rows of an entry."""
    path = folder(root, slug).path / SEQUENCES
    record = json.loads(path.read_text())
    edit(record["rows"])
    path.write_text(json.dumps(record))


def change_text(root: Path, slug: str, old: str, new: str) -> None:
    """Change the first such text in the files of an entry."""
    path = next(each for each in sorted(folder(root, slug).path.iterdir()) if old in each.read_text())
    path.write_text(path.read_text().replace(old, new, 1))


def own_actions(suite: DriftSuite, path: Path, actions: Sequence[Any] | None = None) -> Path:
    """A file of actions: those given, or a plan each day."""
    player = EveryHours(24, 1) if actions is None else Recorded(np.array(actions))
    write_actions(path, "mine", suite, play(player, list(suite), scoring_model()))
    return path


def test_a_shipped_agent_is_replayed_and_ranked_before_others(
    root: Path, suite: DriftSuite, best: Sequence[Any], tmp_path: Path, capsys: Any
) -> None:
    assert submit("never", "--agent", "never") == 0
    assert "it is replayed" in capsys.readouterr().out
    assert submit("daily", "--agent", "every", "--option", "hours=24", "--option", "kind=0") == 0
    file = own_actions(suite, tmp_path / "best.json", [each.actions for each in best])
    assert submit("mine", "--evaluation", file, "--deterministic") == 0
    assert "It takes 0.00% more than the oracle; it is listed as not replayed." in capsys.readouterr().out
    assert main(["leaderboard", "verify", "--all"]) == 0
    assert "All 3 entries are valid." in capsys.readouterr().out
    assert main(["leaderboard", "verify", f"{REPLANNING}/{SUITE}/daily"]) == 0
    [board] = load_sequence_boards(root)
    assert [each.is_replayed for each in board.entries] == [True, True, False]
    assert board.entries[0].excess.mean() <= board.entries[1].excess.mean()
    played = play(Never(), list(suite), scoring_model())
    expected = [each.seconds / least.seconds - 1 for each, least in zip(played, best, strict=True)]
    never = next(each for each in board.entries if each.folder.slug == "never")
    assert never.excess[0] == pytest.approx(expected)
    assert board.entries[2].excess == pytest.approx(0.0, abs=1e-9)
    write_pages(root)
    page = (root / README).read_text()
    assert tables_of([board]) in page
    lines = [line for line in page.splitlines() if line.startswith("|")][2:]
    assert [("| replayed |" in line, "**not replayed**" in line) for line in lines] == [
        (True, False),
        (True, False),
        (False, True),
        (False, False),
    ]
    assert lines[-1].startswith("| oracle")
    ranking = site_files([], [board])[f"data/{REPLANNING}/{SUITE}/ranking.js"].decode()
    assert ranking.count('"group":"replayed"') == 2
    assert ranking.count('"group":"not replayed"') == 1
    assert main(["leaderboard", "render", "--check"]) == 0


def test_settings_may_hold_lists(root: Path) -> None:
    weights = np.asarray(SEASONAL, float).tolist()
    settings = {"days": 3.0, "kinds": [0, 1], "weights": weights}
    assert submit("ridge", "--agent", "ridge", "--settings", json.dumps(settings)) == 0
    assert dict(load_sequence_boards(root)[0].entries[0].settings[0]) == settings


def test_five_settings_are_five_seeds(root: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    rng = np.random.default_rng(0)
    fixed = {"days": 2.0, "kinds": [0, 1], "weights": [[0.1] * 4] * 2}
    settings = [{**fixed, "network": rng.normal(size=NUM_WEIGHTS).round(4).tolist()} for _ in range(5)]
    (tmp_path / "0.json").write_text(json.dumps(settings[0]))
    given = [part for each in settings[1:] for part in ("--settings", json.dumps(each))]
    learned = ("--agent", "neural", "--settings", "0.json", *given)
    assert submit("learned", *learned) == 1
    assert "training.data is empty, but agent 'neural' learns" in capsys.readouterr().out
    assert submit("learned", *learned, "--training-data", f"{SUITE}/train") == 0
    [board] = load_sequence_boards(root)
    assert board.entries[0].excess.shape == (5, 2)
    assert submit("four", *learned[:-2]) != 0
    assert "needs 5 runs, one for each of the seeds [0, 1, 2, 3, 4]; got 4" in capsys.readouterr().err
    monkeypatch.setattr(tuned, "DATA", tmp_path / "tuned.json")
    (tmp_path / "tuned.json").write_text(json.dumps({SUITE: {"threshold": [{"share": 0.1, "kind": 0}]}}))
    tuned._data.cache_clear()
    assert submit("tuned", "--agent", "threshold", "--tuned") == 0
    tuned._data.cache_clear()
    assert '"settings":[{"share": 0.1, "kind": 0}]' in (folder(root, "tuned").path / SEQUENCES).read_text()
    text = (folder(root, "tuned").path / ENTRY).read_text()
    assert f'data = ["{SUITE}/train"]' in text


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda rows: rows[1].update(actions="0" * 335), "it has 335 characters, but must have 336"),
        (lambda rows: rows[1].update(actions="0" * 335 + "9"), "decision 335 is '9', but must be a digit from 0 to 8"),
        (lambda rows: rows[1].update(actions="\u0661" * 336), "decision 0 is '\u0661', but must be a digit"),
        (lambda rows: rows[1].update(actions=[0] * 336), "input should be a valid string"),
        (lambda rows: rows[1].update(task="tiny-20/test/7"), "has no such test task; remove it"),
        (lambda rows: rows[1].update(seed=1), "The seed is none of [0]; remove it"),
        (lambda rows: rows[1].update(task=rows[0]["task"]), "The task occurs twice for this seed; keep one"),
        (lambda rows: rows.pop(), "The task is missing for this seed; an entry plays all of them"),
        (lambda rows: rows[1].update(seconds=[1.0, 2.0]), "rows.1.seconds is refused"),
        (lambda rows: rows[1].update(seconds=[1.0, 2.0, 3.0]), "but its actions take ["),
        (lambda rows: rows[1].update(plans=400), "plans is 400, but its actions give"),
        (lambda rows: rows[1].update(repairs=7), "repairs is 7, but its actions give"),
        (lambda rows: rows[1].update(actions="5" + rows[1]["actions"][1:]), "Action 5 at decision 0 of task"),
        (lambda rows: rows[1].update(actions="1" + rows[1]["actions"][1:]), "but its actions give"),
        (lambda rows: rows[1].update(more=1), "The key 'rows.1.more' is not known"),
    ],
)
def test_what_is_wrong_with_rows_is_named(
    root: Path, suite: DriftSuite, tmp_path: Path, edit: Any, reason: str, capsys: Any
) -> None:
    assert submit("mine", "--evaluation", own_actions(suite, tmp_path / "0.json"), "--deterministic") == 0
    change(root, "mine", edit)
    found = findings(root, "mine")
    assert reason in found[0] or reason in found[-1]
    assert all(each.startswith(f"{REPLANNING}/{SUITE}/mine/{SEQUENCES}") for each in found)
    capsys.readouterr()
    assert main(["leaderboard", "verify", "--all"]) == 1


def test_a_replay_that_differs_is_refused(root: Path) -> None:
    assert submit("never", "--agent", "never") == 0
    change(root, "never", lambda rows: rows[1].update(actions="0" * 100 + "1" + "0" * 235))
    [found] = findings(root, "never")
    assert f"task {SUITE}/test/1, seed 0: Replayed, ShardGym's agent 'never' takes action 0 at decision 100, " in found
    assert "but the entry has 1" in found
    assert verify_sequences(folder(root, "never"), only=[0])[1] == []


def test_other_settings_are_another_agent(root: Path) -> None:
    assert submit("daily", "--agent", "every", "--option", "hours=24", "--option", "kind=0") == 0
    change_text(root, "daily", '"hours": 24', '"hours": 48')
    assert all("Replayed, ShardGym's agent 'every' takes action" in each for each in findings(root, "daily"))
    assert len(findings(root, "daily")) == 2


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("ab" * 32, "cd" * 32, "suite.sha256 is 'cdcd"),
        (f'"{SUITE}"', '"other-20"', "suite.name is 'other-20', but in replanning/tiny-20 it must be 'tiny-20'"),
        ("analytical-v2", "analytical-v1", "cost_model is 'analytical-v1'"),
        ("seeds = [0]", "seeds = [1]", "seeds are [1], but an agent that uses no chance has exactly the seeds [0]"),
        ('name = "every"', 'name = "mine"', "settings are of agents of ShardGym, and 'mine' is none"),
        ("stochastic = false", "stochastic = true", "agent.stochastic is true, but must be false"),
        ('[{"hours": 24, "kind": 0}]', "[]", "settings has 0 elements, but"),
        ('"hours": 24', '"days": 1', "Agent 'every' of replanning has the settings hours, kind"),
        ('"kind": 0', '"kind": 99', "kind of agent 'every' must be an integer from 0 to 7, not 99"),
        (
            '"kind": 0',
            '"kind": 7',
            "ShardGym's agent 'every' cannot play with {'hours': 24, 'kind': 7}: The agent makes",
        ),
        ('"hours": 24', '"hours": "x"', "hours of agent 'every' must be a positive number"),
        ("data = []", f'data = ["{SUITE}/test"]', "No agent learns from test tasks"),
        ("data = []", 'data = ["other: "]', "training.data.0 is refused"),
        ('track = "replanning"', 'track = "simulated"', "track is refused: input should be 'replanning'"),
        ("schema = 1", "schema = 2", "this version reads 1; update shard-gym"),
    ],
)
def test_what_is_wrong_with_declarations_is_named(root: Path, old: str, new: str, reason: str) -> None:
    assert submit("daily", "--agent", "every", "--option", "hours=24", "--option", "kind=0") == 0
    change_text(root, "daily", old, new)
    found = findings(root, "daily")
    assert any(reason in each for each in found), found


def test_an_entry_below_the_oracle_is_an_error_of_the_oracle(
    root: Path, suite: DriftSuite, best: Sequence[Any], capsys: Any
) -> None:
    assert submit("never", "--agent", "never") == 0
    write_oracle(suite, best, 2.0)
    found = findings(root, "never")
    assert len(found) == 2
    assert "So the oracle is wrong, not the entry: please report it." in found[0]
    assert f"python tools/oracle_seconds.py {SUITE}" in found[0]
    assert submit("again", "--agent", "never") == 1
    assert not folder(root, "again").path.exists()
    assert sorted(each.name for each in root.iterdir()) == [README, REPLANNING]


def test_a_suite_without_the_oracle_has_no_entries(root: Path, capsys: Any) -> None:
    oracle_seconds.oracle_path(SUITE).unlink()
    sequence_files.scored_suite.cache_clear()
    assert submit("never", "--agent", "never") != 0
    assert f"Maintainers make it with: python tools/oracle_seconds.py {SUITE}." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda record: record.update(suite="other"), "has actions for suite 'other', but the entry is for 'tiny-20'"),
        (lambda record: record["actions"].update(x="0"), "has task 'x', which 'tiny-20' does not have"),
        (lambda record: record["actions"].popitem(), "has no actions for task 'tiny-20/test/1'"),
        (lambda record: record["actions"].update({f"{SUITE}/test/1": 5}), "has no actions for task 'tiny-20/test/1'"),
        (lambda record: record["actions"].update({f"{SUITE}/test/1": "0"}), "it has 1 characters, but must have 336"),
        (lambda record: record["actions"].update({f"{SUITE}/test/1": "x" * DECISIONS}), "decision 0 is 'x'"),
        (lambda record: record["actions"].update({f"{SUITE}/test/1": "8" * DECISIONS}), "Action 8 at decision 0"),
        (lambda record: record.pop("agent"), "lacks the key 'agent'"),
        (lambda record: record.update(schema=2), "update shard-gym"),
    ],
)
def test_files_of_actions_that_do_not_fit_are_refused(
    root: Path, suite: DriftSuite, tmp_path: Path, edit: Any, reason: str, capsys: Any
) -> None:
    path = own_actions(suite, tmp_path / "0.json")
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record))
    assert submit("mine", "--evaluation", path, "--deterministic") != 0
    error = " ".join(capsys.readouterr().err.split())
    assert reason in error
    assert not (root / REPLANNING).exists()


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (("--agent", "nobody"), "agent that plays again"),
        (("--agent", "adwin", "--settings", '{"value": 1.0, "kind": 0}'), "agent that plays again"),
        (("--agent", "never", "--option", "hours=3"), "has the settings kind, but got hours"),
        (("--agent", "never", "--agent", "every"), "Name one --agent"),
        (("--agent", "never", "--settings", "{}", "--option", "kind=0"), "Name one --agent"),
        (("--agent", "never", "--tuned"), "is not tuned on 'tiny-20'. Give it settings."),
        (("--agent", "never", "--settings", "{"), "is not readable JSON"),
        (("--agent", "never", "--settings", "no-such.json"), "cannot be read"),
        (("--agent", "never", "--search-budget", "5"), "--search-budget is not of the track"),
        (("--evaluation", "0.json", "--tuned"), "are of agents of ShardGym"),
        (("--evaluation", "0.json"), "needs 5 runs"),
    ],
)
def test_submissions_that_make_no_sense_are_refused(
    root: Path, suite: DriftSuite, tmp_path: Path, more: tuple[str, ...], reason: str, capsys: Any
) -> None:
    own_actions(suite, tmp_path / "0.json")
    assert submit("mine", *more) != 0
    assert reason in " ".join(capsys.readouterr().err.split())
    assert not (root / REPLANNING).exists()


def test_the_program_of_the_readme_makes_an_entry(root: Path, suite: DriftSuite, monkeypatch: Any) -> None:
    page = (Path(__file__).parents[2] / "leaderboards" / "README.md").read_text()
    (program,) = re.findall("```py\n(.*?)```", page, re.DOTALL)
    monkeypatch.setattr("shard_gym.drift.suites.load_drift_suite", lambda name: suite)
    exec(program, {})
    assert submit("mine", "--evaluation", "0.json", "--deterministic") == 0


def test_an_unknown_suite_and_an_entry_that_exists_are_refused(root: Path, capsys: Any) -> None:
    assert main(["leaderboard", "submit", f"{REPLANNING}/tiny-30/x", "--name", "x", *FACTS, "--agent", "never"]) != 0
    assert "tiny-20" in capsys.readouterr().err
    assert submit("never", "--agent", "never") == 0
    assert submit("never", "--agent", "never") != 0
    assert "There is an entry replanning/tiny-20/never already." in capsys.readouterr().err
    assert submit("other", "--agent", "never", name="Never!") == 1
    assert "The name 'Never!' is that of replanning/tiny-20/never" in capsys.readouterr().out
    folder(root, "never").path.parent.rename(root / REPLANNING / "tiny-30")
    found = [str(each) for each in verify_all_sequences(root)[1]]
    assert any("Its suite 'tiny-30' cannot be loaded" in each for each in found)
    with pytest.raises(UnknownNameError):
        sequence_files.scored_suite("tiny-30")


def test_folders_with_other_files_and_large_ones_are_refused(root: Path) -> None:
    assert submit("never", "--agent", "never") == 0
    path = folder(root, "never").path
    (path / "more.txt").write_text("x")
    reason = "more.txt: The folder holds entry.toml, sequences.json and nothing else; remove it."
    assert reason in findings(root, "never")[0]
    (path / "more.txt").unlink()
    (path / SEQUENCES).write_bytes(b" " * (LIMITS[SEQUENCES] + 1))
    assert findings(root, "never") == [
        f"{REPLANNING}/{SUITE}/never/{SEQUENCES}: It has 1,048,577 bytes; the limit is 1,048,576."
    ]
    (path / SEQUENCES).write_text("{")
    assert "It is not readable JSON" in findings(root, "never")[0]
    (root / REPLANNING / SUITE / "Never").mkdir()
    (root / REPLANNING / "notes.txt").write_text("x")
    found = [str(each) for each in verify_all_sequences(root)[1]]
    assert "replanning/notes.txt: No file is allowed here; remove it." in found
    assert any(each.startswith(f"replanning/{SUITE}/Never: The folder of an entry is named with") for each in found)
    with pytest.raises(DamagedFileError, match=r"3 findings, the first: .* All of them: shard-gym leaderboard verify"):
        load_sequence_boards(root)


def test_copies_are_refused_unless_they_are_replayed(
    root: Path, suite: DriftSuite, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(sequences, "MANY_TASKS", 2)
    actions = np.tile((np.arange(DECISIONS) % 24 == 0) & (np.arange(DECISIONS) > 0), (2, 1)).astype(np.int64)
    assert submit("daily", "--agent", "every", "--settings", '{"hours": 24, "kind": 0}') == 0
    assert submit("same", "--agent", "every", "--settings", '{"hours": 24.2, "kind": 0}') == 0
    assert verify_all_sequences(root)[1] == []
    own_actions(suite, tmp_path / "0.json", actions)
    assert submit("mine", "--evaluation", "0.json", "--deterministic") == 1
    assert "100% of the sequences with plans of one's own" in " ".join(capsys.readouterr().out.split())
    assert not (root / REPLANNING / SUITE / "mine").exists()


def test_agents_that_do_nothing_are_no_copies(root: Path, suite: DriftSuite, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(sequences, "MANY_TASKS", 1)
    own_actions(suite, tmp_path / "0.json", np.zeros((2, DECISIONS), np.int64))
    assert submit("never", "--agent", "never") == 0 == submit("mine", "--evaluation", "0.json", "--deterministic")
