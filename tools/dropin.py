"""Tries `ShardGymPlanner` on random models with random constraints, or on a large model.

    python -m tools.dropin --models 300
    python -m tools.dropin --tables 1000

Every plan is checked: the sharding types, kernels, narrowest columns and ranks that were asked for, the memory that
TorchRec counts, and TorchRec's validators, which the planner calls. TorchRec's own planner gets the same models, and
both plans are costed by ShardGym's cost model.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import tyro
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.distributed.planner.types import PlannerError
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim import SGD, Adam, RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from shard_gym.common.io.markdown import table
from shard_gym.common.text import format_seconds
from shard_gym.interop.torchrec import ShardGymPlanner
from shard_gym.planning.dropin.options import outside_devices

SHARDERS: tuple[Any, ...] = (EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder())
BATCH = 2048
OPTIMIZERS = (SGD, RowWiseAdagrad, Adam)
OF_BAGS = ("table_wise", "column_wise", "row_wise", "table_row_wise", "data_parallel")
OF_SEQUENCES = ("table_wise", "column_wise", "row_wise", "data_parallel")


@dataclass
class Drawn:
    """A model, what is asked of its plan, and the devices."""

    model: nn.Module
    constraints: dict[str, ParameterConstraints]
    ranks: dict[str, list[int]]
    topology: Topology


@dataclass
class Tried:
    """What came out."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)  #: of the CPU, for both planners
    ratios: list[float] = field(default_factory=list)  #: TorchRec's cost over that of ShardGym's own plan
    broken: int = 0  #: constraints
    said: list[str] = field(default_factory=list)  #: of the last model, where something is to be said

    def cells(self, name: str) -> str:
        """What a row of the table has of these models."""
        if name == BROKEN:
            return f"{self.broken:,}"
        if name == SECONDS:
            return f"{np.median(self.seconds):.2f}, {format_seconds(max(self.seconds))}" if self.seconds else ""
        if name == RATIO:
            return f"{math.exp(float(np.mean(np.log(self.ratios)))):.2f}" if self.ratios else ""
        return f"{self.counts[name]:,}"


MODELS, HOST = "models", "rows in host memory"
BROKEN, SECONDS = "constraints that a plan breaks", "CPU seconds of both planners, median and most"
RATIO = "TorchRec's cost over that of ShardGym's own plan, geometric mean"

UP_TO = (8, 16, 32, 64)
"""Ranks of the models in each column of the table."""


def drawn(seed: int, pins: bool) -> Drawn:
    """Up to 42 tables, pooled, weighted and of sequences, with several dtypes and optimizers, on 2 to 64 ranks.

    A third of the tables have no constraint but their pooling factors; others may have one to four sharding types, a
    narrowest column shard, and some ranks (`pins`). Tables fill 5 to 75% of the memory.
    """
    rng = np.random.default_rng(seed)
    meta, model = torch.device("meta"), nn.ModuleDict()
    constraints: dict[str, ParameterConstraints] = {}
    pinned: dict[str, list[int]] = {}
    per_host = int(rng.choice([1, 2, 4, 8]))
    world = per_host * int(rng.integers(2 if per_host == 1 else 1, 64 // per_host + 1))
    kinds = ["bags", *(name for name in ("weighted", "sequences") if rng.random() < 0.4)]
    for kind in kinds:
        configs: list[Any] = []
        shared_dim = int(4 * rng.integers(1, 48))
        for number in range(int(rng.integers(1, 15))):
            name, features = f"{kind}_{number}", int(rng.integers(1, 3))
            config = {
                "name": name,
                "num_embeddings": int(10 ** rng.uniform(1, 6.5)),
                "embedding_dim": shared_dim if kind == "sequences" else int(4 * rng.integers(1, 64)),
                "feature_names": [f"{name}_{feature}" for feature in range(features)],
                "data_type": DataType.FP16 if kind == "bags" and rng.random() < 0.3 else DataType.FP32,
            }
            configs.append(EmbeddingConfig(**config) if kind == "sequences" else EmbeddingBagConfig(**config))
            constraints[name] = _constraint(rng, kind, features)
            types = constraints[name].sharding_types
            if pins and rng.random() < 0.15 and (types is None or {"table_wise", "column_wise"} & set(types)):
                pinned[name] = sorted(rng.choice(world, int(rng.integers(1, world + 1)), replace=False).tolist())
        model[kind] = (
            EmbeddingCollection(tables=configs, device=meta)
            if kind == "sequences"
            else EmbeddingBagCollection(tables=configs, device=meta, is_weighted=kind == "weighted")
        )
        optimizer: Any = rng.choice(OPTIMIZERS)  # type: ignore[arg-type]
        apply_optimizer_in_backward(optimizer, model[kind].parameters(), {"lr": 0.1})
    needed = sum(3 * each.numel() * each.element_size() for each in model.parameters())
    share = float(rng.uniform(0.05, 0.75))
    cap = max(int(needed / share / world), 2**30)
    topology = Topology(world, "cuda", hbm_cap=cap, local_world_size=per_host)
    return Drawn(model, constraints, pinned, topology)


def _constraint(rng: np.random.Generator, kind: str, features: int) -> ParameterConstraints:
    pooling = [float(rng.choice([0.5, 1.0, 3.0, 20.0])) for _ in range(features)]
    if rng.random() < 1 / 3:
        return ParameterConstraints(pooling_factors=pooling)
    known = OF_SEQUENCES if kind == "sequences" else OF_BAGS
    types = rng.choice(known, int(rng.integers(1, 5)), replace=False).tolist() if rng.random() < 0.7 else None
    return ParameterConstraints(
        sharding_types=types,
        pooling_factors=pooling,
        compute_kernels=["fused", "dense"] if rng.random() < 0.5 else None,
        min_partition=int(rng.choice([4, 16, 32, 64])) if rng.random() < 0.5 else None,
        is_weighted=kind == "weighted",
    )


def broken(case: Drawn, planner: ShardGymPlanner) -> list[str]:
    """What the plan does otherwise than it was asked."""
    found, used = [], np.zeros(case.topology.world_size)
    for option in planner._best_plan or []:
        constraint, name = case.constraints[option.name], option.name
        if constraint.sharding_types and option.sharding_type not in constraint.sharding_types:
            found.append(f"{name} is {option.sharding_type}, not {constraint.sharding_types}")
        if constraint.compute_kernels and option.compute_kernel not in constraint.compute_kernels:
            found.append(f"{name} has the kernel {option.compute_kernel}")
        widths = [shard.size[1] for shard in option.shards]
        if option.sharding_type == "column_wise" and len(widths) > 1 and min(widths) < (constraint.min_partition or 0):
            found.append(f"{name} has {min(widths)} columns, not {constraint.min_partition}")
        ranks = {shard.rank for shard in option.shards}
        if not ranks <= set(case.ranks.get(name, range(case.topology.world_size))):
            found.append(f"{name} is on {sorted(ranks)}, not {case.ranks[name]}")
        for shard in option.shards:
            used[shard.rank] += shard.storage.hbm
    reserved = planner._storage_reservation.last_reserved_topology
    caps = np.array([device.storage.hbm for device in reserved.devices])
    if (used > caps).any():
        found.append(f"rank {int((used - caps).argmax())} holds more than it has")
    return found


def off_ranks(case: Drawn, options: Sequence[Any]) -> bool:
    """Whether a table is on another rank than it may be."""
    return any({shard.rank for shard in each.shards} - set(case.ranks.get(each.name, range(10**6))) for each in options)


def tried(seed: int, case: Drawn, result: Tried, limit_s: float, max_queries: int) -> None:
    """One model: planned, checked, and compared with TorchRec's plan."""
    planner = ShardGymPlanner(
        topology=case.topology,
        batch_size=BATCH,
        constraints=case.constraints,
        ranks=case.ranks,
        hardware="a100-dgx",
        compare=limit_s,
        max_queries=max_queries,
        debug=False,
        stats=[],
    )
    begin = time.process_time()
    try:
        planner.plan(case.model, list(SHARDERS))
    except PlannerError as error:
        result.counts[f"no plan: {error.error_type.value}"] += 1
        result.said.append(f"model {seed}: {str(error).splitlines()[0]}")
        return
    result.seconds.append(time.process_time() - begin)
    searched = planner.searched
    wrong = broken(case, planner)
    result.broken += len(wrong)
    result.said += [f"model {seed}: {text}" for text in wrong]
    if searched.instead:
        where = HOST if searched.away else "all rows in HBM"
        result.counts[f"TorchRec's plan with {where}, as ShardGym found none"] += 1
        result.said.append(f"model {seed}: {planner.report.splitlines()[-1]}")
        return
    result.counts["planned"] += 1
    if outside_devices(planner._best_plan or []):
        result.counts[f"planned, with {HOST}"] += 1
    if searched.theirs is None:
        result.counts["TorchRec found none, or not in time"] += 1
        return
    assert planner.costed is not None
    ratio = searched.theirs.estimate.total_ms / (searched.own_ms or planner.costed.estimate.total_ms)
    result.ratios.append(ratio)
    if searched.taken:
        result.counts["TorchRec's plan is cheaper, and taken"] += 1
        result.said.append(f"model {seed}: TorchRec's plan is cheaper, {ratio:.3f} times ShardGym's, and taken")
    elif searched.away:
        result.counts[f"TorchRec's plan has {HOST}"] += 1
    elif ratio < 1:
        why = "not on the ranks that are asked for" if off_ranks(case, searched.theirs.options) else "does not fit"
        result.counts[f"TorchRec's plan is cheaper, and {why}"] += 1
        result.said.append(f"model {seed}: {planner.report}")


def large(tables: int, ranks: int) -> str:
    """What a model of so many tables without constraints, on ranks in hosts of eight, takes."""
    rng = np.random.default_rng(0)
    configs = [
        EmbeddingBagConfig(
            name=f"table_{number}",
            num_embeddings=int(10 ** rng.uniform(2, 6.5)),
            embedding_dim=int(rng.choice([16, 32, 64, 128])),
            feature_names=[f"feature_{number}"],
        )
        for number in range(tables)
    ]
    constraints = {each.name: ParameterConstraints(pooling_factors=[float(rng.uniform(1, 40))]) for each in configs}
    topology = Topology(ranks, "cuda", hbm_cap=40 * 2**30, local_world_size=min(8, ranks))
    planner = ShardGymPlanner(
        topology=topology, batch_size=BATCH, constraints=constraints, hardware="a100-dgx", debug=False, stats=[]
    )
    begin = time.process_time(), time.perf_counter()
    planner.plan(EmbeddingBagCollection(tables=configs, device=torch.device("meta")), list(SHARDERS))
    used, passed = time.process_time() - begin[0], time.perf_counter() - begin[1]
    found = "\n".join(planner.report.splitlines()[:2])
    return f"{tables:,} tables on {ranks} ranks: {used:.1f} s of a CPU, {passed:.1f} s.\n{found}"


def main(
    models: int = 300,
    first: int = 0,
    limit_s: float = 20.0,
    max_queries: int = 50_000,
    tables: int = 0,
    ranks: int = 64,
) -> None:
    """Print what came out.

    Args:
        models: how many.
        first: seed of the first.
        limit_s: seconds for TorchRec's planner for each.
        max_queries: of each search.
        tables: of one large model, which is planned instead; 0 for none.
        ranks: of this one.
    """
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if tables:
        print(large(tables, ranks))
        return
    every, of_size = Tried(), {most: Tried() for most in UP_TO}
    for seed in range(first, first + models):
        case = drawn(seed, pins=seed % 2 == 0)
        result = of_size[next(most for most in UP_TO if case.topology.world_size <= most)]
        result.counts[MODELS] += 1
        tried(seed, case, result, limit_s, max_queries)
        for text in result.said:
            print(text, flush=True)
        result.said.clear()
    for result in of_size.values():
        every.counts += result.counts
        every.broken += result.broken
        every.seconds += result.seconds
        every.ratios += result.ratios
    columns = [every, *of_size.values()]
    names = [*sorted(every.counts, key=lambda name: (name != MODELS, name)), BROKEN, SECONDS, RATIO]
    ranks_of = [f"{least + 1} to {most} ranks" for least, most in zip((1, *UP_TO), UP_TO, strict=False)]
    print(table(("", "all", *ranks_of), [(name, *(each.cells(name) for each in columns)) for name in names]))


if __name__ == "__main__":
    tyro.cli(main)
