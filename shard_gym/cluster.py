"""`Cluster`: topologies as arrays, for batched arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Cluster:
    """Topologies as arrays with any leading batch shape `...`, padded to D devices."""

    device_mask: NDArray[np.bool_]  #: (..., D) bool, False for padding
    domain_begin: NDArray[np.int64]  #: (..., D) int64, the first device of each device's domain; 0 for padding
    domain_end: NDArray[np.int64]  #: (..., D) int64, the device after the last one of its domain; 0 for padding
    num_peers: NDArray[np.float64]  #: (..., D) float64, number of other devices in each device's domain
    num_devices: NDArray[np.float64] | np.float64  #: (...) float64, number of devices without padding
    host_size: NDArray[np.float64] | np.float64  #: (...) float64, devices of a host, which `table_row_wise` is over
    #: (...) float64, bandwidth inside a domain (see LinkSpec), bytes per ms.
    intra_bytes_per_ms: NDArray[np.float64] | np.float64
    #: (...) float64, bandwidth between domains (see LinkSpec), bytes per ms, of bytes of which a model sends a share.
    inter_bytes_per_ms: NDArray[np.float64] | np.float64
    #: (...) float64, bytes up to which links inside a domain are slower (see LinkSpec).
    intra_knee_bytes: NDArray[np.float64] | np.float64
    #: (...) float64, additional time of these bytes (see LinkSpec), a share.
    intra_knee_extra: NDArray[np.float64] | np.float64
    inter_knee_bytes: NDArray[np.float64] | np.float64  #: (...) float64, as `intra_knee_bytes`, before the share
    inter_knee_extra: NDArray[np.float64] | np.float64  #: (...) float64, as `intra_knee_extra`, between domains
    latency_ms: NDArray[np.float64] | np.float64  #: (...) float64, fixed time of one all-to-all; 0 for one device
    crosses_domains: NDArray[np.bool_] | np.bool_  #: (...) bool, True for more than one domain
    cross_host_ratio: NDArray[np.float64] | np.float64  #: (...) float64, that share; replicas send whole gradients

    @staticmethod
    def stack(clusters: Sequence[Cluster]) -> Cluster:
        """N clusters with the same padding as one cluster with leading shape (N,)."""
        return Cluster(**{f.name: np.stack([getattr(c, f.name) for c in clusters]) for f in fields(Cluster)})
