"""DQN's replay buffer as arrays, so that a run resumes without unpickling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shard_gym.errors import InvalidCheckpointError
from shard_gym.io.arrays import Arrays, require_arrays

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import DictReplayBuffer


def replay_arrays(buffer: DictReplayBuffer) -> Arrays:
    """Copies of all that `buffer` holds, and where it goes on."""
    held = buffer.size()
    arrays = {name: array[:held].copy() for name, array in _parts(buffer).items()}
    return {**arrays, "position": np.array(buffer.pos), "full": np.array(buffer.full)}


def load_replay_arrays(buffer: DictReplayBuffer, arrays: Arrays) -> None:
    """Put back what `replay_arrays` returned.

    Raises:
        InvalidCheckpointError: they are of another buffer.
    """
    parts = _parts(buffer)
    held = len(arrays["rewards"]) if "rewards" in arrays and arrays["rewards"].ndim else 0
    expected = {name: np.broadcast_to(array[:1], (held, *array.shape[1:])) for name, array in parts.items()}
    require_arrays("The replay buffer", arrays, {**expected, "position": np.zeros(()), "full": np.zeros(())})
    position, full, size = int(arrays["position"]), bool(arrays["full"]), buffer.buffer_size
    if not (held == size and 0 <= position < size if full else position == held < size):
        raise InvalidCheckpointError(
            f"The replay buffer holds {held} steps of {size} and goes on at {position}; one does not fit the other."
        )
    for name, array in parts.items():
        array[:held] = arrays[name]
    buffer.pos, buffer.full = position, full


def _parts(buffer: DictReplayBuffer) -> Arrays:
    """The buffer's own arrays."""
    seen = {f"observations.{key}": array for key, array in buffer.observations.items()}
    then = {f"next_observations.{key}": array for key, array in buffer.next_observations.items()}
    rest = {name: getattr(buffer, name) for name in ("actions", "rewards", "dones", "timeouts")}
    return {**seen, **then, **rest}
