"""Plans that TorchRec's planner writes: all are read, costed, and written back as they came."""

from __future__ import annotations

import copy
import json
import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchrec")

import torch
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

from shard_gym.cost_models import AnalyticalShardingModel
from shard_gym.hardware import hardware_profile
from shard_gym.interop.torchrec import from_torchrec, tables_of_pooling_factors, to_torchrec
from shard_gym.interop.torchrec_json import from_torchrec_json, torchrec_json
from shard_gym.sharding.plan import PLAN_TYPES
from shard_gym.tables import Tables
from shard_gym.topology import Topology
from shard_gym.training_memory import training_memory

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
    estimate = AnalyticalShardingModel().estimate_plan(plan, tables, topology)
    assert np.isfinite(estimate.phases_ms).all()
    assert estimate.total_ms > 0
    held = training_memory(plan, tables, topology.num_devices)
    assert held.tables.sum() >= tables.memory_bytes.sum()
    in_json = json.loads(json.dumps(theirs._serialize()))
    assert from_torchrec_json(in_json, tables, topology) == plan
    paths = {name: path for path, module in in_json["plan"].items() for name in module}
    assert torchrec_json(plan, tables, topology, paths, kind) == in_json
