"""Plans that TorchRec's planner writes: all are read, costed, and written back as they came."""

from __future__ import annotations

import copy
import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchrec")

import torch
from torch import multiprocessing
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner import Topology as PlannersTopology
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.planners import to_sharding_plan
from torchrec.distributed.planner.proposers import GreedyProposer
from torchrec.distributed.planner.types import ShardingOption
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shard_gym.cost_models import AnalyticalShardingModel
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.interop.torchrec import from_torchrec, plan_from_torchrec_json, tables_of_pooling_factors, to_torchrec
from shard_gym.interop.torchrec_json import from_torchrec_json, torchrec_json
from shard_gym.plans.memory import training_memory
from shard_gym.plans.plan import PLAN_TYPES
from shard_gym.tables import Tables

PLANS, PLANNED = 24, 4
"""How many random plans are tried, and how many of them the planner makes as a whole, which takes longer."""

BATCH = 512


class NoEstimates:
    """Stands for the estimators, which take most of the enumerator's time and change no option."""

    def estimate(self, sharding_options: Any, sharder_data_map: Any = None) -> None:
        pass


def random_model(rng: np.random.Generator) -> torch.nn.Module:
    """Up to eight tables of 1 to a million rows, and up to two sequence tables; without memory for their weights."""
    of_sequences = int(4 * rng.integers(1, 40))  # one dim for all of a collection, as TorchRec wants it

    def configs(kind: Any, count: int, prefix: str) -> list[Any]:
        return [
            kind(
                name=f"{prefix}{table}",
                num_embeddings=int(10 ** rng.uniform(0, 6)),
                embedding_dim=of_sequences if prefix == "s" else int(4 * rng.integers(1, 40)),
                feature_names=[f"f_{prefix}{table}"],
            )
            for table in range(count)
        ]

    meta, found = torch.device("meta"), torch.nn.ModuleDict()
    found["bags"] = EmbeddingBagCollection(configs(EmbeddingBagConfig, int(rng.integers(1, 9)), "b"), device=meta)
    if count := int(rng.integers(3)):
        found["sequences"] = EmbeddingCollection(configs(EmbeddingConfig, count, "s"), device=meta)
    return found


def random_constraints(rng: np.random.Generator, names: tuple[str, ...]) -> dict[str, ParameterConstraints]:
    """Every table may have any type; grid_shard is enumerated only where it is asked for. Kernels are those in HBM."""
    return {
        name: ParameterConstraints(
            sharding_types=list(PLAN_TYPES),
            compute_kernels=["fused", "dense"],
            min_partition=int(rng.choice([1, 4, 8, 32, 64])),
        )
        for name in names
    }


def partitioned(rng: np.random.Generator, option: ShardingOption, ranks: int, per_host: int) -> None:
    """Give the shards ranks as the planner's partitioner may: any, those of a host, of several hosts, or all."""
    hosts, count = ranks // per_host, len(option.shards)
    if option.partition_by == "device":
        chosen = rng.integers(ranks, size=count)
    elif option.sharding_type == "table_column_wise":
        chosen = per_host * rng.integers(hosts) + rng.integers(per_host, size=count)
    elif option.partition_by == "uniform":
        chosen = np.arange(ranks)
    else:
        first = rng.permutation(hosts)[np.arange(count // per_host) % hosts]
        chosen = (per_host * first[:, None] + np.arange(per_host)).ravel()
    for shard, rank in zip(option.shards, chosen.tolist(), strict=True):
        shard.rank = rank


def written_by_torchrec(seed: int, planner: bool) -> tuple[Any, torch.nn.Module, Tables, Topology, str]:
    """A random plan of TorchRec, its model, tables and devices, 2 to 32 of them in hosts of up to 8."""
    rng = np.random.default_rng(seed)
    model = random_model(rng)
    per_host = int(rng.choice([1, 2, 4, 8]))
    ranks = per_host * int(rng.integers(1 if per_host > 1 else 2, 32 // per_host + 1))
    pooling = {f"f_{name}": float(rng.choice([0.5, 1.0, 20.0])) for name in names_of(model)}
    tables = tables_of_pooling_factors(model, pooling, BATCH)
    kind = "cuda" if rng.random() < 0.8 else "cpu"  # the enumerator has fewer types for the CPU
    sharders: list[Any] = [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]
    topology = PlannersTopology(ranks, kind, local_world_size=per_host)
    constraints = random_constraints(rng, tables.names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a dim that cannot be split stays whole
        if planner:
            few = GreedyProposer(threshold=5)  # proposals without a gain until it stops
            plan = EmbeddingShardingPlanner(topology, BATCH, proposer=few, constraints=constraints, stats=[]).plan(
                model, sharders
            )
        else:
            enumerator = EmbeddingEnumerator(topology, BATCH, constraints, estimator=NoEstimates())  # type: ignore[arg-type]
            options = enumerator.enumerate(model, sharders)
            chosen = []
            for name in dict.fromkeys(option.name for option in options):
                own = [option for option in options if option.name == name]
                of_type = rng.choice(sorted({option.sharding_type for option in own}))
                option = copy.deepcopy(next(each for each in own if each.sharding_type == of_type))
                partitioned(rng, option, ranks, per_host)
                chosen.append(option)
            plan = to_sharding_plan(chosen, topology)
    return plan, model, tables, hardware_profile("a100-dgx").topology(ranks, devices_per_host=per_host), kind


def names_of(model: torch.nn.Module) -> list[str]:
    return [name.split(".")[-2] for name, _ in model.named_parameters()]


@pytest.mark.parametrize("seed", range(PLANS))
def test_plans_of_torchrec_are_read_costed_and_written_back_as_they_came(seed: int) -> None:
    theirs, model, tables, topology, kind = written_by_torchrec(seed, planner=seed < PLANNED)
    plan = from_torchrec(theirs, tables, topology)
    assert to_torchrec(plan, tables, topology, model, kind).plan == theirs.plan
    estimate = AnalyticalShardingModel().estimate(plan, tables, topology)
    assert np.isfinite(estimate.phases_ms).all()
    assert estimate.total_ms > 0
    held = training_memory(plan, tables, topology.num_devices)
    assert held.tables.sum() >= tables.memory_bytes.sum()
    in_json = json.loads(json.dumps(theirs._serialize()))
    assert from_torchrec_json(in_json, tables, topology) == plan
    paths = {name: path for path, module in in_json["plan"].items() for name in module}
    assert torchrec_json(plan, tables, topology, paths, kind) == in_json


# Outputs

RANKS, PER_HOST = 2, 2
SMALL = {  # rows, columns and a sharding type of each table
    "rows_0": (1, 8, "row_wise"),  # a block of one row and others of none
    "rows_1": (1, 8, "table_row_wise"),
    # On a CPU, FBGEMM fails where all tables that it looks up at once are empty, so each type has one that is not.
    "rows_2": (12, 8, "row_wise"),
    "rows_3": (12, 8, "table_row_wise"),
    "columns": (30, 16, "table_column_wise"),
    "uneven": (30, 64, "column_wise"),
    "grid_0": (7, 16, "grid_shard"),
    "grid_1": (1, 24, "grid_shard"),  # three column shards, with blocks without rows
    "copies": (9, 4, "data_parallel"),
}


def small_model() -> EmbeddingBagCollection:
    torch.manual_seed(0)
    configs = [
        EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=dim, feature_names=[f"f_{name}"])
        for name, (rows, dim, _) in SMALL.items()
    ]
    return EmbeddingBagCollection(configs, device=torch.device("cpu"))


def small_plan(model: torch.nn.Module) -> dict[str, Any]:
    """A plan of TorchRec's enumerator on random ranks in JSON, for processes of the CPU; one table by hand."""
    rng, topology = np.random.default_rng(0), PlannersTopology(RANKS, "cuda", local_world_size=PER_HOST)
    constraints = {
        name: ParameterConstraints(sharding_types=[kind], compute_kernels=["fused", "dense"], min_partition=8)
        for name, (_, _, kind) in SMALL.items()
    }
    enumerator = EmbeddingEnumerator(topology, BATCH, constraints, estimator=NoEstimates())  # type: ignore[arg-type]
    options = enumerator.enumerate(model, [EmbeddingBagCollectionSharder()])  # type: ignore[list-item]
    for option in options:
        partitioned(rng, option, RANKS, PER_HOST)
    value = json.loads(re.sub("cuda:[01]", "cpu", json.dumps(to_sharding_plan(options, topology)._serialize())))
    uneven = value["plan"][""]["uneven"] | {"ranks": [RANKS - 1, 0]}
    uneven["shards"] = [
        {"shard_offsets": [0, first], "shard_sizes": [30, width], "placement": f"rank:{rank}/cpu"}
        for rank, first, width in ((RANKS - 1, 0, 48), (0, 48, 16))
    ]
    value["plan"][""]["uneven"] = uneven
    return value


def small_lookups(rank: int) -> KeyedJaggedTensor:
    rng = np.random.default_rng(rank)
    lengths = [rng.integers(0, 4, 6) for _ in SMALL]
    values = [rng.integers(0, rows, each.sum()) for (rows, _, _), each in zip(SMALL.values(), lengths, strict=True)]
    return KeyedJaggedTensor(
        keys=[f"f_{name}" for name in SMALL],
        values=torch.from_numpy(np.concatenate(values)),
        lengths=torch.from_numpy(np.concatenate(lengths)),
    )


def looked_up(rank: int, folder: str) -> None:
    """One process: outputs under the plan of TorchRec, and under what was read and written back, in a file."""
    local = {"LOCAL_RANK": str(rank % PER_HOST), "LOCAL_WORLD_SIZE": str(PER_HOST)}
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), **local)
    from torch import distributed
    from torchrec.distributed.model_parallel import DistributedModelParallel

    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    theirs = plan_from_torchrec_json(small_plan(small_model()))
    tables = tables_of_pooling_factors(small_model(), {f"f_{name}": 1.5 for name in SMALL}, BATCH)
    topology = hardware_profile("a100-dgx").topology(RANKS, devices_per_host=PER_HOST)
    back = to_torchrec(from_torchrec(theirs, tables, topology), tables, topology, small_model(), "cpu")
    assert back.plan == theirs.plan
    outputs = []
    for plan in (theirs, back):
        sharded = DistributedModelParallel(
            small_model(),
            device=torch.device("cpu"),
            plan=plan,
            sharders=[EmbeddingBagCollectionSharder()],  # type: ignore[list-item]
        )
        whole = small_model().state_dict()
        for name, weight in sharded.state_dict().items():
            for shard in weight.local_shards() if hasattr(weight, "local_shards") else ():
                (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
                shard.tensor.copy_(whole[name][row : row + rows, column : column + columns])
            if not hasattr(weight, "local_shards"):
                weight.copy_(whole[name])
        outputs.append({key: value.detach().clone() for key, value in sharded(small_lookups(rank)).to_dict().items()})
    torch.save(outputs, f"{folder}/{rank}.pt")
    distributed.barrier()
    os._exit(0)  # threads of Gloo end some processes with SIGABRT while they exit


def test_processes_look_up_the_same_under_both_plans(forks: Any, tmp_path: Path) -> None:
    """What the unsharded module looks up, with every type, blocks without rows and columns of several widths."""
    plan = small_plan(small_model())["plan"][""]
    assert all(plan[name]["sharding_type"] == kind for name, (*_, kind) in SMALL.items())
    for name in ("rows_0", "rows_1", "grid_1"):
        assert any(shard["shard_sizes"][0] == 0 for shard in plan[name]["shards"])
    multiprocessing.start_processes(looked_up, (str(tmp_path),), nprocs=RANKS, start_method="forkserver")
    for rank in range(RANKS):
        wanted = small_model()(small_lookups(rank)).to_dict()
        theirs, ours = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert theirs.keys() == wanted.keys()
        for key, value in wanted.items():
            assert torch.equal(theirs[key], ours[key])
            torch.testing.assert_close(theirs[key], value.detach(), msg=f"{key}, rank {rank}")
