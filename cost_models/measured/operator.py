"""FBGEMM's embedding operators on one device: fused with their optimizer, and dense ones for replicas.

Needs torch and fbgemm_gpu.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    DenseTableBatchedEmbeddingBagsCodegen,
    EmbeddingLocation,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from shard_gym.cost_models.measured.job import Part
from shard_gym.plans.plan import DATA_PARALLEL

FIRST_WEIGHT = 0.01
"""Every weight before a measurement. Drawing billions of random weights would take longer than the measurement, and
the time of a lookup or an update does not depend on them."""

LOOKUP_WEIGHT = 0.5
"""Of every lookup of tables with such weights; the time does not depend on it either."""

WEIGHTS = {"fp16": SparseType.FP16, "fp32": SparseType.FP32}
OPTIMIZERS = {
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "adam": EmbOptimType.ADAM,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "sgd": EmbOptimType.EXACT_SGD,
}
EPS = 1e-8  # of rowwise Adagrad, FBGEMM's default

Batch = tuple[Tensor, Tensor, Tensor | None]
"""Indices and offsets in FBGEMM's layout, and the weights of the lookups if they have some, on the device."""


class Operator(ABC):
    """A table-batched embedding operator over the shards of a part: sum pooling, FP32 outputs.

    The workload of the tables, which is one, names the dtype of the weights and the optimizer.
    """

    _module: Any

    def __init__(self, part: Part, device: torch.device) -> None:
        self.part, self.device = part, device
        dims, features = part.tables.embedding_dim.tolist(), part.tables.num_features.tolist()
        self._shapes = list(zip(part.num_rows, dims, strict=True))
        self._features = [table for table, count in enumerate(features) for _ in range(count)]

    @abstractmethod
    def weights(self) -> list[Tensor]:
        """The (rows, columns) weights of each shard; changing them changes the shards."""

    def batch(self, indices: NDArray[Any] | Tensor, offsets: NDArray[Any]) -> Batch:
        """A batch of lookups in FBGEMM's layout (see `streams.fused_batch`), moved to the device."""
        reads, starts = torch.as_tensor(indices).to(self.device), torch.from_numpy(offsets).to(self.device)
        weighted = self.part.tables.workload.weighted
        return reads, starts, torch.full((len(reads),), LOOKUP_WEIGHT, device=self.device) if weighted else None

    def forward(self, batch: Batch) -> Tensor:
        """(samples, sum of columns * features) float32, pooled outputs of every sample."""
        outputs: Tensor = self._module(*batch)
        return outputs


class FusedTables(Operator):
    """`SplitTableBatchedEmbeddingBagsCodegen`: the backward updates the rows that were read, by an exact optimizer."""

    def __init__(self, part: Part, device: torch.device, learning_rate: float) -> None:
        super().__init__(part, device)
        cpu = device.type == "cpu"
        where = (EmbeddingLocation.HOST, ComputeDevice.CPU) if cpu else (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
        self._module = SplitTableBatchedEmbeddingBagsCodegen(
            [(*shape, *where) for shape in self._shapes],
            feature_table_map=self._features,
            weights_precision=WEIGHTS[part.tables.workload.weight_dtype],
            output_dtype=SparseType.FP32,
            optimizer=OPTIMIZERS[part.tables.workload.optimizer],
            learning_rate=learning_rate,
            device=device,
        )
        for weight in self.weights():
            weight.fill_(FIRST_WEIGHT)

    @override
    def weights(self) -> list[Tensor]:
        return [weight.detach() for weight in self._module.split_embedding_weights()]


class ReplicatedTables(Operator):
    """`DenseTableBatchedEmbeddingBagsCodegen`, as TorchRec executes replicas: a dense gradient updates every row.

    The update is that of `DistributedDataParallel` and a dense optimizer: the sum of the gradients of all replicas is
    divided by their number, then applied to all rows (pytorch/torchrec, distributed/batched_embedding_kernel.py,
    BatchedDenseEmbeddingBag; optim/rowwise_adagrad.py).
    """

    def __init__(self, part: Part, device: torch.device, learning_rate: float) -> None:
        super().__init__(part, device)
        workload = part.tables.workload
        self._module = DenseTableBatchedEmbeddingBagsCodegen(
            self._shapes,
            feature_table_map=self._features,
            weights_precision=WEIGHTS[workload.weight_dtype],
            use_cpu=device.type == "cpu",
            output_dtype=SparseType.FP32,
        )
        self._flat: Tensor = self._module.weights
        self._flat.data.fill_(FIRST_WEIGHT)
        self._rate = learning_rate
        self._state = [torch.zeros(rows, device=device) for rows, _ in self._shapes]
        self._optimizer: torch.optim.Optimizer | None = None
        if workload.optimizer == "sgd":
            self._optimizer = torch.optim.SGD([self._flat], lr=learning_rate)
        elif workload.optimizer == "adagrad":
            self._optimizer = torch.optim.Adagrad([self._flat], lr=learning_rate, eps=EPS)
        elif workload.optimizer == "adam":
            self._optimizer = torch.optim.Adam([self._flat], lr=learning_rate, eps=EPS)

    @override
    def weights(self) -> list[Tensor]:
        return self._views(self._flat.detach())

    def _views(self, flat: Tensor) -> list[Tensor]:
        parts = torch.split(flat, [rows * columns for rows, columns in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    @property
    def gradient(self) -> Tensor:
        """(cells,) the gradient of all rows, after a backward."""
        assert self._flat.grad is not None
        return self._flat.grad

    def update(self, replicas: int) -> None:
        """Divide the gradient by the number of replicas, apply it, and forget it."""
        with torch.no_grad():
            self.gradient.div_(replicas)
            if self._optimizer is not None:
                self._optimizer.step()
            else:
                for weight, gradient, state in zip(
                    self.weights(), self._views(self.gradient), self._state, strict=True
                ):
                    state.add_(gradient.square().mean(dim=1))
                    weight.addcdiv_(gradient, (state.sqrt() + EPS).to(weight.dtype)[:, None], value=-self._rate)
        self._flat.grad = None


def new_operator(part: Part, device: torch.device, learning_rate: float) -> Operator:
    """The operator over the shards of a part."""
    kind = ReplicatedTables if part.kind == DATA_PARALLEL else FusedTables
    return kind(part, device, learning_rate)
