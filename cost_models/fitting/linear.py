"""A linear baseline for neural cost models: phases linear in the sums of the table features."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.common.arrays import FloatArray
from shard_gym.cost_models.base import AdditiveCostModel
from shard_gym.cost_models.fitting.data.dataset import CostDataset
from shard_gym.cost_models.neural.features import plain_features
from shard_gym.hardware import Topology
from shard_gym.plans.plan import TABLE_WISE
from shard_gym.plans.variants import Variants
from shard_gym.tables import FEATURE_NAMES, Tables


class LinearCostModel(AdditiveCostModel):
    """Phases by least squares on the summed features of a device's tables, their number, and a constant.

    The features are DreamShard's, not their logarithms. The cost of an iteration is the sum over the phases of the
    slowest device. The all-to-alls of a device depend on its own tables only. An empty device costs nothing.

    Args:
        coefficients: (23, 4) float64, ms of each phase for each feature, each table, and the constant.
    """

    name = "linear"
    version = 1
    num_loads = num_sum_loads = len(FEATURE_NAMES) + 1

    def __init__(self, coefficients: FloatArray) -> None:
        self.coefficients = coefficients

    def loads(self, shards: Tables, topology: Topology, sharding_type: str = TABLE_WISE) -> FloatArray:
        """(T, 22) float64: the features of each table, and a 1."""
        return _table_loads(shards)

    @override
    def device_phases(self, loads: FloatArray) -> FloatArray:
        phases = np.maximum(_with_constant(loads) @ self.coefficients, 0.0)
        return np.where(loads[..., -1:] > 0, phases, 0.0)

    def bounds(self, loads: FloatArray, topology: Topology, variants: Variants | None = None) -> tuple[float, float]:
        """0, and all tables on one device without negative contributions."""
        slower = np.maximum(loads @ self.coefficients[:-1], 0.0).sum(axis=0)
        return 0.0, float((slower + np.maximum(self.coefficients[-1], 0.0)).sum())


def fit_linear(data: CostDataset) -> LinearCostModel:
    """The least squares solution over the devices of `data` that have tables."""
    count, widest = data.phases_ms.shape[:2]
    places = np.repeat(np.arange(count), np.diff(data.start)) * widest + data.devices
    summed = np.zeros((count * widest, LinearCostModel.num_loads))
    for each in data.shards():
        np.add.at(summed, places[each.rows], _table_loads(each.tables)[each.which])
    used = summed[:, -1] > 0
    inputs, measured = _with_constant(summed[used]), data.phases_ms.reshape(-1, 4)[used]
    unit = np.abs(inputs).max(axis=0)  # numbers of rows are millions, access shares are below 1
    unit[unit == 0] = 1.0
    return LinearCostModel(np.linalg.lstsq(inputs / unit, measured)[0] / unit[:, None])


def _table_loads(tables: Tables) -> FloatArray:
    return _with_constant(np.asarray(plain_features(tables.features()), np.float64))


def _with_constant(loads: FloatArray) -> NDArray[np.float64]:
    return np.concatenate([loads, np.ones((*loads.shape[:-1], 1))], axis=-1)
