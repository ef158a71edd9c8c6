"""TorchRec: its tables and inputs become tables, plans go there and back, and two processes train with one."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchrec")

import torch
from torch import multiprocessing
from torch.distributed.optim import _apply_optimizer_in_backward
from torchrec import optim as fused
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shard_gym.agents import make_agent
from shard_gym.cli import main
from shard_gym.common.errors import InvalidPlanError, InvalidTablesError, MemoryExceededError
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.interop.torchrec import (
    from_torchrec,
    modules_of,
    plan_from_torchrec_json,
    tables_of_lookups,
    tables_of_pooling_factors,
    to_torchrec,
)
from shard_gym.interop.torchrec_json import torchrec_json
from shard_gym.plans import (
    ShardingPlan,
    column_wise,
    data_parallel,
    plan_of_placement,
    row_wise,
    table_row_wise,
    table_wise,
)
from shard_gym.tables import Pool, Tables
from shard_gym.tables.pools import PoolCard, save_pool
from shard_gym.tasks import Task

ROWS = {"user": 50, "item": 40, "tag": 17, "city": 30, "page": 64, "clicks": 24}
DIMS = {"user": 16, "item": 64, "tag": 8, "city": 32, "page": 16, "clicks": 32}
BATCH = 8


def collection(device: str = "cpu", **changes: Any) -> EmbeddingBagCollection:
    torch.manual_seed(0)
    configs = [
        EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=DIMS[name], feature_names=[f"f_{name}"])
        for name, rows in ROWS.items()
    ]
    for name, value in changes.items():
        setattr(configs[0], name, value)
    return EmbeddingBagCollection(device=torch.device(device), tables=configs)


class Model(torch.nn.Module):
    """A model with a collection somewhere inside."""

    def __init__(self) -> None:
        super().__init__()
        self.sparse = torch.nn.ModuleDict({"bags": collection()})

    def forward(self, lookups: KeyedJaggedTensor) -> Any:
        return self.sparse["bags"](lookups)


def lookups(seed: int = 0, batch: int = BATCH) -> KeyedJaggedTensor:
    rng = np.random.default_rng(seed)
    lengths = [rng.integers(0, 5, batch) for _ in ROWS]
    values = [rng.integers(0, rows, each.sum()) for rows, each in zip(ROWS.values(), lengths, strict=True)]
    return KeyedJaggedTensor(
        keys=[f"f_{name}" for name in ROWS],
        values=torch.from_numpy(np.concatenate(values)),
        lengths=torch.from_numpy(np.concatenate(lengths)),
    )


def trained_by(optimizer: Any, parameters: Any) -> None:
    _apply_optimizer_in_backward(optimizer, parameters, {"lr": 0.1})


def devices(count: int = 2, **options: Any) -> Topology:
    return hardware_profile("a100-dgx").topology(count, **options)


def mixed_plan(tables: Tables, topology: Topology) -> ShardingPlan:
    """Every sharding type, columns in equal and unequal parts, and two parts on one device."""
    return ShardingPlan(
        (
            table_wise(tables, 0, 1),
            column_wise(tables, 1, [1, 0], [48, 16]),
            data_parallel(tables, 2, topology),
            column_wise(tables, 3, [1, 1]),
            row_wise(tables, 4, topology),
            table_row_wise(tables, 5, topology, 0),
        )
    )


# Tables


def test_tables_have_the_statistics_of_recorded_lookups() -> None:
    tables = tables_of_lookups(Model(), lookups())
    assert tables.names == tuple(ROWS)
    assert tables.num_embeddings.tolist() == list(ROWS.values())
    assert tables.embedding_dim.tolist() == list(DIMS.values())
    recorded = lookups().to_dict()
    for table, name in enumerate(ROWS):
        rows = recorded[f"f_{name}"].values().tolist()
        assert tables.pooling_factor[table] == len(rows) / BATCH
        assert tables.distinct_rows[table] == len(set(rows))
        once = sum(rows.count(row) == 1 for row in set(rows))
        assert tables.reuse_histogram[table, 0] == pytest.approx(once / len(set(rows)))
        assert tables.access_histogram[table, 0] == pytest.approx(once / len(rows))
    assert (tables.workload.batch_size, tables.workload.weight_dtype) == (BATCH, "fp32")


def test_tables_follow_zipf_where_nothing_is_recorded() -> None:
    model = collection(feature_names=["a", "b"], data_type=DataType.FP32)
    pooling = {f"f_{name}": 2.0 for name in ROWS} | {"a": 1.0, "b": 3.0}
    tables = tables_of_pooling_factors(model, pooling, batch_size=1024)
    assert tables.pooling_factor.tolist() == [4.0] + 5 * [2.0]
    assert tables.num_features.tolist() == [2, 1, 1, 1, 1, 1]
    expected = Tables.from_zipf(list(ROWS.values()), list(DIMS.values()), tables.pooling_factor, 1.05, tables.workload)
    np.testing.assert_allclose(tables.distinct_rows, expected.distinct_rows)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"feature_names": ["other"]}, "The lookups have no feature 'other', which table 'user' reads"),
        ({"num_embeddings": 5}, "Table 'user' has 5 rows, but row 4. is read"),
        ({"data_type": DataType.INT4}, "Table 'user' has weights in INT4, .* known are bf16, fp16, fp32, fp8, int8"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTablesError, match=message):
        tables_of_lookups(collection("meta", **changes), lookups())


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [
        (torch.optim.Adam, "adam"),
        (fused.Adam, "adam"),
        (torch.optim.SGD, "sgd"),
        (fused.RowWiseAdagrad, "rowwise_adagrad"),
    ],
)
def test_tables_have_the_optimizer_of_the_backward(optimizer: Any, name: str) -> None:
    model = Model()
    trained_by(optimizer, model.parameters())
    assert tables_of_lookups(model, lookups()).workload.optimizer == name
    assert tables_of_lookups(model, lookups(), name).workload.optimizer == name
    other = "sgd" if name == "adam" else "adam"
    with pytest.raises(InvalidTablesError, match=f"given as {other}, but the model trains table 'user' with {name}"):
        tables_of_lookups(model, lookups(), other)
    assert tables_of_lookups(Model(), lookups()).workload.optimizer == "rowwise_adagrad"
    assert tables_of_lookups(Model(), lookups(), other).workload.optimizer == other


def test_models_in_bf16_have_tables_in_bf16() -> None:
    half = EmbeddingBagConfig(
        name="t", num_embeddings=10, embedding_dim=8, feature_names=["f"], data_type=DataType.BF16
    )
    model = EmbeddingBagCollection(device=torch.device("meta"), tables=[half])
    assert tables_of_pooling_factors(model, {"f": 1.0}, 4, optimizer="adam").memory_bytes.tolist() == [
        10 * 8 * (2 + 4 + 4)
    ]


@pytest.mark.parametrize(
    ("optimizers", "message"),
    [
        ({"user": [torch.optim.Adam]}, "that of 'user' is adam, that of 'item' is none in its backward"),
        ({"item": [torch.optim.Adam]}, "that of 'user' is none in its backward, that of 'item' is adam"),
        (
            {"user": [torch.optim.RMSprop]},
            "'user' has the optimizer RMSprop, .* known are adagrad, adam, lamb, partial",
        ),
        ({"user": [fused.SGD, fused.Adam]}, "'user' has several optimizers in its backward, SGD, Adam"),
    ],
)
def test_tables_that_are_not_trained_beside_others_and_unknown_optimizers_are_refused_by_name(
    optimizers: dict[str, list[Any]], message: str
) -> None:
    model = Model()
    bags = model.sparse["bags"].embedding_bags
    for name, classes in optimizers.items():
        for each in classes:
            trained_by(each, bags[name].parameters())
    with pytest.raises(InvalidTablesError, match=message):
        tables_of_lookups(model, lookups())


def test_tables_of_several_optimizers_and_dtypes_are_groups() -> None:
    """In the order of their first tables; each optimizer that FBGEMM trains has its name."""
    classes = {
        **{"sgd": fused.SGD, "rowwise_adagrad": fused.RowWiseAdagrad, "adagrad": torch.optim.Adagrad},
        **{"adam": fused.Adam, "lamb": fused.LAMB, "partial_rowwise_adam": fused.PartialRowWiseAdam},
    }
    model = Model()
    for (name, bag), each in zip(model.sparse["bags"].embedding_bags.items(), classes.values(), strict=False):
        assert name in ROWS
        trained_by(each, bag.parameters())
    tables = tables_of_lookups(model, lookups())
    assert [tables.workloads[group].optimizer for group in tables.group] == list(classes)[: len(ROWS)]
    with pytest.raises(InvalidTablesError, match="given as adam, but the model trains table 'user' with sgd"):
        tables_of_lookups(model, lookups(), optimizer="adam")
    plan = mixed_plan(tables, devices())
    there = to_torchrec(plan, tables, devices(), model)
    assert from_torchrec(there, tables, devices()) == plan

    wide = EmbeddingBagConfig(
        embedding_dim=8, name="wide", num_embeddings=10, feature_names=["f"], data_type=DataType.FP32
    )
    half = EmbeddingBagConfig(
        embedding_dim=8, name="narrow", num_embeddings=10, feature_names=["g"], data_type=DataType.FP16
    )
    both = EmbeddingBagCollection(device=torch.device("meta"), tables=[wide, half])
    mixed = tables_of_pooling_factors(both, {"f": 1.0, "g": 2.0}, 4, optimizer="sgd")
    assert mixed.memory_bytes.tolist() == [10 * 8 * 4, 10 * 8 * 2]
    assert [each.weight_dtype for each in mixed.workloads] == ["fp32", "fp16"]
    assert len(tables_of_pooling_factors(both, {"f": 1.0, "g": 2.0}, 4).workloads) == 2


def test_bags_with_weights_are_a_group() -> None:
    def bags(name: str, weighted: bool) -> EmbeddingBagCollection:
        config = EmbeddingBagConfig(embedding_dim=8, name=name, num_embeddings=10, feature_names=[f"f_{name}"])
        return EmbeddingBagCollection(device=torch.device("meta"), tables=[config], is_weighted=weighted)

    model = torch.nn.ModuleDict({"a": bags("plain", False), "b": bags("scored", True)})
    tables = tables_of_pooling_factors(model, {"f_plain": 1.0, "f_scored": 2.0}, 4)
    assert [each.weighted for each in tables.workloads] == [False, True]
    plan = ShardingPlan((table_wise(tables, 0, 0), table_wise(tables, 1, 1)))
    there = to_torchrec(plan, tables, devices(), model)
    assert from_torchrec(there, tables, devices()) == plan
    assert list(there.plan) == ["a", "b"]


def test_models_without_tables_and_with_two_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidTablesError, match="no EmbeddingBagCollection and no EmbeddingCollection in the Linear"):
        modules_of(torch.nn.Linear(1, 1))
    with pytest.raises(InvalidTablesError, match="Two tables are named 'user', in '0' and '1'"):
        modules_of(torch.nn.Sequential(collection(), collection()))
    with pytest.raises(InvalidTablesError, match="pooling_factors has no feature 'f_user'"):
        tables_of_pooling_factors(collection(), {}, 16)


# Plans


def test_a_plan_comes_back_as_it_went() -> None:
    model, topology = Model(), devices()
    tables = tables_of_lookups(model, lookups())
    plan = mixed_plan(tables, topology)
    there = to_torchrec(plan, tables, topology, model)
    assert list(there.plan) == ["sparse.bags"]
    assert from_torchrec(there, tables, topology) == plan
    written = json.loads(json.dumps(torchrec_json(plan, tables, topology, "sparse.bags")))
    assert written == there._serialize()  # as TorchRec writes it
    assert from_torchrec(plan_from_torchrec_json(written), tables, topology) == plan


def test_ranks_are_on_the_devices_of_their_hosts() -> None:
    tables, topology = tables_of_lookups(Model(), lookups()), devices(6, devices_per_host=3)
    plan = ShardingPlan((table_row_wise(tables, 0, topology, 1), *(table_wise(tables, t, t) for t in range(1, 6))))
    module = torchrec_json(plan, tables, topology, "ebc")["plan"]["ebc"]
    assert [shard["placement"] for shard in module["user"]["shards"]] == [
        "rank:3/cuda:0",
        "rank:4/cuda:1",
        "rank:5/cuda:2",
    ]
    assert module["user"]["ranks"] == [3, 4, 5]


def test_plans_that_do_not_fit_are_refused() -> None:
    model, topology = Model(), devices()
    tables = tables_of_lookups(model, lookups())
    plan = mixed_plan(tables, topology)
    there = to_torchrec(plan, tables, topology, model)
    with pytest.raises(MemoryExceededError):
        from_torchrec(there, tables, devices(memory_cap_bytes=2000))
    with pytest.raises(InvalidPlanError, match="Table 'user' is not in the model"):
        torchrec_json(plan, tables, topology, {"other": "path"})
    there.plan["sparse.bags"]["user"].sharding_type = "row_column"
    with pytest.raises(InvalidPlanError, match="'row_column', which ShardGym does not know"):
        from_torchrec(there, tables, topology)
    del there.plan["sparse.bags"]["user"]
    with pytest.raises(InvalidPlanError, match="The plan has no table 'user'"):
        from_torchrec(there, tables, topology)


# Training


def copy_weights(model: torch.nn.Module, sharded: torch.nn.Module) -> None:
    """Give every shard its part of the weights of `model`; TorchRec draws new ones."""
    whole = model.state_dict()
    for name, weight in sharded.state_dict().items():
        shards = weight.local_shards() if hasattr(weight, "local_shards") else None
        for shard in shards or ():
            (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            shard.tensor.copy_(whole[name][row : row + rows, column : column + columns])
        if shards is None:
            weight.copy_(whole[name])


def cpus() -> Topology:
    """Two processes of a CPU, the device type of whose plans is "cpu" without a word."""
    return hardware_profile("cpu").topology(2)


def trained_under(plan: Any, rank: int) -> list[dict[str, torch.Tensor]]:
    """Outputs of two steps of the model sharded by a plan of TorchRec, each of which changes the weights."""
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

    model = Model()
    apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.5})
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=plan, sharders=[EmbeddingBagCollectionSharder()]
    )
    with pytest.raises(InvalidTablesError, match=r"is sharded already.*'user', 'item'"):
        modules_of(sharded)
    copy_weights(Model(), sharded)
    outputs, entries = [], plan.plan["sparse.bags"]
    replicas = [f".{name}." for name, entry in entries.items() if entry.sharding_type == "data_parallel"]
    for step in range(2):
        found = sharded(lookups(10 * step + rank)).to_dict()
        outputs.append({key: value.detach().clone() for key, value in found.items()})
        sum(value.sum() for value in found.values()).backward()
        for name, parameter in sharded.named_parameters():  # replicas have an optimizer of their own
            if parameter.grad is not None and any(each in name for each in replicas):
                with torch.no_grad():
                    parameter -= 0.5 * parameter.grad
    return outputs


def trained(rank: int, folder: str) -> None:
    """One process: outputs under a plan with all sharding types, and under that of the command line, to a file."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
    from torch import distributed

    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.set_num_threads(1)
    tables = tables_of_lookups(Model(), lookups(batch=2 * BATCH))
    placed = json.loads(Path(folder, "plan.json").read_text())
    plans = [to_torchrec(mixed_plan(tables, cpus()), tables, cpus(), Model()), plan_from_torchrec_json(placed)]
    torch.save([trained_under(plan, rank) for plan in plans], f"{folder}/{rank}.pt")
    distributed.barrier()
    os._exit(0)  # threads of Gloo end some processes with SIGABRT while they exit


def place_on_cpus(folder: Path) -> list[str]:
    """Let `shard-gym place` write a plan for two processes of a CPU; returns the placements of its shards."""
    tables = replace(tables_of_lookups(Model(), lookups(batch=2 * BATCH)), popularity=None)
    save_pool(Pool("model", tables, PoolCard("model", source="made up", how_made="here")), folder / "tables.json")
    options = {
        **{"tables": folder / "tables.json", "hardware": "cpu", "num-devices": 2, "agent": "plan-search"},
        **{"format": "torchrec", "module": "sparse.bags", "out": folder / "plan.json"},
    }
    assert main(["place", *(str(part) for name, value in options.items() for part in (f"--{name}", value))]) == 0
    entries = json.loads((folder / "plan.json").read_text())["plan"]["sparse.bags"].values()
    return [shard["placement"] for entry in entries for shard in entry.get("shards", [])]


def test_two_processes_train_as_one_with_every_sharding_type_and_as_placed(forks: Any, tmp_path: Path) -> None:
    assert set(place_on_cpus(tmp_path)) <= {"rank:0/cpu", "rank:1/cpu"}
    multiprocessing.start_processes(trained, (str(tmp_path),), nprocs=2, start_method="forkserver")
    of_ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for plan, found in enumerate(zip(*of_ranks, strict=True)):
        model = Model()
        for step in range(2):
            outputs = [model(lookups(10 * step + rank)).to_dict() for rank in range(2)]
            for rank in range(2):
                for key, value in outputs[rank].items():
                    said = f"plan {plan}, {key}, step {step}"
                    torch.testing.assert_close(found[rank][step][key], value.detach(), msg=said)
            loss = sum(value.sum() for each in outputs for value in each.values()) / 2  # gradients are means over ranks
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.5 * parameter.grad
                    parameter.grad = None


def json_of(entry: dict[str, Any]) -> dict[str, Any]:
    return {"plan": {"m": {"user": {"sharding_type": "table_wise", "compute_kernel": "fused", "ranks": [0], **entry}}}}


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        {"plan": {"a": 1}},
        json_of({}),
        json_of({"shards": [{"shard_offsets": [0, 0], "shard_sizes": [50, 16], "placement": None}]}),
        json_of({"shards": [{"shard_offsets": [0], "shard_sizes": [50], "placement": "rank:0/cpu"}]}),
        json_of({"ranks": "x"}),
    ],
)
def test_hostile_json_is_refused_with_a_sentence(wrong: Any) -> None:
    table = "Table 'user' of a plan in JSON" if wrong and "m" in wrong["plan"] else None
    with pytest.raises(InvalidPlanError, match=table):
        plan_from_torchrec_json(wrong)


def test_what_does_not_name_one_plan_is_refused(four_tables: Tables) -> None:
    twice, topology = replace(four_tables, names=("a", "a", "b", "c")), devices(4)
    plan: Any = plan_of_placement([0, 1, 2, 3], twice)
    wrong: Any
    for wrong, says in (
        ("m", "Two tables are named 'a'"),
        (None, "modules is a path"),
        ({"a": 1}, "modules is a path"),
    ):
        with pytest.raises(InvalidPlanError, match=says):
            torchrec_json(plan, twice, topology, wrong)
    with pytest.raises(InvalidPlanError, match="takes a ShardingPlan of TorchRec"):
        from_torchrec(plan, twice, topology)
    one = plan_from_torchrec_json(json_of({"sharding_type": "data_parallel", "compute_kernel": "dense"}))
    with pytest.raises(InvalidPlanError, match=r"data_parallel on ranks \[0\]"):
        from_torchrec(one, replace(four_tables.select([0]), names=("user",)), topology)


def test_the_planner_is_not_offered_rows_that_a_plan_cannot_have(four_tables: Tables) -> None:
    """Four devices in hosts of three, and a table of five rows on four devices: 2 + 2 + 1 + 0."""
    few = replace(four_tables, num_embeddings=np.array([5, 50, 60, 70]), distinct_rows=np.ones(4))
    for per_host in (3, 8):
        topology = hardware_profile("a100-dgx").topology(4, devices_per_host=per_host)
        plan = make_agent("torchrec").plan(Task("few", few, topology, splittable=True))
        assert plan.tables[0].sharding_type not in ("row_wise", "table_row_wise")
