"""How full the HBM of a device is at each popularity: what observations show of host memory, from the tables alone.

A row counts as min(P / l, 1) at the threshold l, where P is the probability that a batch reads it
(cost_models/base/host_rows.py). The bytes of the rows that are counted so, as a multiple of a device's HBM, are a
table's curve. Those of a device are the sums over its tables. Where a curve is above 1, rows that batches read with
probability l have no room in the HBM.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base.host_rows import THRESHOLDS, host_bytes
from shard_gym.hardware import Topology
from shard_gym.plans.plan import has_dense_gradient
from shard_gym.plans.variants import Variants
from shard_gym.tables import STATE_BYTES
from shard_gym.tables.tables import IN_HOST

READS = np.exp2([0.5, -1.0, -3.0, -5.0, -7.0, -9.0, -12.0, -16.0])
"""(C,) float64, the thresholds of the curves: the reads of a row that are expected in a batch, P = 1 - exp(-reads)."""

NUM_CURVE = len(READS)

_COLUMNS = np.abs(THRESHOLDS[:, None] + np.expm1(-READS)).argmin(axis=0)


def hbm_curves(variants: Variants, topology: Topology) -> NDArray[np.float64]:
    """(T, V, C) float64, the curves of one part of each variant, in multiples of a device's HBM.

    They are zeros of variants that a table does not have, and of a topology without host memory.
    """
    curves = np.zeros((*variants.legal.shape, NUM_CURVE))
    if topology.host is None:
        return curves
    for variant, (kind, form) in enumerate(zip(variants.sharding_types, variants.tables, strict=True)):
        dense = has_dense_gradient(kind, form, topology.num_devices)
        counted = host_bytes(form, dense)[:, _COLUMNS] / THRESHOLDS[_COLUMNS]
        if form.rows_in is not None:
            states = STATE_BYTES * form.workload.state.per_row * form.num_embeddings
            counted = np.where(form.are_in(IN_HOST)[:, None], states[:, None], counted)
        curves[:, variant] = counted / topology.host.hbm_bytes * variants.legal[:, variant, None]
    return curves


def bounded(curves: NDArray[Any]) -> NDArray[np.float32]:
    """`curves` x as x / (1 + x), from 0 to 1: 0.5 where the HBM is just full; a new array in C order."""
    found = curves.astype(np.float32, order="C")
    np.divide(found, found + np.float32(1.0), out=found)
    return found
