"""The view of an episode's plan, complete or under way."""

from __future__ import annotations

import numpy as np

from shard_gym.envs.placement.rendering.plan_view import MAX_SPLITS, PlanView
from shard_gym.envs.sharding.episodes import ShardingEpisodes


def view_of(episodes: ShardingEpisodes, env: int) -> PlanView:
    """The plan of episode `env` so far; later steps do not change it.

    Raises:
        InvalidOptionError: the episode has not begun.
    """
    task, state, failure = episodes.task(env), episodes.state, episodes.failure(env)
    plan, current = episodes.plan(env), episodes.current_table(env)
    return PlanView(
        task=task,
        placement=np.array([sharding.devices[0] if sharding.shards else -1 for sharding in plan.tables], np.int64),
        phases_ms=state.phases_ms[env, : task.num_devices].copy(),
        cost_ms=float(state.cost_ms[env]),
        failure=failure["message"] if failure else "",
        next_table=-1 if current is None else current,
        plan=plan,
        split_rows=MAX_SPLITS,
    )
