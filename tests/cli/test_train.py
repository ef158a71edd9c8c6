from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import PAPER_HEURISTICS, load_agent, make_agent
from shard_gym.agents.rnn import RnnLearner
from shard_gym.agents.training import Learner, Report, TrainingRun
from shard_gym.cli import train as command
from shard_gym.cli.options import parse_options
from shard_gym.common.io.arrays import load_arrays
from shard_gym.common.text import format_ms
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.evaluation import Evaluation, evaluate
from shard_gym.tasks import load_suite

SUITE, LOADED = "few.json", "few"  # a file with tasks of `NAMED`, and the name of what it holds
NAMED = "dlrm-20x4"
SMALL = ("--option", "iterations=3", "--option", "episodes=4", "--option", "hidden=8")


@pytest.fixture(scope="module", autouse=True)
def _few(few_tasks: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All tests run in a folder with the file."""
    path = few_tasks(tmp_path_factory.mktemp("few") / SUITE, NAMED)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path.parent)
        yield


@pytest.fixture(scope="module")
def goal(_few: None) -> Evaluation:
    """What the best simple agent costs on the training tasks."""
    each = (evaluate(make_agent(name), SUITE, split="train") for name in (*PAPER_HEURISTICS, "lane-greedy", "moldable"))
    return min(each, key=lambda evaluation: evaluation.mean_cost_ms)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "x"


def args(out: Path, *more: object, evaluated: bool = False) -> list[object]:
    rest = () if evaluated else ("--no-evaluate",)
    return ["train", "--agent", "rnn", "--suite", SUITE, "--out", out, *SMALL, *more, *rest]


def test_it_trains_compares_with_the_heuristics_and_says_what_to_do_next(run, agent_rows, out: Path) -> None:
    text = run.ok(*args(out, evaluated=True), columns=100).out
    arrays, about = load_arrays(out / "agent.safetensors", "agent")
    assert arrays["encoder.weight_hh_l0"].shape == (32, 8)
    state = load_arrays(out / "training.safetensors", "training")[1]
    assert state["true_cost_queries"] == 12, "the heuristics that it is compared with are not counted"
    assert about["trained"]["options"] == {"iterations": 3, "episodes": 4, "hidden": 8}
    assert text.startswith("Trained rnn: 3 iterations, 12 cost-model evaluations, ")
    assert f"Written to {out / 'agent.safetensors'}.\n" in text
    assert agent_rows(text).keys() == {"rnn", "random", *PAPER_HEURISTICS, "lane-greedy", "moldable"}
    assert agent_rows(text)["rnn"][0] == format_ms(evaluate(load_agent(out), SUITE).mean_cost_ms)
    assert agent_rows(text)["size-greedy"][0] == format_ms(evaluate(make_agent("size-greedy"), SUITE).mean_cost_ms)
    assert text.endswith(
        f"\nNext: shard-gym evaluate --agent {out} --agent moldable --suite {SUITE}\n"
        f"      tensorboard --logdir {out / 'log'}\n"
    )
    assert list((out / "log").iterdir()) != []


def test_without_a_terminal_each_iteration_is_a_short_line(run, goal: Evaluation, out: Path) -> None:
    lines = run(*args(out)).err.splitlines()
    assert lines[0] == (
        f"rnn on {LOADED} train, to beat on all 5 tasks: {goal.agent} {format_ms(goal.mean_cost_ms)} ms"
    )
    assert len(lines) == 4
    for number, line in enumerate(lines[1:], start=1):
        validated = r"validation [\d.]+% over moldable"
        pattern = rf"iteration {number}/3: mean cost [\d.]+ ms, {validated}, {4 * number} cost-model evaluations"
        assert re.fullmatch(pattern, line)


def test_without_validation_there_is_no_curve_and_nothing_to_draw(run, out: Path) -> None:
    line = run(*args(out, "--validate", 0)).err.splitlines()[-1]
    assert re.fullmatch(r"iteration 3/3: mean cost [\d.]+ ms, 12 cost-model evaluations", line)
    assert not (out / "curve.json").exists()
    picture = out.with_name("learning.png")
    run.refused("--validate 5", *args(out.with_name("y"), "--validate", 0, "--plot", picture))
    run.refused("is finished, and was not validated", *args(out, "--resume", "--plot", picture), columns=500)
    assert not picture.exists()


def test_the_curve_is_drawn(run, out: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = out.with_name("learning.png")
    assert f"Drawn to {picture}.\n" in run.ok(*args(out, "--plot", picture), columns=200).out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_at_most_fifty_lines_are_printed_the_last_included(
    goal: Evaluation, capsys: pytest.CaptureFixture[str]
) -> None:
    learner: Any = RnnLearner(load_suite(SUITE, "train"), AnalyticalCostModel(), 0, iterations=120, hidden=1)
    with command.watch(learner, goal) as on_report:
        for learner.iteration in range(1, 121):
            on_report(learner, Report(1.0, {}))
    printed = [int(line.split("/")[0].split()[1]) for line in capsys.readouterr().err.splitlines()[1:]]
    assert printed == list(range(3, 121, 3))


@pytest.mark.parametrize("columns", [60, 120])
def test_a_terminal_gets_a_bar_that_fits(
    run, goal: Evaluation, out: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    code, _, err = run(*args(out), columns=columns)
    assert code == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", err).replace("\r", "\n")
    said = ("iteration 3/3", "━", "12 cost-model evaluations", f"to beat on all 5 tasks: {goal.agent}", "mean cost")
    assert [each for each in said if each not in " ".join(plain.split())] == []
    assert max(map(len, plain.splitlines())) <= columns


def test_the_bar_says_what_an_iteration_does(
    goal: Evaluation, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    learner: Any = RnnLearner(load_suite(SUITE, "train"), AnalyticalCostModel(), 0, iterations=7, hidden=1)
    with command.watch(learner, goal):
        learner.iteration = 4
        learner.on_stage("training the cost network")
    err = capsys.readouterr().err
    assert "iteration 5/7" in err
    assert "training the cost network" in err


def test_an_interrupted_run_goes_on_with_the_command_it_prints(
    run, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    iterate = RnnLearner.iterate

    def interrupted(learner: Learner) -> Report:
        if learner.iteration == 2:
            raise KeyboardInterrupt
        return iterate(learner)

    out = out.with_name("a run's folder")
    with monkeypatch.context() as patched:
        patched.setattr(RnnLearner, "iterate", interrupted)
        code, text, err = run(*args(out, "--seed", "5"), columns=60)
    assert (code, text) == (130, "")
    said, resume = err.splitlines()[-2:]
    assert said == "Interrupted. All finished iterations are saved; resume with:"
    words = shlex.split(resume)
    assert words[:2] == ["shard-gym", "train"]
    assert load_arrays(out / "training.safetensors", "training")[1]["iteration"] == 2
    code, _, err = run(*words[1:])
    assert code == 0
    assert [line.split(":")[0] for line in err.splitlines()[1:]] == ["iteration 3/3"]
    run(*args(tmp_path / "whole", "--seed", "5"))
    resumed, whole = (load_arrays(folder / "agent.safetensors", "agent")[0] for folder in (out, tmp_path / "whole"))
    assert all(np.array_equal(resumed[name], whole[name]) for name in whole)


def test_several_seeds_are_trained_as_each_alone_and_their_mean_and_spread_are_given(
    run, agent_rows, out: Path
) -> None:
    text = run.ok(*args(out, "--seeds", 3, "--seed", 1, evaluated=True), columns=200).out
    folders = [out / f"seed-{seed}" for seed in (1, 2, 3)]
    run(*args(out.with_name("alone"), "--seed", 2))
    several, alone = (
        load_arrays(each / "agent.safetensors", "agent")[0] for each in (folders[1], out.parent / "alone")
    )
    assert all(np.array_equal(several[name], alone[name]) for name in alone)
    means = [evaluate(load_agent(each), SUITE).mean_cost_ms for each in folders]
    margin = 4.302653 * np.std(means, ddof=1) / np.sqrt(3)  # the quantile of two degrees of freedom in tables
    low, high = (format_ms(np.mean(means) + sign * margin) for sign in (-1, 1))
    assert f"Mean of 3 seeds: {format_ms(float(np.mean(means)))} ms, 95% interval {low} to {high} (Student's" in text
    assert [agent_rows(text)[f"rnn/seed-{seed}"][0] for seed in (1, 2, 3)] == [format_ms(each) for each in means]
    run.refused("seed-1 already holds a training run", *args(out, "--seeds", 3, "--seed", 1), columns=500)
    run.refused("--seeds must be an integer of at least 1", *args(out, "--seeds", 0))


def test_interrupted_seeds_go_on_with_the_command_that_is_printed(
    run, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    iterate = RnnLearner.iterate

    def interrupted(learner: Learner) -> Report:
        if (learner.seed, learner.iteration) == (1, 1):
            raise KeyboardInterrupt
        return iterate(learner)

    with monkeypatch.context() as patched:
        patched.setattr(RnnLearner, "iterate", interrupted)
        err = run(*args(out, "--seeds", 3)).err
    code, _, err = run(*shlex.split(err.splitlines()[-1])[1:])
    assert code == 0
    assert [line.split(":")[0] for line in err.splitlines() if line.startswith("iteration")] == [
        *("iteration 2/3", "iteration 3/3"),
        *("iteration 1/3", "iteration 2/3", "iteration 3/3"),
    ]


def test_a_folder_with_a_run_is_refused_and_resuming_a_finished_run_trains_no_more(run, out: Path) -> None:
    run(*args(out))
    before = (out / "training.safetensors").read_bytes()
    run.refused(f"{out} already holds a training run, or its agent. Resume it", *args(out), columns=500)
    code, text, err = run(*args(out, "--resume"))
    assert (code, len(err.splitlines())) == (0, 1)
    assert "Trained rnn: 3 iterations, 12 cost-model evaluations" in text
    assert (out / "training.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"agent": "rn"}, "There is no learned agent named 'rn'. Did you mean 'rnn'?"),
        ({"agent": "random"}, "There is no learned agent named 'random'."),
        ({"suite": "dlrm-20x5"}, "Did you mean 'dlrm-20x4'?"),
        ({"split": "dev"}, "has the splits ['test', 'train'], not 'dev'."),
        ({"cost-model": "analytic"}, "Did you mean 'analytical'?"),
        ({"device": "tpu"}, "The device to train on must be cpu or cuda, not 'tpu'."),
        ({"option": ["device=cpu"]}, "device is no option of an agent; give it with --device."),
        ({"validate": -1}, "--validate must be an integer of at least 0, not -1."),
        ({"seed": -1}, "A seed is an integer of at least 0, not -1"),
        ({"option": ["iterations"]}, "--option wants KEY=VALUE, such as iterations=20, not 'iterations'."),
        ({"option": ["iterations=0"]}, "iterations must be an integer of at least 1, not 0."),
        ({"option": ["iterations=many"]}, "iterations must be an integer of at least 1, not 'many'."),
        (
            {"option": ["iteration=3"]},
            "There is no option of agent 'rnn' named 'iteration'. Did you mean 'iterations'?",
        ),
        ({"option": ["seed=3"]}, "seed is no option of an agent; give it with --seed."),
        ({"option": ["=3"]}, "--option wants KEY=VALUE, such as iterations=20, not '=3'."),
        ({"option": ["a=1", "a=1"]}, "The option 'a' is given twice; give it once."),
    ],
)
def test_what_cannot_be_trained_is_a_sentence_and_leaves_no_folder(
    run, out: Path, change: dict[str, Any], says: str
) -> None:
    options: dict[str, Any] = {"agent": "rnn", "suite": NAMED, "out": out} | change
    flags = [(f"--{key}", each) for key, value in options.items() for each in (value if key == "option" else [value])]
    err = run.refused(says, "train", *(part for flag in flags for part in flag)).err
    assert err.count("\n") == 1
    assert not out.exists()


def test_a_folder_that_cannot_be_made_is_refused_before_any_work(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "goal_of", None)  # calling it would be a TypeError
    (tmp_path / "file").write_text("old")
    run.refused("cannot be written", *args(tmp_path / "file"), columns=500)
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-3", -3),
        ("3.0", 3.0),
        ("1e-3", 0.001),
        ("true", True),
        ("False", False),
        ("a=b", "a=b"),
        ("", ""),
        ("nan", "nan"),
        ("None", None),
        ("1_0", "1_0"),
        (" 5", " 5"),
        ("\u0663", "\u0663"),
        ("1" + "0" * 400, "1" + "0" * 400),
        ("1" * 5000, "1" * 5000),
    ],
)
def test_values_are_read_as_what_they_look_like(text: str, value: object) -> None:
    parsed = parse_options([f"key={text}"])["key"]
    assert (type(parsed), parsed) == (type(value), value)


# What a run leaves is an agent wherever one is named


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two agents of one family that place differently, their run folders."""
    tasks, folders = load_suite(SUITE, "train"), []
    for seed in (0, 4):
        folder = tmp_path_factory.mktemp("runs") / f"seed{seed}"
        TrainingRun(RnnLearner(tasks, AnalyticalCostModel(), seed, iterations=1, hidden=8), folder, {}).run()
        folders.append(folder)
    return folders[0], folders[1]


def test_evaluate_tells_two_agents_of_one_family_apart(
    run, agent_rows, trained: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, file = trained[0], trained[1] / "agent.safetensors"
    agents = ("--agent", folder, "--agent", file, "--agent", "random")
    text = run.ok("evaluate", *agents, "--suite", SUITE, "--out", tmp_path / "r.json", columns=300).out
    records = json.loads((tmp_path / "r.json").read_text())
    assert [record["agent"] for record in records] == [str(folder), str(file), "random"]
    assert agent_rows(text).keys() == {str(folder), str(file), "random"}
    costs = [format_ms(evaluate(load_agent(path), SUITE).mean_cost_ms) for path in (folder, file)]
    assert costs[0] != costs[1]
    assert [agent_rows(text)[str(path)][0] for path in (folder, file)] == costs


def test_show_and_place_take_a_trained_agent(run, trained: tuple[Path, Path], tmp_path: Path) -> None:
    task = load_suite(SUITE)[0]
    cost = AnalyticalCostModel().estimate(load_agent(trained[0]).place(task), task.tables, task.topology).total_ms
    text = run.ok("show", "--suite", SUITE, "--agent", trained[0], columns=300).out
    assert f"placed by {trained[0]}" in text
    assert re.search(rf"^cost +{re.escape(format_ms(cost))} ms", text, re.MULTILINE)
    pool = ("--tables", "mlperf-dlrm-dcnv2", "--hardware", "a100-dgx", "--num-devices", 4)
    text = run.ok("place", *pool, "--agent", trained[0] / "agent.safetensors").out
    plan = json.loads(text)
    assert plan["agent"] == str(trained[0] / "agent.safetensors")
    assert len(plan["placement"]) == 26


@pytest.mark.parametrize("agent", ["runs/none", "none.safetensors", "folder", "agent.pt"])
def test_a_path_without_an_agent_is_a_sentence(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("agent.pt").write_bytes(b"\x80\x04.")
    for arguments in (("evaluate",), ("show",)):
        err = run.refused(agent, *arguments, "--suite", NAMED, "--agent", agent).err
        assert "There is no trained agent in" in err or "no safetensors file" in err
