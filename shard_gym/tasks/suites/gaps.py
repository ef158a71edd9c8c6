"""Gaps of suites: the best placements or plans known of their tasks, compared with bounds that are proven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shard_gym.cost_models import CostModel
from shard_gym.tasks.problems import problem_of
from shard_gym.tasks.suites.best_known import best_known_costs
from shard_gym.tasks.suites.bounds import lower_bounds
from shard_gym.tasks.task import Suite

PROVEN = 1e-3  # a placement within this share of its lower bound counts as proven to be nearly the best one


@dataclass(frozen=True)
class ProvenGap:
    """Best known costs beside lower bounds."""

    mean: float  # mean over the tasks of best known cost / lower bound, less 1: no agent gains more on average
    largest: float  # the largest of any task
    proven: int  # tasks whose best known placement is proven to be within `PROVEN` of the best one
    tasks: int
    noun: str = "placement"  # "placement" or "plan"

    def __str__(self) -> str:
        return (
            f"The best known {self.noun}s cost {100 * self.mean:.2f}% more than the proven bounds on average, at most "
            f"{100 * self.largest:.2f}%; {self.proven} of {self.tasks} are proven to be within {100 * PROVEN:g}% of "
            "the best."
        )


def proven_gap(
    suite: Suite[Any], cost_model: CostModel, best_ms: Mapping[str, float] | None = None
) -> ProvenGap | None:
    """How far best known costs, by default those shipped, are from the bounds of a suite; None if one is not known."""
    best = best_known_costs(suite, cost_model) if best_ms is None else best_ms
    bounds = lower_bounds(suite, cost_model)
    names = [task.name for task in suite]
    if any(name not in best or name not in bounds for name in names):
        return None
    gaps = np.array([max(best[name] / bounds[name] - 1.0, 0.0) for name in names])
    return ProvenGap(
        float(gaps.mean()), float(gaps.max()), int((gaps <= PROVEN).sum()), len(names), problem_of(suite[0]).noun
    )
