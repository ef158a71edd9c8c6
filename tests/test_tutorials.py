"""The pages of docs/tutorials say what their programs and commands print, and these run as they are."""

from __future__ import annotations

import json
import re
import runpy
import textwrap
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from shard_gym import Task, evaluate, load_pool, load_suite
from shard_gym.agents import PolicyAgent
from shard_gym.agents.named import agent_named
from shard_gym.cli import main
from shard_gym.cli.console import as_options
from shard_gym.common.text import format_ms
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.envs.core.episode_state import COMPLETE
from shard_gym.hardware import PROFILES
from shard_gym.leaderboard.leagues import league_of

REPO = Path(__file__).resolve().parents[1]
OWN_TABLES = (REPO / "docs" / "tutorials" / "own-tables.md").read_text(encoding="utf-8")

README = (REPO / "README.md").read_text(encoding="utf-8")
TORCHREC = (REPO / "docs" / "tutorials" / "torchrec.md").read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def program(page: str, says: str) -> str:
    """The only program of a page that contains `says`."""
    (found,) = [block for block in blocks(page, "python") if says in block]
    return found


@pytest.fixture
def shell(
    same_searches_once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], str]:
    """Runs a `shard-gym` command in an empty folder that has the tables of the example, and returns what it printed."""
    pytest.importorskip("ortools")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    runpy.run_path(str(REPO / "examples" / "make_tables.py"), run_name="__main__")

    def run(line: str) -> str:
        capsys.readouterr()
        assert main(line.split()[1:]) == 0
        return "".join(f"{each.rstrip()}\n" for each in capsys.readouterr().out.splitlines())

    return run


def test_an_agent_of_replanning_is_trained_and_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sb3_contrib")
    monkeypatch.chdir(tmp_path)
    page = (REPO / "docs" / "tutorials" / "replanning.md").read_text(encoding="utf-8")
    exec(compile(program(page, "make_learner").replace("tasks[:2]", "tasks[:1]"), "replanning.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    found = [re.fullmatch(r"drift-strong-120/test/(\d): (\d+\.\d)% over the oracle", line) for line in lines]
    assert [each and each[1] for each in found] == ["0"]
    assert (tmp_path / "runs" / "two-tasks" / "agent.safetensors").exists()


def test_the_oracle_of_a_training_task_is_computed(capsys: pytest.CaptureFixture[str]) -> None:
    page = (REPO / "docs" / "tutorials" / "replanning.md").read_text(encoding="utf-8")
    (indented,) = re.findall(r"^  ```python\n(.*?)^  ```$", page, re.DOTALL | re.MULTILINE)
    first, tasks = '"train")[0]\n', load_suite("drift-strong-120", "train")
    assert first in indented
    smallest = min(range(len(tasks)), key=lambda number: tasks[number].num_tables)
    smaller = textwrap.dedent(indented).replace(first, f'"train")[{smallest}]\n')
    exec(compile(smaller, "replanning.md", "exec"), {})
    assert float(capsys.readouterr().out) > 0


def test_the_agent_of_replanning_plays_as_it_is_named_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (REPO / "docs" / "tutorials" / "own-agent.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(program(page, "class Mine:"), encoding="utf-8")
    assert "--agent mine.py:Mine --tasks 2\n" in page
    suite = load_suite("drift-strong-30")
    smallest = min(suite, key=lambda task: task.num_tables)
    (played,) = evaluate(agent_named("mine.py:Mine"), replace(suite, tasks=(smallest,))).tasks
    assert (played.valid, played.failure) == (True, "")
    assert played.sequence is not None
    assert set(played.sequence) == {"0", "2"}


def test_no_two_pages_train_into_the_same_folder() -> None:
    """Who follows several of them in one folder would be told that it already holds a run."""
    found = list[str]()
    for page in ("README.md", "docs/tutorials/train-ppo.md", "docs/tutorials/replanning.md", "docs/solvers.md"):
        text = (REPO / page).read_text(encoding="utf-8").replace("\\\n", " ")
        found += re.findall(r"^ *shard-gym train .*--out (\S+)", text, re.MULTILINE)
        found += re.findall(r"TrainingRun\(learner, Path\(\"(.*?)\"\)", text)
    assert len(found) > 5
    assert sorted(found) == sorted(set(found))


def test_the_program_for_tensors_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(program((REPO / "docs" / "libraries.md").read_text(encoding="utf-8"), "torch.rand(256"), names)
    env = names["env"]
    assert capsys.readouterr().out == f"{env.cost_ms[env.status == COMPLETE].mean().item()}\n"
    assert (env.status > 0).all()


def test_a_policy_is_evaluated_on_each_task_once(capsys: pytest.CaptureFixture[str]) -> None:
    page = (REPO / "docs" / "tutorials" / "train-ppo.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(program(page, 'autoreset_mode="DISABLED"'), names)
    envs, infos = names["envs"], names["infos"]
    suite, model = load_suite("mixdim-4"), AnalyticalCostModel()
    assert [task.name for task in envs.get_attr("task")] == [task.name for task in suite]
    assert capsys.readouterr().out == f"{infos['cost_ms'].mean()} {(infos['failure'] > 0).sum()}\n"
    for task, placement, cost_ms, failure in zip(
        suite, infos["placement"], infos["cost_ms"], infos["failure"], strict=True
    ):
        if not failure:
            found = model.estimate(placement[: task.num_tables], task.tables, task.topology).total_ms
            assert cost_ms == pytest.approx(found, rel=1e-12)


def test_the_first_policy_is_trained_and_scored(capsys: pytest.CaptureFixture[str]) -> None:
    """Trained for a moment only."""
    pytest.importorskip("sb3_contrib")
    page = (REPO / "docs" / "tutorials" / "train-ppo.md").read_text(encoding="utf-8")
    first = program(page, "MaskablePPO(")
    shorter = first.replace("env, seed=0).learn(50_000)", "env, seed=0, n_steps=32, batch_size=32).learn(32)")
    assert shorter != first
    exec(shorter, {})
    assert float(capsys.readouterr().out) > 0


def command(says: str, page: str = OWN_TABLES) -> str:
    """The only command of the page, by default that on own tables, that contains `says`."""
    lines = "".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    (found,) = [line for line in lines if line.startswith("shard-gym") and says in line]
    return found


def test_the_plan_of_the_example_is_the_one_shown(shell: Callable[[str], str]) -> None:
    place = command("--compare my_plan.json").partition("--compare")[0].rstrip()
    assert f"{place}\n" in "".join(blocks(OWN_TABLES, "bash"))
    printed, *_ = blocks(OWN_TABLES, "text")
    assert shell(place) == printed
    searched = shell(f"{place} --whole")
    assert "cost         1.779 ms" in searched
    assert "lower bound  1.703 ms  this placement +4.5%" in searched
    assert "lower bound  1.779 ms  this placement +0.0%" in shell(f"{place} --agent exact")
    assert "the lower bound is 1.703 ms, and the placement 4.5% above it" in " ".join(OWN_TABLES.split())


def test_in_python_the_plan_is_that_of_the_command(
    shell: Callable[[str], str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    printed = shell(command("--compare my_plan.json").partition("--compare")[0].rstrip())
    names: dict[str, Any] = {}
    exec(program(OWN_TABLES, "import compare, plan"), names)
    out = capsys.readouterr().out
    assert as_options(out).startswith(printed.partition("\nPlan written")[0])
    (last,) = [text for text in blocks(OWN_TABLES, "text") if text.startswith("whole tables cost")]
    assert out.endswith(last)
    assert names["planned"].to_json() == json.loads(Path("plan.json").read_text())
    (inline,) = re.findall(r"`(from shard_gym\.planning import plan; .*?)`", README)
    of_readme: dict[str, Any] = {}
    exec(inline, of_readme)
    assert of_readme["planned"].plan == names["planned"].plan


def test_what_does_not_fit_is_refused_as_shown(shell: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    whole, refused = [text for text in blocks(OWN_TABLES, "text") if text.startswith(("Agent", "The tables"))]
    for says, options in ((whole, "--whole"), (refused, "--memory-cap-gib 2 --optimizer adam")):
        capsys.readouterr()
        assert main(command(options).split()[1:]) == 2
        assert " ".join(says.split()) in " ".join(capsys.readouterr().err.split())


def test_a_model_larger_than_hbm_is_placed_as_shown(shell: Callable[[str], str]) -> None:
    exec(program(OWN_TABLES, '"large.json"'), {})
    assert load_pool("large.json").tables.memory_bytes.sum() / 2**30 == pytest.approx(1382, abs=1)
    (shown,) = [text for text in blocks(OWN_TABLES, "text") if text.startswith("Memory of a training step, GiB of 80")]
    assert shown in shell(command("large_plan.json"))
    entry = json.loads(Path("large_plan.json").read_text())["plan"][0]
    assert len(entry["hbm_rows"]) == len(entry["shards"])


def test_the_plan_that_a_user_has_is_compared_as_shown(shell: Callable[[str], str]) -> None:
    pytest.importorskip("matplotlib")
    (content,) = blocks(OWN_TABLES, "json")
    Path("my_plan.json").write_text(content, encoding="utf-8")
    [compared] = [text for text in blocks(OWN_TABLES, "text") if text.startswith("Compared")]
    assert re.search(r"^cost +2\.390 ms", shell(command("--plan my_plan.json")), re.MULTILINE)
    assert Path("my_plan.png").exists()
    assert shell(command("--compare my_plan.json")).endswith(compared)


def test_what_is_quoted_of_trust_is_printed(shell: Callable[[str], str]) -> None:
    place = command("--format torchrec").partition(" --format")[0]
    printed = " ".join(shell(f"{place} --out plan.json").split())
    quotes = re.findall(r"(?:^> .*\n)+", OWN_TABLES, re.MULTILINE)
    assert len(quotes) == 2
    assert [quote for quote in quotes if " ".join(quote.replace("\n> ", " ")[2:].split()) not in printed] == []


def test_recorded_lookups_become_a_pool_that_can_be_placed(shell: Callable[[str], str]) -> None:
    pytest.importorskip("torch")
    exec(program(OWN_TABLES, "lookups.pt"), {})
    assert "3 tables written to my_lookups.json" in shell(command("import-pool"))
    tables = load_pool("my_lookups.json").tables
    assert tables.workload.batch_size == 4096
    assert tables.pooling_factor == pytest.approx([20, 5, 80], rel=0.05)
    assert tables.with_dims([64, 32, 128]).embedding_dim.tolist() == [64, 32, 128]
    assert '"cost_ms"' in shell(command("my_lookups.json --embedding-dim"))


def test_a_log_in_the_format_of_criteo_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(tmp_path)
    exec(program(OWN_TABLES, "part_0.parquet"), {})
    place = [*command("--lookups part_0.parquet").split()[1:], "--agent", "hugectr"]  # the default one takes seconds
    assert main(place) == 0
    said = capsys.readouterr().err
    numbers = ", ".join(f"int_{column}" for column in range(13))
    assert f"part_0.parquet: no table reads 14 columns: label, {numbers}." in said
    found = json.loads(Path("criteo_plan.json").read_text())
    assert [each["table"] for each in found["plan"]] == [f"cat_{column}" for column in range(26)]
    assert main([word for word in place if word not in ("--lookups", "part_0.parquet")]) == 0
    assert "~ k^-s with s 1.05" in capsys.readouterr().err
    assert json.loads(Path("criteo_plan.json").read_text())["cost_ms"] != found["cost_ms"]

    lines = re.search(r"`(tables_with_lookups\(.*?\]\))` of `([\w.]+)`", OWN_TABLES)
    assert lines
    module = vars(import_module(lines[2]))
    tables = eval(lines[1], {**module, "tables": load_pool("criteo.json").tables})
    read = parquet.read_table("part_0.parquet")
    for name, distinct, pooling in zip(tables.names, tables.distinct_rows, tables.pooling_factor, strict=True):
        rows = read[name].to_pylist()
        assert distinct == sum(len(set(rows[first : first + 2048])) for first in range(0, 6144, 2048)) / 3
        assert pooling == 1.0


def test_other_hardware_does_what_is_shown(
    shell: Callable[[str], str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    (shown,) = [text for text in blocks(OWN_TABLES, "text") if text.startswith("my_tables on 6 setups")]
    printed = shell(command("--plot"))
    assert printed.startswith(shown)
    assert Path("setups.png").exists()
    exec(program(OWN_TABLES, "import what_if"), {})
    assert capsys.readouterr().out == "2 x h100-dgx 2 x a100-dgx\n"


def test_a_custom_profile_gives_the_plan_that_is_shown(
    shell: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    exec(program(OWN_TABLES, "HardwareProfile("), {})
    *_, printed = blocks(OWN_TABLES, "text")
    assert capsys.readouterr().out.endswith(printed)
    named = re.search(r"`--hardware` names a profile: (.*?)\. ", " ".join(OWN_TABLES.split()))
    assert named
    assert re.findall(r"`([\w-]+)`", named.group(1)) == list(PROFILES)


def test_tasks_can_be_drawn_from_custom_tables(shell: Callable[[str], str]) -> None:
    names: dict[str, Any] = {}
    exec(program(OWN_TABLES, "TaskSampler("), names)
    assert isinstance(names["env"].unwrapped.task, Task)
    assert 2 <= names["env"].unwrapped.task.num_tables <= 5
    exec(program(OWN_TABLES, "save_suite("), names)
    assert [len(load_suite("my_suite.json", split)) for split in ("train", "test")] == [20, 10]


def test_plans_become_those_of_torchrec(shell: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    """On both pages in one test: importing TorchRec takes longer than the rest."""
    if find_spec("torchrec") is None:
        pytest.skip("TorchRec is not installed")
    shell(command("--format torchrec"))
    names: dict[str, Any] = {}
    exec(program(OWN_TABLES, "torchrec"), names)
    assert list(names["plan"].plan) == ["tables"]
    assert names["plan"].plan["tables"].keys() == set(load_pool("my_tables.json").tables.names)

    capsys.readouterr()
    names = {}
    for block in blocks(TORCHREC, "python"):
        if "model = DistributedModelParallel(" not in block:  # tests/interop/test_replicas.py runs these
            exec(block, names)
    assert capsys.readouterr().out == "".join(blocks(TORCHREC, "text"))
    assert names["torchrec_plan"].plan.keys() == {"sparse_arch.embedding_bag_collection"}
    cost = names["costs"].estimate(names["plan"], names["tables"], names["topology"]).total_ms
    assert re.search(rf"^cost +{format_ms(cost)} ms", shell(command("--plan my_plan.json", TORCHREC)), re.MULTILINE)
    compared = json.loads(shell(command("--compare my_plan.json", TORCHREC)))["compared"]
    assert compared["cost_ms"] == pytest.approx(cost)

    asked = command("--compare torchrec")
    compared = json.loads(shell(asked))["compared"]
    written = json.loads(shell(asked.replace("--compare", "--agent")))
    assert compared["cost_ms"] == written["cost_ms"] > 1.7


def mean_of_entry(suite: str, name: str) -> float:
    """Ms, the mean cost that the entry declares."""
    entry = (REPO / "leaderboards" / "simulated" / suite / name / "entry.toml").read_text(encoding="utf-8")
    (mean,) = re.findall(r"^mean_cost_ms = (.*)$", entry, re.MULTILINE)
    return float(mean)


def test_the_leagues_of_policies_are_those_that_their_page_names() -> None:
    """And the costs of agents that are not trained there are those of their entries."""
    page = (REPO / "docs" / "tutorials" / "train-ppo.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w-]+)`(?:, a rule)? \| `[\w-]+` \| +\| (\d\.\d+) \|$", page, re.MULTILINE))
    assert rows == {name: format_ms(mean_of_entry("mixdim-4", name)) for name in rows}
    assert {"lane-greedy", "moldable", "dreamshard", "cost-greedy", "local-search"} == rows.keys()
    lane, rule, learned = (
        format_ms(mean_of_entry("mixdim-8", name)) for name in ("lane-greedy", "moldable", "dreamshard")
    )
    assert f"`lane-greedy` costs {lane}, `moldable` {rule} and `dreamshard` {learned}." in " ".join(page.split())
    tasks = list(load_suite("mixdim-4"))[:2]
    for observation, league in (("compact", "guided"), ("features", "zero-query")):
        agent = PolicyAgent(
            "first", lambda _, mask: int(mask.argmax()), max_tables=60, max_devices=4, observation=observation
        )
        for task in tasks:
            agent.place(task)
        asked = agent.true_cost_queries(AnalyticalCostModel().fingerprint) / len(tasks)
        assert league_of(asked, 0, tasks) == league
