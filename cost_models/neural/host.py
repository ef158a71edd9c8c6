"""Rows in host memory for networks: the bytes that a device reads from its host, and what a network learns of a byte.

Which rows are in host memory, and how many of their bytes a batch reads, is arithmetic on the tables and on the HBM
(`host_rows.py`): loads behind those of the network, that are given and not learned. Two numbers are learned: the ms of
a megabyte in the forward, and of an updated one in the backward. They add to what the network says of a device whose
rows are all in HBM, as in the analytical models.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.either import Array, joined, largest
from shard_gym.cost_models.base import COMPUTE
from shard_gym.cost_models.base.host_rows import (
    HBM_MS,
    NUM_HOST_LOADS,
    NUM_MAXIMA,
    THRESHOLDS,
    UPDATE_TIMES,
    host_loads,
)
from shard_gym.cost_models.neural import network as net
from shard_gym.cost_models.neural.network import FloatWeights, Weights
from shard_gym.hardware import Topology
from shard_gym.plans.plan import has_dense_gradient
from shard_gym.tables import Tables

RATE = "host.rate"
"""A weight of the networks that learned host memory, and of no other."""

_UNIT = "host.scale"  # ms of a megabyte by the first measurements; it is not trained, as its ending says
_SPEED = 10.0  # the rate is multiplied by it, as the curves of links are
_ONE = float(np.log(np.e - 1.0)) / _SPEED  # of the rates: softplus is 1, so a network begins with `_UNIT`
_LEAST_SHARE = 0.02  # of the mean phase, at least, that the mean byte in host memory is said to take at first


def learned_by(weights: Collection[str]) -> bool:
    """Whether a network with weights of these names learned host memory."""
    return RATE in weights


def new_rates() -> FloatWeights:
    """The weights of an untrained network beside its own."""
    return {RATE: np.full(2, _ONE, np.float32), _UNIT: np.ones(2, np.float32)}


def host_megabytes(shards: Tables, sharding_type: str, topology: Topology) -> NDArray[np.float64]:
    """(S, 2 + G) float64, `host_loads` of shards as `shard_tables` describes them, in 1e6 bytes that a batch reads.

    (S, 0) without host memory. Of tables of several workloads, updates are as many times the reads for all of them: as
    of the workload with the fewest states of each weight.
    """
    if topology.host is None:
        return np.zeros((len(shards), 0))
    # At 1 GB/s a megabyte takes a millisecond.
    slow = replace(topology, host=replace(topology.host, read_gb_per_s=1.0, update_gb_per_s=1.0))
    loads = host_loads(shards, slow, has_dense_gradient(sharding_type, shards, topology.num_devices))
    return loads[:, :NUM_HOST_LOADS]


def megabytes(loads: Array) -> Array:
    """(..., 2) megabytes that a batch reads from the host, and updates there, from the (..., 2 + G) loads of a device.

    See `host_rows.host_read_ms`.
    """
    thresholds = THRESHOLDS if isinstance(loads, np.ndarray) else loads.new_tensor(THRESHOLDS)
    above = loads[..., NUM_MAXIMA:] - thresholds * loads[..., HBM_MS, None]
    read = net.relu(largest(above, -1))[..., None]
    return joined([read, read * loads[..., UPDATE_TIMES, None]])


def host_ms(weights: Weights, loads: Array) -> Array:
    """(..., 4) ms that the host adds to the phases of a device with (..., 2 + G) loads."""
    both = megabytes(loads) * net.softplus(_SPEED * weights[RATE]) * weights[_UNIT]
    return joined([both[..., :1], both * 0.0, both[..., 1:]])


def without_updates(weights: FloatWeights) -> FloatWeights:
    """The same weights, with updates of rows in host memory that take no time, if the network learned any."""
    if not learned_by(weights):
        return weights
    return {**weights, _UNIT: weights[_UNIT] * np.array([1.0, 0.0], np.float32)}


def fitted_rates(loads: NDArray[np.float32], phases_ms: NDArray[np.float32]) -> FloatWeights:
    """The unit of the rates, by least squares with a constant; from the (U, 2 + G) loads and (U, 4) ms of devices.

    A device takes time for its rows in HBM besides, so this is where training begins, not where it ends.
    """
    amounts, unit = megabytes(np.asarray(loads, np.float64)), np.ones(2, np.float32)
    for which, (amount, took) in enumerate(zip(amounts.T, phases_ms[:, COMPUTE].T, strict=True)):
        if amount.any():
            vary = len(amount) > 1 and float(np.var(amount)) > 0.0
            slope = float(np.polyfit(amount, took, 1)[0]) if vary else 0.0
            share = float(took.mean() / amount.mean())
            unit[which] = min(max(slope, _LEAST_SHARE * share), share)
    return {_UNIT: unit}
