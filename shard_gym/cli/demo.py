"""`shard-gym demo`: the whole suite in a few minutes - heuristics, search, a trained agent, a table and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.progress import Progress

from shard_gym.agents import AGENTS, make_agent
from shard_gym.cli.console import (
    FAILED,
    NONE,
    format_change,
    format_ms,
    heading,
    new_progress,
    new_table,
    output,
    sentence,
)
from shard_gym.cli.pictures import save_picture
from shard_gym.cost_models import AdditiveCostModel, make_cost_model
from shard_gym.envs.placement.viewer import PlacementView, draw_comparison
from shard_gym.evaluation import Evaluation, Placer, evaluate
from shard_gym.placement import Placement
from shard_gym.suites import load_suite
from shard_gym.tasks import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUITES = ("dlrm-20x4", "dlrm-50x4", "mlperf-x8")
TRAINED_ON = "dlrm-20x4"
PICTURED = ("dlrm-50x4", 0)
"""The suite and the test task of the picture."""

Results = dict[str, dict[str, Evaluation]]
"""Evaluations by suite and agent."""


def demo(out: Path = Path("demo"), timesteps: int = 150_000, seed: int = 0) -> None:
    """Score every agent on three suites, train MaskablePPO on one of them, and draw a bad and a good placement.

    Args:
        out: folder for the picture.
        timesteps: steps MaskablePPO trains for.
        seed: of everything random.
    """
    model = make_cost_model("analytical")
    with new_progress() as progress:
        results = {suite: _score(suite, model, seed, progress) for suite in SUITES}
        trained = _train(timesteps, seed, progress)
        results[TRAINED_ON][trained.name] = evaluate(trained, TRAINED_ON, model)
    _print_table(results, timesteps)
    picture = out / "placement.png"
    save_picture(draw_extremes(results[PICTURED[0]], model), picture)
    output().print(f"\nA bad and a good placement of task {PICTURED[1]} of {PICTURED[0]}: {picture}")
    output().print("Next: shard-gym suites, shard-gym evaluate --help, shard-gym show --help")


def _score(suite: str, model: AdditiveCostModel, seed: int, progress: Progress) -> dict[str, Evaluation]:
    """Every agent on the test split of one suite."""
    agents = {name: make_agent(name, cost_model=model, seed=seed) for name in AGENTS}
    bar = progress.add_task(f"{suite}: {len(agents)} agents", total=len(agents))
    evaluations = {}
    for name, agent in agents.items():
        evaluations[name] = evaluate(agent, suite, model)
        progress.advance(bar)
    return evaluations


def _train(timesteps: int, seed: int, progress: Progress) -> Placer:
    """MaskablePPO, trained on the training tasks of `TRAINED_ON`."""
    from shard_gym.agents.sb3 import train_maskable_ppo  # brings torch, which `--help` need not load

    bar = progress.add_task(f"{TRAINED_ON}: training MaskablePPO", total=timesteps)
    return train_maskable_ppo(
        TRAINED_ON,
        total_timesteps=timesteps,
        seed=seed,
        on_step=lambda done: progress.update(bar, completed=min(done, timesteps)),
    )


def _print_table(results: Results, timesteps: int) -> None:
    """One row for each agent, the best last; two columns for each suite."""
    console = output()
    heading(console, "Mean cost of the test tasks in ms per training iteration\n")
    table = new_table()
    table.add_column("\nagent")
    for suite in results:
        table.add_column(f"{suite}\nms", justify="right", no_wrap=True)
        table.add_column("vs\nrandom", justify="right", no_wrap=True)
    first = results[TRAINED_ON]
    for agent in sorted(first, key=lambda name: -first[name].mean_cost_ms):
        cells = [cell for suite in results.values() for cell in _cells(suite.get(agent), suite["random"])]
        table.add_row(agent, *cells)
    console.print(table)
    failures = [
        f"{evaluation.agent} failed on {evaluation.failures} of {len(evaluation.tasks)} tasks of {suite}"
        for suite, evaluations in results.items()
        for evaluation in evaluations.values()
        if evaluation.failures
    ]
    if failures:
        console.print(sentence("\n" + "; ".join(failures) + " (each charged with its penalty).", FAILED))
    console.print(
        f"\nmaskable-ppo is stock Stable-Baselines3, trained for {timesteps:,} steps on the training tasks of "
        f"{TRAINED_ON}. cost-greedy and local-search ask the cost model that scores them while they plan, and "
        "maskable-ppo sees its estimate of the tables placed so far; the others ask nothing."
    )


def _cells(evaluation: Evaluation | None, reference: Evaluation) -> tuple[str, str]:
    if evaluation is None:
        return NONE, NONE
    change = float(np.mean(evaluation.costs_ms / reference.costs_ms) - 1.0)
    return format_ms(evaluation.mean_cost_ms), format_change(change)


def draw_extremes(evaluations: dict[str, Evaluation], model: AdditiveCostModel) -> Figure:
    """The dearest and the cheapest placement of task `PICTURED` among those of several agents, side by side."""
    suite, number = PICTURED
    task = load_suite(suite)[number]
    placed = {name: evaluation.tasks[number] for name, evaluation in evaluations.items()}
    by_cost = sorted((name for name in placed if placed[name].valid), key=lambda name: placed[name].cost_ms)
    return draw_comparison(
        [(name, _view(task, np.array(placed[name].placement), model)) for name in (by_cost[-1], by_cost[0])]
    )


def _view(task: Task, placement: Placement, model: AdditiveCostModel) -> PlacementView:
    estimate = model.estimate(placement, task.tables, task.topology)
    return PlacementView(task, placement, estimate.phases_ms, estimate.total_ms)
