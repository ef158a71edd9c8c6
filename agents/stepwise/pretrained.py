"""The `stepwise` agent that the package has, trained on five suites of A100, V100, H100 and RTX 2080 Ti."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from shard_gym.agents.base import Agent
from shard_gym.agents.registry import load_agent
from shard_gym.agents.stepwise.agent import MOVES, PLANS


class Shipped(NamedTuple):
    """A file of a trained agent."""

    path: Path


SHIPPED = {"": Shipped(Path(__file__).parent / "agent.safetensors")}
"""One for all hardware, as its times are those of the task's profile."""


def shipped(*, plans: int = PLANS, improved: int = 3, moves: int = MOVES) -> Agent:
    """The trained agent; the errors are those of `StepwiseAgent`.

    Args:
        plans: how many plans are built of a task; of large tasks fewer.
        improved: how many of them a descent improves; 0 for none.
        moves: evaluations by own times that each descent has.
    """
    return load_agent(SHIPPED[""].path, plans=plans, improved=improved, moves=moves)
