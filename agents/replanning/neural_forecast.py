"""A learned forecast of what plans save: a small network changes the weights of the ridge forecast by the situation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.replanning.base import Floats, View
from shard_gym.agents.replanning.forecasters import Forecast, total_savings
from shard_gym.envs.replanning.observation import NUM_WINDOWS

HIDDEN = 16
"""Units of the network."""

NUM_INPUTS = 2 * NUM_WINDOWS + 7

NUM_OUTPUTS = 2 * (NUM_WINDOWS + 1)
"""For the next 12 hours and for later: what is added to the weight of each window, and a saving in tenths."""

NUM_WEIGHTS = NUM_INPUTS * HIDDEN + HIDDEN + HIDDEN * NUM_OUTPUTS + NUM_OUTPUTS

SCALE = 10.0
"""Savings that are inputs or outputs of the network are in tenths of the reference cost."""


def network_inputs(
    saved: Floats, window: NDArray[np.integer], clock: Floats, since: Floats, available: Floats, used: Floats
) -> Floats:
    """(..., `NUM_INPUTS`) inputs of the network.

    Args:
        saved: (..., W) what a plan would have saved in each window, in multiples of the reference cost.
        window: (...) that it is made for.
        clock: (..., 4) as in `View`.
        since: (...) days since the plan in action was made.
        available: (...) share of the devices that are there.
        used: (...) share of the devices that the plan in action is made for.
    """
    state = np.exp(-since), available - used, 1.0 - available
    parts = np.arcsinh(SCALE * saved), np.eye(NUM_WINDOWS)[window], clock, np.stack(state, axis=-1)
    return np.concatenate(parts, axis=-1)


class NeuralForecast(Forecast):
    """The forecast.

    Args:
        weights: (2, W), as of `Forecast`.
        network: (`NUM_WEIGHTS`,), the matrices and offsets of the two layers.
        days: see `Forecast`.
    """

    def __init__(self, weights: Sequence[Sequence[float]], network: Sequence[float], days: float) -> None:
        super().__init__(weights, days)
        ends = np.cumsum([NUM_INPUTS * HIDDEN, HIDDEN, HIDDEN * NUM_OUTPUTS])
        first, self._bias, last, self._offset = np.split(np.asarray(network, np.float64), ends)
        self._first, self._last = first.reshape(NUM_INPUTS, HIDDEN), last.reshape(HIDDEN, NUM_OUTPUTS)

    def savings(self, saved: Floats, windows: NDArray[np.integer], view: View) -> Floats:
        """See `Forecast`."""
        each = [np.repeat(part[:, None], len(windows), axis=1) for part in (view.since_plan, view.available, view.used)]
        clock = np.repeat(view.clock[:, None], len(windows), axis=1)
        inputs = network_inputs(saved, np.tile(windows, (view.count, 1)), clock, *each)
        hidden = np.tanh(inputs @ self._first + self._bias)
        change = (hidden @ self._last + self._offset).reshape(*saved.shape[:2], 2, NUM_WINDOWS + 1)
        rates = saved @ self.weights.T + (change[..., :-1] @ saved[..., None])[..., 0] + change[..., -1] / SCALE
        return total_savings(rates, self.days, view.days_left)
