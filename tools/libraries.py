"""Checks the examples of RL libraries, and writes the table of docs/results/libraries.md from what ran.

    build/libraries/NAME.json    what a check found; `make check-libraries` and `make check-gymnasium` write it
    docs/results/libraries.json  the last results that are published
    docs/results/libraries.md    their table

`python tools/libraries.py check NAME` runs in the environment of the library, and `python tools/libraries.py page`
publishes what lies in build/libraries. A check also runs `EmbeddingReplanning-v0` in the library.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import tyro
from tyro.conf import Positional

from shard_gym.common.errors import ShardGymError, unknown_name
from shard_gym.common.io.files import read_json, write_atomically, write_json
from shard_gym.common.io.markdown import table, with_block
from shard_gym.cost_models import AnalyticalCostModel

ROOT = Path(__file__).parent.parent
CHECKED = ROOT / "build" / "libraries"
PUBLISHED = ROOT / "docs" / "results" / "libraries.json"
PAGE = ROOT / "docs" / "results" / "libraries.md"

REPLANNING = "replanning"  # the names of records of runs of replanning begin so
BOUND = 0.9  # the agent's mean cost may be at most this share of random's, after the short budget of a check


class Library(NamedTuple):
    title: str  # shown in the tables
    distribution: str
    example: str  # its program in examples/
    agent: str  # what the program scores
    timesteps: int  # of training in a check; 0 if the program takes none
    replanning: str  # what tools/replanning_runs.py does with it; "" if the library plays one problem only
    tests: str = ""  # a folder of tests that need the library

    @property
    def command(self) -> list[str]:
        """The words after "python" that run the example."""
        budget = ["--timesteps", str(self.timesteps)] if self.timesteps else []
        return [f"examples/{self.example}.py", *budget]

    def about(self) -> dict[str, str]:
        installed = f"{self.distribution} {version(self.distribution)}"
        return {"library": self.title, "version": installed, "gymnasium": version("gymnasium")}


LIBRARIES = {
    "stable-baselines3": Library("Stable-Baselines3", "stable-baselines3", "sb3_ppo", "sb3-ppo", 50_000, "PPO"),
    "sb3-contrib": Library(
        "sb3-contrib", "sb3-contrib", "train_maskable_ppo", "maskable-ppo", 50_000, "MaskablePPO and RecurrentPPO"
    ),
    "cleanrl": Library("CleanRL style", "torch", "cleanrl_ppo", "cleanrl-ppo", 50_000, "policy gradient with masks"),
    "torchrl": Library("TorchRL", "torchrl", "torchrl_ppo", "torchrl-ppo", 50_000, "PPO with masks"),
    "rl4co": Library("RL4CO", "rl4co", "rl4co_pomo", "rl4co-pomo", 50_000, "", "tests/agents/rl4co"),
    "rllib": Library("RLlib", "ray", "rllib_ppo", "rllib-ppo", 40_000, "PPO with masks"),
    "tianshou": Library("Tianshou", "tianshou", "tianshou_dqn", "tianshou-dqn", 20_000, "double DQN with masks"),
    "minari": Library("Minari", "minari", "minari_dataset", "clone", 0, "a data set, written and read"),
}
"""By the names in `make check-libraries-NAME`. A library without its example is left out."""

_SCORE = re.compile(r"^([\w-]+): (\d+\.\d+) ms\b", re.MULTILINE)


class CheckFailedError(Exception):
    """An example ended with an error, or its agent is no better than it should be."""


def check(name: Positional[str]) -> None:
    """Run a library in this Python, and write what it found to build/libraries.

    Args:
        name: one of `LIBRARIES`.
    """
    if name not in LIBRARIES:
        raise unknown_name("library", name, LIBRARIES)
    library = LIBRARIES[name]
    if library.tests:
        _output(["-m", "pytest", "-q", library.tests])
    if library.replanning:
        found = json.loads(_output(["tools/replanning_runs.py", name]).splitlines()[-1])
        _write(f"{REPLANNING}-{name}", {**library.about(), "what": library.replanning, **found})
    begin = time.perf_counter()
    costs = scores(_output(library.command))
    require_better_than_random(costs, library.agent)
    _write(
        name,
        {
            **library.about(),
            "what": f"python {' '.join(library.command)}",
            "agent": library.agent,
            "costs_ms": costs,
            "cost_model": AnalyticalCostModel().fingerprint,
            "seconds": round(time.perf_counter() - begin),
        },
    )


def _output(command: Sequence[str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MINARI_DATASETS_PATH": folder}
        words = [sys.executable, *command]
        ran = subprocess.run(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    print(ran.stdout, end="")
    if ran.returncode:
        raise CheckFailedError(f"{' '.join(command)} ended with the exit status {ran.returncode}.")
    return ran.stdout


def contract(gymnasium: Positional[str], report: Positional[Path]) -> None:
    """Write the outcome of the contract tests on a release of Gymnasium to build/libraries.

    Args:
        gymnasium: the release.
        report: what pytest wrote with --junitxml.
    """
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    ran, skipped = (int(suite.attrib[key]) for key in ("tests", "skipped"))
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    _write(
        f"gymnasium-{gymnasium}",
        {
            "library": "Gymnasium",
            "version": f"gymnasium {gymnasium}",
            "gymnasium": gymnasium,
            "what": "tests/contract",
            "result": f"{ran - skipped - failed} passed, {failed} failed, {skipped} skipped",
            "seconds": round(float(suite.attrib["time"])),
        },
    )


def page() -> None:
    """Publish what lies in build/libraries: docs/results/libraries.json, and the table of docs/results/libraries.md."""
    records = read_json(PUBLISHED) if PUBLISHED.exists() else {}
    for path in sorted(CHECKED.glob("*.json")):
        records[path.stem] = read_json(path)
    write_json(PUBLISHED, dict(sorted(records.items(), key=lambda item: _order(item[0]))))
    write_atomically(PAGE, with_block(PAGE, "libraries", content(records)).encode())


def scores(output: str) -> dict[str, float]:
    return {name: float(cost) for name, cost in _SCORE.findall(output)}


def require_better_than_random(costs: Mapping[str, float], agent: str) -> None:
    if not {agent, "random"} <= costs.keys():
        raise CheckFailedError(f"The example must print the costs of {agent} and of random, not only of {[*costs]}.")
    share = costs[agent] / costs["random"]
    if not share <= BOUND:
        raise CheckFailedError(f"{agent} costs {share:.3f} times what random does; after this budget {BOUND} is due.")


def content(records: Mapping[str, Mapping[str, Any]]) -> str:
    """The generated part of the page: the libraries, the costs to compare with, and the contract tests."""
    ordered = [records[name] for name in sorted(records, key=_order)]
    trained = [record for record in ordered if "costs_ms" in record]
    tested = [record for record in ordered if "result" in record]
    replanned = [record for record in ordered if "steps" in record]
    parts = []
    if trained:
        parts = [
            table(("library", "command", "mean ms", "of random's", "seconds"), map(_costs, trained), left=2),
            _references(trained),
            _facts(trained, library="library", version="version", gymnasium="Gymnasium", python="Python"),
        ]
    if replanned:
        titles = {"library": "library", "what": "`EmbeddingReplanning-v0`", "steps": "decisions", "seconds": "seconds"}
        parts.append(_facts(replanned, **titles, version="version"))
    if tested:
        titles = {"gymnasium": "release of Gymnasium", "result": "contract tests (`tests/contract`)"}
        parts.append(_facts(tested, **titles, seconds="seconds", python="Python"))
    return "\n\n".join(parts)


def _facts(records: Sequence[Mapping[str, Any]], **titles: str) -> str:
    """A table of facts of each record, below their titles, and the date."""
    titles["date"] = "date"
    return table([*titles.values()], ([str(each[fact]) for fact in titles] for each in records), left=2)


def _costs(record: Mapping[str, Any]) -> list[str]:
    costs, agent = record["costs_ms"], record["agent"]
    numbers = [f"{costs[agent]:.2f}", f"{costs[agent] / costs['random']:.2f}", f"{record['seconds']:,}"]
    return [record["library"], f"`{record['what']}`", *numbers]


def _references(trained: Sequence[Mapping[str, Any]]) -> str:
    """A sentence with the costs of the agents that the examples compare with, and the cost model of all costs."""
    found: dict[str, dict[str, None]] = {}  # costs that were printed, by agent; two if they changed between checks
    for record in trained:
        for name, cost in record["costs_ms"].items():
            if name != record["agent"]:
                found.setdefault(name, {})[f"{cost:.2f}"] = None
    costs = ", ".join(f"`{name}` {' or '.join(each)} ms" for name, each in found.items())
    models = " and ".join(f"`{model}`" for model in dict.fromkeys(record["cost_model"] for record in trained))
    return f"On the same test tasks: {costs}. Costs are of the cost model {models}."


def _order(name: str) -> tuple[int, str]:
    """Libraries in the order of `LIBRARIES`, then their runs of replanning, then the releases of Gymnasium."""
    return ([*LIBRARIES, *(f"{REPLANNING}-{each}" for each in LIBRARIES), name].index(name), name)


def _write(name: str, record: dict[str, Any]) -> None:
    date = datetime.now(timezone.utc).date().isoformat()
    CHECKED.mkdir(parents=True, exist_ok=True)
    write_json(CHECKED / f"{name}.json", {**record, "date": date, "python": platform.python_version()})


if __name__ == "__main__":
    try:
        tyro.extras.subcommand_cli_from_dict({each.__name__: each for each in (check, contract, page)})
    except (CheckFailedError, ShardGymError) as failed:
        sys.exit(str(failed))
