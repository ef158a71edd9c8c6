"""DQN that explores legal devices alone.

Needs the extra `sb3`; import it where it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3 import DQN


class MaskedDQN(DQN):
    """DQN whose random actions are legal; those of the network are, if its policy is `SetDQNPolicy`.

    Each environment explores by itself. SB3 draws one number for all of them, and actions from the whole space.

    Args:
        exploration: tells the share of random actions.
        arguments: see `DQN`.
    """

    def __init__(self, *arguments: Any, exploration: Callable[[], float], **options: Any) -> None:
        self._exploration = exploration
        super().__init__(*arguments, **options)

    def _setup_model(self) -> None:
        super()._setup_model()
        self.exploration_schedule = lambda _: self._exploration()  # for SB3's log

    def predict(
        self,
        observation: Any,
        state: tuple[NDArray[Any], ...] | None = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = False,
    ) -> tuple[NDArray[Any], tuple[NDArray[Any], ...] | None]:
        """(N,) devices for N observations: the best, or now and then a random one where `deterministic` is False."""
        best, state = self.policy.predict(observation, state, episode_start, deterministic)
        if deterministic:
            return best, state
        legal = observation["action_mask"] > 0
        drawn = np.where(legal, np.random.random(legal.shape), -1.0).argmax(axis=-1)
        return np.where(np.random.random(len(legal)) < self._exploration(), drawn, best), state
