"""The embedding part of a training iteration on one device: FBGEMM's fused operator, the all-to-alls, and their times.

Needs torch and fbgemm_gpu.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    EmbeddingLocation,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from numpy.typing import NDArray
from torch import Tensor

from shard_gym.tables import Tables

FIRST_WEIGHT = 0.01
"""Every weight before a measurement. Drawing billions of random weights would take longer than the measurement, and
the time of a lookup or an update does not depend on them."""

_WEIGHTS = {"fp16": SparseType.FP16, "fp32": SparseType.FP32}
_OPTIMIZERS = {"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}

Batch = tuple[Tensor, Tensor]
"""Indices and offsets in FBGEMM's layout, on the device."""


class FusedTables:
    """`SplitTableBatchedEmbeddingBagsCodegen` over some tables: sum pooling, FP32 outputs, a fused exact optimizer.

    Args:
        tables: at least one; their workload names the dtype of the weights and the optimizer.
        device: "cpu", "cuda:0", ...
        learning_rate: of the optimizer.
    """

    def __init__(self, tables: Tables, device: torch.device, learning_rate: float) -> None:
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
            learning_rate=learning_rate,
            device=device,
        )
        for weight in self.weights():
            weight.fill_(FIRST_WEIGHT)

    def weights(self) -> list[Tensor]:
        """The (rows, dim) weights of each table; changing them changes the tables."""
        return [weight.detach() for weight in self._module.split_embedding_weights()]

    def batch(self, indices: NDArray[Any], offsets: NDArray[Any]) -> Batch:
        """A batch of lookups in FBGEMM's layout (see `streams.fused_batch`), moved to the device."""
        return torch.from_numpy(indices).to(self.device), torch.from_numpy(offsets).to(self.device)

    def forward(self, batch: Batch) -> Tensor:
        """(B, sum of dim * features) float32, pooled outputs of every sample."""
        outputs: Tensor = self._module(*batch)
        return outputs


class Iteration:
    """Forward, all-to-all, all-to-all of the gradients, backward with the fused optimizer, each of them timed.

    The all-to-all sends pooled outputs to the devices that own the samples; as equal a share of the batch as possible
    belongs to each, the first devices have one more. The loss is 0.5 times the sum of the squared outputs, so the
    gradient of an output is the output itself.

    Args:
        fused: the tables of this device; None if it has none.
        device: where the tensors are.
        group: of the D devices; None if nothing is exchanged, and the gradients stay on the device.
        rank: number of this device in the group.
        widths: (D,) columns of the pooled outputs of each device.
        batch_size: samples of all devices.
    """

    def __init__(
        self,
        fused: FusedTables | None,
        device: torch.device,
        group: dist.ProcessGroup | None,
        rank: int,
        widths: Sequence[int],
        batch_size: int,
    ) -> None:
        self.fused = fused
        self._device, self._group = device, group
        self._outputs = torch.empty(0, device=device)  # of a device without tables, which exchanges nothing
        self._gradients = torch.empty(0, device=device)
        if group is not None:
            samples = [batch_size // len(widths) + (k < batch_size % len(widths)) for k in range(len(widths))]
            self._sent = [count * widths[rank] for count in samples]
            self._received = [samples[rank] * width for width in widths]
            self._arrived = torch.empty(sum(self._received), device=device)
            self._returned = torch.empty(sum(self._sent), device=device)

    @property
    def outputs(self) -> Tensor:
        """Outputs on this device after the all-to-all, flat: of its own samples, from device after device."""
        return self._outputs.detach().flatten() if self._group is None else self._arrived

    def run(self, batch: Batch | None) -> list[float]:
        """Ms of each of the four phases, 0 for a phase without work; `batch` is None without tables."""
        phases = (partial(self._forward, batch), self._send_outputs, self._send_gradients, self._backward)
        return [self._timed(phase) for phase in phases]

    def _timed(self, phase: Callable[[], None]) -> float:
        """Ms on this device: by CUDA events around the kernels on a GPU, by the monotonic clock on a CPU.

        All devices wait until all are ready, so that no phase includes waiting for another one.
        """
        if self._group is not None:
            dist.barrier(self._group)
        if self._device.type == "cpu":
            begin = time.perf_counter()
            phase()
            return 1000.0 * (time.perf_counter() - begin)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        phase()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    def _forward(self, batch: Batch | None) -> None:
        if self.fused is not None and batch is not None:
            self._outputs = self.fused.forward(batch)

    def _send_outputs(self) -> None:
        if self._group is not None:
            sent = self._outputs.detach().view(-1)
            dist.all_to_all_single(self._arrived, sent, self._received, self._sent, group=self._group)

    def _send_gradients(self) -> None:
        if self._group is None:
            self._gradients = self._outputs.detach()
        else:
            dist.all_to_all_single(self._returned, self._arrived, self._sent, self._received, group=self._group)
            self._gradients = self._returned.view(self._outputs.shape)

    def _backward(self) -> None:
        if self.fused is not None:
            self._outputs.backward(self._gradients)  # type: ignore[no-untyped-call]
