"""What the learned cost of the attention agent is trained on: rollouts as sets of shards on devices."""

from __future__ import annotations

import numpy as np

from shard_gym.agents.attention.rollout import MAX_SHARDS, SPLIT_TYPES, Rollouts
from shard_gym.cost_models import CostEstimate
from shard_gym.cost_models.base import FloatArray
from shard_gym.cost_models.data.shards import ShardRecorder
from shard_gym.cost_models.neural.pooled_sharding import PooledShardingModel
from shard_gym.sharding.variants import variants_of, whole_tables


def record(recorder: ShardRecorder, rollouts: Rollouts, episode: int, phases_ms: FloatArray, cost_ms: float) -> None:
    """Record the (D, 4) phases and the cost of a complete rollout, for a `PooledShardingModel`."""
    batch, ways = rollouts.batch, rollouts.trajectories
    task = batch.tasks[episode // batch.count]
    if batch.problem.rules is None:
        variants = whole_tables(task.tables)
    else:
        variants = variants_of(task.tables, task.topology, SPLIT_TYPES, MAX_SHARDS.bit_length() - 1)
    described = [
        PooledShardingModel.describe_shards(tables, kind)
        for tables, kind in zip(variants.tables, variants.sharding_types, strict=True)
    ]
    step, device = np.nonzero(ways.given[episode])
    table, variant = batch.problem.order[episode][ways.table[episode, step]], ways.variant[episode, step]
    inputs = np.stack(described, axis=1)[table, variant]
    recorder.add(inputs, device, task.topology, CostEstimate(phases_ms[: task.num_devices], cost_ms))
