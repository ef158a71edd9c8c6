"""The tables of one device as FBGEMM's fused operator; needs torch and fbgemm_gpu."""

from __future__ import annotations

from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    EmbeddingLocation,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from numpy.typing import NDArray
from torch import Tensor

from shard_gym.tables import Tables

LEARNING_RATE = 0.01
FIRST_WEIGHT = 0.01
"""Of every row while time is measured. Drawing billions of random weights would take longer than the measurement, and
what a lookup or an update costs does not depend on them."""

_WEIGHTS = {"fp16": SparseType.FP16, "fp32": SparseType.FP32}
_OPTIMIZERS = {"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}


class FusedTables:
    """`SplitTableBatchedEmbeddingBagsCodegen` over some tables: sum pooling, FP32 outputs, a fused exact optimizer.

    Args:
        tables: at least one; their workload names the dtype of the weights and the optimizer.
        device: "cpu", "cuda:0", ...
    """

    def __init__(self, tables: Tables, device: torch.device) -> None:
        cpu = device.type == "cpu"
        where = (EmbeddingLocation.HOST, ComputeDevice.CPU) if cpu else (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
        rows, dims = tables.num_embeddings.tolist(), tables.embedding_dim.tolist()
        self.device = device
        self._module: Any = SplitTableBatchedEmbeddingBagsCodegen(
            [(count, dim, *where) for count, dim in zip(rows, dims, strict=True)],
            feature_table_map=[table for table, count in enumerate(tables.num_features.tolist()) for _ in range(count)],
            weights_precision=_WEIGHTS[tables.workload.weight_dtype],
            output_dtype=SparseType.FP32,
            optimizer=_OPTIMIZERS[tables.workload.optimizer],
            learning_rate=LEARNING_RATE,
            device=device,
        )
        for weight in self.weights():
            weight.fill_(FIRST_WEIGHT)

    def weights(self) -> list[Tensor]:
        """The (rows, dim) weights of each table; changing them changes the tables."""
        return [weight.detach() for weight in self._module.split_embedding_weights()]

    def batch(self, indices: NDArray[Any], offsets: NDArray[Any]) -> tuple[Tensor, Tensor]:
        """A batch of lookups in FBGEMM's layout (see `streams.fused_batch`), on the device."""
        return torch.from_numpy(indices).to(self.device), torch.from_numpy(offsets).to(self.device)

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """(B, sum of dim * features) float32, pooled outputs of every sample."""
        outputs: Tensor = self._module(*batch)
        return outputs
