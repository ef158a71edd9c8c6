"""A small suite that every agent that learns can be trained on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from shard_gym.tasks import Task, TaskSuite


@pytest.fixture(scope="session")
def small_suite(random_task: Callable[..., Task]) -> TaskSuite:
    """Tasks of 5 to 8 tables on 2 or 3 devices, with memory caps that matter."""
    rng = np.random.default_rng(5)
    sizes = [(5, 2), (8, 3), (6, 2), (7, 3)]
    return TaskSuite(
        "small", tuple(random_task(rng, t, d, slack=1.6, name=f"small/{i}") for i, (t, d) in enumerate(sizes))
    )
