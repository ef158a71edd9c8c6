"""The embedding part of a training iteration on one device: FBGEMM's fused operator and the all-to-alls.

Needs torch and fbgemm_gpu.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from typing_extensions import override

from shard_gym.cost_models.measured.clock import Peers, Phase
from shard_gym.tables import Tables

FIRST_WEIGHT = 0.01
"""Every weight before a measurement. Drawing billions of random weights would take longer than the measurement, and
the time of a lookup or an update does not depend on them."""

WEIGHTS = {"fp16": SparseType.FP16, "fp32": SparseType.FP32}
OPTIMIZERS = {
    "adam": EmbOptimType.ADAM,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "sgd": EmbOptimType.EXACT_SGD,
}
Batch = tuple[Tensor, Tensor]  # indices and offsets in FBGEMM's layout, on the device


class FusedTables:
    """`SplitTableBatchedEmbeddingBagsCodegen` over some tables: sum pooling, FP32 outputs, a fused exact optimizer.

    The workload of the tables, at least one, names the dtype of the weights and the optimizer.
    """

    def __init__(self, tables: Tables, device: torch.device, learning_rate: float) -> None:
        cpu = device.type == "cpu"
        where = (EmbeddingLocation.HOST, ComputeDevice.CPU) if cpu else (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
        rows, dims = tables.num_embeddings.tolist(), tables.embedding_dim.tolist()
        self.device = device
        self._module: Any = SplitTableBatchedEmbeddingBagsCodegen(
            [(count, dim, *where) for count, dim in zip(rows, dims, strict=True)],
            feature_table_map=[table for table, count in enumerate(tables.num_features.tolist()) for _ in range(count)],
            weights_precision=WEIGHTS[tables.workload.weight_dtype],
            output_dtype=SparseType.FP32,
            optimizer=OPTIMIZERS[tables.workload.optimizer],
            learning_rate=learning_rate,
            device=device,
        )
        for weight in self.weights():
            weight.fill_(FIRST_WEIGHT)

    def weights(self) -> list[Tensor]:
        """The (rows, dim) weights of each table; changing them changes the tables."""
        return [weight.detach() for weight in self._module.split_embedding_weights()]

    def batch(self, indices: NDArray[Any] | Tensor, offsets: NDArray[Any]) -> Batch:
        """A batch of lookups in FBGEMM's layout (see `streams.fused_batch`), moved to the device."""
        return torch.as_tensor(indices).to(self.device), torch.from_numpy(offsets).to(self.device)

    def forward(self, batch: Batch) -> Tensor:
        """(B, sum of dim * features) float32, pooled outputs of every sample."""
        outputs: Tensor = self._module(*batch)
        return outputs


class Iteration:
    """Forward, all-to-all, all-to-all of the gradients, backward with the fused optimizer.

    The all-to-all sends pooled outputs to the devices that own the samples; as equal a share of the batch as possible
    belongs to each, the first devices have one more. The loss is 0.5 times the sum of the squared outputs, so the
    gradient of an output is the output itself.

    Args:
        fused: the tables of this device; None if it has none.
        device: where the tensors are.
        group, rank: of the D devices, and this one's number; None if nothing is exchanged, and gradients stay.
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
        self._group = group
        self._outputs = torch.empty(0, device=device)  # of a device without tables, which exchanges nothing
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

    def phases(self, batch: Batch | None) -> tuple[Phase | None, ...]:
        """What executes the four phases on `batch`, which is None without tables; None for a phase without work."""
        exchanges = self._group is not None
        return (
            None if batch is None else partial(self._forward, batch),
            self._send_outputs if exchanges else None,
            self._send_gradients if exchanges else None,
            None if batch is None else self._backward,
        )

    def run(self, batch: Batch | None) -> None:
        """Execute the four phases on `batch`, which is None without tables."""
        for phase in self.phases(batch):
            if phase is not None:
                phase()

    def _forward(self, batch: Batch) -> None:
        assert self.fused is not None
        self._outputs = self.fused.forward(batch)

    def _send_outputs(self) -> None:
        sent = self._outputs.detach().view(-1)
        dist.all_to_all_single(self._arrived, sent, self._received, self._sent, group=self._group)

    def _send_gradients(self) -> None:
        dist.all_to_all_single(self._returned, self._arrived, self._sent, self._received, group=self._group)

    def _backward(self) -> None:
        gradients = self._outputs.detach() if self._group is None else self._returned.view(self._outputs.shape)
        self._outputs.backward(gradients)  # type: ignore[no-untyped-call]


class GroupPeers(Peers):
    """The devices of a group, of which `device` is this one."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._group, self._device = group, device
        self._flag = torch.zeros(1, device=device)

    def align(self) -> None:
        """GPUs wait for each other in their streams, so their hosts can be ahead of them."""
        if self._device.type == "cpu":
            dist.barrier(self._group)
        else:  # no GPU completes it before all have begun it
            dist.all_reduce(self._flag, dist.ReduceOp.MAX, self._group)

    @override
    def any(self, flag: bool) -> bool:
        self._flag.fill_(flag)
        dist.all_reduce(self._flag, dist.ReduceOp.MAX, self._group)
        return bool(self._flag.item())
