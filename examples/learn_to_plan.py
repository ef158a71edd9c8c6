"""Learn to plan without asking for costs: an evolution strategy for so many minutes, with a curve on fresh tasks.

The policy builds a plan table after table, by 15 weights of what each step changes; see `shard_gym.agents.stepwise`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import tyro

from shard_gym.agents import make_agent
from shard_gym.agents.base import Agent
from shard_gym.agents.training import make_learner
from shard_gym.cost_models import make_cost_model
from shard_gym.tasks import Task, load_suite
from shard_gym.tasks.task import cost_model_for


@dataclass
class Args:
    """What to learn from, for how long, and where it is tried."""

    suite: str = "shard-4"  # learn from its training tasks
    also: str = ""  # and from those of these suites, with commas between the names
    minutes: float = 10.0  # of learning
    seed: int = 0  # of everything random
    fresh: str = "shard-4@1"  # a suite that is drawn with a seed; its test tasks have tables that nothing learned from
    tasks: int = 10  # of it
    every: float = 1.0  # minutes between points of the curve


def cost_ms(agent: Agent, task: Task) -> float:
    """What the plan of an agent costs."""
    model = make_cost_model(cost_model_for(task.tables, "analytical"), splits=True)
    return model.estimate(agent.plan(task), task.tables, task.topology).total_ms


def main(args: Args) -> list[float]:
    """Learn, and print how far plans of fresh tasks cost below those of `moldable`, in percent; returns these."""
    tasks = list(load_suite(args.fresh, "test"))[: args.tasks]
    rule = np.array([cost_ms(make_agent("moldable"), task) for task in tasks])
    model = cost_model_for(load_suite(args.suite, "train"), "analytical")
    learner = make_learner("stepwise", args.suite, cost_model=model, also=args.also, iterations=100_000, seed=args.seed)
    learned = shown = 0.0
    curve: list[float] = []
    while True:
        if learned >= shown or learned >= 60 * args.minutes:
            agent = learner.agent()
            begun = time.perf_counter()
            costs = np.array([cost_ms(agent, task) for task in tasks])
            ms = 1e3 * (time.perf_counter() - begun) / len(tasks)
            curve.append(100 * float(1 - (costs / rule).mean()))
            print(
                f"{learned / 60:5.1f} minutes, {learner.true_cost_queries:8,} costs: {curve[-1]:5.2f}% below moldable"
            )
            if learned >= 60 * args.minutes:
                print(f"{ms:.0f} ms for a task; without descents, by --option moves=0 of the agent, less")
                return curve
            shown += 60 * args.every
        begun = time.perf_counter()
        learner.iterate()
        learner.iteration += 1
        learned += time.perf_counter() - begun


if __name__ == "__main__":
    main(tyro.cli(Args))
