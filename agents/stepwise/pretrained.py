"""The `stepwise` agent that the package has, trained on eight suites of A100, V100, H100 and RTX 2080 Ti.

`shard-gym train --agent stepwise --suite shard-4 --option tasks=2 --option also=...` made it, with the names of
shard-8, shard-generalize, tier-generalize, sequence-16, mixdim-8, tier-8 and constrained-8 and the seed 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from shard_gym.agents.base import Agent
from shard_gym.agents.registry import load_agent
from shard_gym.agents.stepwise.agent import BUILT, BY_RULE, MOVES, PLANS


class Shipped(NamedTuple):
    """A file of a trained agent."""

    path: Path


SHIPPED = {"": Shipped(Path(__file__).parent / "agent.safetensors")}
"""One for all hardware, as its times are those of the task's profile."""


def shipped(*, plans: int = PLANS, built: int = BUILT, by_rule: int = BY_RULE, moves: int = MOVES) -> Agent:
    """The trained agent; the errors are those of `StepwiseAgent`.

    Args:
        plans: how many plans are built of a task, 64 at most; of large tasks none.
        built: how many of the plans that are built a descent improves; 0 to build none.
        by_rule: how many of the plans of the rule `moldable` it improves, too.
        moves: evaluations by own times that each descent has; 0 for no descents.
    """
    return load_agent(SHIPPED[""].path, plans=plans, built=built, by_rule=by_rule, moves=moves)
