"""Our side of docs/results/parity.md: AutoShard's preset `paper` on tasks whose devices have 10 GiB each.

`python tools/parity.py` trains it with three seeds on `dlrm-50x4`, and prints the balance and
the cost of its placements of the test tasks, beside two heuristics. Needs torch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tyro

from shard_gym.agents import Agent, make_agent
from shard_gym.agents.training import make_learner
from shard_gym.cost_models import CostModel, make_cost_model
from shard_gym.cost_models.base import COMPUTE
from shard_gym.suites import load_suite
from shard_gym.tasks import TaskSuite

GIB = 2**30


def with_memory(suite: TaskSuite, gib: int) -> TaskSuite:
    """The tasks of `suite` on devices with `gib` GiB each: the authors' code has one cap for all tasks."""
    tasks = []
    for task in suite:
        caps = np.full(task.num_devices, gib * GIB)
        tasks.append(replace(task, topology=replace(task.topology, memory_cap_bytes=caps), known_placement=None))
    return replace(suite, name=f"{suite.name}-{gib}gib", tasks=tuple(tasks), sha256="")


def scores(agent: Agent, suite: TaskSuite, model: CostModel) -> tuple[float, float]:
    """Means over the tasks: the least compute time of a device divided by the largest, and the cost in ms."""
    balances, costs = [], []
    for task in suite:
        estimate = model.estimate(agent.place(task), task.tables, task.topology)
        compute = estimate.phases_ms[:, COMPUTE].sum(axis=1)
        balances.append(compute.min() / compute.max())
        costs.append(estimate.total_ms)
    return float(np.mean(balances)), float(np.mean(costs))


def main(
    suite: str = "dlrm-50x4",
    gib: int = 10,
    iterations: int = 125,
    episodes: int = 16,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> int:
    """Train `autoshard` with `preset=paper`, and score it on the test tasks.

    Args:
        suite: whose tasks
        gib: memory of each device
        iterations: steps of training
        episodes: of each step
        seeds: of training
    """
    model = make_cost_model("analytical")
    train, test = (with_memory(load_suite(suite, split), gib) for split in ("train", "test"))
    for name in ("lookup-greedy", "random"):
        _show(name, scores(make_agent(name), test, model))
    for seed in seeds:
        learner = make_learner("autoshard", train, seed=seed, preset="paper", iterations=iterations, episodes=episodes)
        while learner.iteration < learner.iterations:
            learner.iterate()
            learner.iteration += 1
        _show(f"autoshard, seed {seed}", scores(learner.agent(), test, model))
    return 0


def _show(name: str, found: tuple[float, float]) -> None:
    print(f"{name}: balance {found[0]:.3f}, {found[1]:.2f} ms", flush=True)


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main, description=__doc__))
