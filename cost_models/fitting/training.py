"""Training of neural cost models on data sets of placement costs; needs torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from shard_gym.cost_models.base.host_rows import NUM_MAXIMA
from shard_gym.cost_models.base.model import BACKWARD, BACKWARD_COMM, FORWARD
from shard_gym.cost_models.fitting.data.dataset import CostDataset
from shard_gym.cost_models.fitting.data.shards import ShardDataset
from shard_gym.cost_models.neural import NeuralCostModel, groups, host
from shard_gym.cost_models.neural.base import NormalizationData
from shard_gym.cost_models.neural.network import NORMALIZATION, FloatWeights, Weights
from shard_gym.hardware import Cluster
from shard_gym.plans.plan import TABLE_WISE

TensorWeights = dict[str, Tensor]
Indices = NDArray[np.int64]
LEAST_IN_HBM = 0.05  # of a measured time, what is not for rows in host memory at least, before training
REPORTED_LOSSES = 50  # last steps whose mean loss `train_network` returns


def trainable(weights: FloatWeights, device: str = "cpu") -> TensorWeights:
    """`weights` as tensors on `device` that require gradients, except the normalization."""
    return {
        name: torch.tensor(array, device=device, requires_grad=not name.endswith(NORMALIZATION))
        for name, array in sorted(weights.items())
    }


def new_optimizer(weights: TensorWeights, weight_decay: float = 0.0) -> torch.optim.AdamW:
    """AdamW for all `weights` that are trained; matrices decay, biases and shortcuts do not.

    Decay matters for tasks with more devices than in training (see `WEIGHT_DECAY` of the learners), and needs
    a high learning rate.
    """
    groups: dict[bool, list[Tensor]] = {True: [], False: []}
    for name in sorted(weights):
        if weights[name].requires_grad:
            groups[name.endswith(".weight") and ".shortcut." not in name].append(weights[name])
    return torch.optim.AdamW(
        [{"params": groups[decays], "weight_decay": weight_decay if decays else 0.0} for decays in (True, False)],
        fused=True,  # one kernel instead of a loop in Python over parameters this small
    )


def as_arrays(weights: TensorWeights) -> FloatWeights:
    """Copies of `weights` as NumPy arrays."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in weights.items()}


def assign_arrays(weights: TensorWeights, arrays: FloatWeights) -> None:
    """Assign arrays, as `as_arrays` returns them, to `weights` in place, so that an optimizer keeps them."""
    for name, tensor in weights.items():
        tensor.data.copy_(torch.from_numpy(arrays[name]))


class Latents:
    """The loads of some of M tables, by rows of the tables.

    Args:
        values: (U + 1, K) float32 of the U tables that are there, and a row of zeros.
        there: (M + 1,) bool, which tables are there; row M, which pads, is not.
    """

    def __init__(self, values: Tensor, there: Tensor) -> None:
        self._values = values
        self._position = torch.where(there, there.cumsum(0) - 1, len(values) - 1)

    def of(self, rows: Tensor) -> Tensor:
        """(R, K) float32 of the (R,) `rows`, zeros for tables that are not there."""
        return self._values.index_select(0, self._position[rows])


MOST_MEDIANS = 2.0
"""The unit of costs, at most: a few loads may take a hundred times as long as most, which the mean would hide."""


class Samples:
    """A data set of P placements, of tables or of shards, as tensors, from which batches are taken.

    Attributes:
        network: gives the inputs of the tables; those of shards are in the data set.
        device: where the tensors are.
        phases_ms: (P, D, 4) float32.
        cost_ms: (P,) float32.
        phase_unit: (4,) ms, the mean of each phase over all devices.
        cost_unit: () ms, the mean cost, or twice the median if that is less.
    """

    def __init__(self, data: CostDataset | ShardDataset, network: type[NeuralCostModel], device: str = "cpu") -> None:
        self.network = network
        self.device = device
        self.phases_ms = torch.tensor(data.phases_ms, dtype=torch.float32, device=device)
        self.cost_ms = torch.tensor(data.cost_ms, dtype=torch.float32, device=device)
        self.phase_unit = self.phases_ms.mean(dim=(0, 1)).clip(min=1e-6)
        self.cost_unit = torch.minimum(self.cost_ms.mean(), MOST_MEDIANS * self.cost_ms.median())
        behind = 0  # loads for host memory, behind the inputs of a shard
        if isinstance(data, ShardDataset):  # shards of a table that is spread are equal
            behind = data.host.shape[1]
            all_shards = np.concatenate([data.inputs, data.host], axis=1) if behind else data.inputs
            inputs, members = np.unique(all_shards, axis=0, return_inverse=True)
        elif data.has_plans:
            shards, members = data.shards(), np.empty(len(data.members), np.int64)
            has_groups = bool(groups.NEEDS & data.needs)
            inputs = np.concatenate(
                [network.all_inputs(each.tables, each.sharding_type, has_groups) for each in shards]
            )
            begins = np.cumsum([0, *(len(each.tables) for each in shards)])
            for each, begin in zip(shards, begins, strict=False):
                members[each.rows] = begin + each.which
        else:
            inputs = network.all_inputs(data.tables, TABLE_WISE, bool(groups.NEEDS & data.needs))
            members = data.members
        own = inputs.shape[1] - behind
        self._inputs, self._host = (torch.tensor(part, device=device) for part in (inputs[:, :own], inputs[:, own:]))
        self._num_devices = data.phases_ms.shape[1]
        self._start = data.start
        self._members, self._devices = (
            torch.tensor(rows, dtype=torch.int64, device=device) for rows in (members, data.devices)
        )
        self._topology = torch.tensor(data.topology, device=device)
        self._launch_ms = np.array([data.topologies[each].device.kernel_launch_us * 1e-3 for each in data.topology])
        clusters = Cluster.stack([topology.cluster(self._num_devices) for topology in data.topologies])
        self._clusters = {f.name: _as_tensor(getattr(clusters, f.name), device) for f in fields(Cluster)}

    def __len__(self) -> int:
        return len(self.cost_ms)

    @property
    def num_loads(self) -> int:
        """The loads of the network; those for host memory are behind them."""
        return self.network.num_sums + 1 + self.network.num_maxima

    def latents(self, weights: Weights, *needed: Tensor) -> Latents:
        """The loads of the tables; with `needed`, rows of tables, of those alone.

        A batch of placements needs few of the thousands of tables of a large data set.
        """
        is_needed = torch.full((len(self._inputs) + 1,), not needed, device=self.device)
        for rows in needed:
            is_needed[rows] = True
        is_needed[-1] = False
        shown = is_needed[:-1]
        values = torch.cat([self.network.table_loads(weights, self._inputs[shown]), self._host[shown]], dim=1)
        return Latents(torch.cat([values, torch.zeros_like(values[:1])]), is_needed)

    def _entries(self, which: Indices) -> tuple[Tensor, Tensor]:
        """(E,) of the entries of the placements `which`, one after the other; and of each which of them it is in."""
        begin, counts = self._start[which], np.diff(self._start)[which]
        number = np.repeat(np.arange(len(which)), counts)
        entries = np.arange(len(number)) + np.repeat(begin - np.cumsum(counts) + counts, counts)
        return torch.from_numpy(entries).to(self.device), torch.from_numpy(number).to(self.device)

    def members(self, which: Indices) -> Tensor:
        """(E,) rows of the tables of the placements `which`, one after the other."""
        return self._members[self._entries(which)[0]]

    def loads(self, latents: Latents, which: Indices) -> Tensor:
        """(B, D, K) loads of the devices of the placements `which`, from the `latents` of the tables."""
        split = self.network.num_sums + 1
        num_maxima = self.network.num_maxima + (NUM_MAXIMA if self._host.shape[1] else 0)
        width, (entries, number) = self._num_devices, self._entries(which)
        rows, chosen = number * width + self._devices[entries], latents.of(self._members[entries])
        sums, largest, behind = chosen.tensor_split((split, split + num_maxima), dim=1)
        loads = [chosen.new_zeros(len(which) * width, split).index_add(0, rows, sums)]
        if num_maxima:
            maxima = chosen.new_zeros(len(which) * width, num_maxima)
            loads.append(maxima.scatter_reduce(0, rows[:, None].expand(-1, num_maxima), largest, "amax"))
        loads.append(chosen.new_zeros(len(which) * width, behind.shape[1]).index_add(0, rows, behind))
        return torch.cat(loads, dim=1).view(len(which), width, -1)

    @cached_property
    def used_devices(self) -> Tensor:
        """(U, T) for every device that holds a table, the rows of its tables, padded with M."""
        rows = []
        for p in range(len(self)):
            of_set = slice(self._start[p], self._start[p + 1])
            members, devices = self._members[of_set], self._devices[of_set]
            rows += [members[devices == device] for device in np.unique(devices.cpu().numpy()).tolist()]
        return pad_sequence(rows, batch_first=True, padding_value=len(self._inputs))

    @cached_property
    def used_phases_ms(self) -> Tensor:
        """(U, 4) float32, measured ms of the `used_devices`."""
        used = torch.zeros(self.phases_ms.shape[:2], dtype=torch.bool, device=self.device)
        used[self._entries(np.arange(len(self)))[1], self._devices] = True
        return self.phases_ms[used]

    def device_loads(self, latents: Latents, rows: Indices) -> Tensor:
        """(B, K) loads of the devices `rows` of `used_devices`; networks without maxima."""
        tables = self.used_devices[rows]
        return latents.of(tables.flatten()).view(*tables.shape, -1).sum(dim=1)

    @cached_property
    def launches_ms(self) -> Tensor:
        """(P, D, 4) ms of the operators of further groups, see `groups.launches_ms`, of a network that learns groups.

        Groups are the tables of equal facts. Phases that take no time have none: those of the backward in serving.
        """
        workloads = self._inputs[:, : groups.FACTS.index("sequence")].cpu().numpy()
        _, group = np.unique(workloads, axis=0, return_inverse=True)
        number = np.repeat(np.arange(len(self)), np.diff(self._start))
        device, member = self._devices.cpu().numpy(), self._members.cpu().numpy()
        of_device = np.unique(np.stack([number, device, group.reshape(-1)[member]]), axis=1)
        count = np.zeros(self.phases_ms.shape[:2])
        np.add.at(count, tuple(of_device[:2]), 1.0)
        more = groups.more_launches_ms(count, self._launch_ms[:, None])
        ms = torch.tensor(more, dtype=torch.float32, device=self.device)
        return ms * (self.phases_ms > 0)

    def clusters(self, which: Indices) -> Cluster:
        """The clusters of the placements `which`, as tensors."""
        rows = self._topology[which]
        return Cluster(**{name: values[rows] for name, values in self._clusters.items()})  # type: ignore[arg-type]

    def normalization_data(self, weights: FloatWeights) -> NormalizationData:
        """Inputs and loads of a network with `weights` for all placements, as if their rows were in HBM."""
        tensors = {name: torch.tensor(array, device=self.device) for name, array in weights.items()}
        everything = np.arange(len(self))
        cluster = self.clusters(everything)
        arrays = {f.name: getattr(cluster, f.name).cpu().numpy() for f in fields(Cluster)}
        arrays["device_mask"] = arrays["device_mask"] > 0
        loads = self.loads(self.latents(tensors), everything)
        own, behind = loads[..., : self.num_loads], loads[..., self.num_loads :]
        phases = self.phases_ms
        if self.network.counts_groups(weights):
            phases = (phases - self.launches_ms).maximum(LEAST_IN_HBM * phases)
        if behind.shape[-1]:
            phases = (phases - host.host_ms(tensors, behind)).maximum(LEAST_IN_HBM * phases)
        return NormalizationData(
            inputs=self._inputs[:, len(groups.FACTS) if groups.learned_by(weights) else 0 :].cpu().numpy(),
            loads=own.cpu().numpy(),
            cluster=Cluster(**arrays),
            phases_ms=phases.cpu().numpy(),
        )

    def first_rates(self, weights: FloatWeights) -> FloatWeights:
        """`host.fitted_rates` of all devices; nothing without host memory."""
        if not self._host.shape[1]:
            return {}
        tensors = {name: torch.tensor(array, device=self.device) for name, array in weights.items()}
        loads = self.loads(self.latents(tensors), np.arange(len(self)))
        used = loads[..., self.network.num_sums] > 0
        return host.fitted_rates(loads[used][:, self.num_loads :].cpu().numpy(), self.phases_ms[used].cpu().numpy())


def with_normalization(samples: Samples, weights: FloatWeights) -> FloatWeights:
    """`weights` with the normalization of `samples`.

    There are two rounds, because the inputs of later layers depend on the normalization of the first ones.
    """
    weights = {**weights, **samples.first_rates(weights)}
    for _ in range(2):
        weights = {**weights, **samples.network.fitted_normalization(samples.normalization_data(weights))}
    return weights


def estimates(weights: Weights, samples: Samples, which: Indices) -> tuple[Tensor, Tensor]:
    """(B, D, 4) ms of the phases of the placements `which`, 0 for devices without tables; (B,) ms of the iterations."""
    network = samples.network
    loads = samples.loads(samples.latents(weights, samples.members(which)), which)
    used = loads[..., network.num_sums] > 0
    phases = loads.new_zeros(*used.shape, 4)
    busy = loads[used]
    own, behind = busy[:, : samples.num_loads], busy[:, samples.num_loads :]
    phases[used] = network.own_phases(weights, own)
    if behind.shape[1]:
        phases[used] = phases[used] + host.host_ms(weights, behind)
    if network.counts_groups(weights):
        phases = phases + samples.launches_ms[which]
    shared, cluster = loads[..., network.shared_loads], samples.clusters(which)
    # Delays are those of the measured phases, so communication is trained independently of computation.
    both = network.all_to_alls(weights, samples.phases_ms[which], shared, cluster)
    if both is not None:
        both = both * cluster.device_mask[..., None]
        phases = torch.cat([phases[..., :1], both, phases[..., 3:]], dim=-1)
    return phases, network.overall(weights, phases, shared, cluster)


Loss = Callable[[Weights, "Samples", np.random.Generator, int], Tensor]
"""The loss of weights on a random batch of that many placements."""


def relative_loss(weights: Weights, samples: Samples, rng: np.random.Generator, batch_size: int) -> Tensor:
    """Squared relative errors of phases and cost, relative to the measured time, or to the mean if that is longer.

    So neither a few very large placements nor the very small ones dominate the loss.
    """
    which = rng.integers(len(samples), size=batch_size)
    estimated_phases, estimated_cost = estimates(weights, samples, which)
    true_phases, true_cost = samples.phases_ms[which], samples.cost_ms[which]
    phases = ((estimated_phases - true_phases) / torch.maximum(samples.phase_unit, true_phases)) ** 2
    cost = ((estimated_cost - true_cost) / torch.maximum(samples.cost_unit, true_cost)) ** 2
    return 4 * phases.mean() + cost.mean()


def paper_loss(weights: Weights, samples: Samples, rng: np.random.Generator, batch_size: int) -> Tensor:
    """DreamShard's loss, in ms squared (daochenzha/dreamshard, dreamshard/training.py).

    Squared errors of the cost of `batch_size` placements, and of forward, communication and backward of as many
    devices of any placements; communication is the backward all-to-all.
    """
    which = rng.integers(len(samples), size=batch_size)
    rows = rng.integers(len(samples.used_devices), size=batch_size)
    latents = samples.latents(weights, samples.members(which), samples.used_devices[rows])
    loads = samples.loads(latents, which)
    cost = samples.network.overall(weights, loads, loads, samples.clusters(which)) - samples.cost_ms[which]
    phases = samples.network.own_phases(weights, samples.device_loads(latents, rows))
    error = (phases - samples.used_phases_ms[rows])[:, [FORWARD, BACKWARD_COMM, BACKWARD]]
    total: Tensor = (cost**2).mean() + (error**2).mean(dim=0).sum()
    return total


def train_network(
    weights: TensorWeights,
    optimizer: torch.optim.Optimizer,
    samples: Samples,
    rng: np.random.Generator,
    *,
    steps: int,
    learning_rate: float,
    final_learning_rate: float = 0.0,
    batch_size: int = 64,
    loss: Loss = relative_loss,
) -> float:
    """Train `weights` in place for `steps` steps, at least 1, on batches that `rng` chooses.

    The rate falls linearly from `learning_rate` to `final_learning_rate` after the last step. Returns the mean of the
    last `REPORTED_LOSSES` losses.
    """
    losses = []
    for step in range(steps):
        share = step / steps
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * (1 - share) + final_learning_rate * share
        batch_loss = loss(weights, samples, rng, batch_size)
        optimizer.zero_grad()
        batch_loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(batch_loss.detach())
    return float(torch.stack(losses[-REPORTED_LOSSES:]).mean())


def _as_tensor(array: NDArray[Any], device: str) -> Tensor:
    """Indices as int64, all else as float32."""
    return torch.tensor(array, dtype=torch.int64 if array.dtype == np.int64 else torch.float32, device=device)
