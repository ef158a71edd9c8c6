"""What the README and the pages of the documentation tell to type works: commands parse, and the cheap ones run."""

from __future__ import annotations

import functools
import math
import re
import runpy
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym import suite_names
from shard_gym.agents import AGENTS
from shard_gym.agents.training import LEARNERS
from shard_gym.cli import COMMANDS, main
from shard_gym.common.text import format_ms
from shard_gym.envs.real.tasks import suite_as_measured
from shard_gym.leaderboard.race import load_race
from shard_gym.leaderboard.ranking import SOLVED
from shard_gym.tasks import TaskSuite, load_suite, suite_info
from shard_gym.tasks.suites.gaps import PROVEN
from shard_gym.tasks.suites.info import CORE_SUITES, SIMULATED

REPO = Path(__file__).resolve().parents[1]
README = (REPO / "README.md").read_text(encoding="utf-8")
SUITES = (REPO / "docs" / "suites.md").read_text(encoding="utf-8")
RESULTS = REPO / "docs" / "results"
ROOM = (RESULTS / "room.md").read_text(encoding="utf-8")
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "leaderboards/README.md",
    *sorted(path.relative_to(REPO).as_posix() for path in (REPO / "docs").rglob("*.md")),
]


def blocks(page: str, *languages: str) -> list[str]:
    """The blocks of code of a page in these languages; "" is a block that names none."""
    text = (REPO / page).read_text(encoding="utf-8")
    fences = re.findall(r"^```([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for language, block in fences if language in languages]


def commands(page: str) -> list[list[str]]:
    """The words of every `shard-gym` command in the blocks of a page, without those with placeholders such as SUITE."""
    text = "\n".join(blocks(page, "bash", "")).replace("\\\n", " ").replace("$seed", "0")
    lines = [line.strip() for line in text.splitlines()]  # those in a loop are indented
    found = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("shard-gym ")]
    return [words for words in found if not any(re.fullmatch(r"\.\.\.|[A-Z_]{4,}|<.*>", word) for word in words)]


COMMANDS_OF_PAGES = [pytest.param(words, id=shlex.join(words)[:70]) for page in PAGES for words in commands(page)]


def percent(cell: str) -> float:
    return float(cell.partition("%")[0])


def test_there_are_commands() -> None:
    assert len(COMMANDS_OF_PAGES) > 20
    assert len(commands("README.md")) >= 5


@pytest.mark.parametrize("words", COMMANDS_OF_PAGES)
def test_a_command_of_the_documentation_parses_and_names_what_exists(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = words[0].replace("-", "_")
    module = import_module(f"shard_gym.cli.{name}")
    called: list[dict[str, Any]] = []
    function = getattr(module, name)
    monkeypatch.setattr(module, name, functools.wraps(function)(lambda *args, **options: called.append(options)))
    assert main(words) == 0
    (options,) = called
    named = options.get("suite") or []
    suites = [each for each in ([named] if isinstance(named, str) else named) if not str(each).endswith(".json")]
    assert all(map(suite_info, suites))  # raises where there is no such suite
    given = options.get("agent") or options.get("entry") or ()
    agents = (
        [given]
        if isinstance(given, str)
        else [each for part in given for each in ([part] if isinstance(part, str) else part)]
    )
    known = {*AGENTS, *LEARNERS}
    assert [each for each in agents if each not in known and "/" not in each and ":" not in each] == []


INLINE = sorted(
    {
        " ".join(command.split())
        for page in PAGES
        for command in re.findall(r"`shard-gym ([^`-][^`]*)`", (REPO / page).read_text(encoding="utf-8"))
    }
)


@pytest.mark.parametrize("command", INLINE)
def test_a_command_within_a_sentence_and_its_options_exist(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command.split()
    flags = [word for word in words if word.startswith("--")]
    assert words[0] in COMMANDS
    if flags:
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit):
            main([*words[: 2 if words[0] == "leaderboard" else 1], "--help"])
        out = capsys.readouterr().out
        assert [flag for flag in flags if flag not in out] == []


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 100


def test_the_program_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = blocks("README.md", "python")
    names: dict[str, Any] = {}
    exec(program, names)
    assert (names["terminated"], names["info"]["cost_ms"] > 0) == (True, True)
    assert f"# {format_ms(float(capsys.readouterr().out))}, on the test tasks" in program


def test_the_suites_that_the_readme_trains_on_are_open(markdown_rows: Any) -> None:
    """Their status is computed from the entries, and the page of the room to learn is tested to be up to date."""
    rows = markdown_rows(ROOM, "# Where there is room left to learn")
    given = {word for words in commands("README.md") if words[0] == "train" for word in words}
    trained_on = [suite for suite in suite_names() if suite in given]
    assert {rows[f"`{suite}`"][-1] for suite in trained_on if f"`{suite}`" in rows} == {"open"}


def test_the_readme_says_how_close_dreamshard_comes_after_100_costs() -> None:
    board = (REPO / "leaderboards" / "README.md").read_text("utf-8")

    def gaps_of(name: str) -> dict[str, str]:
        """By suite; each has a block of its own."""
        blocks = re.findall(r"<summary>([\w-]+):.*?</details>", board, re.DOTALL)
        texts = re.findall(r"<summary>[\w-]+:(.*?)</details>", board, re.DOTALL)
        row = rf"\| zero-query \| {re.escape(name)} \|.*?\| \+([\d.]+%) \|"
        found = {suite: re.search(row, text) for suite, text in zip(blocks, texts, strict=True)}
        return {suite: match[1] for suite, match in found.items() if match}

    trained, ships = gaps_of("DreamShard (dream-search)"), gaps_of("DreamShard (dream-search), as it ships")
    gaps = {suite: percent(gap) for suite, gap in trained.items()}
    plans = ["shard-4", "shard-8"]
    assert {*CORE_SUITES, *plans, "tier-4", "tier-8", "sequence-16", "inference-8"} <= set(gaps)
    text = " ".join(README.split())
    placed, planned = (math.ceil(10 * max(gaps[suite] for suite in suites)) / 10 for suites in (CORE_SUITES, plans))
    assert f"at most {placed}% above the best known placements on the {len(CORE_SUITES)} core suites" in text
    assert f"at most {planned}% above the best known plans of `shard-4` and `shard-8`" in text
    worse = sorted((gap, suite) for suite, gap in gaps.items() if gap > 2.0)
    assert ", ".join(f"{gap:.1f}% on `{suite}`" for gap, suite in worse) in text
    *first, last = (f"{percent(ships[suite]):.1f}%" for _, suite in worse)
    assert f"is at {', '.join(first)} and {last} there" in text


def test_the_page_of_the_suites_describes_every_suite(markdown_rows: Any) -> None:
    rows = markdown_rows(SUITES, "## What the suites are")
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    patterns = [re.sub(r"TxD|xD|MODEL|\*", r"[\\w-]+", name) for name in named]
    names = suite_names()
    assert [name for name in names if not any(re.fullmatch(pattern, name) for pattern in patterns)] == []
    assert [pattern for pattern in patterns if not any(re.fullmatch(pattern, name) for name in names)] == []


def test_the_page_of_the_suites_says_what_solved_means() -> None:
    assert f"entry is within {100 * SOLVED:g}% of the bounds" in SUITES
    assert f"entry that is not trained, is more than {100 * SOLVED:g}% above the best known" in SUITES
    assert f"proven to be within {100 * PROVEN:g}% of the best" in " ".join(SUITES.split())


def test_the_figures_of_the_readme_are_those_of_the_pages_of_results(markdown_rows: Any) -> None:
    measured = markdown_rows((RESULTS / "hardware-cpu.md").read_text(encoding="utf-8"), "## Costs")
    text = " ".join(README.split())
    (less,) = re.findall(r"100 measured placements costs (\d+)% less than the best greedy heuristic", text)
    assert f"{float(measured['dream-search-100'][2].strip('-%')):.0f}" == less
    gains = re.findall(
        r"\| -([\d.]+)% \([^|]*\) \|$", (RESULTS / "splitting.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    low, high, most, all_suites = re.search(r"(\d+)% to (\d+)% less .*? on (\w+) of \[(\w+) suites\]", text).groups()
    worth = sorted(round(float(gain)) for gain in gains if float(gain) >= float(low) - 0.5)
    assert (worth[0], worth[-1]) == (int(low), int(high))
    numbers = ("zero", "one", "two", "three", "four", "five", "six", "seven")
    assert (numbers[len(worth)], numbers[len(gains)]) == (most, all_suites)
    (over,) = re.findall(r"the best entry takes ([\d.]+)% longer", text)
    page = (REPO / "leaderboards" / "README.md").read_text(encoding="utf-8")
    table = page.split("<!-- generated: leaderboards -->")[1].split("drift-strong-600", 1)[1]
    best = min(
        float(over)
        for over in re.findall(r"^\| (?!oracle)[^|]+ \| ([\d.]+)% \|", table.split("\n| oracle")[0], re.MULTILINE)
    )
    assert f"{best:.1f}" == over


def test_what_user_pages_say_of_results_is_what_the_tables_there_say(markdown_rows: Any) -> None:
    def page(name: str) -> str:
        return " ".join((REPO / "docs" / name).read_text(encoding="utf-8").split())

    machines = markdown_rows((RESULTS / "cost-model-errors.md").read_text(encoding="utf-8"), "## Calibrated machines")
    shipped = [percent(cells[1]) for cells in machines.values() if cells[1]]
    calibrated = {name: percent(cells[4]) for name, cells in machines.items()}
    (cpu,) = (error for name, error in calibrated.items() if name.startswith("CPU"))
    gpus = sorted(error for name, error in calibrated.items() if not name.startswith("CPU"))
    said = f"errs by {gpus[0]:.0f}% to {gpus[-1]:.0f}% in iterations on a calibrated H100 or H200, and by "
    said += f"{min(shipped):.0f}% to {max(shipped):.0f}% as it ships; on a calibrated CPU by {cpu:.0f}%"
    assert said in page("cost-model.md")

    parts = "# Where there is room left to learn", "solved suites</summary>"
    room = {name: cells for part in parts for name, cells in markdown_rows(ROOM, part).items()}
    gaps = {name.strip("`"): cells[7] for name, cells in room.items() if "%" in cells[7]}
    placed = {name for name, gap in gaps.items() if percent(gap) > 1.0 and suite_info(name).track == SIMULATED}
    assert {name for name in placed if not name.startswith(("merlin-", "mlperf-"))} == {"tier-8", "constrained-8"}
    but_for = "but for whole models, `tier-8` and `constrained-8`"
    assert f"within 1% of the bounds on average on the suites of placement, {but_for}" in page("bounds.md")
    low, high = sorted(round(percent(gaps[name])) for name in ("shard-4", "shard-8"))
    most = max(percent(gap) for name, gap in gaps.items() if name.startswith(("shard-merlin-", "shard-mlperf-")))
    said = f"`shard-4` and `shard-8` are {low}% to {high}% above it, those of whole models of Merlin and MLPerf up to "
    assert f"{said}{most:.0f}%" in page("bounds.md")

    hosts = (RESULTS / "host-memory.md").read_text(encoding="utf-8")
    costs = markdown_rows(hosts, "## What it costs")
    assert 2.5 < float(costs["10%"][0]) / float(costs["100%"][0]) < 3.0
    said = "takes almost three times as long as with HBM for all, and a search that is blind to host memory costs "
    assert f"{said}{costs['10%'][2]} more" in page("host-memory.md")
    close = markdown_rows(hosts, "## How close the thresholds are")
    assert all(0.4 < percent(cells[0]) < 0.6 for cells in close.values())


def test_the_race_on_an_h100_gives_the_figures_of_its_page_and_of_the_readme(markdown_rows: Any) -> None:
    pytest.importorskip("pyarrow")
    tasks = TaskSuite("gpu-40x4", load_suite("gpu-40x4").tasks[:8], "test")
    race = load_race(RESULTS / "hardware-h100", suite_as_measured(tasks, "nvidia-h100-80gb-hbm3", None))
    results = race.results()
    rows = markdown_rows((RESULTS / "hardware-h100.md").read_text(encoding="utf-8"), "## A race")
    assert [[f"{one.mean_ms:.3f}", f"{one.ratio:.3f}"] for one in results] == [row[:2] for row in rows.values()]
    ratios = {one.entry: (f"{one.ratio:.2f}", *(f"{end:.2f}" for end in one.ratio_interval)) for one in results}
    text = " ".join(README.split())
    found = re.search(r"stands for four, `cost-greedy` costs ([\d.]+) times as much \(([\d.]+) to ([\d.]+)\)", text)
    assert found is not None
    assert ratios["cost-greedy"] == found.groups()
    assert "`local-search` {} ({} to {}; 8 tasks, 3 rounds)".format(*ratios["local-search"]) in text


def test_the_race_of_plans_on_an_h100_gives_the_figures_of_its_page(markdown_rows: Any) -> None:
    pytest.importorskip("pyarrow")
    tasks = TaskSuite("shard-gpu-40x4", load_suite("shard-gpu-40x4").tasks[:6], "test")
    race = load_race(RESULTS / "hardware-h100-plans", suite_as_measured(tasks, "nvidia-h100-80gb-hbm3", None))
    costs = dict(zip(race.answers, np.median(race.costs_ms(), axis=2), strict=True))
    rows = markdown_rows((RESULTS / "hardware-h100.md").read_text(encoding="utf-8"), "## Plans")
    for one, row in zip(race.results(), rows.values(), strict=True):
        assert row[:2] == [f"{one.mean_ms:.3f}", f"{one.ratio:.3f}"]
        if one.entry != "plan-search":
            assert row[3] == f"{(costs[one.entry] < costs['plan-search']).mean():.0%}"


def test_the_race_of_plans_on_a_cpu_gives_the_figures_of_its_page() -> None:
    pytest.importorskip("pyarrow")
    race = load_race(RESULTS / "hardware-cpu-plans", load_suite("shard-cpu-20x2"))
    costs = dict(zip(race.answers, np.median(race.costs_ms(), axis=2), strict=True))
    page = (RESULTS / "hardware-cpu.md").read_text(encoding="utf-8").partition("| entry | measured plans")[2]
    lines = page.partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    ordered = sorted(costs, key=lambda name: costs[name].mean())
    base = costs["plan-search"]
    assert len(rows) == len(ordered)
    for name, row in zip(ordered[:-1], rows, strict=False):  # the last fails tasks
        mean, ratio, cheaper = row[2], row[3], row[5]
        assert mean == f"{costs[name].mean():.2f}", name
        if name != "plan-search":
            assert float(ratio) == pytest.approx(
                costs[name].mean() / base.mean(), abs=0.006 if name == "hugectr" else 6e-4
            )
            assert cheaper == f"{(costs[name] < base).mean():.0%}"


def test_the_cheap_commands_of_the_readme_run(
    same_searches_once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, list[str]] = {}
    for words in commands("README.md"):
        given.setdefault(words[0], words)
    monkeypatch.chdir(tmp_path)
    assert "python examples/make_tables.py " in README
    runpy.run_path(str(REPO / "examples" / "make_tables.py"), run_name="__main__")
    assert main(given["place"]) == 0
    assert main(given["show"]) == 0
    assert "Plan written to plan.json." in capsys.readouterr().out
    assert (tmp_path / "plan.json").exists()
