"""One device's part of TorchRec's training step under a sharding plan, on CPUs: `DistributedModelParallel` over Gloo.

Weights, learning rate and loss are those of `cost_models.measured`: the loss is 0.5 times the sum of the squared
outputs, so the gradient of an output is the output itself. Needs torch and TorchRec.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torchrec.distributed.comm_ops import set_gradient_division
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shard_gym.cost_models.measured.job import Part, Repeats
from shard_gym.cost_models.measured.operator import EPS, FIRST_WEIGHT
from shard_gym.cost_models.measured.shard_streams import streams_of
from shard_gym.cost_models.measured.streams import HistogramStream, draw_batches
from shard_gym.cost_models.measured.worker import LEARNING_RATE
from shard_gym.hardware import Topology
from shard_gym.interop.torchrec import to_torchrec
from shard_gym.plans import ShardingPlan
from shard_gym.plans.plan import DATA_PARALLEL
from shard_gym.tables import Tables

OPTIMIZERS: dict[str, tuple[Any, dict[str, float]]] = {
    "rowwise_adagrad": (RowWiseAdagrad, {"lr": LEARNING_RATE, "eps": EPS}),
    "sgd": (torch.optim.SGD, {"lr": LEARNING_RATE}),
}
"""Those that FBGEMM executes on a CPU; fused in the backward of sharded tables, dense for replicas."""

Lookups = tuple[Tensor, Tensor]  # int64: indices; and lengths of the bags, feature by feature
Shard = tuple[int, int, int, Tensor]  # its table, first row, first column, and (rows, columns) weights


def join_group(device: int, num_devices: int, devices_per_host: int, folder: str) -> None:
    """Make this process a device of a group, which meets through a file in `folder`, on one thread.

    TorchRec divides gradients of sharded tables by the number of devices, so that they are those of a mean over all
    samples. That is switched off here, as `cost_models.measured` does not do it. Gradients of replicas are divided.
    """
    hosts = min(devices_per_host, num_devices)
    os.environ.update(RANK=str(device), WORLD_SIZE=str(num_devices))
    os.environ.update(LOCAL_RANK=str(device % hosts), LOCAL_WORLD_SIZE=str(hosts))
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    logging.disable(logging.WARNING)  # TorchRec logs which groups it makes
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=device, world_size=num_devices)
    set_gradient_division(False)


class TorchRecStep:
    """The tables of a plan as TorchRec shards them, and a training step; every device of the group makes one.

    Args:
        plan: a checked plan.
        tables: with an optimizer of `OPTIMIZERS`.
        topology: the devices of the group.
    """

    def __init__(self, plan: ShardingPlan, tables: Tables, topology: Topology) -> None:
        names = tuple(f"table_{table}" for table in range(len(tables)))  # modules are named so, without any "."
        self.features = [
            [f"{name}_{number}" for number in range(count)]
            for name, count in zip(names, tables.num_features.tolist(), strict=True)
        ]
        configs = [
            EmbeddingBagConfig(
                name=name,
                num_embeddings=int(tables.num_embeddings[table]),
                embedding_dim=int(tables.embedding_dim[table]),
                feature_names=self.features[table],
                data_type=DataType(tables.workload.weight_dtype.upper()),
                init_fn=partial(nn.init.constant_, val=FIRST_WEIGHT),
            )
            for table, name in enumerate(names)
        ]
        model = _Model(EmbeddingBagCollection(tables=configs, device=torch.device("meta")))
        optimizer, options = OPTIMIZERS[tables.workload.optimizer]
        apply_optimizer_in_backward(optimizer, model.parameters(), dict(options))  # it changes them
        named = replace(tables, names=names)
        self._sharded = DistributedModelParallel(
            model,
            device=torch.device("cpu"),
            plan=to_torchrec(plan, named, topology, model, "cpu"),
            sharders=[EmbeddingBagCollectionSharder()],
        )
        replicated = {
            name for name, sharding in zip(names, plan.tables, strict=True) if sharding.sharding_type == DATA_PARALLEL
        }
        dense = [each for name, each in self._sharded.named_parameters() if name.split(".")[-2] in replicated]
        self._dense = optimizer(dense, **options) if dense else None

    def shards(self) -> Iterator[Shard]:
        """The shards on this device; changing their weights changes them."""
        for name, weight in self._sharded.state_dict().items():
            table = int(name.split(".")[-2].removeprefix("table_"))
            if not hasattr(weight, "local_shards"):
                yield table, 0, 0, weight.detach()
                continue
            for shard in weight.local_shards():
                row, column = shard.metadata.shard_offsets
                yield table, row, column, shard.tensor.detach()

    def run(self, lookups: Lookups) -> Any:
        """Forward, backward with the fused optimizer, and the dense update of replicas; a `KeyedTensor` of outputs."""
        keys = [feature for features in self.features for feature in features]
        indices, lengths = lookups
        outputs = self._sharded(KeyedJaggedTensor(keys, indices, lengths=lengths))
        pooled = outputs.values()
        pooled.backward(pooled.detach())
        if self._dense is not None:
            self._dense.step()
            self._dense.zero_grad()
        return outputs


class _Model(nn.Module):
    """A model that has tables and nothing else."""

    def __init__(self, tables: nn.Module) -> None:
        super().__init__()
        self.tables = tables

    def forward(self, lookups: KeyedJaggedTensor) -> Any:
        """(samples, width) pooled outputs, a `KeyedTensor`."""
        return self.tables(lookups)


def own_batches(tables: Tables, device: int, num_devices: int, repeats: Repeats) -> list[Lookups]:
    """The lookups of a device's samples in each batch: those that `measured.worker` executes, before they are sent."""
    each, more = divmod(tables.workload.batch_size, num_devices)  # the first devices have one more
    samples = device * each + min(device, more), each + (device < more)
    streams = streams_of(replace(Part.whole(tables), samples=samples), HistogramStream, repeats.seed)
    drawn = draw_batches(streams, repeats.batches, tables.workload.batch_size)
    return [(torch.from_numpy(indices), torch.from_numpy(np.diff(offsets))) for indices, offsets in drawn]


def step_ms(plan: ShardingPlan, tables: Tables, topology: Topology, repeats: Repeats, device: int) -> list[float]:
    """The ms of each timed step on this device; the devices wait for each other before each step."""
    step, batches = TorchRecStep(plan, tables, topology), own_batches(tables, device, topology.num_devices, repeats)
    found = []
    for number in range(repeats.warmup + repeats.iterations):
        dist.barrier()
        begin = time.perf_counter()
        step.run(batches[number % repeats.batches])
        found.append(1000.0 * (time.perf_counter() - begin))
    return found[repeats.warmup :]


def run_step(
    plan: ShardingPlan,
    tables: Tables,
    topology: Topology,
    repeats: Repeats,
    device: int,
    weights: Sequence[NDArray[Any]],
) -> tuple[list[NDArray[Any]], list[tuple[int, int, int, NDArray[Any]]]]:
    """Execute one step from the weights of each whole table.

    Returns (samples, features, dim) outputs of this device's samples for each table, and this device's shards after it.
    """
    step = TorchRecStep(plan, tables, topology)
    for table, row, column, weight in step.shards():
        rows, columns = weight.shape
        weight.copy_(torch.tensor(weights[table][row : row + rows, column : column + columns]))
    pooled = step.run(own_batches(tables, device, topology.num_devices, repeats)[0]).to_dict()
    outputs = [torch.stack([pooled[name].detach() for name in names], dim=1).numpy() for names in step.features]
    return outputs, [(table, row, column, weight.numpy().copy()) for table, row, column, weight in step.shards()]
