"""TorchRec trains sequence tables with a plan: two processes give what one does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("torchrec")

import numpy as np
import torch
from torch import distributed, multiprocessing
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shard_gym.hardware import hardware_profile
from shard_gym.interop.torchrec import tables_of_lookups, to_torchrec
from shard_gym.sharding import ShardingPlan, column_wise, row_wise, table_wise

ROWS = {"a": 40, "b": 30, "c": 20}
BATCH = 6


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        configs = [
            EmbeddingConfig(name=name, num_embeddings=rows, embedding_dim=16, feature_names=[f"f_{name}"])
            for name, rows in ROWS.items()
        ]
        self.collection = EmbeddingCollection(tables=configs)

    def forward(self, lookups: KeyedJaggedTensor) -> dict[str, torch.Tensor]:
        return {key: each.values() for key, each in self.collection(lookups).items()}


def lookups(seed: int) -> KeyedJaggedTensor:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 5, (len(ROWS), BATCH))
    values = [rng.integers(0, rows, count) for rows, count in zip(ROWS.values(), lengths.sum(axis=1), strict=True)]
    return KeyedJaggedTensor(
        [f"f_{name}" for name in ROWS], torch.tensor(np.concatenate(values)), lengths=torch.tensor(lengths.ravel())
    )


def outputs(rank: int, folder: str) -> None:
    """One process: what the sharded model returns, written to a file; and a step of training."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel

    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.set_num_threads(1)
    model, topology = Model(), hardware_profile("a100-dgx").topology(2)
    tables = tables_of_lookups(model, lookups(0))
    plan = ShardingPlan(
        (table_wise(tables, 0, 1), column_wise(tables, 1, [0, 1], [8, 8]), row_wise(tables, 2, topology))
    )
    sharded = DistributedModelParallel(
        model,
        device=torch.device("cpu"),
        plan=to_torchrec(plan, tables, topology, model, "cpu"),
        sharders=[EmbeddingCollectionSharder()],
    )
    whole = Model().state_dict()
    for name, weight in sharded.state_dict().items():
        for shard in weight.local_shards():
            (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            shard.tensor.copy_(whole[name][row : row + rows, column : column + columns])
    found = sharded(lookups(rank))
    sum(value.sum() for value in found.values()).backward()
    torch.save({key: value.detach() for key, value in found.items()}, f"{folder}/{rank}.pt")
    distributed.barrier()
    os._exit(0)  # threads of Gloo end some processes with SIGABRT while they exit


def test_two_processes_return_the_rows_of_every_lookup(tmp_path: Path) -> None:
    """Table-wise, column-wise and row-wise. TorchRec 1.8 returns sums of data-parallel tables on a CPU, and fails."""
    multiprocessing.spawn(outputs, (str(tmp_path),), nprocs=2)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for key, wanted in Model()(lookups(rank)).items():
            torch.testing.assert_close(found[key], wanted.detach(), msg=f"{key} of rank {rank}")
