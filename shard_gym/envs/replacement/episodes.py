"""N episodes of re-placement at once. A scalar environment has N = 1, a vector one any N."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models import AdditiveCostModel, make_sharding_cost_model
from shard_gym.cost_models.base import FloatArray
from shard_gym.drift.processes import INTERVALS_PER_DAY
from shard_gym.drift.suites import DriftSuite, DriftSource, drift_source
from shard_gym.drift.tasks import DriftTask
from shard_gym.envs.core.arguments import padding
from shard_gym.envs.core.episodes import ILLEGAL, ObservationDict
from shard_gym.envs.replacement.episode_data import DECISIONS, HOUR_SECONDS_PER_MS, EpisodeData, episode_data
from shard_gym.envs.replacement.observation import MadePlan, ObservationRows
from shard_gym.envs.replacement.windows import HOURS, INTERVALS_PER_HOUR, KINDS, LAST_DAYS, LAST_HOUR, WINDOWS
from shard_gym.errors import InvalidCostError, InvalidOptionError, InvalidTaskError, wrong_kind

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

REWARDS = ("time", "excess")
"""Minus the seconds of an hour; or minus those beyond an hour with the newest plan that was free."""

REDIRECT_PENALTY = 0.05
"""Of a reward, in hours of the reference, for an illegal action that was redirected."""

PENALTY_MARGIN = 1.1
"""A failed episode is charged so many times what the hours that are left can take at most."""

PARTS = ("running", "paused", "moved")
"""What seconds are spent on."""


class ReplacementEpisodes:
    """N episodes of `EmbeddingReplacement-v0`. Arguments are those of `EmbeddingReplacementEnv`, and `num_envs`.

    Attributes:
        source: where tasks come from.
        cost_model: estimates the costs.
        tasks: the task of each episode; None before the first `begin`.
        made: the plan in action of each episode, and when it was made.
        decision: (N,) int64, the number of the next decision; 336 after the last.
    """

    def __init__(
        self,
        num_envs: int,
        suite: str | DriftSource,
        split: str,
        cost_model: str | Path | AdditiveCostModel,
        reward: str,
        max_tables: int | None,
        max_devices: int | None,
        headroom: bool | None,
        illegal: str,
    ) -> None:
        for name, given, known in (("reward", reward, REWARDS), ("illegal", illegal, ILLEGAL)):
            if given not in known:
                raise wrong_kind(name, given, " or ".join(map(repr, known)))
        self.source = drift_source(suite, split)
        self.cost_model = make_sharding_cost_model(cost_model)
        self.max_parts = padding("max_parts", max_tables, self.source.max_parts)
        self.max_devices = padding("max_devices", max_devices, self.source.max_devices)
        grows = self.source.grows if headroom is None else headroom
        self._rows_of = ObservationRows(self.max_devices, len(KINDS) if grows else len(WINDOWS))
        self._excess, self._redirects = reward == "excess", illegal == "redirect"
        self.tasks: list[DriftTask | None] = [None] * num_envs
        self.made: list[MadePlan | None] = [None] * num_envs
        self._data: list[EpisodeData | None] = [None] * num_envs
        self._each = np.arange(num_envs)
        self.decision: IntArray = np.full(num_envs, DECISIONS)
        self._failed = np.zeros(num_envs, np.bool_)
        self._redirected = np.zeros(num_envs, np.int64)
        self._index = np.full(num_envs, -1)
        self._reference_s = np.ones(num_envs)
        self._rows = np.zeros((num_envs, HOURS, self._rows_of.width), np.float32)
        self._must_plan = np.zeros((num_envs, HOURS), np.bool_)
        self._masks = np.ones((num_envs, HOURS, self._rows_of.num_actions), np.bool_)
        self._interval_ms = np.zeros((num_envs, HOURS, INTERVALS_PER_HOUR))
        self._always_s = np.zeros((num_envs, HOURS))
        self._measured = np.zeros((num_envs, INTERVALS_PER_DAY + DECISIONS * INTERVALS_PER_HOUR))
        self._noise = np.zeros_like(self._measured)
        self._cost_ms = np.zeros(num_envs)
        self._seconds = np.zeros((num_envs, len(PARTS)))
        self._plans = np.zeros((num_envs, 2), np.int64)  # all, and repairs
        self._placement = np.full((num_envs, self.max_parts), -1)
