"""The search that is blind to host memory: it answers as plan-search does where all rows are in HBM."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from shard_gym.agents import make_agent
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.hardware import hardware_profile
from shard_gym.tasks import Task


def test_it_answers_as_if_all_rows_were_in_hbm(random_tables: Any) -> None:
    tables = random_tables(np.random.default_rng(0), 10)
    even = int(tables.memory_bytes.sum()) // 3
    topology = hardware_profile("a100-dgx").topology(3, memory_cap_bytes=even // 5, host_memory_bytes=1)
    tiered = topology.with_caps(2 * even + int(tables.memory_bytes.max()))
    task, plain = Task("tiered", tables, tiered), Task("tiered", tables, replace(tiered, host=None))
    blind, sighted = (make_agent(name, max_queries=5_000) for name in ("blind-search", "plan-search"))
    assert np.array_equal(blind.place(task), sighted.place(plain))
    assert blind.plan(task) == sighted.plan(plain)
    costs = [AnalyticalCostModel().estimate(each.place(task), tables, tiered).total_ms for each in (sighted, blind)]
    assert costs[0] < 0.95 * costs[1]
