"""The embedding part of a training iteration on one device, phase by phase; needs torch and fbgemm_gpu."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from shard_gym.cost_models.measured.job import Job, shares
from shard_gym.cost_models.measured.operator import FusedTables
from shard_gym.cost_models.measured.streams import LookupSource, fused_batch

Timed = Callable[[Callable[[], None]], float]
"""Does some work once all devices are ready for it; the ms it took here."""

Batch = tuple[Tensor, Tensor]


class Exchange:
    """The all-to-alls of one device: pooled outputs to the devices whose samples they belong to, and gradients back.

    Args:
        group: of the D devices.
        rank: which of them this one is.
        widths: (D,) columns of the pooled outputs of each.
        batch_size: samples of all devices; each owns a share, see `shares`.
        device: where the numbers lie.
    """

    def __init__(
        self, group: dist.ProcessGroup, rank: int, widths: Sequence[int], batch_size: int, device: torch.device
    ) -> None:
        samples = shares(batch_size, len(widths))
        self._group = group
        self._sent = [count * widths[rank] for count in samples]
        self._received = [samples[rank] * width for width in widths]
        self.arrived = torch.empty(sum(self._received), device=device)
        self.returned = torch.empty(sum(self._sent), device=device)

    def forward(self, outputs: Tensor) -> None:
        """Send each device the rows of its samples; those of one's own samples are `arrived`, device after device."""
        dist.all_to_all_single(self.arrived, outputs.detach().view(-1), self._received, self._sent, group=self._group)

    def backward(self) -> None:
        """Send the gradients of what arrived to where it came from; those of one's own outputs are `returned`."""
        dist.all_to_all_single(self.returned, self.arrived, self._sent, self._received, group=self._group)


class Iteration:
    """Forward, all-to-all, all-to-all back, backward with the fused optimizer.

    What is learnt is 0.5 times the sum of the squared outputs, so the gradient of an output is the output itself.

    Args:
        fused: the tables of this device; None if there are none, and the operator is passed by.
        exchange: None where nothing is exchanged; the gradients then stay where they are.

    Attributes:
        outputs: (B, width) float32, pooled outputs of the last forward.
    """

    def __init__(self, fused: FusedTables | None, exchange: Exchange | None) -> None:
        self._fused = fused
        self._exchange = exchange
        self.outputs = torch.empty(0)
        self._gradients = torch.empty(0)

    def run(self, batch: Batch | None, timed: Timed) -> list[float]:
        """Ms of each of the four phases, 0 for those that are passed by; `batch` is None without tables."""
        return [timed(phase) for phase in (lambda: self._forward(batch), self._send, self._send_back, self._backward)]

    def _forward(self, batch: Batch | None) -> None:
        if self._fused is not None and batch is not None:
            self.outputs = self._fused.forward(batch)

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
        if self._fused is not None:
            self.outputs.backward(self._gradients)  # type: ignore[no-untyped-call]


def batches_of(job: Job, fused: FusedTables | None, source: LookupSource) -> list[Batch | None]:
    """The batches of lookups of `job`, on the device; `source` has them."""
    if job.tables is None or fused is None:
        return [None] * job.repeats.batches
    streams = [source.stream(job.tables, table, job.repeats.seed) for table in range(len(job.tables))]
    return [fused.batch(*fused_batch(streams, number, job.batch_size)) for number in range(job.repeats.batches)]
