"""What a policy sees of each device: numbers without unit, whose count depends neither on T nor on D.

Needs torch; import it where it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from shard_gym.tables import FEATURE_NAMES

PHASE_SUMS = 5
"""The four phases and their sum."""

DEVICE_FEATURES = 3 * PHASE_SUMS + 4
SHARED_FEATURES = 2 * PHASE_SUMS + len(FEATURE_NAMES) + 1

_RESOLUTION = 1e-3
"""Differences below this share of the whole do not count; it keeps a phase that takes no time from dividing by zero."""


class DeviceSet(NamedTuple):
    """N observations, read as sets of D devices.

    Attributes:
        rows: (N, D, DEVICE_FEATURES) float32, of each device by itself: its costs as shares of the slowest device's,
            how far they lie below the slowest and how far above the mean, both against what the current table costs
            alone; the shares of its memory in use, needed and left; and whether the table fits.
        shared: (N, SHARED_FEATURES) float32, of all devices: the costs of the current table and the mean costs of the
            devices, as shares of the slowest's, the features of the table, and the progress.
        real: (N, D) bool, where there is a device.
        legal: (N, D) bool, where the current table fits.
    """

    rows: torch.Tensor
    shared: torch.Tensor
    real: torch.Tensor
    legal: torch.Tensor


def device_set(observation: Mapping[str, torch.Tensor]) -> DeviceSet:
    """The devices of N observations of the kind "compact" (see `EmbeddingPlacementEnv`).

    Only ratios of costs go in, so hardware that takes ten times as long looks the same. Close to the end of an episode
    a table is small beside what is placed; against its own cost the small differences that decide stay visible.
    """
    real, legal = observation["device_mask"] > 0, observation["action_mask"] > 0
    count, devices = real.shape
    costs = _with_sum(observation["device_costs"].reshape(count, devices, 4))
    table = _with_sum(observation["current_table_costs"]).unsqueeze(1)
    most = costs.amax(1, keepdim=True)
    mean = costs.sum(1, keepdim=True) / real.sum(1)[:, None, None]  # the costs of padding are zero
    scale = most[..., -1:] + table[..., -1:] + 1e-12
    unit = table + _RESOLUTION * scale
    memory = observation["device_memory"].reshape(count, devices, 2)
    rows = torch.cat(
        [
            costs / scale,
            _squashed((most - costs) / unit),
            _squashed((costs - mean) / unit),
            memory,
            1.0 - memory.sum(-1, keepdim=True),
            legal.unsqueeze(-1),
        ],
        dim=-1,
    )
    shared = torch.cat(
        [
            (table / scale).squeeze(1),
            (mean / scale).squeeze(1),
            observation["current_table"],
            observation["progress"],
        ],
        dim=-1,
    )
    return DeviceSet(rows, shared, real, legal)


def _with_sum(phases: torch.Tensor) -> torch.Tensor:
    return torch.cat([phases, phases.sum(-1, keepdim=True)], dim=-1)


def _squashed(ratio: torch.Tensor) -> torch.Tensor:
    """Into (-1, 1); steepest at 0, where a table more or less decides."""
    return ratio / (1.0 + ratio.abs())
