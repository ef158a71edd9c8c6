"""The embedding part of a training iteration on one device: FBGEMM's fused operator, the all-to-alls, and their times.

Needs torch and fbgemm_gpu.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
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

from shard_gym.cost_models.measured.worker import LEARNING_RATE
from shard_gym.tables import Tables

FIRST_WEIGHT = 0.01
"""Every weight before a measurement. Drawing billions of random weights would take longer than the measurement, and
the time of a lookup or an update does not depend on them."""

_WEIGHTS = {"fp16": SparseType.FP16, "fp32": SparseType.FP32}
_OPTIMIZERS = {"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}

Batch = tuple[Tensor, Tensor]
"""Indices and offsets in FBGEMM's layout, on the device."""

Timer = Callable[[Callable[[], None]], float]
"""Runs some work and returns the ms it took on this device."""


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

    def batch(self, indices: NDArray[Any], offsets: NDArray[Any]) -> Batch:
        """A batch of lookups in FBGEMM's layout (see `streams.fused_batch`), moved to the device."""
        return torch.from_numpy(indices).to(self.device), torch.from_numpy(offsets).to(self.device)

    def forward(self, batch: Batch) -> Tensor:
        """(B, sum of dim * features) float32, pooled outputs of every sample."""
        outputs: Tensor = self._module(*batch)
        return outputs


def samples_per_device(batch_size: int, num_devices: int) -> list[int]:
    """Samples of each device: as equal as possible, the first devices have one more."""
    return [batch_size // num_devices + (device < batch_size % num_devices) for device in range(num_devices)]


class Exchange:
    """The all-to-alls of one device: pooled outputs to the devices that own the samples, and gradients back.

    Args:
        group: of the D devices.
        rank: number of this device.
        widths: (D,) columns of the pooled outputs of each device.
        batch_size: samples of all devices; see `samples_per_device`.
        device: where the tensors are.
    """

    def __init__(
        self, group: dist.ProcessGroup, rank: int, widths: Sequence[int], batch_size: int, device: torch.device
    ) -> None:
        samples = samples_per_device(batch_size, len(widths))
        self._group = group
        self._sent = [count * widths[rank] for count in samples]
        self._received = [samples[rank] * width for width in widths]
        self.arrived = torch.empty(sum(self._received), device=device)
        self.returned = torch.empty(sum(self._sent), device=device)

    def forward(self, outputs: Tensor) -> None:
        """Send each device the outputs of its samples; `arrived` are those of the own samples, device after device."""
        dist.all_to_all_single(self.arrived, outputs.detach().view(-1), self._received, self._sent, group=self._group)

    def backward(self) -> None:
        """Send the gradients of what arrived back to their devices; `returned` are those of the own outputs."""
        dist.all_to_all_single(self.returned, self.arrived, self._sent, self._received, group=self._group)


class Iteration:
    """Forward, all-to-all, all-to-all of the gradients, backward with the fused optimizer.

    The loss is 0.5 times the sum of the squared outputs, so the gradient of an output is the output itself.

    Args:
        fused: the tables of this device; None if it has none.
        exchange: None if nothing is exchanged; the gradients then stay on the device.

    Attributes:
        fused: as given.
        outputs: (B, width) float32, pooled outputs of the last forward.
    """

    def __init__(self, fused: FusedTables | None, exchange: Exchange | None) -> None:
        self.fused = fused
        self._exchange = exchange
        self.outputs = torch.empty(0)
        self._gradients = torch.empty(0)

    @property
    def arrived(self) -> Tensor:
        """Outputs that are on this device after the all-to-all, flat: of its own samples from device after device."""
        return self.outputs.detach().flatten() if self._exchange is None else self._exchange.arrived

    def run(self, batch: Batch | None, timer: Timer) -> list[float]:
        """Ms of each of the four phases, 0 for a phase without work; `batch` is None without tables."""
        return [timer(phase) for phase in (lambda: self._forward(batch), self._send, self._send_back, self._backward)]

    def _forward(self, batch: Batch | None) -> None:
        if self.fused is not None and batch is not None:
            self.outputs = self.fused.forward(batch)

    def _send(self) -> None:
        if self._exchange is not None:
            self._exchange.forward(self.outputs)

    def _send_back(self) -> None:
        if self._exchange is not None:
            self._exchange.backward()
            self._gradients = self._exchange.returned.view(self.outputs.shape)
        else:
            self._gradients = self.outputs.detach()

    def _backward(self) -> None:
        if self.fused is not None:
            self.outputs.backward(self._gradients)  # type: ignore[no-untyped-call]


def timer_of(device: torch.device, group: dist.ProcessGroup | None) -> Timer:
    """A timer of work on `device`: CUDA events around its kernels on a GPU, the monotonic clock on a CPU.

    It first waits until all devices of `group` are ready, so that no phase includes waiting for another one.
    """

    def timed(work: Callable[[], None]) -> float:
        if group is not None:
            dist.barrier(group)
        if device.type == "cpu":
            begin = time.perf_counter()
            work()
            return 1000.0 * (time.perf_counter() - begin)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    return timed
