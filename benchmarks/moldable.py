"""What the constants and the parts of `moldable` are worth: `python moldable.py`, in benchmarks/; four minutes.

Each row is the rule with other constants, or without a part: what its plans then cost, in multiples of what they cost
as it is, mean over the first test tasks of each suite and over the suites, and on the suite where that is most.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np

from shard_gym.agents.search import moldable, own_times
from shard_gym.agents.search.moldable import moldable_plans
from shard_gym.agents.search.own_times import ROUGH, RoughConstants
from shard_gym.common.arrays import FloatArray
from shard_gym.common.io.markdown import table
from shard_gym.cost_models import make_cost_model
from shard_gym.tables import MAX_DIM
from shard_gym.tasks import load_suite
from shard_gym.tasks.problems import problem_of

TASKS = {
    "shard-4": 10,
    "shard-8": 10,
    "shard-generalize": 10,
    "sequence-16": 10,
    "sequence-128": 2,
    "tier-generalize": 10,
    "inference-8": 10,
    "shard-constrained-8": 4,
    "shard-merlin-medium-x128": 1,
    "shard-mlperf-x8": 1,
}
"""Test tasks of each suite, the first and the last ones: of ten, one is short of memory."""

DRAWS = 4  # of factors from a half to two, their logarithms even

WITHOUT: dict[str, dict[str, Any]] = {
    "widths of parts": {"WIDTHS": (MAX_DIM,)},
    "targets but the mean time": {"TARGETS": (1.0,)},
    "smaller parts": {"PARTS": (1.0,)},
    "a weight of memory": {"WEIGHTS": (0.0,)},
    "leaving out replicas": {"WITHOUT": ((),)},
    "the longest part in ranks": {"RANK": 0.0},
    "the orders and forms of constraints": {"_open_to": lambda limits: None},
}


def costs(constants: RoughConstants) -> dict[str, FloatArray]:
    """Ms of the plan of each task, by suite; NaN where there is none."""
    found = {}
    for name, most in TASKS.items():
        suite = load_suite(name)
        tasks = list(suite)
        chosen = tasks if len(tasks) <= most else tasks[: most // 2] + tasks[-(most // 2) :]
        problem = problem_of(suite[0])
        model = problem.model(make_cost_model(suite.cost_model))
        plans = [(task, moldable_plans(task, 1, constants)) for task in chosen]
        found[name] = np.array([problem.cost_ms(each[0][1], task, model) if each else np.nan for task, each in plans])
    return found


def main() -> None:
    """Print the table."""
    own, rows, rng = costs(ROUGH), [], np.random.default_rng(0)
    factors = {
        "half of all constants": np.full(len(ROUGH), 0.5),
        "twice all constants": np.full(len(ROUGH), 2.0),
    }
    for number in range(DRAWS):
        factors[f"draw {number} of constants"] = np.exp(rng.uniform(np.log(0.5), np.log(2.0), len(ROUGH)))
    for place, name in enumerate(RoughConstants._fields):
        factors[f"without {name}"] = np.where(np.arange(len(ROUGH)) == place, 1e-6, 1.0)

    def add(name: str, found: dict[str, FloatArray]) -> None:
        ratios = {suite: float(np.nanmean(found[suite] / own[suite])) for suite in own}
        worst = max(ratios, key=lambda suite: ratios[suite])
        rows.append((name, f"{np.mean(list(ratios.values())):.3f}", f"{ratios[worst]:.3f}, {worst}"))
        print(*rows[-1], flush=True)

    for name, times in factors.items():
        add(name, costs(ROUGH.scaled(times.tolist())))
    for name, changed in WITHOUT.items():
        with ExitStack() as stack:
            for what, value in changed.items():
                stack.enter_context(patch.object(moldable, what, value))
            add(f"without {name}", costs(ROUGH))
    with patch.object(own_times, "AROUND", (0,)):
        add("without thresholds around that of the pool", costs(ROUGH))
    print(table(("the rule", "mean", "most, on"), rows, left=1))


if __name__ == "__main__":
    main()
