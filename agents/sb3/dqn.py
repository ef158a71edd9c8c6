"""DQN that explores legal devices only, and its replay buffer as arrays, to resume without pickle; needs `sb3`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import DictReplayBuffer

from shard_gym.common.errors import InvalidCheckpointError
from shard_gym.common.io.arrays import Arrays, require_arrays


class MaskedDQN(DQN):
    """DQN whose random actions are legal. Those of the network are legal with `SetDQNPolicy`.

    Each environment explores independently. SB3's DQN draws one number for all of them, and actions from the whole
    space. `exploration` returns the share of random actions.
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
        """(N,) devices for N observations: the best, or a random one at the exploration rate if not `deterministic`."""
        best, state = self.policy.predict(observation, state, episode_start, deterministic)
        if deterministic:
            return best, state
        legal = observation["action_mask"] > 0
        drawn = np.where(legal, np.random.random(legal.shape), -1.0).argmax(axis=-1)
        return np.where(np.random.random(len(legal)) < self._exploration(), drawn, best), state


def replay_arrays(buffer: DictReplayBuffer) -> Arrays:
    """Copies of the contents of `buffer`, and its write position."""
    size = buffer.size()
    arrays = {name: array[:size].copy() for name, array in _parts(buffer).items()}
    return {**arrays, "position": np.array(buffer.pos), "full": np.array(buffer.full)}


def load_replay_arrays(buffer: DictReplayBuffer, arrays: Arrays) -> None:
    """Set the contents of `buffer` to what `replay_arrays` returned; InvalidCheckpointError for another buffer."""
    parts = _parts(buffer)
    size = len(arrays["rewards"]) if "rewards" in arrays and arrays["rewards"].ndim else 0
    expected = {name: np.broadcast_to(array[:1], (size, *array.shape[1:])) for name, array in parts.items()}
    require_arrays(
        "The replay buffer", arrays, {**expected, "position": np.zeros((), np.int64), "full": np.zeros((), np.bool_)}
    )
    position, full, capacity = int(arrays["position"]), bool(arrays["full"]), buffer.buffer_size
    if not (size == capacity and 0 <= position < capacity if full else position == size < capacity):
        raise InvalidCheckpointError(
            f"The replay buffer holds {size} steps of {capacity}, which does not fit its write position {position}."
        )
    actions, devices = arrays["actions"], int(buffer.action_space.n)  # type: ignore[attr-defined]
    if not ((actions >= 0) & (actions < devices)).all():
        raise InvalidCheckpointError(f"The replay buffer holds an action that is none of the {devices} devices.")
    for name, array in parts.items():
        array[:size] = arrays[name]
    buffer.pos, buffer.full = position, full


def _parts(buffer: DictReplayBuffer) -> Arrays:
    observations = {f"observations.{key}": array for key, array in buffer.observations.items()}
    following = {f"next_observations.{key}": array for key, array in buffer.next_observations.items()}
    rest = {name: getattr(buffer, name) for name in ("actions", "rewards", "dones", "timeouts")}
    return {**observations, **following, **rest}
