"""Agents of replanning on the named suites: their settings, the data of docs/results/replanning.md, and its tables.

    python tools/replanning.py drift-strong-600 spot-600     # tunes, trains and plays; half an hour for a first suite
    python tools/replanning.py drift-strong-600 --agents ppo # only this one; the results of the others stay
    python tools/replanning.py                               # writes the page from docs/results/replanning.json

Numbers of agents are tuned, and policies trained, on the train split. All episodes of the test split are then played in
the environment. Tables of plans are kept in runs/plan-tables; suites that differ in their pause share them. The weights
that Stable-Baselines3 found are written to runs/replanning.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tyro
from numpy.typing import NDArray
from oracle_seconds import MODEL, TABLES

from shard_gym.agents.replanning.forecasters import draw_samples, fitted_weights
from shard_gym.agents.replanning.neural_training import fitted_network
from shard_gym.agents.replanning.plan_table import plan_tables
from shard_gym.agents.replanning.rules import Never
from shard_gym.agents.replanning.sb3 import ALGORITHMS, Sb3Player, save_player
from shard_gym.agents.replanning.sb3 import train as train_sb3
from shard_gym.agents.replanning.table_episodes import TableEpisodes
from shard_gym.agents.replanning.training_envs import TableVecEnv
from shard_gym.agents.replanning.tuned import DATA as TUNED
from shard_gym.agents.replanning.tuning import MAKERS, SHORT, Settings, make_agent, tune
from shard_gym.drift.oracle_seconds import oracle_command, oracle_seconds
from shard_gym.drift.suites import drift_suite_names, load_drift_suite
from shard_gym.envs.replanning.episodes import NO_PLAN
from shard_gym.envs.replanning.play import Player, play
from shard_gym.envs.replanning.windows import LAST_DAYS, WINDOWS
from shard_gym.errors import InvalidOptionError
from shard_gym.io.files import read_json, write_atomically, write_json
from shard_gym.io.markdown import table, with_block
from shard_gym.system import cpu_model

ROOT = Path(__file__).parent.parent
DATA = ROOT / "docs" / "results" / "replanning.json"
PAGE = ROOT / "docs" / "results" / "replanning.md"
POLICIES = ROOT / "runs" / "replanning"

SEEDS = range(5)

MORE, MORE_TABLES = 2, 60
"""Forecasts are also fitted to new drift of the tasks of up to 60 tables, twice; not where tables grow, since the
memory of those tasks has room for their own drift only."""

UNTUNED = "ski-rental, untuned"
"""`ski-last-hour` with the factor of a textbook."""

LABELS: Mapping[str, str] = {
    UNTUNED: UNTUNED,
    "never": "never",
    "every": "every k hours",
    "threshold": "relative regret above a threshold",
    **{
        f"ski-{short}": f"ski-rental, {window.name.split(',')[0]}" for short, window in zip(SHORT, WINDOWS, strict=True)
    },
    "seasonal": "seasonal naive forecast",
    "ridge": "ridge forecast",
    "ppo": "learned: PPO, five seeds",
    "maskable-ppo": "learned: MaskablePPO, five seeds",
    "recurrent-ppo": "learned: RecurrentPPO, five seeds",
    "neural": "learned: neural forecast, five seeds",
}
"""In the order of the table."""


class Trained(NamedTuple):
    """A player for one seed, its settings, and its share of the seconds of never in training if it was tuned."""

    player: Player
    settings: Settings
    share: float | None


class Trainer:
    """Tunes and trains agents on the train split of one suite."""

    def __init__(self, suite: str) -> None:
        train = load_drift_suite(suite, "train")
        folder = TABLES / suite.rsplit("-", 1)[0]
        self.suite, self.grows, self.pause_s = suite, train.grows, train[0].pause_s
        tables = list(plan_tables(train, MODEL, folder / "train"))
        more = [] if train.grows else list(plan_tables(train.reseeded(MORE, MORE_TABLES), MODEL, folder / "more"))
        self.episodes, self.sampled = TableEpisodes.of(tables), [*tables, *more]
        self.ridge: Settings = {"weights": fitted_weights(draw_samples(self.sampled))}

    def trained(self, name: str) -> Iterator[Trained]:
        """The agent of a name, once for each seed that it needs."""
        if name == UNTUNED:
            yield Trained(make_agent("ski-last-hour", {}), {}, None)
        elif name in ALGORITHMS:
            yield from (Trained(self._policy(name, seed), {}, None) for seed in SEEDS)
        elif name == "neural":
            for seed in SEEDS:
                network = fitted_network(draw_samples(self.sampled, seed), self.ridge["weights"], seed)
                yield self._tuned(name, {**self.ridge, "network": network})
        else:
            yield self._tuned(name, self.ridge if name == "ridge" else None)

    def _tuned(self, name: str, fitted: Settings | None) -> Trained:
        settings, share = tune(name, self.episodes, self.pause_s, self.grows, fitted)
        return Trained(make_agent(name, settings), settings, share)

    def _policy(self, name: str, seed: int) -> Sb3Player:
        """Prints its learning curve, as the share of the seconds of never."""
        never = self.episodes.play(Never(LAST_DAYS), self.pause_s)

        def report(steps: int, player: Sb3Player) -> None:
            share = float((self.episodes.play(player, self.pause_s) / never).mean())
            print(f"{self.suite} {name} {seed}: {steps} decisions, {100.0 * share:.2f}%", flush=True)

        player = train_sb3(name, TableVecEnv(self.episodes, self.pause_s), seed=seed, on_update=report)
        save_player(POLICIES / f"{self.suite}-{name}-{seed}.safetensors", player)
        return player


def run(suite: str, agents: Sequence[str], kept: dict[str, Any]) -> Iterator[str]:
    """Tune and play agents on one suite; their results go into `kept`, and the name of each that is done comes back."""
    test = load_drift_suite(suite)
    best = oracle_seconds(test, MODEL)
    if not best:
        raise InvalidOptionError(f"There are no seconds of the oracle yet. Make them with: {oracle_command(suite)}.")
    best_s = np.array([best[task.name] for task in test])
    trainer = Trainer(suite)
    for name in agents:
        settings, runs = [], []
        for each in trainer.trained(name):
            played = play(each.player, test, MODEL)
            seconds = np.array([episode.seconds for episode in played])
            plans = float(np.mean([(episode.history.kinds != NO_PLAN).sum() for episode in played]))
            settings.append(each.settings)
            runs.append(
                {
                    "train_share": None if each.share is None else round(each.share, 6),
                    "excess": np.round(seconds / best_s - 1.0, 6).tolist(),
                    "plans": round(plans, 2),
                }
            )
        if name in MAKERS:  # the package has the settings
            tuned = read_json(TUNED) if TUNED.exists() else {}
            tuned.setdefault(suite, {})[name] = settings
            write_json(TUNED, tuned, indent=None)
        kept[name] = runs
        yield name


def main(suites: tyro.conf.Positional[tuple[str, ...]] = (), agents: tuple[str, ...] = ()) -> None:
    """Play the agents on the suites, and write the page.

    Args:
        suites: names of suites of drifting tasks.
        agents: only these; the results of the others stay.
    """
    data = read_json(DATA) if DATA.exists() else {"suites": {}}
    for suite in suites:
        about = {
            "sha256": load_drift_suite(suite).sha256,
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
            "cpu": cpu_model(),
        }
        kept = data["suites"].get(suite, {}).get("agents", {})
        data["suites"][suite] = {**about, "agents": kept}
        for name in run(suite, agents or [*LABELS], kept):
            print(f"{suite} {name}: {_excess(kept[name]).mean():.2f}%", flush=True)
            write_json(DATA, data, indent=None)
    write_atomically(PAGE, with_block(PAGE, "results", page(data)).encode())
    write_atomically(PAGE, with_block(PAGE, "gains", gains(data)).encode())


def page(data: Mapping[str, Any]) -> str:
    """The tables of all suites."""
    suites = {name: data["suites"][name]["agents"] for name in drift_suite_names() if name in data["suites"]}
    rows = [
        [label, *(_mean_and_error(_excess(agents[name])) if name in agents else "-" for agents in suites.values())]
        for name, label in LABELS.items()
        if any(name in agents for agents in suites.values())
    ]
    return table(["% over the oracle, mean ± standard error", *suites], rows)


def gains(data: Mapping[str, Any]) -> str:
    """What forecasts and learned agents gain over the ski-rental that is best in training, paired by task."""
    rows = []
    for suite in filter(data["suites"].get, drift_suite_names()):
        agents = data["suites"][suite]["agents"]
        skis = [name for name in agents if name.startswith("ski-") and name in MAKERS]
        if not skis:
            continue
        best = min(skis, key=lambda name: agents[name][0]["train_share"])
        ski = _excess(agents[best])
        cells = []
        for name in ("ridge", "neural", "ppo"):
            if name in agents:
                gain = ski - _excess(agents[name])
                cells.append(f"{_mean_and_error(gain)} ({100.0 * gain.mean() / ski.mean():.0f}%)")
            else:
                cells.append("-")
        both = agents.keys() >= {"ridge", "neural"}
        cells.append(_mean_and_error(_excess(agents["ridge"]) - _excess(agents["neural"])) if both else "-")
        rows.append([f"`{suite}`", f"`{best}`", f"{ski.mean():.1f}", *cells])
    titles = [
        "suite",
        "best ski-rental in training",
        "% over the oracle",
        "ridge",
        "neural",
        "PPO",
        "neural over ridge",
    ]
    return "Points gained over that ski-rental, and the share of its gap to the oracle:\n\n" + table(titles, rows)


def _excess(runs: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
    """(N,) percent over the oracle by task, mean over seeds."""
    return np.asarray(100.0 * np.mean([each["excess"] for each in runs], axis=0))


def _mean_and_error(values: NDArray[np.float64]) -> str:
    return f"{values.mean():.1f} ± {values.std(ddof=1) / np.sqrt(len(values)):.1f}"


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
