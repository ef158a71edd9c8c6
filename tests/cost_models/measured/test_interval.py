"""The interval of a measured cost holds the cost without noise, in simulated measurements."""

from __future__ import annotations

from math import nan

import numpy as np
import pytest

from shard_gym.cost_models.measured import Measurement

PHASES_MS = np.array([3.0, 1.0, 1.0, 4.0])
NOISE = 0.1


def measurement(true_ms: np.ndarray, iterations: int, rng: np.random.Generator) -> Measurement:
    """Of (D, 4) ms with noise in every iteration, device and phase."""
    ms = true_ms * (1 + NOISE * rng.standard_normal((iterations, *true_ms.shape)))
    phases = np.median(ms, axis=0)
    return Measurement(phases, phases.max(axis=0).sum(), iterations_ms=ms, spread=nan, seconds=0.0)


@pytest.mark.parametrize(
    "speeds", [(1.0,), (1.0, 1.0, 1.0, 1.0), (1.0, 0.95, 0.95, 0.9), (1.0, 0.9, 0.6, 0.3)], ids=str
)
def test_the_interval_holds_the_cost_without_noise(speeds: tuple[float, ...]) -> None:
    rng, true_ms, repetitions = np.random.default_rng(0), np.outer(speeds, PHASES_MS), 200
    assert measurement(true_ms, 5, np.random.default_rng(0)).interval_ms is None  # too few iterations
    held, widths = 0, []
    for _ in range(repetitions):
        low, high = measurement(true_ms, 10, rng).interval_ms
        held += low <= PHASES_MS.sum() <= high
        widths.append(high - low)
    assert 0.92 <= held / repetitions <= 1.0
    assert np.mean(widths) / PHASES_MS.sum() < 2 * NOISE  # an interval that holds everything would hold the cost, too
