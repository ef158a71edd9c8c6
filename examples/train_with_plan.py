"""Trains a DLRM of TorchRec under a plan of ShardGym, in two processes on CPUs; each stands for a host with a GPU.

One table is larger than a device, which has 40 MiB here, and small ones have a replica on each. It needs TorchRec
(docs/dependencies.md), but no GPU.
"""

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch import distributed, multiprocessing
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.models.dlrm import DLRM
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shard_gym import Task
from shard_gym.agents import make_agent
from shard_gym.hardware import HardwareProfile, hardware_profile
from shard_gym.interop.replicas import replicated_tables
from shard_gym.interop.torchrec import modules_of, plan_from_torchrec_json, tables_of_lookups, torchrec_json

ROWS = {"user": 200_000, "item": 30_000, "query": 4_000, "brand": 500, "hour": 24}
LOOKUPS = {"user": 1, "item": 1, "query": 8, "brand": 3, "hour": 1}  # of a sample, on average
DIM, BATCH, HOSTS, STEPS = 64, 4096, 2, 3


def make_model() -> DLRM:
    configs = [
        EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=DIM, feature_names=[name])
        for name, rows in ROWS.items()
    ]
    collection = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    model = DLRM(collection, dense_in_features=4, dense_arch_layer_sizes=[32, DIM], over_arch_layer_sizes=[32, 1])
    apply_optimizer_in_backward(RowWiseAdagrad, collection.parameters(), {"lr": 0.1})
    return model


def record(seed: int, samples: int) -> KeyedJaggedTensor:
    """A batch of lookups; small rows are read most. Take those of your data loader instead."""
    random = torch.Generator().manual_seed(seed)
    lengths = [torch.poisson(torch.full((samples,), float(mean)), random).long() for mean in LOOKUPS.values()]
    values = [
        (rows ** torch.rand(int(length.sum()), generator=random)).long() - 1
        for rows, length in zip(ROWS.values(), lengths, strict=True)
    ]
    return KeyedJaggedTensor(list(ROWS), torch.cat(values), lengths=torch.cat(lengths))


def optimizer_of(model: DistributedModelParallel, replicas: list[str]) -> CombinedOptimizer:
    """What trains all weights: the backward most tables, and a step after it the dense layers and the replicas."""
    left = dict(in_backward_optimizer_filter(model.named_parameters()))
    tables = {name: left.pop(name) for name in list(left) if name.split(".")[-2] in replicas}
    optimizers = [model.fused_optimizer, KeyedOptimizerWrapper(left, lambda each: torch.optim.SGD(each, lr=0.1))]
    if tables:  # eps as in the backward
        optimizers.append(KeyedOptimizerWrapper(tables, lambda each: RowWiseAdagrad(each, lr=0.1, eps=1e-8)))
    return CombinedOptimizer(optimizers)


def train(rank: int, folder: str, replicas: list[str]) -> None:
    """One process, which is one device."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(HOSTS), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=HOSTS)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    plan = plan_from_torchrec_json(json.loads(Path(folder, "plan.json").read_text(encoding="utf-8")))
    model = DistributedModelParallel(
        make_model(), device=torch.device("cpu"), plan=plan, sharders=[EmbeddingBagCollectionSharder()]
    )
    optimizer = optimizer_of(model, replicas)
    samples = BATCH // HOSTS
    for step in range(STEPS):
        lookups = record(1 + HOSTS * step + rank, samples)
        wanted = (lookups["brand"].lengths() > 3).float()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            model(torch.rand(samples, 4), lookups).squeeze(), wanted
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    model = make_model()
    tables = tables_of_lookups(model, [record(seed, BATCH) for seed in (100, 101)])
    a100 = hardware_profile("a100-dgx")
    small = HardwareProfile("small", replace(a100.device, memory_bytes=40 * 2**20), a100.links, devices_per_host=1)
    topology = small.topology(HOSTS, reserve=0.15)
    plan = make_agent("plan-search").plan(Task("small DLRM", tables, topology, splittable=True))
    for name, sharding in zip(tables.names, plan.tables, strict=True):
        print(f"{name}: {sharding.sharding_type} on devices {sorted({shard.device for shard in sharding.shards})}")
    with tempfile.TemporaryDirectory() as folder:
        written = torchrec_json(plan, tables, topology, modules_of(model), "cpu")
        Path(folder, "plan.json").write_text(json.dumps(written), encoding="utf-8")
        multiprocessing.spawn(train, (folder, replicated_tables(plan, tables)), nprocs=HOSTS)
