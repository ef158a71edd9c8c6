"""What tells the groups of tables of several workloads apart, as inputs of networks that learned such tables.

Dtype, optimizer and lookup weights of a table are facts (`facts`) before its other inputs, and have weights of their
own in the first layer of the table network, which are 0 before training. So a network that learned one workload has
neither. Groups of a device are operators of their own, but latents are summed over all of its tables: the facts make
latents differ by group, and what tables of a device cost together the network learns from the sums. How many operators
there are no sum says. So their launches are arithmetic, as those of a table without work: loads behind those of the
network, the number of tables of each group and the ms of a launch for each of them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.common.either import joined
from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models.base import PHASES
from shard_gym.cost_models.base.model import BACKWARD, FORWARD
from shard_gym.cost_models.neural.network import FloatWeights, Weights
from shard_gym.hardware import Topology
from shard_gym.plans.needs import MIXED, WEIGHTED
from shard_gym.tables import Tables
from shard_gym.tables.workload import LOOKUP_WEIGHT_BYTES, SCALE_BYTES, WEIGHT_BYTES

NEEDS = frozenset({MIXED, WEIGHTED})
"""What a network that learned groups supports besides."""

LAYER = "groups.weight"
"""A weight of the networks that learned groups, and of no other."""

FACTS = ("weight bytes", "scale bytes", "state of a row", "state of a weight", "lookup weights", "sequence")
"""Those of a table, each from 0 to 1 or, of the state of a weight, 2."""

LOADS = 2
"""Further loads for each group: how many tables of it there are, and the sum of a launch's ms over them."""

LAUNCHES = np.zeros(len(PHASES))
LAUNCHES[[FORWARD, BACKWARD]] = 5.0, 20.0
"""Launches of kernels of each further operator, round numbers: the update of the backward sorts in passes."""

_FIRST, _FEATURES = "table.0.weight", "features"  # of the table network, and of the normalization of its inputs


def facts(shards: Tables) -> NDArray[np.float32]:
    """(S, 6) float32 of shards, see `FACTS`."""
    workload = shards.workload
    columns = (
        np.divide(workload.weight_bytes, max(WEIGHT_BYTES.values())),
        np.divide(workload.scale_bytes, max(SCALE_BYTES.values())),
        workload.state.per_row,
        workload.state.per_weight,
        np.divide(workload.lookup_weight_bytes, LOOKUP_WEIGHT_BYTES),
        ~shards.pooled,
    )
    return np.stack([np.broadcast_to(np.float32(each), len(shards)) for each in columns], axis=1)


def learned_by(weights: Collection[str]) -> bool:
    """Whether a network with weights of these names learned groups."""
    return LAYER in weights


def with_layer(weights: FloatWeights, architecture: str) -> FloatWeights:
    """Those of an untrained network, and zeros for the facts; InvalidOptionError if it has no table network."""
    if _FIRST not in weights:
        raise InvalidOptionError(
            f"The network {architecture!r} cannot learn from tables of several workloads, or with weights of lookups: "
            f"it has no layer {_FIRST!r}. Train the network 'pooled', as presets that search do."
        )
    return {**weights, LAYER: np.zeros((len(FACTS), weights[_FIRST].shape[1]), np.float32)}


def widened(weights: Weights) -> Weights:
    """Those of the network whose inputs have the facts in front, which are not normalized."""
    found = dict(weights)
    found[_FIRST] = joined([weights[LAYER].T, weights[_FIRST].T]).T
    for name, value in ((f"{_FEATURES}.mean", 0.0), (f"{_FEATURES}.scale", 1.0)):
        if name in weights:
            found[name] = joined([weights[LAYER][:, 0] * 0.0 + value, weights[name]])
    return found


def group_loads(shards: Tables, topology: Topology) -> FloatArray:
    """(S, 2 G) float64, the `LOADS` of shards of G groups; (S, 0) of tables of one workload."""
    count, groups = len(shards), len(shards.workload.workloads)
    if groups == 1:
        return np.zeros((count, 0))
    loads = np.zeros((count, groups, LOADS))
    loads[np.arange(count), shards.workload.group_of(count)] = 1.0, topology.device.kernel_launch_us * 1e-3
    return loads.reshape(count, -1)


def launches_ms(loads: FloatArray, exchanges: int) -> FloatArray:
    """(..., 4) ms that operators beside the first add to devices with (..., 2 G) loads; `exchanges` as of a model."""
    tables, launches = loads[..., ::LOADS], loads[..., 1::LOADS]
    operators = (tables > 0).sum(axis=-1)  # counts are whole numbers, also where tables were taken away
    launch_ms = launches.sum(axis=-1) / np.maximum(tables.sum(axis=-1), 1.0)
    return more_launches_ms(operators, launch_ms) * (1.0, 1.0, exchanges > 1, exchanges > 1)


def more_launches_ms(operators: NDArray[Any], launch_ms: FloatArray) -> FloatArray:
    """(..., 4) ms of training that (...) `operators` of a device take beside the first; a launch takes `launch_ms`."""
    return np.asarray((np.maximum(operators - 1, 0) * launch_ms)[..., None] * LAUNCHES)
