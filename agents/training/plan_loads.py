"""Valid plans to measure in training, as loads: a machine executes whole plans, and not shards by themselves."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from shard_gym.agents.training.loads import ShardLoad, Shards, random_load, whole_tables
from shard_gym.cost_models.data.random_plans import random_plan
from shard_gym.sharding import ShardingPlan
from shard_gym.sharding.plan import COLUMN_WISE, DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE, TABLE_WISE
from shard_gym.sharding.statistics import shard_tables
from shard_gym.tables import Tables
from shard_gym.tasks import TaskSuite
from shard_gym.topology import Topology


def load_of_plan(plan: ShardingPlan, tables: Tables, topology: Topology) -> ShardLoad:
    """The shards of a valid plan, which are measured as that plan."""
    if plan.placement is not None:
        return whole_tables(tables, topology, plan.placement)
    arrays, found = plan.shard_arrays(), []
    types = [sharding.sharding_type for sharding in plan.tables]
    kinds = np.array([COLUMN_WISE if kind == TABLE_WISE else kind for kind in types])[arrays[:, 0]]
    for kind in (COLUMN_WISE, ROW_WISE, TABLE_ROW_WISE, DATA_PARALLEL):
        table, device, _, _, _, width = arrays[kinds == kind].T
        if len(table):
            widths = width if kind == COLUMN_WISE else None
            found.append(Shards(kind, shard_tables(tables.select(table), kind, topology, widths), device))
    return ShardLoad(topology, tuple(found), (tables, plan))


def random_plan_load(
    suite: TaskSuite, max_halvings: int, sharding_types: Collection[str], rng: np.random.Generator
) -> ShardLoad:
    """A random plan of random tables of the training tasks: what `random_shards` draws, but all parts of each table."""
    drawn = random_load(suite, rng)
    topology, (_, tables, placement) = drawn.topology, drawn.shards[0]
    plan = random_plan(placement, tables, topology, rng, sharding_types, max_halvings)
    return load_of_plan(plan, tables, topology)
