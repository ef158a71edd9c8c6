"""N episodes of replanning at once. A scalar environment has N = 1, a vector one any N."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.common.checks import is_one_of
from shard_gym.common.errors import InvalidCostError, InvalidTaskError, wrong_kind
from shard_gym.cost_models import AdditiveCostModel, make_cost_model
from shard_gym.envs.core.config import EnvConfig, environment_of, named_suite, padding, require_padding, wrong_suite
from shard_gym.envs.core.episode_batch import EpisodeBatch, ObservationDict
from shard_gym.hardware import MAX_DEVICES
from shard_gym.replanning.drift.processes import INTERVALS_PER_DAY
from shard_gym.replanning.drift.suite import DriftSource, DriftSuite
from shard_gym.replanning.drift.tasks import HEADROOM_DAYS, DriftTask
from shard_gym.replanning.env.episode_data import DECISIONS, HOUR_SECONDS_PER_MS, EpisodeData, episode_data
from shard_gym.replanning.env.history import NO_PLAN, SECONDS, History
from shard_gym.replanning.env.observation import MadePlan, ObservationRows
from shard_gym.replanning.env.rendering import render
from shard_gym.replanning.env.windows import (
    HOURS,
    INTERVALS_PER_HOUR,
    KINDS,
    LAST_DAYS,
    LAST_HOUR,
    WINDOWS,
)
from shard_gym.tasks import suite_info, suite_names

BoolArray = NDArray[np.bool_]

REWARDS = ("time", "excess")
"""The rewards: minus the seconds of an hour, or minus those beyond the hour with a new plan that took no time."""

REDIRECT_PENALTY = 0.05
"""What a redirected action costs, in reference hours."""

PENALTY_MARGIN = 1.1
"""A failed episode is charged so many times what the hours that are left can take at most."""

COUNTS = ("plans", "repairs")
"""Keys of infos: plans that were made, and those of them that had to be."""


@dataclass(frozen=True, eq=False)
class ReplanningConfig(EnvConfig):
    """The arguments of `EmbeddingReplanningEnv`."""

    suite: str | DriftSource = "drift-medium-120"
    split: str = "train"
    cost_model: str | Path | AdditiveCostModel = "analytical"
    reward: str = "time"
    headroom: bool | None = None
    max_parts: int | None = None
    max_devices: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_one_of(self.reward, REWARDS):
            raise wrong_kind("reward", self.reward, " or ".join(map(repr, REWARDS)))
        if self.headroom is not None and not isinstance(self.headroom, bool):
            raise wrong_kind("headroom", self.headroom, "True, False, or None for True where tables of the suite grow")

    @override
    def source_of(self, suite: Any) -> DriftSource:
        return drift_source(suite, self.split)

    @override
    def episodes(self, num_envs: int) -> ReplanningEpisodes:
        return ReplanningEpisodes(num_envs, self)


class ReplanningEpisodes(EpisodeBatch[DriftTask]):
    """N episodes of `EmbeddingReplanning-v0`.

    Attributes:
        decision: (N,) int64, the number of the next decision of each episode; 336 after the last.
    """

    task_type: ClassVar[type[Any]] = DriftTask
    suite_type: ClassVar[type[Any]] = DriftSuite
    source: DriftSource

    def __init__(self, num_envs: int, config: ReplanningConfig) -> None:
        self._config, self.source = config, config.source_of(config.suite)
        self.cost_model = make_cost_model(config.cost_model, additive=True, splits=True)
        self.max_parts = padding("max_parts", config.max_parts, self.source.max_parts)
        self.max_devices = padding("max_devices", config.max_devices, self.source.max_devices, MAX_DEVICES)
        grows = self.source.grows if config.headroom is None else config.headroom
        self._numbers = _numbers_of(self.source)
        self._observe = ObservationRows(self.max_devices, len(KINDS) if grows else len(WINDOWS))
        self.num_actions, self.observation_space = self._observe.num_actions, self._observe.space
        self._excess, self._redirects = config.reward == "excess", config.illegal == "redirect"
        self.tasks = [None] * num_envs
        self._data: list[EpisodeData | None] = [None] * num_envs
        self._made: list[MadePlan | None] = [None] * num_envs
        self._every = np.arange(num_envs)
        self.decision: IntArray = np.full(num_envs, DECISIONS)
        self._shown: IntArray = np.zeros(num_envs, np.int64)  # the decision that observations are of
        self._failed = np.zeros(num_envs, np.bool_)
        self._index: IntArray = np.full(num_envs, -1)
        self._reference_ms = np.ones(num_envs)
        # Of the current day, if the plan in action stays so:
        self._rows = np.zeros((num_envs, HOURS, self._observe.width), np.float32)
        self._masks = np.ones((num_envs, HOURS, self.num_actions), np.bool_)
        self._must_plan = np.zeros((num_envs, HOURS), np.bool_)
        self._interval_ms = np.zeros((num_envs, HOURS, INTERVALS_PER_HOUR))
        self._always_ms = np.zeros((num_envs, HOURS))
        # Of the whole episode; the measured costs begin a day before it.
        self._measured = np.zeros((num_envs, INTERVALS_PER_DAY + DECISIONS * INTERVALS_PER_HOUR))
        self._noise = np.zeros_like(self._measured)
        self._cost_ms = np.zeros(num_envs)
        self._hourly_ms = np.zeros((num_envs, DECISIONS))
        self._spent = np.zeros((num_envs, DECISIONS, len(SECONDS)))
        self._kinds: NDArray[np.int8] = np.full((num_envs, DECISIONS), NO_PLAN, np.int8)
        self._repairs = np.zeros((num_envs, DECISIONS), np.bool_)
        self.redirected = np.zeros(num_envs, np.int64)
        self._placement = np.full((num_envs, self.max_parts), -1)

    @override
    def draw_from(self, suite: Any) -> None:
        source = self._config.source_of(suite)
        require_padding("parts", source.max_parts, self.max_parts)
        require_padding("devices", source.max_devices, self.max_devices)
        self.source, self._numbers = source, _numbers_of(source)

    @override
    def require_room(self, task: DriftTask) -> None:
        for what, needed, room in (
            ("parts", task.max_parts, self.max_parts),
            ("devices", task.task.num_devices, self.max_devices),
        ):
            if needed > room:
                raise InvalidTaskError(
                    f"Task {task.name!r} has up to {needed} {what}, but the environment has room for {room}. Make "
                    f"it with max_{what}={needed}."
                )

    @override
    def begin(self, envs: IntArray, tasks: Sequence[DriftTask]) -> None:
        every = [episode_data(task, self.cost_model) for task in tasks]  # before anything changes
        for env, task, data in zip(envs.tolist(), tasks, every, strict=True):
            self.tasks[env], self._data[env] = task, data
            self.decision[env], self._shown[env] = 0, 0
            number, listed = self._numbers.get(task.name, (-1, None))
            self._index[env] = number if listed is task else -1
            self._reference_ms[env] = data.reference_ms
            before = data.interval_ms(data.first_plan, -1).ravel()
            self._noise[env] = 1.0 + task.noise
            self._measured[env] = 0.0
            self._measured[env, :INTERVALS_PER_DAY] = before * self._noise[env, :INTERVALS_PER_DAY]
            self._cost_ms[env] = before[-INTERVALS_PER_HOUR:].mean()
            self._made[env] = MadePlan(data.first_plan, LAST_DAYS, 0, data.lookups_of(0, LAST_DAYS))
            self._enter_day(env)
        self._kinds[envs], self._failed[envs] = NO_PLAN, False
        for array in (self._hourly_ms, self._spent, self._repairs, self.redirected):
            array[envs] = 0

    def step(self, actions: NDArray[np.integer[Any]]) -> tuple[FloatArray, BoolArray]:
        """Keep the plans (0), or make those of a kind (1, 2, ...), and run for an hour; see `EpisodeBatch.step`."""
        every, running = self._every, self.decision < DECISIONS
        hour = self.decision % HOURS
        legal = self._masks[every, hour, actions]
        moved = running & ~legal
        if moved.any():
            if self._redirects:
                actions = np.where(moved, (actions - 1) % len(WINDOWS) + 1, actions)
                self.redirected += moved
            else:
                self._failed |= moved
        failed = moved & self._failed
        active = running & ~failed
        pause, migration = np.zeros(len(every)), np.zeros(len(every))
        repaired = self._must_plan[every, hour] & active
        for env in np.flatnonzero(((actions > 0) & active) | repaired).tolist():
            kind = int(actions[env]) - 1 if actions[env] else LAST_HOUR
            self._kinds[env, self.decision[env]] = kind
            pause[env], migration[env] = self._make_plan(env, kind)
        costs = self._interval_ms[every, hour]
        self._cost_ms[active] = costs[active].mean(axis=1)
        intervals = INTERVALS_PER_DAY + self.decision[active, None] * INTERVALS_PER_HOUR + _INTERVALS
        those = every[active, None]
        self._measured[those, intervals] = costs[active] * self._noise[those, intervals]
        seconds = np.stack([self._cost_ms * HOUR_SECONDS_PER_MS, pause, migration], axis=1)
        now = every[active], self.decision[active]
        self._hourly_ms[now], self._spent[now], self._repairs[now] = (
            each[active] for each in (self._cost_ms, seconds, repaired)
        )
        spent = seconds.sum(axis=1)
        if self._excess:
            spent -= self._always_ms[every, hour] * HOUR_SECONDS_PER_MS
        rewards = -spent / (self._reference_ms * HOUR_SECONDS_PER_MS) - REDIRECT_PENALTY * (moved & ~failed)
        for env in np.flatnonzero(failed).tolist():
            rewards[env] = -self._penalty(env)
        rewards[~running] = 0.0
        self.decision[active] += 1
        self.decision[failed] = DECISIONS
        self._shown[active] = np.minimum(self.decision[active], DECISIONS - 1)
        for env in np.flatnonzero(active & (self.decision % HOURS == 0) & (self.decision < DECISIONS)).tolist():
            self._enter_day(env)
        return rewards, running & (self.decision == DECISIONS)

    @override
    def is_over(self, env: int) -> bool:
        return bool(self.decision[env] == DECISIONS)

    def masks(self) -> BoolArray:
        """(N, A) bool: keeping is always legal, a plan with headroom where tables grow and it has room."""
        mask: BoolArray = self._masks[self._every, self._hour].copy()
        return mask

    def observations(self, *, share: bool = False) -> ObservationDict:
        """One array for each key with leading shape (N,); of a finished episode those of the last decision."""
        rows = self._rows[self._every, self._hour]
        first = self._shown[:, None] * INTERVALS_PER_HOUR
        measured = self._measured[self._every[:, None], first + _DAY] / self._reference_ms[:, None]
        return self._observe.observations(rows, measured)

    @override
    def infos(self) -> dict[str, NDArray[Any]]:
        over = np.flatnonzero(self.decision == DECISIONS)
        totals, counts = np.zeros((len(self._every), len(SECONDS))), np.zeros((len(self._every), len(COUNTS)), np.int64)
        totals[over] = self._spent[over].sum(axis=1)
        counts[over] = np.stack([(self._kinds[over] != NO_PLAN).sum(axis=1), self._repairs[over].sum(axis=1)], axis=1)
        return {
            "action_mask": self.masks().astype(np.int8),
            "task_index": self._index.copy(),
            "cost_ms": self._cost_ms.copy(),
            "placement": self._placement.copy(),
            "failure": self._failed.astype(np.int64),
            "redirected": self.redirected.copy(),
            **dict(zip(SECONDS, totals.T.copy(), strict=True)),
            **dict(zip(COUNTS, counts.T.copy(), strict=True)),
        }

    def failure(self, env: int) -> dict[str, Any] | None:
        """Why an episode failed, or None: `reason` ("illegal_action") and a `message`."""
        if not self._failed[env]:
            return None
        return {
            "reason": "illegal_action",
            "message": f"In task {self.task(env).name!r} there was no plan of the kind of the action: it has room for "
            f"no growth of {HEADROOM_DAYS} days, or its tables do not grow. The action mask says where there is one.",
        }

    @override
    def require_finite_costs(self, envs: IntArray) -> None:
        seconds = self._spent[envs].sum(axis=(1, 2))
        if not np.isfinite(seconds).all():
            env = int(envs[(~np.isfinite(seconds)).argmax()])
            raise InvalidCostError(
                f"Cost model {self.cost_model.fingerprint!r} says {self._spent[env].sum()} s for task "
                f"{self.task(env).name!r}; every cost must be a finite number. Repair the model, or pass another as "
                "cost_model."
            )

    @override
    def known_actions(self) -> str:
        return f"An action is 0 to keep the plan, or from 1 to {self.num_actions - 1} to make one of a kind"

    def made(self, env: int) -> MadePlan:
        """The plan in action of episode `env`."""
        made = self._made[env]
        assert made is not None  # the environments ask after a reset
        return made

    def data(self, env: int) -> EpisodeData:
        """All plans of episode `env` and their costs."""
        data = self._data[env]
        assert data is not None  # the environments ask after a reset
        return data

    def history(self, env: int) -> History:
        """What was done in episode `env` so far."""
        hours = int(self._shown[env] if self._failed[env] else self.decision[env])
        some = env, slice(hours)
        return History(
            self._hourly_ms[some].copy(), self._spent[some].copy(), self._kinds[some].copy(), self._repairs[some].copy()
        )

    @override
    def copy(self) -> ReplanningEpisodes:
        clone = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (np.ndarray, list)):
                setattr(clone, name, value.copy())
        return clone

    @property
    def _hour(self) -> IntArray:
        """(N,) the hour of the next decision, or in a finished episode of the last."""
        hour: IntArray = self._shown % HOURS
        return hour

    @override
    def draw(self, env: int, render_mode: str) -> Any:
        return render(self.task(env), self.history(env), render_mode, self.failure(env))

    def _make_plan(self, env: int, kind: int) -> tuple[float, float]:
        """Make the plan of a kind; the seconds of its pause and of its migration."""
        decision, data, before = int(self.decision[env]), self.data(env), self.made(env).plan
        plan = data.plan(decision, kind)
        self._made[env] = MadePlan(plan, kind, decision, data.lookups_of(decision, KINDS[kind].window))
        migration = data.migration_seconds(before, plan, decision // HOURS)
        self._enter_day(env)
        return self.task(env).pause_s, migration

    def _enter_day(self, env: int) -> None:
        """Fill in the current day of an episode, with the plan that is in action now."""
        data, made, day = self.data(env), self.made(env), int(self.decision[env]) // HOURS
        self._rows[env] = self._observe.of_day(data, made, self.task(env).pause_s, day)
        self._masks[env] = self._observe.masks(self._rows[env])
        self._must_plan[env] = self._observe.must_plan(self._rows[env])
        self._interval_ms[env] = data.run(made.plan, day).interval_ms
        if self._excess:
            self._always_ms[env] = data.always_ms(day)
        self._placement[env] = -1
        self._placement[env, : data.num_parts] = made.plan.where

    def _penalty(self, env: int) -> float:
        """The charge of a failure, in reference hours."""
        hour_s = self.data(env).highest_hour_seconds + self.task(env).pause_s
        left = DECISIONS - int(self.decision[env])
        return float(PENALTY_MARGIN * left * hour_s / (self._reference_ms[env] * HOUR_SECONDS_PER_MS))


_INTERVALS, _DAY = np.arange(INTERVALS_PER_HOUR), np.arange(INTERVALS_PER_DAY)


def _numbers_of(source: DriftSource) -> dict[str, tuple[int, DriftTask]]:
    """The number and the task of each name in a suite; nothing for another source."""
    listed = source if isinstance(source, DriftSuite) else ()
    return {task.name: (number, task) for number, task in enumerate(listed)}


def drift_source(suite: Any, split: str) -> DriftSource:
    """The suite of replanning of this name and split; a source of drifting tasks is returned as it is."""
    wanted = "the name of a suite of replanning, such as 'drift-strong-600', or a DriftSuite"
    if isinstance(suite, str) and suite in suite_names() and suite_info(suite).problem != "replanning":
        raise wrong_kind("suite", suite, wanted, environment_of(suite_info(suite).problem))  # which may lack the split
    found = named_suite(suite, split)
    if isinstance(found, type) or not isinstance(found, DriftSource):
        raise wrong_suite(suite, wanted, "DriftSuite", found)
    return found
