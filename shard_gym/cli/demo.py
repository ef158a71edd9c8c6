"""`shard-gym demo`: the whole suite in a few minutes - heuristics, search, a trained agent, a table and a picture."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.progress import Progress

from shard_gym.agents import AGENTS, Agent, make_agent
from shard_gym.checks import checked_count
from shard_gym.cli.console import (
    FAILED,
    NONE,
    REFERENCE,
    heading,
    new_progress,
    new_table,
    output,
    print_table,
    sentence,
)
from shard_gym.cli.pictures import matplotlib_missing, require_picture, save_picture
from shard_gym.cost_models import AdditiveCostModel, make_cost_model
from shard_gym.envs.placement.rendering.view import PlacementView
from shard_gym.errors import MissingExtraError, missing_extra
from shard_gym.evaluation import Evaluation, compare, evaluate
from shard_gym.placement import Placement
from shard_gym.suites import load_suite
from shard_gym.tasks import Task
from shard_gym.text import counted, format_change, format_ms

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shard_gym.agents.policy import PolicyAgent

SUITES = ("dlrm-20x4", "dlrm-50x4", "mlperf-x8")
TRAINED_ON = "dlrm-20x4"
PICTURED = ("dlrm-50x4", 0)
"""The suite and the test task of the picture."""

PICTURE = "placement.png"

Results = dict[str, dict[str, Evaluation]]
"""Evaluations by suite and agent."""


def demo(out: Path = Path("demo"), timesteps: int = 300_000, seed: int = 0) -> None:
    """Score every agent on three suites, train MaskablePPO on one, draw a picture.

    What needs a package that is not installed is left out.

    Args:
        out: folder for the picture.
        timesteps: steps MaskablePPO trains for, at least; it stops when a rollout is complete.
        seed: of everything random.
    """
    checked_count("--timesteps", timesteps, 1)
    picture = out / PICTURE
    no_picture, no_training = matplotlib_missing(), _sb3_missing()
    if no_picture is None:
        require_picture(picture)
    model = make_cost_model("analytical")
    agents, no_agents = _agents(model, seed)
    for missing in filter(None, (*no_agents, no_training, no_picture)):
        output().print(sentence(f"Left out: {missing}", "yellow"))
    steps = None
    with new_progress() as progress:
        results = {suite: _score(suite, agents, model, progress) for suite in SUITES}
        if no_training is None:
            trained = _train(timesteps, seed, progress)
            steps = trained.steps_trained
            results[TRAINED_ON][trained.name] = evaluate(trained, TRAINED_ON, model)
    _print_table(results)
    _print_notes(results, steps)
    if no_picture is None:
        save_picture(draw_extremes(results[PICTURED[0]], model), picture)
        output().print(sentence(f"\nA bad and a good placement of task {PICTURED[1]} of {PICTURED[0]}: {picture}"))
    output().print("Next: shard-gym suites, shard-gym evaluate --help, shard-gym show --help")


def _sb3_missing() -> MissingExtraError | None:
    """The error that says how to install what the training needs, or None if all of it is there."""
    for package in ("sb3_contrib", "stable_baselines3", "torch"):
        if importlib.util.find_spec(package) is None:
            return missing_extra(package.replace("_", "-"), "sb3", "Training with MaskablePPO")
    return None


def _agents(model: AdditiveCostModel, seed: int) -> tuple[dict[str, Agent], list[MissingExtraError]]:
    """Every agent with a name, and the errors of those that need what is not installed."""
    agents, missing = {}, []
    for name in AGENTS:
        try:
            agents[name] = make_agent(name, cost_model=model, seed=seed)
        except MissingExtraError as error:
            missing.append(error)
    return agents, missing


def _score(suite: str, agents: dict[str, Agent], model: AdditiveCostModel, progress: Progress) -> dict[str, Evaluation]:
    """Every agent on the test split of one suite."""
    bar = progress.add_task(f"{suite}: {len(agents)} agents", total=len(agents))
    evaluations = {}
    for name, agent in agents.items():
        evaluations[name] = evaluate(agent, suite, model)
        progress.advance(bar)
    return evaluations


def _train(timesteps: int, seed: int, progress: Progress) -> PolicyAgent:
    """MaskablePPO, trained on the training tasks of `TRAINED_ON`."""
    from shard_gym.agents.sb3 import train_maskable_ppo  # brings torch, which `--help` need not load

    bar = progress.add_task(f"{TRAINED_ON}: training MaskablePPO", total=timesteps)
    return train_maskable_ppo(
        TRAINED_ON,
        total_timesteps=timesteps,
        seed=seed,
        on_step=lambda done: progress.update(bar, completed=min(done, timesteps)),
    )


def _print_table(results: Results) -> None:
    """One row for each agent, the best last; two columns for each suite."""
    console = output()
    heading(console, "Mean cost of the test tasks: ms of the embedding part of a training iteration\n")
    table = new_table()
    table.add_column("\nagent", no_wrap=True)
    for suite in results:
        table.add_column(f"{suite}\nms", justify="right", no_wrap=True)
        table.add_column(f"vs\n{REFERENCE}", justify="right", no_wrap=True)
    first = results[TRAINED_ON]
    for agent in sorted(first, key=lambda name: -first[name].mean_cost_ms):
        cells = [cell for suite in results.values() for cell in _cells(suite.get(agent), suite[REFERENCE])]
        table.add_row(agent, *cells)
    print_table(console, table, (f"vs\n{REFERENCE}",))


def _print_notes(results: Results, steps: int | None) -> None:
    """What failed, how the columns were made, and what each agent was told; `steps` is None without training."""
    console = output()
    failures = [
        f"{evaluation.agent} failed on {evaluation.failures} of {counted(len(evaluation.tasks), 'task')} of {suite}"
        for suite, evaluations in results.items()
        for evaluation in evaluations.values()
        if evaluation.failures
    ]
    if failures:
        console.print(sentence("\n" + "; ".join(failures) + " (each charged with its penalty).", FAILED))
    notes = f"vs {REFERENCE}: mean over the tasks of each task's own ratio of costs. "
    asking = (
        "dreamshard comes trained, on other tasks, and plans inside its own estimate; cost-greedy and local-search ask "
        "the cost model that scores them while they plan"
    )
    if steps is None:
        notes += f"{asking}; the others ask nothing."
    else:
        notes += (
            f"maskable-ppo is stock Stable-Baselines3, trained for {steps:,} steps on the training tasks of "
            f"{TRAINED_ON}. {asking}, and maskable-ppo sees its estimate of the tables placed so far; the others ask "
            "nothing."
        )
    console.print(sentence("\n" + notes))


def _cells(evaluation: Evaluation | None, reference: Evaluation) -> tuple[str, str]:
    if evaluation is None:
        return NONE, NONE
    return format_ms(evaluation.mean_cost_ms), format_change(compare(evaluation, reference, {}).to_random)


def draw_extremes(evaluations: dict[str, Evaluation], model: AdditiveCostModel) -> Figure:
    """The dearest and the cheapest placement of task `PICTURED` among those of several agents, side by side."""
    from shard_gym.envs.placement.rendering.figure import draw_comparison

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
