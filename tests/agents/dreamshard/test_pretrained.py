"""The checkpoints of the package: they place without torch, better than every heuristic, on their hardware only."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from shard_gym.agents import PAPER_HEURISTICS, make_agent
from shard_gym.errors import NoPlacementFoundError
from shard_gym.evaluation import evaluate
from shard_gym.suites import load_suite
from shard_gym.tasks import Task, TaskSuite


def test_placing_needs_no_torch() -> None:
    script = """
import sys
sys.modules["torch"] = None
from shard_gym import load_suite
from shard_gym.agents import make_agent
assert make_agent("dreamshard", queries=100).place(load_suite("dlrm-20x4")[0]).shape == (20,)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", ["dlrm-20x4", "mixdim-4"])
def test_they_beat_every_heuristic_of_the_paper(name: str) -> None:
    suite = TaskSuite("few", load_suite(name).tasks[:5])
    heuristics = [evaluate(make_agent(heuristic), suite).mean_cost_ms for heuristic in PAPER_HEURISTICS]
    assert evaluate(make_agent("dreamshard"), suite).mean_cost_ms < 0.97 * min(heuristics)


def test_a_task_for_other_hardware_is_refused(random_task: Callable[..., Task]) -> None:
    task = random_task(np.random.default_rng(0), 5, 2)
    other = replace(task.topology, device=replace(task.topology.device, name="TPU"))
    with pytest.raises(NoPlacementFoundError, match="is for TPU; train one with"):
        make_agent("dreamshard").place(Task("other", task.tables, other))


def test_placements_do_not_depend_on_the_threads_of_numpy() -> None:
    task = load_suite("merlin-small-x8")[0]
    placements = []
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            placements.append(make_agent("dreamshard", queries=3_000).place(task))
    assert np.array_equal(*placements)
