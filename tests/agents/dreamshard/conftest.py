"""Small suites and small options, so that DreamShard trains in a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shard_gym.agents.dreamshard.learner import DreamShardLearner
from shard_gym.cost_models import make_cost_model
from shard_gym.tasks import TaskSuite

SMALL: dict[str, dict[str, Any]] = {
    "paper": {"iterations": 2, "measurements": 4, "cost_updates": 20, "policy_updates": 2, "episodes": 4},
    "dream-search": {"iterations": 2, "measurements": 6, "cost_updates": 20, "queries": 200},
}


@pytest.fixture(scope="session")
def new_learner(small_suite: TaskSuite) -> Callable[..., DreamShardLearner]:
    def make(preset: str, seed: int = 0, suite: TaskSuite = small_suite, **changes: Any) -> DreamShardLearner:
        return DreamShardLearner(
            suite, make_cost_model("analytical"), seed, preset=preset, **{**SMALL[preset], **changes}
        )

    return make
