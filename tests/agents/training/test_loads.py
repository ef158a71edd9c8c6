"""The loads that learners measure: tasks with groups as those of one group, and states of rows in the HBM."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shard_gym.agents.training.loads import MOST_SHARDS, random_load, random_shards, task_to_learn
from shard_gym.hardware import hardware_profile
from shard_gym.plans import SHARDING_TYPES
from shard_gym.plans.placement import check_placement
from shard_gym.plans.plan import DATA_PARALLEL
from shard_gym.tables import load_pool
from shard_gym.tasks import Task, TaskSuite
from shard_gym.tasks.groups import possible_groups

TABLES = load_pool("dlrm-2021").tables.select(np.arange(30)).with_training(optimizer="rowwise_adagrad")


def test_a_task_with_groups_is_learned_as_that_of_a_group_of_any_size() -> None:
    topology = hardware_profile("a100-dgx").topology(16)
    grouped, plain = (Task("one", TABLES, topology, splittable=True, sync_every=every) for every in (100, 0))
    rng, suite = np.random.default_rng(0), TaskSuite("grouped", (grouped,))
    drawn = [task_to_learn(suite, rng) for _ in range(60)]
    assert {each.num_devices for each in drawn} == {16 // groups.count for groups in possible_groups(grouped)}
    for each in drawn:
        assert each.tables.workload.batch_size == TABLES.workload.batch_size * each.num_devices // 16
        assert each.topology.replicas is None
        assert not each.sync_every
        assert each.splittable
    assert task_to_learn(TaskSuite("plain", (plain,)), rng) is plain


def test_random_loads_keep_the_states_of_rows_in_the_hbm() -> None:
    hardware, rng = hardware_profile("a100-dgx"), np.random.default_rng(1)
    states = 4 * int(TABLES.num_embeddings.sum())
    topology = hardware.topology(4, memory_cap_bytes=int(TABLES.memory_bytes.sum()))
    tight = replace(topology, host=hardware.host_memory(states // 3))
    suite = TaskSuite("tight", (Task("one", TABLES, tight, splittable=True),))
    shares = []
    for _ in range(30):
        load = random_load(suite, rng)
        assert load.placement is not None
        tables, on, placement = load.placement
        check_placement(placement, tables, on)
        shares.append(len(tables) / 30)
    assert min(shares) < 0.8  # some tables found no device


def test_some_random_loads_have_many_spread_tables_and_most_have_few() -> None:
    rng = np.random.default_rng(2)
    topology = hardware_profile("a100-dgx").topology(16)
    suite = TaskSuite("one", (Task("one", TABLES, topology, splittable=True),))
    counts = []
    for _ in range(120):
        load = random_shards(suite, 3, SHARDING_TYPES, rng)
        replicas = [each for each in load.shards if each.sharding_type == DATA_PARALLEL]
        counts.append(sum(len(each.tables) for each in replicas) // load.topology.num_devices)
        assert sum(len(each.tables) for each in load.shards) <= MOST_SHARDS + 5 * 16 + 8 * 60
    assert max(counts) > 8
    assert np.median(counts) < 3
