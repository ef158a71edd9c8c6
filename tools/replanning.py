"""Suites of replanning: bounds by the oracle, tuned settings of agents, and the tables of docs/results/replanning.md.

    python tools/replanning.py bounds drift-strong-600       # shard_gym/tasks/suites/data/bounds/drift-strong-600.json
    python tools/replanning.py tune drift-strong-600         # shard_gym/replanning/agents/tuned.json and the results
    python tools/replanning.py page                          # the tables from docs/results/replanning.json

The oracle finds the best sequence of actions with hindsight. Settings are tuned on the train split; all episodes of
the test split are then played in the environment. Tables of plans take ten minutes for the split of a suite; they are
kept in runs/plan-tables, and suites that differ in their pause share them.
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
from tyro.conf import Positional

from shard_gym.agents import make_agent
from shard_gym.common.io.files import read_json, write_atomically, write_json
from shard_gym.common.io.markdown import table, with_block
from shard_gym.common.system import cpu_model
from shard_gym.cost_models import make_cost_model
from shard_gym.evaluation import evaluate
from shard_gym.replanning import DriftSuite
from shard_gym.replanning.agents.rules import DETECTORS, draw_samples, fitted_weights
from shard_gym.replanning.agents.tuning import DATA as TUNED
from shard_gym.replanning.agents.tuning import TUNABLE, Settings, TableEpisodes, tune
from shard_gym.replanning.env.oracle import best_sequence
from shard_gym.replanning.env.plan_table import plan_tables
from shard_gym.replanning.env.windows import WINDOWS
from shard_gym.tasks import load_suite, suite_names
from shard_gym.tasks.suites.best_known import best_known_costs
from shard_gym.tasks.suites.bounds import write_lower_bounds

ROOT = Path(__file__).parent.parent
TABLES = ROOT / "runs" / "plan-tables"
DATA = ROOT / "docs" / "results" / "replanning.json"
PAGE = ROOT / "docs" / "results" / "replanning.md"
MODEL = make_cost_model(additive=True, splits=True)
HOW = "dynamic program over all plans that can be made, with hindsight"

MORE, MORE_TABLES = 2, 60
"""Forecasts are also fitted to new drift of the tasks of up to 60 tables, twice; not where tables grow, since the
memory of those tasks has room for their own drift only."""

UNTUNED = "ski-rental, untuned"  # `ski-last-hour` with the factor of a textbook

LABELS: Mapping[str, str] = {
    UNTUNED: UNTUNED,
    "never": "never",
    "every": "every k hours",
    "threshold": "relative regret above a threshold",
    **{
        name: f"ski-rental, {window.name.split(',')[0]}"
        for name, window in zip((name for name in TUNABLE if name.startswith("ski-")), WINDOWS, strict=True)
    },
    "seasonal": "seasonal naive forecast",
    "ridge": "ridge forecast",
    "ppo": "learned: PPO, five seeds",
    "neural": "learned: neural forecast, five seeds",
}
"""In the order of the table. The last two are results of agents that are not tuned here."""


def tables_of(suite: DriftSuite, part: str) -> list[Any]:
    """The tables of plans of a split, or of new drift of its tasks."""
    return list(plan_tables(suite, MODEL, TABLES / suite.name.rsplit("-", 1)[0] / part))


def bounds(suites: Positional[tuple[str, ...]] = ()) -> None:
    """Write what the best sequences of actions take, for all suites or those named."""
    for name in suites or suite_names("replanning"):
        suite = load_suite(name)
        pairs = zip(suite, tables_of(suite, "test"), strict=True)
        found = {task.name: 1e3 * best_sequence(each, task.topology, task.pause_s).seconds for task, each in pairs}
        print(f"Written: {write_lower_bounds([suite], found, MODEL, HOW)}.", flush=True)


def tuned(suite: str) -> dict[str, Settings]:
    """The best settings of each agent on the training tasks, and its share of the seconds of `never`."""
    train: Any = load_suite(suite, "train")
    tables = tables_of(train, "train")
    more = [] if train.grows else tables_of(train.reseeded(MORE, MORE_TABLES), "more")
    weights, episodes = fitted_weights(draw_samples([*tables, *more])), TableEpisodes.of(tables)
    found = {}
    for name in TUNABLE:
        if name not in DETECTORS:  # they need measured costs
            fitted = {"weights": weights} if name == "ridge" else None
            found[name] = tune(name, episodes, train[0].pause_s, train.grows, fitted)._asdict()
    return found


def tune_suites(suites: Positional[tuple[str, ...]]) -> None:
    """Tune agents on suites, play the test tasks, and write the settings, the results and the page."""
    data = read_json(DATA) if DATA.exists() else {"suites": {}}
    for name in suites:
        settings, shipped = tuned(name), read_json(TUNED)
        shipped.setdefault(name, {}).update({agent: each["settings"] for agent, each in settings.items()})
        write_json(TUNED, shipped, indent=None)
        suite = load_suite(name)
        best_ms = np.array([best_known_costs(suite, MODEL)[task.name] for task in suite])
        agents = {agent: make_agent(agent, **each["settings"]) for agent, each in settings.items()}
        kept = data["suites"].get(name, {}).get("agents", {})
        for agent, player in {UNTUNED: make_agent("ski-last-hour"), **agents}.items():
            excess = evaluate(player, suite, MODEL).costs_ms / best_ms - 1.0
            share = settings[agent]["share"] if agent in settings else None
            kept[agent] = [{"train_share": share and round(share, 6), "excess": np.round(excess, 6).tolist()}]
        date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
        data["suites"][name] = {"sha256": suite.sha256, "date": date, "cpu": cpu_model(), "agents": kept}
        write_json(DATA, data, indent=None)
    page()


def page() -> None:
    """Write the tables of the page."""
    data = read_json(DATA)
    for block, content in (("results", results(data)), ("gains", gains(data))):
        write_atomically(PAGE, with_block(PAGE, block, content).encode())


def results(data: Mapping[str, Any]) -> str:
    suites = {name: data["suites"][name]["agents"] for name in suite_names("replanning") if name in data["suites"]}
    rows = [
        [label, *(_mean_and_error(_excess(agents[name])) if name in agents else "-" for agents in suites.values())]
        for name, label in LABELS.items()
        if any(name in agents for agents in suites.values())
    ]
    return table(["% over the oracle, mean ± standard error", *suites], rows)


def gains(data: Mapping[str, Any]) -> str:
    """What forecasts and learned agents gain over the ski-rental that is best in training, paired by task."""
    rows = []
    for suite in filter(data["suites"].get, suite_names("replanning")):
        agents = data["suites"][suite]["agents"]
        best = min(
            (name for name in agents if name.startswith("ski-") and name in TUNABLE),
            key=lambda name: agents[name][0]["train_share"],
        )
        ski, cells = _excess(agents[best]), []
        for name in ("ridge", "neural", "ppo"):
            gain = ski - _excess(agents[name]) if name in agents else None
            share = "" if gain is None else f" ({100.0 * gain.mean() / ski.mean():.0f}%)"
            cells.append("-" if gain is None else _mean_and_error(gain) + share)
        both = agents.keys() >= {"ridge", "neural"}
        cells.append(_mean_and_error(_excess(agents["ridge"]) - _excess(agents["neural"])) if both else "-")
        rows.append([f"`{suite}`", f"`{best}`", f"{ski.mean():.1f}", *cells])
    agents_of = "ridge", "neural", "PPO", "neural over ridge"
    titles = "suite", "best ski-rental in training", "% over the oracle", *agents_of
    return "Points gained over that ski-rental, and the share of its gap to the oracle:\n\n" + table(titles, rows)


def _excess(runs: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
    """(N,) percent over the oracle by task, mean over seeds."""
    return np.asarray(100.0 * np.mean([each["excess"] for each in runs], axis=0))


def _mean_and_error(values: NDArray[np.float64]) -> str:
    return f"{values.mean():.1f} ± {values.std(ddof=1) / np.sqrt(len(values)):.1f}"


if __name__ == "__main__":
    sys.exit(tyro.extras.subcommand_cli_from_dict({"bounds": bounds, "tune": tune_suites, "page": page}))
