"""Agents of re-placement on the named suites: the data of docs/results/replacement.md, and its tables.

    python tools/replacement.py drift-strong-600 spot-600     # tunes, trains and plays; half an hour for a first suite
    python tools/replacement.py drift-strong-600 --agents ppo # only this one; the results of the others stay
    python tools/replacement.py --render                      # writes the page from docs/results/replacement.json

Numbers of agents are tuned, and policies trained, on the train split. All episodes of the test split are then played in
the environment. Tables of plans are kept in runs/plan-tables; suites that differ in their pause share them. The weights
of policies trained with Stable-Baselines3 are written to runs/replacement.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from numpy.typing import NDArray

from shard_gym.agents.replacement.base import Chooser
from shard_gym.agents.replacement.forecasters import fitted_weights
from shard_gym.agents.replacement.oracle import best_sequence
from shard_gym.agents.replacement.plan_table import PlanTable, plan_tables
from shard_gym.agents.replacement.policy_search import search
from shard_gym.agents.replacement.sb3 import ALGORITHMS, STEPS, Sb3Player, save_player, train
from shard_gym.agents.replacement.score_policy import ScorePolicy
from shard_gym.agents.replacement.table_episodes import TableEpisodes
from shard_gym.agents.replacement.training_envs import TableVecEnv
from shard_gym.agents.replacement.tuned import DATA as TUNED
from shard_gym.agents.replacement.tuning import MAKERS, VALUES, Settings, grid, make_agent, tune
from shard_gym.cost_models import make_sharding_cost_model
from shard_gym.drift.suites import DriftSuite, load_drift_suite
from shard_gym.envs.replacement.play import PlayedEpisode, Player, play
from shard_gym.envs.replacement.windows import WINDOWS
from shard_gym.io.files import read_json, write_atomically, write_json
from shard_gym.io.markdown import table, with_block
from shard_gym.system import cpu_model

ROOT = Path(__file__).parent.parent
DATA = ROOT / "docs" / "results" / "replacement.json"
PAGE = ROOT / "docs" / "results" / "replacement.md"
TABLES = ROOT / "runs" / "plan-tables"
POLICIES = ROOT / "runs" / "replacement"

MODEL = make_sharding_cost_model("analytical")
SEEDS = range(5)
GENERATIONS = 150
REPORTS = 10
"""Lines of a learning curve."""

UNTUNED: Mapping[str, tuple[str, Settings]] = {
    "always": ("every", {"hours": 1, "kind": 0}),
    "ski-rental, untuned": ("ski-last-hour", {}),
}
"""Agents without numbers to tune, or with those of a textbook."""

LABELS: Mapping[str, str] = {
    "oracle": "oracle: best sequence, with hindsight",
    "never": "never",
    "every": "every k hours",
    "threshold": "relative regret above a threshold",
    **{
        f"ski-{short}": f"ski-rental, {window.name.split(',')[0]}"
        for short, window in zip(("last-hour", "last-day", "three-days", "next-half-day"), WINDOWS, strict=True)
    },
    "page-hinkley": "Page-Hinkley",
    "adwin": "ADWIN",
    "kswin": "KSWIN",
    "seasonal": "seasonal naive forecast",
    "ridge": "ridge forecast",
    "learned": "learned: policy search, five seeds",
    "ppo": "learned: PPO, five seeds",
    "maskable-ppo": "learned: MaskablePPO, five seeds",
    "recurrent-ppo": "learned: RecurrentPPO, five seeds",
}
"""In the order of the table."""


def run(suite: str, agents: Sequence[str]) -> dict[str, Any]:
    """Tune and play the agents on one suite; the oracle, too."""
    train, test = load_drift_suite(suite, "train"), load_drift_suite(suite, "test")
    file = suite.rsplit("-", 1)[0]
    tables = list(plan_tables(train, MODEL, TABLES / file / "train"))
    tested = list(plan_tables(test, MODEL, TABLES / file / "test"))
    best_train, best_test = _best(train, tables), _best(test, tested)
    episodes, weights = TableEpisodes.of(tables), fitted_weights(tables)
    pause_s = train[0].pause_s
    found: dict[str, Any] = {"oracle_s": best_test.tolist(), "agents": {}}

    def add(name: str, settings: Settings, player: Player, trained: float | None) -> None:
        played = play(player, test, MODEL)
        found["agents"].setdefault(name, []).append(_outcome(settings, played, best_test, trained))
        mean = 100.0 * float(np.mean(found["agents"][name][-1]["excess"]))
        print(f"{suite} {name}: {mean:.2f}% {settings if name != 'learned' else ''}", flush=True)

    for label, (name, settings) in UNTUNED.items():
        add(label, settings, make_agent(name, settings), None)
    for name in (each for each in agents if each in MAKERS and each != "learned"):
        if name in VALUES:
            settings, excess = _tuned_by_playing(name, train, best_train, found)
        else:
            settings, excess = tune(name, episodes, pause_s, best_train, train.grows, weights)
        add(name, settings, make_agent(name, settings), excess)
    if "learned" in agents:
        for seed in SEEDS:
            trained = np.round(search(episodes, pause_s, best_train, GENERATIONS, seed), 4)
            excess = _excess(ScorePolicy(trained), episodes, pause_s, best_train)
            add("learned", {"weights": trained.tolist()}, ScorePolicy(trained), excess)
    for name in (each for each in agents if each in ALGORITHMS):
        for seed in SEEDS:
            player = _trained(name, episodes, pause_s, best_train, seed)
            save_player(POLICIES / f"{suite}-{name}-{seed}.safetensors", player)
            add(name, {"steps": STEPS}, player, _excess(player, episodes, pause_s, best_train))
    return found


def _trained(name: str, episodes: TableEpisodes, pause_s: float, best_s: NDArray[np.float64], seed: int) -> Sb3Player:
    """A player trained with Stable-Baselines3; its learning curve is printed."""
    envs, printed = TableVecEnv(episodes, pause_s), 0

    def report(steps: int, player: Sb3Player) -> None:
        nonlocal printed
        if steps * REPORTS // STEPS > printed:
            printed = steps * REPORTS // STEPS
            print(
                f"{name} {seed}: {steps} steps, {100.0 * _excess(player, episodes, pause_s, best_s):.2f}%", flush=True
            )

    return train(name, envs, seed=seed, on_update=report)


def _excess(player: Chooser, episodes: TableEpisodes, pause_s: float, best_s: NDArray[np.float64]) -> float:
    """What a player takes beyond the best sequences, without migrations, as a share of these."""
    return float((episodes.play(player, pause_s) / best_s - 1.0).mean())


def _best(suite: DriftSuite, tables: Sequence[PlanTable]) -> NDArray[np.float64]:
    """(N,) seconds of the best sequences."""
    pairs = zip(suite, tables, strict=True)
    return np.array([best_sequence(each, task.task.topology, task.pause_s).seconds for task, each in pairs])


def _tuned_by_playing(
    name: str, train: DriftSuite, best_s: NDArray[np.float64], found: Mapping[str, Any]
) -> tuple[Settings, float]:
    """The best settings of a detector, which needs measured costs; plans of the kind of the best tuned ski-rental."""
    skis = [key for key in LABELS if key.startswith("ski-")]
    ski = min(skis, key=lambda key: float(found["agents"][key][0]["train_excess"]))
    window = skis.index(ski)
    room = found["agents"][ski][0]["settings"]["headroom"]
    kind = window + (len(WINDOWS) if room else 0)
    tried = []
    for settings in grid(name, train.grows, ()):
        if settings["kind"] == kind:
            seconds = np.array([each.seconds for each in play(make_agent(name, settings), train, MODEL)])
            tried.append((settings, float((seconds / best_s - 1.0).mean())))
    return min(tried, key=lambda each: each[1])


def _outcome(
    settings: Settings, played: Sequence[PlayedEpisode], best_s: NDArray[np.float64], trained: float | None
) -> dict[str, Any]:
    seconds = np.array([each.seconds for each in played])
    return {
        "settings": settings,
        "train_excess": None if trained is None else round(trained, 6),
        "excess": np.round(seconds / best_s - 1.0, 6).tolist(),
        "plans": round(float(np.mean([(each.history.kinds >= 0).sum() for each in played])), 2),
    }


def main(
    suites: tyro.conf.Positional[tuple[str, ...]] = (), agents: tuple[str, ...] = (), render: bool = False
) -> None:
    """Play the agents on the suites, and write the page.

    Args:
        suites: names of suites of drifting tasks.
        agents: only these; the results of the others stay.
        render: write the page from the data that is there.
    """
    data = read_json(DATA) if DATA.exists() else {"suites": {}}
    for suite in () if render else suites:
        found = run(suite, agents or [*MAKERS, *ALGORITHMS])
        kept = data["suites"].get(suite, {}).get("agents", {}) if agents else {}
        data["suites"][suite] = {
            "sha256": load_drift_suite(suite).sha256,
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
            "cpu": cpu_model(),
            **found,
            "agents": kept | found["agents"],
        }
        _keep_settings(suite, data["suites"][suite]["agents"])
        write_json(DATA, data)
    write_atomically(PAGE, with_block(PAGE, "results", page(data)).encode())


def _keep_settings(suite: str, agents: dict[str, Any]) -> None:
    """Move the settings of the agents of a suite to the file of the package."""
    tuned = read_json(TUNED) if TUNED.exists() else {}
    for name, runs in agents.items():
        settings = [each.pop("settings") for each in runs if "settings" in each]
        if settings and name in MAKERS:
            tuned.setdefault(suite, {})[name] = settings
    write_json(TUNED, tuned, indent=None)


def page(data: Mapping[str, Any]) -> str:
    """The tables of all suites."""
    suites = data["suites"]
    rows = []
    for name in (*UNTUNED, *LABELS):
        cells = [_cell(suites[suite], name) for suite in suites]
        if any(cells):
            rows.append([LABELS.get(name, name), *(cell or "-" for cell in cells)])
    return table(["% over the oracle, mean ± standard error", *suites], rows)


def _cell(found: Mapping[str, Any], name: str) -> str:
    """Mean and standard error over tasks of the mean over seeds, in percent."""
    if name == "oracle":
        return "0"
    runs = found["agents"].get(name)
    if not runs:
        return ""
    excess = 100.0 * np.mean([each["excess"] for each in runs], axis=0)
    return f"{excess.mean():.1f} ± {excess.std(ddof=1) / np.sqrt(len(excess)):.1f}"


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
