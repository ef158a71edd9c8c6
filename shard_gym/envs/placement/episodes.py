"""Episodes in which whole tables are placed: their configuration, and the view of one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from typing_extensions import override

from shard_gym.envs.core.episodes import Episodes, EpisodesConfig, Observation
from shard_gym.envs.placement.observation import make_observation
from shard_gym.envs.placement.rendering.modes import render
from shard_gym.envs.placement.rendering.view import MAX_SPLITS, PlacementView
from shard_gym.tasks.task import has_host_memory


@dataclass(frozen=True, eq=False)
class PlacementConfig(EpisodesConfig):
    """The arguments of `EmbeddingPlacementEnv`."""

    @override
    @cached_property
    def observe(self) -> Observation:
        return make_observation(self.observation, has_host_memory(self.source))

    @override
    def episodes(self, num_envs: int) -> PlacementEpisodes:
        return PlacementEpisodes(num_envs, self)


class PlacementEpisodes(Episodes):
    """N episodes of `EmbeddingPlacement-v0`."""

    def view(self, env: int) -> PlacementView:
        """The placement of episode `env` so far, for rendering; later steps do not change it."""
        task, placements = self.task(env), self.placements(np.array([env]))
        rows = MAX_SPLITS if self._prepared.host_memory else 0
        return PlacementView(placement=placements[0, : task.num_tables], split_rows=rows, **self._shown(env))

    def _shown(self, env: int) -> dict[str, Any]:
        task, failure, next_table = self.task(env), self.failure(env), self.current_table(env)
        return {
            "task": task,
            "phases_ms": self.state.phases_ms[env, : task.num_devices].copy(),
            "cost_ms": float(self.state.cost_ms[env]),
            "failure": failure["message"] if failure else "",
            "frame_devices": self.max_devices,
            "next_table": -1 if next_table is None else next_table,
        }

    def current_table(self, env: int) -> int | None:
        """The table that comes next, or of which a part does; None after the last."""
        problem, step = self.problem, int(self.state.step[env])
        return int(problem.tables.order[problem.row[env], step]) if step < self.task(env).num_tables else None

    @override
    def draw(self, env: int, render_mode: str) -> Any:
        return render(self.view(env), render_mode)
