"""Every table of a plan trains in TorchRec as in one process: by the lines that are printed, and as in the example."""

from __future__ import annotations

import inspect
import json
import os
import re
import runpy
import socket
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("torchrec")

import torch
from torch import distributed, multiprocessing
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shard_gym.agents import make_agent
from shard_gym.common.errors import InvalidTablesError
from shard_gym.hardware import hardware_profile
from shard_gym.interop.replicas import DENSE_OPTIMIZER, replicated_tables
from shard_gym.interop.torchrec import modules_of, tables_of_lookups, to_torchrec, torchrec_json
from shard_gym.planning.answers import without_replicas
from shard_gym.plans import ShardingPlan, column_wise, data_parallel, row_wise, table_row_wise, table_wise
from shard_gym.tables import Tables, Workload
from shard_gym.tasks import Task

REPO = Path(__file__).resolve().parents[2]
EXAMPLE = runpy.run_path(str(REPO / "examples" / "train_with_plan.py"))
PAGE = (REPO / "docs" / "tutorials" / "torchrec.md").read_text(encoding="utf-8")
ROWS = {"user": 50, "item": 40, "tag": 17, "city": 30, "page": 64, "clicks": 24}
DIMS = {"user": 16, "item": 64, "tag": 8, "city": 32, "page": 16, "clicks": 32}
BATCH, STEPS, RATE, EPS = 8, 2, 0.1, 1e-8  # the rate of the example, and FBGEMM's default of eps
DEVICES = hardware_profile("a100-dgx").topology(2)


class Case(NamedTuple):
    """A model that is trained under a plan."""

    plan: str
    tables: Any  #: the optimizer of the tables, in the backward
    by: str  #: what steps after the backward
    scale: float = 1.0  #: of the loss; eps of rowwise Adagrad matters if it is small


CASES = {
    "without the lines": Case("every type", torch.optim.SGD, "layers"),
    "SGD": Case("every type", torch.optim.SGD, "printed"),
    "rowwise Adagrad": Case("every type", RowWiseAdagrad, "printed"),
    "the example": Case("every type", RowWiseAdagrad, "example", 1e-6),
    "replicas alone": Case("replicas", RowWiseAdagrad, "example", 1e-6),
    "no replica": Case("whole", RowWiseAdagrad, "example"),
    "sequences": Case("sequences", RowWiseAdagrad, "example"),
}


def plan_of(which: str, tables: Tables) -> ShardingPlan:
    if which in ("replicas", "whole"):
        each = [
            data_parallel(tables, table, DEVICES) if which == "replicas" else table_wise(tables, table, table % 2)
            for table in range(len(tables))
        ]
        return ShardingPlan(tuple(each))
    return ShardingPlan(
        (
            table_wise(tables, 0, 1),
            column_wise(tables, 1, [1, 0], [48, 16] if which == "every type" else [32, 32]),
            data_parallel(tables, 2, DEVICES),
            column_wise(tables, 3, [1, 1]) if which == "every type" else column_wise(tables, 3, [0, 1]),
            row_wise(tables, 4, DEVICES),
            table_row_wise(tables, 5, DEVICES, 0) if which == "every type" else table_wise(tables, 5, 0),
        )
    )


class Model(torch.nn.Module):
    """A collection somewhere inside, and a dense layer over the outputs of all features, or over those of each."""

    def __init__(self, sequences: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        config, collection = (
            (EmbeddingConfig, EmbeddingCollection) if sequences else (EmbeddingBagConfig, EmbeddingBagCollection)
        )
        dims = dict.fromkeys(ROWS, 64) if sequences else DIMS  # TorchRec requires one dim of a collection of sequences
        configs: Any = [
            config(name=name, num_embeddings=rows, embedding_dim=dims[name], feature_names=[f"f_{name}"])
            for name, rows in ROWS.items()
        ]
        self.sparse = torch.nn.ModuleDict({"collection": collection(tables=configs)})
        self.sequences = sequences
        self.over = torch.nn.Linear(64 if sequences else sum(DIMS.values()), 1)

    def forward(self, lookups: KeyedJaggedTensor) -> torch.Tensor:
        found = self.sparse["collection"](lookups)
        outputs = found if self.sequences else found.to_dict()
        features = [outputs[f"f_{name}"] for name in ROWS]
        return self.over(torch.cat([each.values() for each in features]) if self.sequences else torch.cat(features, 1))


def lookups(seed: int, sequences: bool, batch: int = BATCH) -> KeyedJaggedTensor:
    """A batch; one lookup of each sample for the replica of sequences, as TorchRec 1.8 adds up all of them on a CPU."""
    rng = np.random.default_rng(seed)
    lengths = {name: rng.integers(0, 5, batch) for name in ROWS} | ({"tag": np.ones(batch, int)} if sequences else {})
    values = [rng.integers(0, rows, lengths[name].sum()) for name, rows in ROWS.items()]
    return KeyedJaggedTensor(
        keys=[f"f_{name}" for name in ROWS],
        values=torch.from_numpy(np.concatenate(values)),
        lengths=torch.from_numpy(np.concatenate(list(lengths.values()))),
    )


def made(case: Case) -> tuple[Model, Tables, ShardingPlan]:
    model = Model(case.plan == "sequences")
    tables = tables_of_lookups(model, lookups(0, model.sequences, 2 * BATCH))
    return model, tables, plan_of(case.plan, tables)


def optimizer_of(case: Case, model: Any, replicas: list[str]) -> Any:
    """What steps after the backward of a wrapped model."""
    if case.by == "layers":
        layers = torch.optim.SGD([each for name, each in model.named_parameters() if "over" in name], lr=RATE)
        return CombinedOptimizer([model.fused_optimizer, KeyedOptimizerWrapper({}, lambda _: layers)])
    if case.by == "example":
        return EXAMPLE["optimizer_of"](model, replicas)
    names = {"model": model, "torch": torch, "lr": RATE, "CombinedOptimizer": CombinedOptimizer}
    names |= {"KeyedOptimizerWrapper": KeyedOptimizerWrapper}
    names |= {"in_backward_optimizer_filter": in_backward_optimizer_filter}
    exec("\n".join(DENSE_OPTIMIZER), names)
    return names["optimizer"]


def moved_by_the_script(folder: str) -> list[str]:
    """The weights of which a part is on this device and moves, while the script of the tutorial trains.

    The plan has each sharding type of one host.
    """
    (script,) = re.findall(r"^```python\n# train\.py\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    sys.path.append(str(REPO / "examples"))
    Path(folder).mkdir()
    os.chdir(folder)
    model = EXAMPLE["make_model"]()
    tables = tables_of_lookups(model, EXAMPLE["record"](0, 4096))
    plan = ShardingPlan(
        (
            row_wise(tables, 0, DEVICES),
            column_wise(tables, 1, [0, 1]),
            table_wise(tables, 2, 0),
            table_wise(tables, 3, 1),
            data_parallel(tables, 4, DEVICES),
        )
    )
    written = torchrec_json(plan, tables, DEVICES, modules_of(model), "cpu")
    Path("plan.json").write_text(json.dumps(written), encoding="utf-8")

    def weights() -> dict[str, list[torch.Tensor]]:
        parts = {
            name: [part.tensor for part in each.local_shards()] if hasattr(each, "local_shards") else [each]
            for name, each in names["model"].state_dict().items()
        }
        return {name: [part.clone() for part in found] for name, found in parts.items()}

    names: dict[str, Any] = {}
    start, loop, steps = script.partition("for step in range(")
    exec(start, names)
    before = weights()
    exec(loop + steps, names)
    after = weights()
    return [name for name in before if not all(map(torch.equal, before[name], after[name]))]


def trained(rank: int, folder: str, port: int) -> None:
    """One process: outputs of the steps of each case and the weights after them, written to a file."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        model, tables, plan = made(case)
        apply_optimizer_in_backward(case.tables, model.sparse.parameters(), {"lr": RATE})
        whole = {key: value.clone() for key, value in model.state_dict().items()}
        there = to_torchrec(plan, tables, DEVICES, model, "cpu")
        sharded = DistributedModelParallel(model, device=torch.device("cpu"), plan=there)
        with pytest.raises(InvalidTablesError, match=r"is sharded already.*'user', 'item'"):
            modules_of(sharded)
        for key, row, column, weight in parts_of(sharded):
            weight.copy_(whole[key][row : row + weight.shape[0], column : column + weight.shape[1]])
        optimizer, outputs = optimizer_of(case, sharded, replicated_tables(plan, tables)), []
        for step in range(STEPS):
            optimizer.zero_grad()
            outputs.append(sharded(lookups(10 * step + rank, model.sequences)))
            (case.scale * outputs[-1].sum()).backward()
            optimizer.step()
        found[name] = [each.detach() for each in outputs], list(parts_of(sharded))
    distributed.destroy_process_group()
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))  # as torchrun does
    found["script"] = moved_by_the_script(f"{folder}/{rank}")
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.barrier()
    os._exit(0)  # threads of Gloo end some processes with SIGABRT while they exit


def parts_of(sharded: Any) -> list[tuple[str, int, int, torch.Tensor]]:
    """The parts of tables on this device, whose weights TorchRec draws: key, first row, first column, weights."""
    parts = []
    for key, weight in sharded.state_dict().items():
        if "sparse" in key and hasattr(weight, "local_shards"):
            parts += [(key, *shard.metadata.shard_offsets, shard.tensor.detach()) for shard in weight.local_shards()]
        elif "sparse" in key:
            parts.append((key, 0, 0, weight.detach()))
    return parts


@pytest.fixture(scope="module")
def of_two_processes(forks: Any, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What `trained` wrote, of each process."""
    folder = tmp_path_factory.mktemp("replicas")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    multiprocessing.start_processes(trained, (str(folder), port), nprocs=2, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def of_one_process(case: Case) -> tuple[list[list[torch.Tensor]], dict[str, torch.Tensor], set[str]]:
    """Outputs of each step and half of the batch, the weights after them, and the names of the replicas."""
    model, tables, plan = made(case)
    replicas = set(replicated_tables(plan, tables))
    columns = {
        name: {(shard.first_column, shard.num_columns) for shard in sharding.shards}
        for name, sharding in zip(ROWS, plan.tables, strict=True)
    }
    sums: dict[tuple[str, int], torch.Tensor | float] = {}
    outputs = []
    for step in range(STEPS):
        model.zero_grad()
        outputs.append([model(lookups(10 * step + rank, model.sequences)) for rank in range(2)])
        (case.scale * sum(each.sum() for each in outputs[-1]) / 2).backward()  # gradients are means over ranks
        for key, weight in model.named_parameters():
            name = key.split(".")[-2]
            assert weight.grad is not None
            if name == "over" or (name in replicas and case.by != "example") or case.tables is torch.optim.SGD:
                weight.data -= RATE * weight.grad * (name not in replicas or case.by != "layers")
                continue
            for first, count in columns[name]:  # a part of the columns has states of its own
                part = weight.grad[:, first : first + count]
                sums[key, first] = sums.get((key, first), 0.0) + part.square().mean(dim=1, keepdim=True)
                weight.data[:, first : first + count] -= RATE * part / (sums[key, first].sqrt() + EPS)
    return outputs, {name: each.detach() for name, each in model.named_parameters()}, replicas


@pytest.mark.parametrize("name", CASES)
def test_two_processes_train_every_table_as_one_does(of_two_processes: list[dict[str, Any]], name: str) -> None:
    """With every sharding type; without the lines that are printed, all but the replicas."""
    case = CASES[name]
    outputs, weights, replicas = of_one_process(case)
    before, moved = dict(Model(case.plan == "sequences").named_parameters()), set()
    for rank, found in enumerate(of_two_processes):
        found_outputs, parts = found[name]
        for step in range(STEPS):
            torch.testing.assert_close(found_outputs[step], outputs[step][rank].detach())
        for key, row, column, weight in parts:
            part = slice(row, row + weight.shape[0]), slice(column, column + weight.shape[1])
            torch.testing.assert_close(weight, weights[key][part], msg=f"{key} of rank {rank}")
            if not torch.equal(weight, before[key][part]):
                moved.add(key.split(".")[-2])
    assert moved == (set(ROWS) - replicas if case.by == "layers" else set(ROWS))
    assert bool(replicas) == (case.plan != "whole")


def test_the_tutorial_shows_the_lines_and_the_function_that_train_here() -> None:
    assert "".join(f"    {line}\n" for line in DENSE_OPTIMIZER) in PAGE
    assert inspect.getsource(EXAMPLE["optimizer_of"]) in PAGE


def test_the_script_of_the_tutorial_trains_every_table(of_two_processes: list[dict[str, Any]]) -> None:
    bags = "sparse_arch.embedding_bag_collection.embedding_bags"
    own = ("user", "item", "query", "hour"), ("user", "item", "brand", "hour")  # which have a part on the device
    for rank, names in enumerate(own):
        moved = of_two_processes[rank]["script"]
        assert {name for name in moved if "embedding_bags" in name} == {f"{bags}.{name}.weight" for name in names}
        assert any("over_arch" in name for name in moved)
    assert re.search(r"^torchrun .*--nproc-per-node 2 train\.py$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("name", ["torchrec", "torchrec-tuned", "torchrec-offload"])
def test_torchrecs_planner_can_leave_replicas_out(name: str) -> None:
    agent: Any = make_agent(name)
    without: Any = without_replicas(agent)
    assert "data_parallel" in agent.sharding_types
    assert without.sharding_types == tuple(each for each in agent.sharding_types if each != "data_parallel")
    few = Tables.from_zipf([4_000, 300, 200], 64, 1.0, 1.05, Workload(256))
    assert not replicated_tables(without.plan(Task("few", few, DEVICES, splittable=True)), few)
