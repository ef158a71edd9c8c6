"""`shard-gym demo`: every agent on three suites, a trained one, their tables and a picture, in a few minutes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shard_gym.agents import AGENTS, Agent, make_agent
from shard_gym.checks import checked_count
from shard_gym.cli.console import REFERENCE, new_progress, output, sentence
from shard_gym.cli.evaluate import evaluate_all, print_evaluations
from shard_gym.cost_models import AdditiveCostModel, make_additive_cost_model
from shard_gym.envs.placement.rendering.view import PlacementView
from shard_gym.errors import MissingExtraError, missing_extra
from shard_gym.evaluation import Evaluation
from shard_gym.io.pictures import matplotlib_missing, require_picture, save_picture
from shard_gym.suites import load_suite
from shard_gym.suites.best_known import best_known_costs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shard_gym.agents.policy import PolicyAgent

SUITES = ("dlrm-20x4", "dlrm-50x4", "mlperf-x8")
TRAINED_ON = "dlrm-20x4"
PICTURED = ("dlrm-50x4", 0)
"""The suite and the test task of the picture."""

PICTURE = "placement.png"

NOTES = (
    "Costs are ms of the embedding part of a training iteration. cost-greedy and local-search evaluate the cost model "
    "while they place; dreamshard was trained on other tasks and plans with its own surrogate."
)
TRAINED = (
    " maskable-ppo is that of Stable-Baselines3, trained for {steps:,} steps on the training tasks of {suite}; it "
    "observes the cost model's estimate of the tables placed so far."
)


def demo(out: Path = Path("demo"), timesteps: int = 300_000, seed: int = 0) -> None:
    """Score every agent on three suites, train MaskablePPO on one, draw a picture.

    Parts that need a package that is not installed are left out.

    Args:
        out: folder for the picture.
        timesteps: environment steps of MaskablePPO's training; rounded up to whole rollouts.
        seed: of everything random.
    """
    checked_count("--timesteps", timesteps, 1)
    picture = out / PICTURE
    no_picture, no_training = matplotlib_missing(), _sb3_missing()
    if no_picture is None:
        require_picture(picture)
    model = make_additive_cost_model("analytical")
    agents, no_agents = _agents(model, seed)
    for missing in filter(None, (*no_agents, no_training, no_picture)):
        output().print(sentence(f"Left out: {missing}", "yellow"))
    results = {suite: evaluate_all(agents, load_suite(suite), model) for suite in SUITES}
    notes = NOTES
    if no_training is None:
        trained = _train(timesteps, seed)
        notes += TRAINED.format(steps=trained.steps_trained, suite=TRAINED_ON)
        results[TRAINED_ON] |= evaluate_all({trained.name: trained}, load_suite(TRAINED_ON), model)
    for suite, evaluations in results.items():
        best = best_known_costs(load_suite(suite), model)
        print_evaluations(output(), list(evaluations.values()), evaluations[REFERENCE], best)
        output().print()
    output().print(sentence(f"{notes} The other agents do not use the cost model."))
    if no_picture is None:
        save_picture(draw_extremes(results[PICTURED[0]], model), picture)
        output().print(sentence(f"\nA bad and a good placement of task {PICTURED[1]} of {PICTURED[0]}: {picture}"))
    output().print("Next: shard-gym suites, shard-gym evaluate --help, shard-gym show --help")


def _sb3_missing() -> MissingExtraError | None:
    """The error that says how to install what training needs, or None if all of it is installed."""
    for package in ("sb3_contrib", "stable_baselines3", "torch"):
        if importlib.util.find_spec(package) is None:
            return missing_extra(package.replace("_", "-"), "sb3", "Training with MaskablePPO")
    return None


def _agents(model: AdditiveCostModel, seed: int) -> tuple[dict[str, Agent], list[MissingExtraError]]:
    """Every agent with a name, and the errors of those whose packages are not installed."""
    agents, missing = {}, []
    for name in AGENTS:
        try:
            agents[name] = make_agent(name, cost_model=model, seed=seed)
        except MissingExtraError as error:
            missing.append(error)
    return agents, missing


def _train(timesteps: int, seed: int) -> PolicyAgent:
    """MaskablePPO, trained on the training tasks of `TRAINED_ON`."""
    from shard_gym.agents.sb3 import train_maskable_ppo  # imports torch, which `--help` does not need

    with new_progress() as progress:
        bar = progress.add_task(f"{TRAINED_ON}: training MaskablePPO", total=timesteps)

        def show(done: int) -> None:
            progress.update(bar, completed=min(done, timesteps))

        return train_maskable_ppo(TRAINED_ON, total_timesteps=timesteps, seed=seed, on_step=show)


def draw_extremes(evaluations: dict[str, Evaluation], model: AdditiveCostModel) -> Figure:
    """The most expensive and the cheapest placement of task `PICTURED` among those of several agents, side by side."""
    from shard_gym.envs.placement.rendering.figure import draw_comparison

    task = load_suite(PICTURED[0])[PICTURED[1]]
    results = {name: evaluation.tasks[PICTURED[1]] for name, evaluation in evaluations.items()}
    by_cost = sorted((name for name in results if results[name].valid), key=lambda name: results[name].cost_ms)
    views = []
    for name in (by_cost[-1], by_cost[0]):
        placement = np.array(results[name].placement)
        estimate = model.estimate(placement, task.tables, task.topology)
        views.append((name, PlacementView(task, placement, estimate.phases_ms, estimate.total_ms)))
    return draw_comparison(views)
