"""What the parts of `stepwise` do: learned weights and constants, and the descents.

    python benchmarks/stepwise.py RUN... [-- SUITE...]

RUN are folders of trainings. Prints for each suite how far plans are above the best known ones, mean over test tasks
and runs: as learned, with weights or constants that were not, from the rule's plans alone, and without descents; and
the seconds of a task.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from shard_gym.agents.registry import AGENT
from shard_gym.agents.stepwise.agent import StepwiseAgent
from shard_gym.agents.stepwise.learner import SETS, WIDER
from shard_gym.agents.stepwise.steps import START
from shard_gym.common.io.arrays import load_arrays
from shard_gym.cost_models import make_cost_model
from shard_gym.tasks import load_suite
from shard_gym.tasks.suites.best_known import best_known

TASKS = slice(20, 34)  # of the test split
SIGMA = 0.6
LABELS = (
    "as learned",
    "constants alone",
    "weights alone",
    "nothing learned",
    "constants, rule's plans",
    "as learned, no descents",
)
MODEL = make_cost_model("analytical", splits=True)


def not_learned(seed: int) -> np.ndarray:
    """(`SETS`, `Weight`) sets around the weights that learning begins with."""
    wider = np.resize(WIDER, SETS)[:, None]
    return START + SIGMA * wider * np.random.default_rng(seed).normal(size=(SETS, len(START)))


def main(runs: list[str], suites: list[str]) -> None:
    """Print the table of each suite."""
    learned = [load_arrays(Path(run) / AGENT, "agent")[0] for run in runs]
    for suite in suites:
        test = load_suite(suite, "test")
        known, tasks = best_known(test, MODEL), list(test)[TASKS]
        best = np.array([known[task.name].cost_ms for task in tasks])
        for label in LABELS:
            gaps, begun = [], time.perf_counter()
            for seed, arrays in enumerate(learned):
                weights = arrays["weights"] if label.startswith(("as", "weights")) else not_learned(seed)
                constants = arrays["constants"] * label.startswith(("as", "constants"))
                parts = (
                    {"moves": 0} if "no descents" in label else {"built": 0, "by_rule": 4} if "rule" in label else {}
                )
                used = StepwiseAgent("stepwise", weights, constants, **parts)
                plans = [used.plan(task) if task.splittable else used.place(task) for task in tasks]
                costs = [
                    MODEL.estimate(plan, task.tables, task.topology).total_ms
                    for plan, task in zip(plans, tasks, strict=True)
                ]
                gaps.append(100.0 * float((np.array(costs) / best).mean() - 1.0))
            seconds = (time.perf_counter() - begun) / len(tasks) / len(learned)
            each = ", ".join(f"{gap:.2f}" for gap in gaps)
            print(f"{suite:18} {label:24} {np.mean(gaps):5.2f}%  ({each})  {seconds:.2f} s a task", flush=True)


if __name__ == "__main__":
    where = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    main(sys.argv[1:where], sys.argv[where + 1 :] or ["shard-4", "sequence-16"])
