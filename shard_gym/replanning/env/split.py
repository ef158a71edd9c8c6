"""How the tables of an episode are split: once, before it begins."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from shard_gym.common.errors import InvalidTaskError
from shard_gym.cost_models.base import AdditiveCostModel
from shard_gym.plans.needs import SPLITS
from shard_gym.replanning.drift.tasks import DriftTask
from shard_gym.replanning.env.parts import Parts
from shard_gym.replanning.env.planner import NO_PLACEMENT, Planner
from shard_gym.tasks.forms import FINER, FORMS, SplitTask, forms_of, whole


def split_of(task: DriftTask, model: AdditiveCostModel) -> SplitTask:
    """How the tables of `task` are split; not at all, unless it says that they may be.

    It is the form whose greedy placement is the cheapest with the tables at the beginning of the history, among those
    whose parts have room on all days, with all devices and with the fewest that are ever there.

    Raises:
        InvalidTaskError: in no form do the parts have room, or the model knows no shards.
    """
    if not task.task.splittable:
        return whole(task.task)
    if SPLITS not in model.supports:
        raise InvalidTaskError(
            f"Tables of task {task.name!r} may be split, but cost model {model.fingerprint!r} knows no shards. Use "
            "'analytical'."
        )
    fewest = int(task.available.sum(axis=1).min())
    for forms in (FORMS, FINER):
        found: dict[float, SplitTask] = {}
        for form in forms_of(task.task, forms):
            with suppress(InvalidTaskError):
                for devices in {fewest, task.task.num_devices}:
                    Parts(task, form, model, devices).known  # noqa: B018
                found.setdefault(_cost(form, model), form)
        if found:
            return found[min(found)]
    raise InvalidTaskError(
        f"However the tables of task {task.name!r} are split, they have no room on {fewest} devices on all days. Raise "
        "memory_cap_bytes, or let them grow less."
    )


def _cost(form: SplitTask, model: AdditiveCostModel) -> float:
    """Ms of the greedy placement; infinite if a part has no room."""
    parts, topology = form.task.tables, form.task.topology
    planner, loads, everywhere = Planner(model, topology), model.loads(parts, topology), form.loads(model)
    placement = planner.greedy(loads[None], everywhere[None], parts.memory_bytes, topology.memory_cap_bytes)
    if placement[0, 0] == NO_PLACEMENT:
        return float(np.inf)
    return float(planner.costs(loads[None], everywhere[None], placement)[0])
