"""What is measured when, and who measures: draws by number, some of them a second time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

import numpy as np

from shard_gym.cost_models.base import CostEstimate, CostModel
from shard_gym.cost_models.data.sampling import Draws
from shard_gym.errors import ShardGymError

LATER = 30
"""A draw is measured again after so many others: another part, so another moment."""


class Turn(NamedTuple):
    """What to measure: the number of a draw, and how often it was measured before (0 or 1)."""

    number: int
    repeat: int


class Outcome(NamedTuple):
    """What came of a turn: an estimate, or the reason why there is none.

    `spread` is that of the measurement, NaN where the model says nothing of it.
    """

    turn: Turn
    estimate: CostEstimate | None
    spread: float = float("nan")
    reason: str = ""


class Measurer(Protocol):
    """Whatever measures turns; see `Here` and `spread_out.SpreadOut`."""

    @property
    def fingerprint(self) -> str:
        """That of the cost model."""

    @property
    def hardware(self) -> str:
        """Name of the machine."""

    def measure(self, turns: Iterator[Turn]) -> Iterator[Outcome]:
        """An outcome for every turn, in any order; turns are taken as late as possible."""

    def close(self) -> None:
        """End what runs."""


class Here:
    """Measures one turn after the other in this process.

    Args:
        make_model: makes the cost model. A model may remember what it measured, so a second measurement asks another.
        draws: what the numbers mean.
    """

    def __init__(self, make_model: Callable[[], CostModel], draws: Draws) -> None:
        self._make_model, self._draws = make_model, draws
        self._models: dict[int, CostModel] = {0: make_model()}

    @property
    def fingerprint(self) -> str:
        """That of the cost model."""
        return self._models[0].fingerprint

    @property
    def hardware(self) -> str:
        """Name of the machine; of a model that does not measure, its own."""
        return str(getattr(self._models[0], "hardware", self._models[0].name))

    def measure(self, turns: Iterable[Turn]) -> Iterator[Outcome]:
        """An outcome for every turn, in their order."""
        return map(self.measured, turns)

    def measured(self, turn: Turn) -> Outcome:
        """What came of `turn`."""
        if turn.repeat not in self._models:
            self._models[turn.repeat] = self._make_model()
        drawn = self._draws.draw(turn.number)
        try:
            estimate = self._models[turn.repeat].estimate(drawn.placement, drawn.tables, drawn.topology)
        except ShardGymError as error:
            return Outcome(turn, None, reason=str(error))
        return Outcome(turn, estimate, float(getattr(estimate, "spread", np.nan)))

    def close(self) -> None:
        """End the workers of the models, if they have any."""
        for model in self._models.values():
            getattr(model, "close", lambda: None)()


def turns(count: int | None, repeat_every: int | None) -> Iterator[Turn]:
    """All turns in their order: draws by number, and every `repeat_every`-th a second time, `LATER` draws later.

    The order does not depend on `count`, but for what is left to be measured again at the end.
    """

    def again(number: int) -> bool:
        return repeat_every is not None and number >= 0 and number % repeat_every == repeat_every - 1

    number = 0
    while count is None or number < count:
        yield Turn(number, 0)
        if again(number - LATER):
            yield Turn(number - LATER, 1)
        number += 1
    for late in range(max(0, number - LATER), number - 1):  # the very last would follow itself
        if again(late):
            yield Turn(late, 1)
