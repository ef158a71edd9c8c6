"""The `stepwise` agent that the package has, trained on seven suites of A100, V100, H100 and RTX 2080 Ti."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from shard_gym.agents.registry import load_agent
from shard_gym.agents.stepwise.agent import MOVES, PLANS, StepwiseAgent


class Shipped(NamedTuple):
    """A file of a trained agent."""

    path: Path


SHIPPED = {"": Shipped(Path(__file__).parent / "agent.safetensors")}
"""One for all hardware, as its times are those of the task's profile."""


@lru_cache(maxsize=1)
def _trained() -> StepwiseAgent:
    agent = load_agent(SHIPPED[""].path)
    assert isinstance(agent, StepwiseAgent)
    return agent


class PretrainedStepwise(StepwiseAgent):
    """The trained agent; its options, and the errors, are those of `StepwiseAgent`."""

    name = "stepwise"

    def __init__(self, *, plans: int = PLANS, improved: int = 3, moves: int = MOVES) -> None:
        trained = _trained()
        super().__init__(
            self.name, trained.all_weights, trained.logarithms, plans=plans, improved=improved, moves=moves
        )
