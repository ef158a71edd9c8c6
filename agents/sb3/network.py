"""The networks over sets of devices, and their inputs. All devices share the weights, so any number of them fits.

In `EmbeddingSharding-v0` the ways to split a table are further actions, after the devices. Needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import nn

from shard_gym.tables import AMOUNT_NAMES, FEATURE_NAMES

PHASE_SUMS = 5  # numbers for each set of costs: the four phases and their sum
SPLITS = ("halve", "row_wise", "data_parallel")  # the actions that split a table, in the order of the environment
SPLIT_TYPES = ("table_wise", "column_wise", "row_wise", "data_parallel")  # the sharding types of that environment
MAX_SHARDS = 8  # column shards of a table in that environment at most; H = 3 halvings


class Inputs(NamedTuple):
    """The numbers of features that a network reads: of each device, of the state, and of each split."""

    rows: int
    shared: int
    splits: int = 0


_COMPACT = Inputs(3 * PHASE_SUMS + 4, 2 * PHASE_SUMS + len(FEATURE_NAMES) + 1)
INPUTS: dict[str, Inputs] = {
    "compact": _COMPACT,
    "features": Inputs(3 * len(AMOUNT_NAMES) + 5, 3 * len(AMOUNT_NAMES) + len(FEATURE_NAMES) + 1),
    "splits": Inputs(_COMPACT.rows, _COMPACT.shared + MAX_SHARDS.bit_length(), 2 * PHASE_SUMS + len(SPLITS) + 1),
}
"""The numbers for each observation that a network reads; "splits" is "compact" of `EmbeddingSharding-v0`."""

ILLEGAL = -1e8
"""Score of an illegal device: its probability is exactly 0 in float32, and nothing becomes infinite or NaN."""

_RESOLUTION = 1e-3
"""This share of the slowest device is added to divisors: a phase that takes no time must not divide by zero."""


class DeviceSet(NamedTuple):
    """N observations as sets of D devices.

    Attributes:
        rows: (N, D, R) float32, features of each device: its costs as shares of the slowest device's, its distances to
            the slowest and to the mean device in units of the current table's own costs, the shares of its memory in
            use, needed and left, and whether the table fits. Under "features" amounts are in the place of costs, and
            the width of the widest table is added.
        shared: (N, S) float32, features of the state: the costs of the current table and the mean costs of the devices,
            as shares of the slowest's, the features of the table, and the progress. Under "features" also the amounts
            of the current table beside those of a device that holds its part of the task.
        real: (N, D) bool, False for padding.
        legal: (N, A) bool, whether each action is legal: the devices, then the splits.
        splits: (N, 3, P) float32, features of each split: the costs of one part of it alone, as shares of the slowest
            device's and in units of the current table's; which one it is, and whether it is legal. None without splits.
    """

    rows: torch.Tensor
    shared: torch.Tensor
    real: torch.Tensor
    legal: torch.Tensor
    splits: torch.Tensor | None = None


def observation_of(keys: Collection[str]) -> str:
    """Which of `INPUTS` an observation with these keys is read as; "full" is read as "compact"."""
    if "variant_costs" in keys:
        return "splits"
    return "compact" if "device_costs" in keys else "features"


def device_set(observation: Mapping[str, torch.Tensor]) -> DeviceSet:
    """The devices of N observations of `INPUTS` (see `EmbeddingPlacementEnv`).

    Only ratios of costs are used, so the features do not depend on the speed of the hardware. Late in an episode a
    table is small compared with what is placed; in units of its own cost the differences that matter stay visible.
    """
    ways = {"compact": _by_costs, "features": _by_amounts, "splits": _by_costs}
    return ways[observation_of(observation.keys())](observation)


def _by_costs(observation: Mapping[str, torch.Tensor]) -> DeviceSet:
    real = observation["device_mask"] > 0
    count, devices = real.shape
    costs = _with_sum(observation["device_costs"].reshape(count, devices, 4))
    table = _with_sum(observation["current_table_costs"]).unsqueeze(1)
    most = costs.amax(1, keepdim=True)
    mean = costs.sum(1, keepdim=True) / real.sum(1)[:, None, None]  # the costs of padding are zero
    scale = most[..., -1:] + table[..., -1:] + 1e-12
    unit = table + _RESOLUTION * scale
    if "variant_costs" not in observation:
        return _compared(observation, costs, table, (most, mean, scale, unit))
    shared = [observation["parts_waiting"] / MAX_SHARDS]
    compared = _compared(observation, costs, table, (most, mean, scale, unit), shared=shared)
    return compared._replace(splits=_splits(observation, scale, unit))


def _splits(observation: Mapping[str, torch.Tensor], scale: torch.Tensor, unit: torch.Tensor) -> torch.Tensor:
    waiting = observation["parts_waiting"]
    count, halvings = len(waiting), waiting.shape[1] - 1
    costs = _with_sum(observation["variant_costs"].reshape(count, -1, 4))
    level = ((waiting > 0) * torch.arange(halvings + 1, device=waiting.device)).amax(1)  # the smallest parts come first
    half = costs[torch.arange(count, device=waiting.device), (level + 1).clamp(max=halvings)].unsqueeze(1)
    parts = torch.cat([half, costs[:, halvings + 1 :]], dim=1)
    legal = observation["action_mask"][:, -len(SPLITS) :].unsqueeze(-1)
    which = torch.eye(len(SPLITS), device=waiting.device).expand(count, -1, -1)
    return torch.cat([parts / scale, _squashed(parts / unit), which, legal], dim=-1)


def _by_amounts(observation: Mapping[str, torch.Tensor]) -> DeviceSet:
    real = observation["device_mask"] > 0
    count, devices = real.shape
    number = real.sum(1)[:, None, None]
    held = observation["device_shares"].reshape(count, devices, len(AMOUNT_NAMES))
    table = observation["current_table_shares"].unsqueeze(1)
    most = held.amax(1, keepdim=True)
    mean = held.sum(1, keepdim=True) / number  # padding holds nothing
    scale = most + table + 1e-12
    unit = table + _RESOLUTION * scale
    own, placed = [observation["device_width"].unsqueeze(-1)], [_squashed(table * number).squeeze(1)]
    return _compared(observation, held, table, (most, mean, scale, unit), own, placed)


def _compared(
    observation: Mapping[str, torch.Tensor],
    held: torch.Tensor,
    table: torch.Tensor,
    units: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    own: Sequence[torch.Tensor] = (),
    shared: Sequence[torch.Tensor] = (),
) -> DeviceSet:
    """The devices, from what they hold, the table to place, and the units of both; `own` and `shared` are columns."""
    most, mean, scale, unit = units
    real, legal = observation["device_mask"] > 0, observation["action_mask"] > 0
    fits = legal[:, : real.shape[1]]
    memory = observation["device_memory"].reshape(*real.shape, 2)
    rows = [
        held / scale,
        _squashed((most - held) / unit),
        _squashed((held - mean) / unit),
        *own,
        memory,
        1.0 - memory.sum(-1, keepdim=True),
        fits.unsqueeze(-1),
    ]
    parts = [
        (table / scale).squeeze(1),
        (mean / scale).squeeze(1),
        *shared,
        observation["current_table"],
        observation["progress"],
    ]
    return DeviceSet(torch.cat(rows, dim=-1), torch.cat(parts, dim=-1), real, legal)


def _with_sum(phases: torch.Tensor) -> torch.Tensor:
    return torch.cat([phases, phases.sum(-1, keepdim=True)], dim=-1)


def _squashed(ratio: torch.Tensor) -> torch.Tensor:
    """`ratio` mapped to (-1, 1), steepest at 0."""
    return ratio / (1.0 + ratio.abs())


class DeviceEncoder(nn.Module):
    """Embeds every device from its own and the shared features, and pools the embeddings."""

    def __init__(self, width: int, observation: str = "compact") -> None:
        super().__init__()
        self.own = _linear(INPUTS[observation].rows, width)
        self.shared = _linear(INPUTS[observation].shared, width)
        self.second = _linear(width, width)

    def forward(self, devices: DeviceSet) -> tuple[torch.Tensor, torch.Tensor]:
        """(N, D, width) embeddings, and their (N, 2 * width) mean and maximum over the real devices."""
        hidden = torch.relu(self.own(devices.rows) + self.shared(devices.shared).unsqueeze(1))
        hidden = torch.relu(self.second(hidden)) * devices.real.unsqueeze(-1)
        mean = hidden.sum(1) / devices.real.sum(1, keepdim=True)
        return hidden, torch.cat([mean, hidden.amax(1)], dim=-1)  # none is negative, so padding does not matter


class DeviceScorer(nn.Module):
    """A score for each action, a device or a split if its `observation` has them; `ILLEGAL` for illegal ones."""

    def __init__(self, width: int, observation: str = "compact") -> None:
        super().__init__()
        self.observation = observation
        self.encoder = DeviceEncoder(width, observation)
        self.own = _linear(width, width)
        self.context = _linear(2 * width, width)
        self.score = _linear(width, 1, gain=0.01)
        if INPUTS[observation].splits:
            self.split = _linear(INPUTS[observation].splits, width)
            self.split_score = _linear(width, 1, gain=0.01)

    def forward(self, devices: DeviceSet) -> torch.Tensor:
        """(N, A) scores."""
        hidden, pooled = self.encoder(devices)
        context = self.context(pooled).unsqueeze(1)
        scores: torch.Tensor = self.score(torch.relu(self.own(hidden) + context)).squeeze(-1)
        if devices.splits is not None:
            split = torch.relu(self.split(devices.splits) + self.encoder.shared(devices.shared).unsqueeze(1))
            of_splits = self.split_score(torch.relu(self.own(split) + context)).squeeze(-1)
            scores = torch.cat([scores, of_splits], dim=1)
        return scores.masked_fill(~devices.legal, ILLEGAL)


class SetCritic(nn.Module):
    """One value for each observation; the arguments are those of `DeviceScorer`."""

    def __init__(self, width: int, observation: str = "compact") -> None:
        super().__init__()
        self.encoder = DeviceEncoder(width, observation)
        self.context = _linear(2 * width, width)
        self.value = _linear(width, 1, gain=1.0)

    def forward(self, devices: DeviceSet) -> torch.Tensor:
        """(N, 1) values."""
        values: torch.Tensor = self.value(torch.relu(self.context(self.encoder(devices)[1])))
        return values


def _linear(inputs: int, outputs: int, gain: float = math.sqrt(2)) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
