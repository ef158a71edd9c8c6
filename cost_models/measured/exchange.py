"""The collectives of the outputs of a part, and of their gradients; each kind of part has its own.

The loss is 0.5 times the sum of the squared outputs, so the gradient of an output is the output itself.
Needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from shard_gym.cost_models.measured.job import Widths
from shard_gym.plans.plan import COLUMN_WISE, ROW_WISE, TABLE_ROW_WISE


class Team(NamedTuple):
    """The devices that exchange."""

    rank: int  # of this device
    devices: dist.ProcessGroup
    host: dist.ProcessGroup | None = None  # those of this device's host; None if all are on one
    peers: dist.ProcessGroup | None = None  # those of its number on all hosts


class Exchange(Protocol):
    """Sends pooled outputs to the devices that own the samples, and gradients back. The first devices own one more."""

    def outputs(self, sent: Tensor) -> Tensor:
        """Send (samples, width) outputs; what arrives, in any shape. The next call overwrites it."""
        ...

    def gradients(self, sent: Tensor) -> Tensor:
        """Send the gradients of what arrived; (samples, width) those of the outputs. The next call overwrites them."""
        ...


class AllToAll(Exchange):
    """Whole outputs to the owners of the samples."""

    def __init__(
        self, group: dist.ProcessGroup, rank: int, widths: Sequence[int], batch_size: int, device: torch.device
    ) -> None:
        count = len(widths)
        samples = [batch_size // count + (k < batch_size % count) for k in range(count)]
        self._group, self._shape = group, (batch_size, widths[rank])
        self._sent = [samples_of * widths[rank] for samples_of in samples]
        self._received = [samples[rank] * width for width in widths]
        self._arrived = torch.empty(sum(self._received), device=device)
        self._returned = torch.empty(sum(self._sent), device=device)

    @override
    def outputs(self, sent: Tensor) -> Tensor:
        dist.all_to_all_single(self._arrived, sent.reshape(-1), self._received, self._sent, group=self._group)
        return self._arrived

    @override
    def gradients(self, sent: Tensor) -> Tensor:
        dist.all_to_all_single(self._returned, sent, self._sent, self._received, group=self._group)
        return self._returned.view(self._shape)


class ReduceScatter(Exchange):
    """Partial sums, added up on the owners of the samples; the gradients come back as an all-gather."""

    def __init__(self, group: dist.ProcessGroup, width: int, batch_size: int, device: torch.device) -> None:
        self._group = group
        self._arrived = torch.empty((batch_size // group.size(), width), device=device)
        self._returned = torch.empty((batch_size, width), device=device)

    @override
    def outputs(self, sent: Tensor) -> Tensor:
        dist.reduce_scatter_tensor(self._arrived, sent, group=self._group)
        return self._arrived

    @override
    def gradients(self, sent: Tensor) -> Tensor:
        dist.all_gather_into_tensor(self._returned, sent, group=self._group)
        return self._returned


class HostReduceScatter(Exchange):
    """Partial sums, added up inside the host, and an all-to-all of the sums across the hosts.

    The samples come in the order of `parts.samples_by_number`, so a device has after the first step those of its number
    on all hosts (pytorch/torchrec, distributed/sharding/twrw_sharding.py). A host without such tables only receives.
    """

    def __init__(self, team: Team, widths: Sequence[int], batch_size: int, device: torch.device) -> None:
        assert team.host is not None
        assert team.peers is not None
        size = team.host.size()
        host = team.rank // size
        self._inside = ReduceScatter(team.host, widths[host], batch_size, device) if widths[host] else None
        self._across = AllToAll(team.peers, host, widths, batch_size // size, device)

    @override
    def outputs(self, sent: Tensor) -> Tensor:
        return self._across.outputs(sent if self._inside is None else self._inside.outputs(sent))

    @override
    def gradients(self, sent: Tensor) -> Tensor:
        returned = self._across.gradients(sent)
        return returned if self._inside is None else self._inside.gradients(returned)


def exchanges_of(team: Team, widths: Widths, batch_size: int, device: torch.device) -> dict[str, Exchange]:
    """The exchange of each kind of part that some device has, by kind, in the order of execution."""
    found: dict[str, Exchange] = {}
    if any(widths.outputs):
        found[COLUMN_WISE] = AllToAll(team.devices, team.rank, widths.outputs, batch_size, device)
    if widths.partial:
        found[ROW_WISE] = ReduceScatter(team.devices, widths.partial, batch_size, device)
    if widths.host_partial:
        found[TABLE_ROW_WISE] = HostReduceScatter(team, widths.host_partial, batch_size, device)
    return found
