"""TorchRec's own planner, told the bandwidths, the memory and the pooling factors of a task."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.checks import checked_count
from shard_gym.errors import InvalidPlanError, MemoryExceededError, NoPlacementFoundError, missing_torchrec
from shard_gym.interop.torchrec import from_torchrec
from shard_gym.placement import Placement
from shard_gym.sharding import SHARDING_TYPES, ShardingPlan
from shard_gym.sharding.plan import (
    COLUMN_WISE,
    ROW_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
    devices_of_hosts,
    has_equal_blocks,
)
from shard_gym.sharding.variants import checked_sharding_types
from shard_gym.tables import Tables
from shard_gym.tasks import Task
from shard_gym.topology import Topology

BUFFERS = (1.0, 2.0, 4.0, 8.0, 0.5, 0.0)
"""TorchRec counts buffers of inputs and outputs as memory, memory caps of tasks do not. So it is told a larger cap,
by these multiples of an even share of the pooled outputs and indices, until a plan fits."""


class TorchRecAgent(Agent):
    """The planner of TorchRec with its default proposers and partitioner. It asks no cost model of ShardGym.

    Args:
        sharding_types: those it may use.
        min_partition: the least columns of a shard; TorchRec's default of 128 splits few tables.

    Raises:
        InvalidOptionError, UnknownNameError: an option is not valid.
        MissingExtraError: TorchRec is not installed.
    """

    name = "torchrec"

    def __init__(self, sharding_types: Collection[str] = SHARDING_TYPES, min_partition: int = 16) -> None:
        self.sharding_types = checked_sharding_types(sharding_types)
        self.min_partition = checked_count("min_partition", min_partition, least=4)
        _imported()

    def place(self, task: Task) -> Placement:
        """The planner with table_wise alone."""
        placement = self._plan(task, (TABLE_WISE,)).placement
        assert placement is not None
        return placement

    @override
    def plan(self, task: Task) -> ShardingPlan:
        return self._plan(task, self.sharding_types)

    def _plan(self, task: Task, sharding_types: tuple[str, ...]) -> ShardingPlan:
        tables, topology = task.tables, task.topology
        buffers = _buffer_bytes(tables) / topology.num_devices
        names = [f"table_{table}" for table in range(len(tables))]  # its names must differ
        failure = ""
        for multiple in BUFFERS:
            try:
                found = _planned(tables, topology, names, sharding_types, self.min_partition, multiple * buffers)
                return from_torchrec(found, replace(tables, names=tuple(names)), topology)
            except (InvalidPlanError, MemoryExceededError, _PlannerError) as error:
                failure = str(error)
        raise NoPlacementFoundError(f"TorchRec's planner found no plan of task {task.name!r} that fits: {failure}")


class _PlannerError(Exception):
    """What TorchRec's planner says if it finds no plan."""


def _buffer_bytes(tables: Tables) -> float:
    """Bytes of the pooled outputs and indices of a batch, on all devices together."""
    outputs = 4.0 * tables.embedding_dim * tables.num_features * tables.workload.batch_size
    return float((outputs + 8.0 * tables.lookups_per_batch).sum())


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings of TorchRec: a plan is all that is asked of it."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@_quiet()
def _planned(
    tables: Tables,
    topology: Topology,
    names: list[str],
    sharding_types: tuple[str, ...],
    min_partition: int,
    extra_bytes: float,
) -> Any:
    rec = _imported()
    device, links, count = topology.device, topology.links, topology.num_devices
    types = [name for name in sharding_types if name != COLUMN_WISE or tables.embedding_dim.max() >= 2 * min_partition]
    of_host = devices_of_hosts(topology)
    legal = {
        ROW_WISE: has_equal_blocks(tables.num_embeddings, count),
        TABLE_ROW_WISE: has_equal_blocks(tables.num_embeddings, max(of_host, 1)) & (of_host > 0),
    }
    module = rec.EmbeddingBagCollection(
        device=rec.meta,
        tables=[
            rec.EmbeddingBagConfig(
                name=name,
                num_embeddings=int(tables.num_embeddings[table]),
                embedding_dim=int(tables.embedding_dim[table]),
                feature_names=[f"{name}_{feature}" for feature in range(int(tables.num_features[table]))],
                data_type=rec.DataType.FP16 if tables.workload.weight_dtype == "fp16" else rec.DataType.FP32,
            )
            for table, name in enumerate(names)
        ],
    )
    constraints = {
        name: rec.ParameterConstraints(
            sharding_types=[kind for kind in types if kind not in legal or legal[kind][table]],
            compute_kernels=["fused", "dense"],
            min_partition=min(min_partition, int(tables.embedding_dim[table])),
            pooling_factors=[float(tables.pooling_factor[table] / tables.num_features[table])]
            * int(tables.num_features[table]),
        )
        for table, name in enumerate(names)
    }
    optimizer = (
        rec.EmbOptimType.EXACT_ROWWISE_ADAGRAD if tables.workload.optimizer_bytes_per_row else rec.EmbOptimType.SGD
    )
    planner = rec.EmbeddingShardingPlanner(
        topology=rec.Topology(
            world_size=count,
            local_world_size=min(topology.devices_per_host, count),
            compute_device="cuda",
            hbm_cap=int(topology.memory_cap_bytes.min() + extra_bytes),
            hbm_mem_bw=device.dram_gb_per_s * 1e6,
            intra_host_bw=links.intra_host_gb_per_s * 1e6,
            inter_host_bw=links.inter_host_gb_per_s * 1e6,
        ),
        batch_size=max(1, tables.workload.batch_size // count),
        constraints=constraints,
        storage_reservation=rec.FixedPercentageStorageReservation(0.0),
        debug=False,
        stats=[],
    )
    sharder = rec.EmbeddingBagCollectionSharder(fused_params={"optimizer": optimizer})
    try:
        return planner.plan(module=module, sharders=[sharder])
    except rec.PlannerError as error:
        raise _PlannerError(str(error).split("\n", 1)[0]) from error


def _imported() -> Any:
    """The names of TorchRec that the planner needs; raises MissingExtraError if it is not installed."""
    try:
        import torch
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
        from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
        from torchrec.distributed.planner.types import PlannerError
        from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
        from torchrec.modules.embedding_modules import EmbeddingBagCollection
    except ImportError as error:
        raise missing_torchrec("The agent 'torchrec'") from error
    return SimpleNamespace(
        meta=torch.device("meta"),
        EmbOptimType=EmbOptimType,
        DataType=DataType,
        EmbeddingBagCollectionSharder=EmbeddingBagCollectionSharder,
        EmbeddingShardingPlanner=EmbeddingShardingPlanner,
        ParameterConstraints=ParameterConstraints,
        Topology=Topology,
        PlannerError=PlannerError,
        FixedPercentageStorageReservation=FixedPercentageStorageReservation,
        EmbeddingBagConfig=EmbeddingBagConfig,
        EmbeddingBagCollection=EmbeddingBagCollection,
    )
