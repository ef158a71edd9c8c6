"""How fast a GPU reads and updates rows in the memory of its host (FBGEMM's MANAGED). Needs torch and fbgemm_gpu."""

from __future__ import annotations

from statistics import median
from typing import Any, NamedTuple

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    EmbeddingLocation,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor

from shard_gym.cost_models.measured.clock import Clock, Peers, Phase

ROWS, DIM, POOLING, SAMPLES = 2**21, 128, 16, 2**14
"""One GiB in FP32; every lookup reads another row of 512 bytes, and no two batches share one."""

BATCHES = ROWS // (POOLING * SAMPLES)


class HostSpeed(NamedTuple):
    """Bandwidths in 1e9 bytes per second."""

    read_gb_per_s: float  # of rows
    update_gb_per_s: float  # of rows, each counted once


def host_speed(device: torch.device, clock: Clock, iterations: int = 5) -> HostSpeed:
    """Medians over the iterations; SGD, so that an update has no state."""
    module: Any = SplitTableBatchedEmbeddingBagsCodegen(
        [(ROWS, DIM, EmbeddingLocation.MANAGED, ComputeDevice.CUDA)],
        weights_precision=SparseType.FP32,
        output_dtype=SparseType.FP32,
        optimizer=EmbOptimType.EXACT_SGD,
        learning_rate=0.01,
        device=device,
    )
    for weight in module.split_embedding_weights():
        weight.detach().fill_(0.01)
    lookups = POOLING * SAMPLES
    offsets = torch.arange(0, lookups + 1, POOLING, device=device)
    outputs: list[Tensor] = []

    def phases(number: int) -> list[Phase]:
        first = number % BATCHES * lookups
        # An odd multiple of the row numbers is a permutation of the rows, which are a power of two.
        rows = torch.arange(first, first + lookups, device=device) * 0x9E3779B1 % ROWS

        def forward() -> None:
            outputs[:] = [module(rows, offsets)]

        def backward() -> None:
            outputs[0].backward(outputs[0].detach())  # type: ignore[no-untyped-call]

        return [forward, backward]

    timing = clock.measure(phases, 2, iterations, Peers())
    read, update = (median(column) for column in zip(*timing.ms, strict=True))
    size = lookups * DIM * 4
    return HostSpeed(size / read / 1e6, size / update / 1e6)
