"""V-trace (Espeholt et al., IMPALA, ICML 2018, section 4.1) for episodes without discount."""

from __future__ import annotations

import numpy as np

from shard_gym.cost_models.base import FloatArray


def vtrace(
    ratios: FloatArray, rewards: FloatArray, values: FloatArray, taken: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """(N, S) targets of the value and (N, S) advantages of the actions of N episodes that another policy played.

    With r_t = min(1, ratio_t) and V beyond the end 0, the target is v_t = V_t + sum over s >= t of
    (r_t ... r_{s-1}) r_s (reward_s + V_{s+1} - V_s), and the advantage r_t (reward_t + v_{t+1} - V_t).

    A ratio is the probability of the action under the policy in training, divided by that under the one that played.
    All arguments are (N, S); `taken` is 1 for the steps of an episode and 0 beyond its end, where the results are 0.
    """
    clipped, values = np.minimum(ratios, 1.0) * taken, values * taken
    end = np.zeros((len(values), 1))
    errors = clipped * (rewards + np.concatenate([values[:, 1:], end], axis=1) - values)
    targets, ahead = np.empty_like(values), end[:, 0]
    for step in reversed(range(values.shape[1])):
        ahead = errors[:, step] + clipped[:, step] * ahead
        targets[:, step] = values[:, step] + ahead
    advantages = clipped * (rewards + np.concatenate([targets[:, 1:], end], axis=1) - values)
    return targets, advantages
