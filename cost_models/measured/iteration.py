"""The embedding part of a training iteration on one device: its operators, and the collectives of its parts.

Needs torch and fbgemm_gpu.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from shard_gym.cost_models.measured.clock import Peers, Phase
from shard_gym.cost_models.measured.exchange import Team, exchanges_of
from shard_gym.cost_models.measured.job import Widths
from shard_gym.cost_models.measured.operator import Batch, Operator, ReplicatedTables
from shard_gym.cost_models.measured.parts import KINDS

COLUMNS = (0, 1, 2, 3, 2, 3)
"""Which of the four phases of a cost each executed phase belongs to: the all-reduce is part of the exchange of the
gradients, and the dense update part of the backward."""


class Iteration:
    """Forward, exchange of the outputs, exchange of the gradients, backward with the fused optimizer; of replicas also
    the all-reduce of their gradients and the dense update.

    Args:
        operators: those of this device, one for each kind of part that it has, and group of tables; they are executed
            one after the other, and the outputs of a kind are joined, as TorchRec does.
        device: where the tensors are.
        team: the devices that exchange; None if nothing is exchanged, and gradients stay.
        widths: what they exchange.
        batch_size: samples of all devices.
        replicas: of replicated tables, by whose number their gradients are divided.
    """

    def __init__(
        self,
        operators: Sequence[Operator],
        device: torch.device,
        team: Team | None,
        widths: Widths,
        batch_size: int,
        replicas: int,
    ) -> None:
        self.operators = operators
        self._team, self._replicas, self._nothing = team, replicas, torch.empty(0, device=device)
        self._exchanges = {} if team is None else exchanges_of(team, widths, batch_size, device)
        self._outputs: dict[str, Tensor] = {}
        self._arrived: dict[str, Tensor] = {}
        self._gradients: dict[str, Tensor] = {}

    @property
    def outputs(self) -> list[Tensor]:
        """Outputs on this device after the exchange, flat, by kind of part in the order of `parts.KINDS`."""
        found = {kind: output.detach() for kind, output in self._outputs.items()} | self._arrived
        return [found[kind].flatten() for kind in KINDS if kind in found]

    def phases(self, batches: Sequence[Batch]) -> tuple[Phase | None, ...]:
        """What executes the phases on the batch of each operator; None for a phase without work; see `COLUMNS`."""
        works, exchanges = bool(self.operators), bool(self._exchanges)
        first = (
            partial(self._forward, batches) if works else None,
            self._send_outputs if exchanges else None,
            self._send_gradients if exchanges else None,
            self._backward if works else None,
        )
        if not self._replicated:
            return first
        return (*first, None if self._team is None else self._reduce_gradients, self._update)

    def run(self, batches: Sequence[Batch]) -> None:
        """Execute the phases on the batch of each operator."""
        for phase in self.phases(batches):
            if phase is not None:
                phase()

    @property
    def _replicated(self) -> list[ReplicatedTables]:
        return [each for each in self.operators if isinstance(each, ReplicatedTables)]

    def _forward(self, batches: Sequence[Batch]) -> None:
        each = zip(self.operators, batches, strict=True)
        for kind, own in groupby(each, lambda pair: pair[0].part.kind):
            found = [operator.forward(batch) for operator, batch in own]
            self._outputs[kind] = found[0] if len(found) == 1 else torch.cat(found, dim=1)

    def _send_outputs(self) -> None:
        for kind, exchange in self._exchanges.items():
            self._arrived[kind] = exchange.outputs(self._outputs.get(kind, self._nothing).detach())

    def _send_gradients(self) -> None:
        for kind, exchange in self._exchanges.items():
            self._gradients[kind] = exchange.gradients(self._arrived[kind])

    def _backward(self) -> None:
        for kind, outputs in self._outputs.items():
            gradients = self._gradients.get(kind, outputs.detach())  # outputs that stayed here have no others
            outputs.backward(gradients)  # type: ignore[no-untyped-call]

    def _reduce_gradients(self) -> None:
        assert self._team is not None
        for each in self._replicated:
            dist.all_reduce(each.gradient, group=self._team.devices)

    def _update(self) -> None:
        for each in self._replicated:
            each.update(self._replicas)


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
