"""Agents of replanning on the named suites: the data of docs/results/replanning.md, and its tables.

    python tools/replanning.py drift-strong-600 spot-600     # tunes, trains and plays; half an hour for a first suite
    python tools/replanning.py drift-strong-600 --agents ppo # only this one; the results of the others stay
    python tools/replanning.py --render                      # writes the page from docs/results/replanning.json
    python tools/replanning.py --picture                     # draws docs/images/replanning.png

Numbers of agents are tuned, and policies trained, on the train split. All episodes of the test split are then played in
the environment. Tables of plans are kept in runs/plan-tables; suites that differ in their pause share them. The weights
that Stable-Baselines3 found are written to runs/replanning.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from matplotlib.figure import Figure
from numpy.typing import NDArray

from shard_gym.agents.replanning.forecasters import draw_samples, fitted_weights
from shard_gym.agents.replanning.neural_training import fitted_network
from shard_gym.agents.replanning.oracle import best_sequence
from shard_gym.agents.replanning.plan_table import PlanTable, plan_tables
from shard_gym.agents.replanning.rules import Never
from shard_gym.agents.replanning.sb3 import ALGORITHMS, Sb3Player, save_player
from shard_gym.agents.replanning.sb3 import train as train_sb3
from shard_gym.agents.replanning.table_episodes import TableEpisodes
from shard_gym.agents.replanning.training_envs import TableVecEnv
from shard_gym.agents.replanning.tuned import DATA as TUNED
from shard_gym.agents.replanning.tuned import tuned_agent
from shard_gym.agents.replanning.tuning import MAKERS, SHORT, VALUES, Settings, grid, make_agent, tune
from shard_gym.cost_models import make_sharding_cost_model
from shard_gym.drift.oracle_seconds import oracle_command, oracle_seconds
from shard_gym.drift.suites import DriftSuite, drift_suite_names, load_drift_suite
from shard_gym.envs.replanning.episode_data import episode_data
from shard_gym.envs.replanning.figure import draw
from shard_gym.envs.replanning.history import NO_PLAN
from shard_gym.envs.replanning.play import PlayedEpisode, Player, Recorded, play
from shard_gym.envs.replanning.windows import KINDS, LAST_DAYS, WINDOWS
from shard_gym.errors import InvalidOptionError
from shard_gym.io.files import read_json, write_atomically, write_json
from shard_gym.io.markdown import table, with_block
from shard_gym.io.pictures import save_picture
from shard_gym.system import cpu_model

ROOT = Path(__file__).parent.parent
DATA = ROOT / "docs" / "results" / "replanning.json"
PAGE = ROOT / "docs" / "results" / "replanning.md"
TABLES = ROOT / "runs" / "plan-tables"
POLICIES = ROOT / "runs" / "replanning"

MODEL = make_sharding_cost_model("analytical")
PICTURE = ROOT / "docs" / "images" / "replanning.png"
SHOWN = "spot-600", 2
"""The suite and the task of the picture."""

SEEDS = range(5)

MORE, MORE_TABLES = 2, 60
"""Forecasts are also fitted to new drift of the tasks of up to 60 tables, twice; not where tables grow, since the
memory of those tasks has room for their own drift only."""

UNTUNED: Mapping[str, tuple[str, Settings]] = {
    "always": ("every", {"hours": 1, "kind": 0}),
    "ski-rental, untuned": ("ski-last-hour", {}),
}
"""Agents without numbers to tune, or with those of a textbook."""

LABELS: Mapping[str, str] = {
    "never": "never",
    "every": "every k hours",
    "threshold": "relative regret above a threshold",
    **{
        f"ski-{short}": f"ski-rental, {window.name.split(',')[0]}"
        for short, window in zip(("last-hour", "last-day", "three-days", "next-half-day"), WINDOWS, strict=True)
    },
    "seasonal": "seasonal naive forecast",
    "ridge": "ridge forecast",
    "page-hinkley": "Page-Hinkley",
    "adwin": "ADWIN",
    "kswin": "KSWIN",
    "ppo": "learned: PPO, five seeds",
    "maskable-ppo": "learned: MaskablePPO, five seeds",
    "recurrent-ppo": "learned: RecurrentPPO, five seeds",
    "neural": "learned: neural forecast, five seeds",
}
"""In the order of the table."""


def run(suite: str, agents: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Tune and play agents on one suite; the name of each, and its outcome for each seed."""
    train, test = load_drift_suite(suite, "train"), load_drift_suite(suite, "test")
    best = oracle_seconds(test, MODEL)
    if not best:
        raise InvalidOptionError(f"There are no seconds of the oracle yet. Make them with: {oracle_command(suite)}.")
    best_s = np.array([best[task.name] for task in test])
    folder = TABLES / suite.rsplit("-", 1)[0]
    tables, pause_s = list(plan_tables(train, MODEL, folder / "train")), train[0].pause_s
    more = [] if train.grows else list(plan_tables(train.reseeded(MORE, MORE_TABLES), MODEL, folder / "more"))
    episodes, samples = TableEpisodes.of(tables), draw_samples([*tables, *more])
    ridge = {"weights": fitted_weights(samples)}
    skis: dict[float, int] = {}
    for name in agents:
        label, settings = UNTUNED.get(name, (name, {}))
        share: float | None = None
        if name in ALGORITHMS:
            players = (_trained(name, suite, episodes, pause_s, seed) for seed in SEEDS)
            yield name, {"runs": [_outcome({}, play(each, test, MODEL), best_s, None) for each in players]}
            continue
        if name == "neural":
            outcomes = []
            for seed in SEEDS:
                network = fitted_network(draw_samples([*tables, *more], seed), ridge["weights"], seed)
                settings, share = tune(name, episodes, pause_s, train.grows, {**ridge, "network": network})
                outcomes.append(_outcome(settings, play(make_agent(name, settings), test, MODEL), best_s, share))
            yield name, {"runs": outcomes}
            continue
        if name in VALUES:
            settings, share = _tuned_by_playing(name, train, skis[min(skis)])
        elif name not in UNTUNED:
            settings, share = tune(name, episodes, pause_s, train.grows, ridge if name == "ridge" else None)
        if name.startswith("ski-") and share is not None:
            window = KINDS[list(SHORT).index(name.removeprefix("ski-"))].window
            skis[share] = KINDS.index((window, settings["headroom"]))
        yield name, {"runs": [_outcome(settings, play(make_agent(label, settings), test, MODEL), best_s, share)]}


def _trained(name: str, suite: str, episodes: TableEpisodes, pause_s: float, seed: int) -> Sb3Player:
    """A player that Stable-Baselines3 trained; its learning curve is printed, as the share of the seconds of never."""
    never = episodes.play(Never(LAST_DAYS), pause_s)

    def report(steps: int, player: Sb3Player) -> None:
        share = float((episodes.play(player, pause_s) / never).mean())
        print(f"{suite} {name} {seed}: {steps} decisions, {100.0 * share:.2f}%", flush=True)

    player = train_sb3(name, TableVecEnv(episodes, pause_s), seed=seed, on_update=report)
    save_player(POLICIES / f"{suite}-{name}-{seed}.safetensors", player)
    return player


def _tuned_by_playing(name: str, train: DriftSuite, kind: int) -> tuple[Settings, float]:
    """The best settings of a detector, which needs measured costs; plans of the kind of the best tuned ski-rental."""
    never = _seconds(play(Never(LAST_DAYS), train, MODEL))
    tried = [
        (settings, float((_seconds(play(make_agent(name, settings), train, MODEL)) / never).mean()))
        for settings in grid(name, train.grows, {})
        if settings["kind"] == kind
    ]
    return min(tried, key=lambda each: each[1])


def _seconds(played: Sequence[PlayedEpisode]) -> NDArray[np.float64]:
    return np.array([each.seconds for each in played])


def _outcome(
    settings: Settings, played: Sequence[PlayedEpisode], best_s: NDArray[np.float64], share: float | None
) -> dict[str, Any]:
    """What is kept of one run: settings, share of the seconds of never in training, excess over the oracle."""
    return {
        "settings": settings,
        "train_share": None if share is None else round(share, 6),
        "excess": np.round(_seconds(played) / best_s - 1.0, 6).tolist(),
        "plans": round(float(np.mean([(each.history.kinds != NO_PLAN).sum() for each in played])), 2),
    }


def main(
    suites: tyro.conf.Positional[tuple[str, ...]] = (),
    agents: tuple[str, ...] = (),
    render: bool = False,
    picture: bool = False,
) -> None:
    """Play the agents on the suites, and write the page.

    Args:
        suites: names of suites of drifting tasks.
        agents: only these; the results of the others stay.
        render: write the page from the data that is there.
        picture: draw an episode.
    """
    if picture:
        save_picture(_picture(), PICTURE)
        return
    data = read_json(DATA) if DATA.exists() else {"suites": {}}
    for suite in () if render else suites:
        about = {
            "sha256": load_drift_suite(suite).sha256,
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
            "cpu": cpu_model(),
        }
        kept = data["suites"].get(suite, {}).get("agents", {})
        data["suites"][suite] = {**about, "agents": kept}
        for name, outcome in run(suite, agents or [*UNTUNED, *LABELS]):
            mean = 100.0 * np.mean([each["excess"] for each in outcome["runs"]])
            print(f"{suite} {name}: {mean:.2f}%", flush=True)
            _keep_settings(suite, name, outcome["runs"])
            kept[name] = outcome["runs"]
            write_json(DATA, data, indent=None)
    write_atomically(PAGE, with_block(PAGE, "results", page(data)).encode())
    write_atomically(PAGE, with_block(PAGE, "gains", gains(data)).encode())


def _picture() -> Figure:
    """An episode of one suite: never, tuned ski-rental, the neural forecast and the oracle."""
    task = load_drift_suite(SHOWN[0]).task(SHOWN[1])
    best = best_sequence(PlanTable.of(episode_data(task, MODEL)), task.task.topology, task.pause_s)
    players: dict[str, Player] = {
        "never": Never(),
        "ski-rental, tuned": tuned_agent("ski-last-day", SHOWN[0]),
        "neural forecast": tuned_agent("neural", SHOWN[0]),
        "oracle": Recorded(best.actions[None]),
    }
    return draw(task, {name: play(player, [task], MODEL)[0].history for name, player in players.items()})


def _keep_settings(suite: str, name: str, runs: Sequence[dict[str, Any]]) -> None:
    """Move the settings of an agent to the file of the package, if it is one of `MAKERS`."""
    settings = [each.pop("settings") for each in runs]
    if name not in MAKERS:
        return
    tuned = read_json(TUNED) if TUNED.exists() else {}
    tuned.setdefault(suite, {})[name] = settings
    write_json(TUNED, tuned, indent=None)


def page(data: Mapping[str, Any]) -> str:
    """The tables of all suites."""
    order = {name: number for number, name in enumerate(drift_suite_names())}
    suites = dict(sorted(data["suites"].items(), key=lambda each: order.get(each[0], -1)))
    rows = []
    for name in (*UNTUNED, *LABELS):
        cells = [_cell(suites[suite], name) for suite in suites]
        if any(cells):
            rows.append([LABELS.get(name, name), *(cell or "-" for cell in cells)])
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
        network = [agents[name] for name in ("ridge", "neural") if name in agents]
        cells.append(_mean_and_error(_excess(network[0]) - _excess(network[1])) if len(network) == 2 else "-")
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


def _cell(found: Mapping[str, Any], name: str) -> str:
    """Mean and standard error over tasks of the mean over seeds, in percent."""
    runs = found["agents"].get(name)
    if not runs:
        return ""
    return _mean_and_error(_excess(runs))


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
