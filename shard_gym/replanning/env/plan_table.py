"""All plans that can be made in an episode, each once, and what they cost at every hour, the future included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.common.errors import DamagedFileError
from shard_gym.common.io.arrays import load_arrays, require_arrays, save_arrays
from shard_gym.common.io.files import sha256_of
from shard_gym.cost_models.base import AdditiveCostModel
from shard_gym.replanning.drift.processes import DAYS_PER_WEEK
from shard_gym.replanning.drift.suite import DriftSuite
from shard_gym.replanning.drift.tasks import HISTORY_DAYS, DriftTask
from shard_gym.replanning.env.episode_data import DECISIONS, HOUR_SECONDS_PER_MS, EpisodeData, Plan, episode_data
from shard_gym.replanning.env.windows import HOURS, KINDS, WINDOWS

NO_PLAN = -1  # where there is no plan of a kind
NOT_A_NUMBER = -1  # in files, in place of NaN
VERSION = "1"  # raised when plans, or what they cost, change; files of other versions are not read
KIND = "plan-table"  # the kind of these files


@dataclass(frozen=True, eq=False)
class PlanTable:
    """n plans of P parts, and what they cost at T decisions. Nothing in it depends on the pause."""

    where: IntArray  #: (n, P) int64, the device of each part. The first plan is in action when the episode begins
    used: IntArray  #: (n,) int64, devices that each plan is made for
    number: IntArray  #: (T, Z) int64, the plan of each kind that can be made at each decision, or `NO_PLAN`
    #: (n, T) float64, of the hour after each decision; NaN before the day on which a plan can first be made, and where
    #: it cannot run.
    seconds: FloatArray
    #: (n, T, W) float32, cost with the mean lookups of each window before each decision, in multiples of the reference;
    #: NaN before that day.
    replayed: NDArray[np.float32]
    bytes_of: IntArray  #: (days, P) int64, bytes of the parts
    available: IntArray  #: (T,) int64, devices that are there
    clock: FloatArray  #: (T, 4) float64, sine and cosine of the hour of the day, and of the week
    day_s: FloatArray  #: () float64, seconds of a day at the reference cost

    @staticmethod
    def of(data: EpisodeData, decisions: int = DECISIONS) -> PlanTable:
        """The table of an episode that ends after so many decisions; takes 6 to 20 seconds in the named suites."""
        days, hour, drift = -(-decisions // HOURS), np.arange(decisions), data.task.drift
        plans, number, first = _plans(data, decisions)
        shape = len(plans), days * HOURS
        seconds = np.full(shape, np.nan)
        replayed = np.full((*shape, len(WINDOWS)), np.nan, np.float32)
        for day in range(days):
            hours = slice(day * HOURS, (day + 1) * HOURS)
            for devices, those in _by_devices(plans, np.flatnonzero(first // HOURS <= day)):
                placements = np.stack([plans[each].placement for each in those.tolist()])
                runs = np.stack([data.can_run(plans[each], day) for each in those.tolist()])
                costs = data.on(devices).hourly_ms(placements, day) * HOUR_SECONDS_PER_MS
                seconds[those, hours] = np.where(runs, costs, np.nan)
                replayed[those, hours] = data.on(devices).replayed_ms(placements, day) / data.reference_ms
        parts = data.on(data.task.task.num_devices).parts
        week = (drift.first_weekday + HISTORY_DAYS + hour / HOURS) / DAYS_PER_WEEK
        angles = 2.0 * np.pi * np.stack([hour / HOURS, week])
        return PlanTable(
            np.stack([plan.where for plan in plans]),
            np.array([len(plan.devices) for plan in plans]),
            number,
            seconds[:, :decisions],
            replayed[:, :decisions],
            np.stack([parts.bytes_of(HISTORY_DAYS + day) for day in range(days)]),
            data.task.available[:decisions].sum(axis=1),
            np.stack([turn(angle) for angle in angles for turn in (np.sin, np.cos)], axis=1),
            np.array(data.reference_ms * HOUR_SECONDS_PER_MS * HOURS),
        )


def plan_tables(suite: DriftSuite, model: AdditiveCostModel, folder: Path | None = None) -> Iterator[PlanTable]:
    """The tables of the episodes of a suite, kept in `folder`; suites that differ in their pause share them."""
    for task in suite:
        digest = _fingerprint(task)
        about: dict[str, object] = {"task": digest, "cost_model": model.fingerprint}
        path = None if folder is None else folder / f"{task.task.name.replace('/', '-')}-{digest[:12]}.safetensors"
        if path is None or not path.exists():
            table = PlanTable.of(episode_data(task, model))
            if path is not None:
                arrays = {key: np.nan_to_num(array, nan=NOT_A_NUMBER) for key, array in vars(table).items()}
                save_arrays(path, KIND, arrays, about)
            yield table
        else:
            yield _read(path, task, about)


def _fingerprint(task: DriftTask) -> str:
    """SHA-256 of all that the table of a task depends on, but for the cost model."""
    parts = [VERSION, repr(task.level), str(task.seed), str(task.task.splittable)]
    for each in (task.task.tables, task.task.topology, task.popularity):
        for field in fields(each):
            value = getattr(each, field.name)
            parts.append(sha256_of(value.tobytes()) if isinstance(value, np.ndarray) else repr(value))
    return sha256_of("\n".join(parts).encode())


def _read(path: Path, task: DriftTask, about: dict[str, object]) -> PlanTable:
    arrays, found = load_arrays(path, KIND)
    if found != about:
        raise DamagedFileError(f"{path} holds the plans of {found}, not of {about}. Delete it to have it made again.")
    where = arrays.get("where", np.zeros((0, 0)))
    plans, parts = where.shape if where.ndim == 2 else (0, 0)
    kinds, windows = len(KINDS) if task.grows else len(WINDOWS), len(WINDOWS)
    expected: dict[str, NDArray[Any]] = {
        "where": np.empty((plans, parts), np.int64),
        "used": np.empty(plans, np.int64),
        "number": np.empty((DECISIONS, kinds), np.int64),
        "seconds": np.empty((plans, DECISIONS)),
        "replayed": np.empty((plans, DECISIONS, windows), np.float32),
        "bytes_of": np.empty((DECISIONS // HOURS, parts), np.int64),
        "available": np.empty(DECISIONS, np.int64),
        "clock": np.empty((DECISIONS, 4)),
        "day_s": np.empty(()),
    }
    require_arrays(path, arrays, expected)
    for name in ("seconds", "replayed"):
        arrays[name] = np.where(arrays[name] == NOT_A_NUMBER, np.nan, arrays[name])
    return PlanTable(**arrays)


def _plans(data: EpisodeData, decisions: int) -> tuple[list[Plan], IntArray, IntArray]:
    """The n plans; (T, Z) their numbers by decision and kind; (n,) the first decision at which one can be made."""
    plans, first, known = [data.first_plan], [0], {_key(data.first_plan): 0}
    kinds = data.options(0).possible.shape[1]
    number = np.full((decisions, kinds), NO_PLAN)
    for decision in range(decisions):
        day, hour = divmod(decision, HOURS)
        for kind in np.flatnonzero(data.options(day).possible[hour]).tolist():
            plan = data.plan(decision, kind)
            number[decision, kind] = known.setdefault(_key(plan), len(plans))
            if number[decision, kind] == len(plans):
                plans.append(plan)
                first.append(decision)
    return plans, number, np.array(first)


def _key(plan: Plan) -> tuple[bytes, bytes]:
    return plan.placement.tobytes(), plan.devices.tobytes()


def _by_devices(plans: list[Plan], some: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Numbers of devices, and those of the plans `some` that are made for so many."""
    used = np.array([len(plans[each].devices) for each in some.tolist()])
    for devices in np.unique(used).tolist():
        yield devices, some[used == devices]
