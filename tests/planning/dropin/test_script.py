"""A training script of TorchRec's runs with `ShardGymPlanner` where one import is changed, on two processes."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrec")

import torch
from torch import distributed, multiprocessing

IMPORT = "from torchrec.distributed.planner import EmbeddingShardingPlanner\n"
OURS = "from shard_gym.interop.torchrec import ShardGymPlanner as EmbeddingShardingPlanner\n"

SCRIPT = (
    """
import torch
from torch import distributed, nn
from torchrec.distributed.model_parallel import DistributedModelParallel
"""
    + IMPORT
    + """
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

BATCH, DIM = 8, 32
BAGS = {"user": 90, "item": 70, "city": 12, "hour": 24}
WEIGHTED = {"tag": 40, "word": 60}
SEQUENCES = {"clicks": 80, "views": 50}


def configs(kind, rows):
    return [
        kind(name=name, num_embeddings=count, embedding_dim=DIM, feature_names=[f"f_{name}"])
        for name, count in rows.items()
    ]


class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.bags = EmbeddingBagCollection(tables=configs(EmbeddingBagConfig, BAGS))
        self.weighted = EmbeddingBagCollection(tables=configs(EmbeddingBagConfig, WEIGHTED), is_weighted=True)
        self.sequences = EmbeddingCollection(tables=configs(EmbeddingConfig, SEQUENCES))
        self.dense = nn.Linear(4, DIM)
        self.over = nn.Linear(DIM * (1 + len(BAGS) + len(WEIGHTED) + len(SEQUENCES)), 1)

    def forward(self, dense, ids, weighted):
        bags, scored, sequences = self.bags(ids).to_dict(), self.weighted(weighted).to_dict(), self.sequences(ids)
        found = [self.dense(dense), *(bags[f"f_{name}"] for name in BAGS), *(scored[f"f_{name}"] for name in WEIGHTED)]
        found += [torch.stack([each.mean(0) for each in sequences[f"f_{name}"].to_dense()]) for name in SEQUENCES]
        return self.over(torch.cat(found, 1)).squeeze()


def drawn(rows, random, weights=False):
    lengths = torch.randint(1, 4, (len(rows) * BATCH,), generator=random)
    per = lengths.view(len(rows), BATCH).sum(1).tolist()
    values = [torch.randint(0, n, (k,), generator=random) for n, k in zip(rows.values(), per)]
    return KeyedJaggedTensor(
        keys=[f"f_{name}" for name in rows],
        values=torch.cat(values),
        lengths=lengths,
        weights=torch.rand(sum(per), generator=random) if weights else None,
    )


distributed.init_process_group("gloo")
model = DLRM()
apply_optimizer_in_backward(RowWiseAdagrad, model.bags.parameters(), {"lr": 0.05})
apply_optimizer_in_backward(torch.optim.SGD, model.weighted.parameters(), {"lr": 0.5})
apply_optimizer_in_backward(torch.optim.SGD, model.sequences.parameters(), {"lr": 0.5})
constraints = {
    "user": ParameterConstraints(sharding_types=["column_wise"], min_partition=16, pooling_factors=[2.0]),
    "item": ParameterConstraints(sharding_types=["table_wise"], pooling_factors=[2.0]),
    "city": ParameterConstraints(sharding_types=["data_parallel"]),
    "clicks": ParameterConstraints(sharding_types=["row_wise", "table_wise"]),
    "word": ParameterConstraints(sharding_types=["table_wise", "column_wise"], is_weighted=True),
}
planner = EmbeddingShardingPlanner(batch_size=BATCH, constraints=constraints)
plan = planner.collective_plan(model, get_default_sharders(), distributed.group.WORLD)
model = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan)
left = dict(in_backward_optimizer_filter(model.named_parameters()))
dense = KeyedOptimizerWrapper(left, lambda each: torch.optim.SGD(each, lr=0.5))
optimizer = CombinedOptimizer([model.fused_optimizer, dense])
outputs = []
for step in range(2):
    random = torch.Generator().manual_seed(10 * step + distributed.get_rank())
    ids, weighted = drawn(BAGS | SEQUENCES, random), drawn(WEIGHTED, random, True)
    found = model(torch.rand(BATCH, 4, generator=random), ids, weighted)
    outputs.append(found.detach().clone())
    loss = nn.functional.binary_cross_entropy_with_logits(found, torch.rand(BATCH, generator=random))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
)


def parts_of(model: Any) -> dict[str, torch.Tensor]:
    """The parts of all weights on this process, by the name of the weight and the place of the part."""
    found: dict[str, torch.Tensor] = {}
    for name, weight in model.state_dict().items():
        if hasattr(weight, "local_shards"):
            for shard in weight.local_shards():
                found[f"{name} {shard.metadata.shard_offsets}"] = shard.tensor.detach()
        else:
            found[name] = weight.detach()
    return found


def given_weights(model: Any) -> None:
    """Weights that say their cell, so they are the same under each plan; TorchRec draws new ones."""
    for name, weight in model.state_dict().items():
        shards = weight.local_shards() if hasattr(weight, "local_shards") else []
        for shard in shards:
            (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            shard.tensor.copy_(cells(name, row + rows, column + columns)[row:, column:])
        if not hasattr(weight, "local_shards"):
            weight.copy_(cells(name, *(weight.shape if weight.ndim == 2 else (1, *weight.shape))).reshape(weight.shape))


def cells(name: str, rows: int, columns: int) -> torch.Tensor:
    start = sum(map(ord, name))
    return 0.3 * torch.sin(start + 7.0 * torch.arange(rows)[:, None] + 3.0 * torch.arange(columns))


def run(script: str) -> dict[str, Any]:
    """The script, which begins to train from `given_weights`."""
    names: dict[str, Any] = {"__name__": "script"}
    start, loop, steps = script.partition("outputs = []\n")
    exec(start, names)
    given_weights(names["model"])
    before = {name: part.clone() for name, part in parts_of(names["model"]).items()}
    exec(loop + steps, names)
    still = [name for name, part in parts_of(names["model"]).items() if torch.equal(part, before[name])]
    distributed.destroy_process_group()
    entries = {name: entry for module in names["plan"].plan.values() for name, entry in module.items()}
    types = {name: entry.sharding_type for name, entry in entries.items()}
    widths = [shard.shard_sizes[1] for shard in entries["user"].sharding_spec.shards]
    planner = names["planner"]
    return {"outputs": names["outputs"], "still": still, "types": types, "widths": widths, "planner": type(planner)}


def trained(rank: int, folder: str, ports: tuple[int, int]) -> None:
    """One process: the script with TorchRec's planner, and with ShardGym's, to a file."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
    os.environ["MASTER_ADDR"] = "localhost"
    torch.set_num_threads(1)
    found = []
    for port, script in zip(ports, (SCRIPT, SCRIPT.replace(IMPORT, OURS)), strict=True):
        os.environ["MASTER_PORT"] = str(port)
        found.append(run(script))
        found[-1]["planner"] = found[-1]["planner"].__name__
    torch.save(found, f"{folder}/{rank}.pt")
    os._exit(0)  # threads of Gloo end some processes with SIGABRT while they exit


def free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind(("localhost", 0))
        return first.getsockname()[1], second.getsockname()[1]


def test_one_import_changes_and_the_script_computes_the_same(forks: Any, tmp_path: Path) -> None:
    multiprocessing.start_processes(trained, (str(tmp_path), free_ports()), nprocs=2, start_method="forkserver")
    for rank in range(2):
        theirs, ours = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
        assert (theirs["planner"], ours["planner"]) == ("EmbeddingShardingPlanner", "ShardGymPlanner")
        torch.testing.assert_close(ours["outputs"][0], theirs["outputs"][0])
        # Column shards have states of rowwise Adagrad of their own, so what follows a step is not quite the same.
        torch.testing.assert_close(ours["outputs"][1], theirs["outputs"][1], atol=0.05, rtol=0.05)
        assert not [name for name in ours["still"] if not re.fullmatch(r".*running.*", name)]
        types = ours["types"]
        assert (types["user"], types["item"], types["city"]) == ("column_wise", "table_wise", "data_parallel")
        assert types["clicks"] in ("row_wise", "table_wise")
        assert types["word"] in ("table_wise", "column_wise")
        assert min(ours["widths"]) >= 16
