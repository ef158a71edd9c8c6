"""What a learner of placements measures: random loads first, then placements that an agent proposes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shard_gym.agents.dreamshard.random_loads import random_load
from shard_gym.agents.training.learner import Learner
from shard_gym.cost_models.data.dataset import CostRecorder
from shard_gym.errors import NoPlacementFoundError
from shard_gym.placement import Placement
from shard_gym.tables import Tables
from shard_gym.tasks import Task
from shard_gym.topology import Topology


def measure(
    learner: Learner,
    recorder: CostRecorder,
    count: int,
    rng: np.random.Generator,
    propose: Callable[[Task, np.random.Generator], Placement] | None,
) -> list[float]:
    """Measure `count` placements and record them.

    Args:
        learner: its true cost is measured, on tasks of its suite.
        recorder: of the measurements.
        count: how many.
        rng: draws the tasks; `propose` gets it, too.
        propose: a placement of a task; None for random loads instead.

    Returns:
        Their true costs, ms; the penalty where no placement was found, or none could be measured.
    """
    costs = []
    for _ in range(count):
        if propose is None:
            costs.append(_measured(learner, recorder, *random_load(learner.suite, rng)))
            continue
        task = learner.suite.sample(rng)
        try:
            placement = propose(task, rng)
        except NoPlacementFoundError:
            costs.append(learner.cost_model.penalty_ms(task.tables, task.topology))
            continue
        costs.append(_measured(learner, recorder, task.tables, task.topology, placement))
    return costs


def _measured(
    learner: Learner, recorder: CostRecorder, tables: Tables, topology: Topology, placement: Placement
) -> float:
    estimate = learner.true_cost(placement, tables, topology)
    if estimate is None:
        return learner.cost_model.penalty_ms(tables, topology)
    recorder.add(tables, topology, placement, estimate)
    return estimate.total_ms
