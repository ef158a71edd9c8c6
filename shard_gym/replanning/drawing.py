"""Draws the tasks of a suite of replanning from its recipe, as the record of a file: the same for the same name."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from shard_gym.common.errors import InvalidTaskError
from shard_gym.common.io.files import sha256_of
from shard_gym.cost_models import make_cost_model
from shard_gym.replanning.drift.levels import GROWING, MEDIUM, SPOT, STRONG, DriftLevel
from shard_gym.replanning.drift.tasks import DriftTask
from shard_gym.replanning.env.parts import Parts
from shard_gym.replanning.env.split import split_of
from shard_gym.tables import RowPopularity, load_pool
from shard_gym.tasks import Task
from shard_gym.tasks.suites import SPLITS
from shard_gym.tasks.suites.fresh import fresh_name
from shard_gym.tasks.suites.info import DRIFT_SCHEMA
from shard_gym.tasks.suites.placing import load
from shard_gym.tasks.task import MIB

POOL = "dlrm-2021"
SUITES = ("mixdim-8", "shard-8")
TASKS_PER_SPLIT = {"train": 30, "test": 25}  # tasks of each of the `SUITES`
STEP = 1.05  # memory caps that are too small grow by this factor
SPARE = 1.15  # where tables grow, caps are so many times the smallest that were found to have room on all days


@dataclass(frozen=True)
class DriftRecipe:
    """How to build one suite."""

    name: str
    description: str
    level: DriftLevel
    pauses_s: tuple[float, ...]
    version: int = 1


RECIPES = (
    DriftRecipe("drift-medium", "Lookups drift by a factor of 1.35 within a day.", MEDIUM, (30.0, 120.0, 600.0)),
    DriftRecipe("drift-strong", "Lookups drift by a factor of 1.65 within a day.", STRONG, (30.0, 120.0, 600.0)),
    DriftRecipe(
        "growth", "Lookups drift as in drift-medium; rows grow and are pruned, memory is short.", GROWING, (600.0,)
    ),
    DriftRecipe(
        "spot", "Lookups drift as in drift-medium; one to three devices leave about once a day.", SPOT, (120.0, 600.0)
    ),
)


def fresh_record(name: str, seed: int) -> dict[str, Any]:
    """The record of fresh tasks as those of the recipe of that name: other tasks, which drift in other ways."""
    recipe = next(each for each in RECIPES if each.name == name)
    return record_of(replace(recipe, name=fresh_name(name, seed)), tuple(fresh_name(each, seed) for each in SUITES))


def record_of(recipe: DriftRecipe, suites: tuple[str, ...] = SUITES) -> dict[str, Any]:
    """The JSON record of the suites of a recipe; its tasks, which are those of `suites`, depend on its name."""
    return {
        "schema": DRIFT_SCHEMA,
        "name": recipe.name,
        "version": recipe.version,
        "description": recipe.description,
        "level": asdict(recipe.level),
        "pauses_s": recipe.pauses_s,
        "pool": {"name": POOL, "sha256": load_pool(POOL).sha256},
        "suites": {name: load(name, "test").sha256 for name in suites},
        "splits": {split: entries(recipe, split, suites) for split in SPLITS},
    }


def entries(recipe: DriftRecipe, split: str, suites: tuple[str, ...] = SUITES) -> list[dict[str, Any]]:
    """The tasks of one split: those of `suites` in turns."""
    rng = np.random.default_rng(np.frombuffer(sha256_of(f"{recipe.name}/{split}".encode()).encode(), np.uint8))
    chosen = [rng.choice(len(load(each, split)), TASKS_PER_SPLIT[split], replace=False) for each in suites]
    found = []
    for numbers in zip(*chosen, strict=True):
        for suite, number in zip(suites, numbers, strict=True):
            task, seed = load(suite, split)[int(number)], int(rng.integers(2**31))
            found.append({"task": task.name, "seed": seed, "memory_cap_bytes": _cap(recipe, task, seed)})
    return found


def _cap(recipe: DriftRecipe, task: Task, seed: int) -> int | None:
    """Bytes of a memory cap with which the tables have room on all days; None for that of the task."""
    own = int(task.topology.memory_cap_bytes[0])
    cap = own
    if recipe.level.growth:
        drift = _drifting(recipe, task, seed).drift
        largest = float((task.tables.memory_bytes * drift.rows.max(axis=0)).sum())
        cap = _whole_mib(largest / task.num_devices)
    while True:
        topology = replace(task.topology, memory_cap_bytes=np.full(task.num_devices, cap))
        try:
            capped = replace(task, topology=topology, known_placement=None)
            _require_room(_drifting(recipe, capped, seed))
        except InvalidTaskError:
            cap = _whole_mib(cap * STEP)
        else:
            if recipe.level.growth:
                return _whole_mib(cap * SPARE)
            return None if cap == own else cap


def _drifting(recipe: DriftRecipe, task: Task, seed: int) -> DriftTask:
    law = task.tables.popularity
    assert isinstance(law, RowPopularity)
    return DriftTask(task.name, task, law, recipe.level, seed, 1.0)


def _require_room(task: DriftTask) -> None:
    model = make_cost_model(additive=True, splits=True)
    form = split_of(task, model)
    for devices in np.unique(task.available.sum(axis=1)).tolist():
        Parts(task, form, model, devices).known  # noqa: B018


def _whole_mib(bytes_: float) -> int:
    return -(-int(bytes_) // MIB) * MIB
