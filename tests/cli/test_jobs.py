"""`--jobs` and `--cluster`: the same results as in one process, and what is refused; and nodes that are lost.

The cluster has one node on this machine until a test adds another, and starts once for all tests here.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import load_agent
from shard_gym.cli import main
from shard_gym.common import jobs
from shard_gym.common.io.arrays import load_arrays
from shard_gym.common.jobs import run_jobs
from shard_gym.common.text import format_ms
from shard_gym.evaluation import evaluate

TESTS = Path(__file__).parents[1]
LEADERBOARDS = TESTS.parent / "leaderboards"
SUITE = "dlrm-20x4"


@pytest.fixture(scope="module")
def started_cluster() -> Iterator[Any]:
    """A cluster of a node with two CPUs, to which this process is connected."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    noticed = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    node = {"num_cpus": 2, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS / "workers"), *sys.path]))
        cluster = Cluster(initialize_head=True, head_node_args={**node, "_system_config": noticed})
        patch.setenv("RAY_ADDRESS", cluster.address)
        ray.init(cluster.address, log_to_driver=False)
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture(params=["processes", "cluster"])
def elsewhere(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The options that make a command work in other processes."""
    if request.param == "processes":
        return ("--jobs", "2")
    request.getfixturevalue("started_cluster")
    return ("--cluster", "auto")


@pytest.fixture
def functions(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(TESTS / "workers")
    import job_functions

    return job_functions


def without_times(path: Path) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads(path.read_text())
    for record in records:
        for task in record["tasks"]:
            assert task.pop("seconds") >= 0
    return records


def test_evaluate_gives_the_same(run, elsewhere: tuple[str, ...], tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("count = 0\ndef place(task):\n    global count; count += 1\n    return [count % 4] * 20\n")
    agents = [part for name in ("random", "cost-greedy", f"{own}:place") for part in ("--agent", name)]
    args = ("evaluate", *agents, "--suite", SUITE, "--tasks", 3, "--out")
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    run.ok(*args, first)
    run.ok(*args, second, *elsewhere)
    assert without_times(first) == without_times(second)


def test_an_agent_that_fails_in_another_process_is_named(run, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("class Raises:\n    def place(self, task):\n        return [][task.num_tables]\n")
    agent = f"{tmp_path / 'bad.py'}:Raises"
    command = ("evaluate", "--agent", agent, "--suite", SUITE, "--tasks", 2)
    outcome = run.refused(f"Agent '{agent}' on 2 tasks. Job 2 of 3", *command, "--jobs", 2, columns=200)
    assert "IndexError: list index out of range" in outcome.err
    with pytest.raises(IndexError) as raised:
        run(*command)
    notes = getattr(raised.value, "__notes__", [])
    assert notes == [f"It was raised while an agent answered task '{SUITE}/test/0'."] or sys.version_info < (3, 11)


@pytest.fixture(scope="module")
def few(few_tasks: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a few tasks of `SUITE`."""
    return few_tasks(tmp_path_factory.mktemp("few") / "few.json", SUITE)


def train(suite: Path, out: Path) -> tuple[object, ...]:
    small = [part for each in ("iterations=2", "episodes=4", "hidden=8") for part in ("--option", each)]
    return ("train", "--agent", "rnn", "--suite", suite, *small, "--seeds", 2, "--validate", 2, "--out", out)


@pytest.fixture(scope="module")
def trained_here(few: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `train` writes in this process."""
    out = tmp_path_factory.mktemp("trained") / "here"
    assert main([str(each) for each in (*train(few, out), "--no-evaluate")]) == 0
    return out


def require_same_files(here: Path, there: Path) -> None:
    files = {path.relative_to(here) for path in here.rglob("*") if path.is_file()}
    assert len(files) > 4
    for name in sorted(files):
        one, other = here / name, there / name
        if name.suffix == ".safetensors":
            kind = name.name.partition(".")[0]
            ours, theirs = load_arrays(one, kind)[0], load_arrays(other, kind)[0]
            assert ours.keys() == theirs.keys()
            assert all(np.array_equal(ours[key], theirs[key]) for key in ours)
        elif name.suffix == ".json":
            assert one.read_bytes() == other.read_bytes()
        elif name.name.startswith("events."):  # their names have the time
            assert [len(list(each.parent.glob("events.*"))) for each in (one, other)] == [1, 1]
        else:
            assert other.exists() or name.name == ".lock"


TRAINED = "Trained rnn/seed-1: 2 iterations, 8 cost-model evaluations, "


def test_processes_train_the_same_files_and_give_their_table(
    run, agent_rows, few: Path, trained_here: Path, tmp_path: Path
) -> None:
    there = run.ok(*train(few, tmp_path), "--jobs", 2, columns=200)
    assert TRAINED in there.out
    rows = {name: row[0] for name, row in agent_rows(there.out).items() if name.startswith("rnn")}
    means = [evaluate(load_agent(trained_here / f"seed-{seed}"), few).mean_cost_ms for seed in (0, 1)]
    assert rows == {f"rnn/seed-{seed}": format_ms(mean) for seed, mean in enumerate(means)}
    require_same_files(trained_here, tmp_path)


def test_the_files_of_a_training_on_a_cluster_come_back_and_go_there_again(
    run, few: Path, trained_here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that are meant for a cluster run in this process, and get no folder."""
    asked = []

    def here(function: Any, values: Any, cluster: str, retries: int) -> Any:
        asked.append((cluster, len(values)))
        return jobs._here(function, values)

    monkeypatch.setattr(jobs, "_on_cluster", here)
    command = (*train(few, tmp_path / "there"), "--cluster", "auto", "--no-evaluate")
    assert TRAINED in run.ok(*command).out
    require_same_files(trained_here, tmp_path / "there")
    assert TRAINED in run.ok(*command, "--resume").out
    assert asked == [("auto", 2)] * 2


def test_verify_gives_the_same_findings(run, tmp_path: Path) -> None:
    pytest.importorskip("pydantic")
    entries = ("simulated/dlrm-20x4/dim-greedy", "simulated/mlperf-x8/dim-greedy", "simulated/mlperf-x8/size-greedy")
    for entry in entries:
        shutil.copytree(LEADERBOARDS / entry, tmp_path / entry)
    damaged = tmp_path / entries[1] / "placements.json"
    damaged.write_text(damaged.read_text().replace("0", "8"))
    args = ("leaderboard", "verify", *entries, "--root", tmp_path)
    here = run(*args)
    assert (here.code, here.out.count(entries[1]) > 0) == (1, True)
    assert run(*args, "--jobs", 2) == here


def test_killed_processes_and_a_lost_node_change_no_result(
    functions: Any, started_cluster: Any, tmp_path: Path
) -> None:
    node = started_cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    values = [(str(tmp_path), value, 1) for value in range(8)]
    results = run_jobs(functions.killed, values, cluster="auto")
    found = dict([next(results)])
    started_cluster.remove_node(node, allow_graceful=False)
    found |= results
    assert found == {index: index**2 for index in range(8)}
    assert len(list(tmp_path.iterdir())) == 1


def test_ctrl_c_ends_the_tasks_of_a_cluster(started_cluster: Any, tmp_path: Path, gone: Callable[[int], bool]) -> None:
    script = (
        "import signal; from shard_gym.common.jobs import run_jobs; import job_functions\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background\n"
        f"list(run_jobs(job_functions.slow, [{str(tmp_path)!r}] * 2, cluster='auto'))"
    )
    driver = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    driver.send_signal(signal.SIGINT)
    assert driver.wait(timeout=30) != 0
    processes = [int(path.name) for path in tmp_path.iterdir()]
    assert len(processes) == 2
    assert all(map(gone, processes))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (
            ("evaluate", "--agent", "local-search", "--option", "max_seconds=1", "--suite", SUITE),
            "The answers of local-search max_seconds=1 depend on the clock, by its max_seconds. Leave out --jobs",
        ),
        (
            ("evaluate", "--agent", "random", "--suite", SUITE, "--cost-model", "measured"),
            "Costs are measured one after",
        ),
        (("train", "--agent", "rnn", "--suite", SUITE, "--out", "x"), "A training with one seed is one job."),
        (
            ("train", "--agent", "dreamshard", "--suite", SUITE, "--out", "x", "--seeds", 2, "--data", "y"),
            "The measurements of --data are in a folder that other nodes may lack.",
        ),
        (
            ("train", "--agent", "rnn", "--suite", SUITE, "--out", "x", "--seeds", 2, "--cost-model", "measured"),
            "Costs are measured one after another",
        ),
        (("leaderboard", "verify", "--all", "--replay", 1), "--replay takes the times of agents, one after another."),
    ],
)
def test_what_depends_on_the_clock_or_is_one_job_is_refused(run, args: tuple[object, ...], says: str) -> None:
    run.refused(says, *args, "--jobs", 2)
    run.refused(says, *args, "--cluster", "auto")
