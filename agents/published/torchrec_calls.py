"""The calls of TorchRec's planner, for `torchrec_planner.py`; importing this module imports TorchRec."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner import Topology as TorchRecTopology
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner, SortBy
from torchrec.distributed.planner.proposers import EmbeddingOffloadScaleupProposer
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import CustomTopologyData, PlannerError
from torchrec.distributed.types import CacheParams, CacheStatistics
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim import LAMB, SGD, Adagrad, Adam, PartialRowWiseAdam, RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from shard_gym.common.arrays import FloatArray
from shard_gym.hardware import Topology
from shard_gym.plans import SHARDING_TYPES
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.plan import (
    COLUMN_WISE,
    ROW_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
    devices_of_hosts,
    has_equal_blocks,
)
from shard_gym.tables import STATE_BYTES, Tables, Workload
from shard_gym.tables.tables import ANYWHERE, CACHED, IN_HBM, IN_HOST
from shard_gym.tasks import Task

# What TorchRec's planner is told of caches: the miss rates of an LRU cache of each table, by its size.
#
# TorchRec's `CacheStatistics` are those of FBGEMM's cache, which counts batches and rows once in each. A batch reads
# row k with the probability P_k = 1 - exp(-its expected reads), and a cache that keeps the rows of the last t batches
# finds it unless none of them read it. So by Che's approximation
#
#     rows in the cache = sum_k (1 - (1 - P_k)^t),    misses of a batch = sum_k P_k (1 - P_k)^t
#
# and t, of any size, gives a point of the curve of misses over sizes.

BATCHES = np.concatenate([[0.0], np.exp2(np.arange(-12.0, 40.0, 0.5))])
"""The times t of the points, in batches; beyond, a cache has all rows that are ever read."""


@dataclass(frozen=True)
class LruStatistics(CacheStatistics):  # type: ignore[misc]
    """Those of a table: expected distinct rows of a batch, and the curve of its miss rates.

    Attributes:
        distinct_rows: expected rows that a global batch reads.
        load_factors: (N,) float64, rising from 0 to 1, sizes of the cache as shares of the rows.
        miss_rates: (N,) float64, falling from 1 to 0.
    """

    distinct_rows: float
    load_factors: FloatArray
    miss_rates: FloatArray

    @property
    def expected_lookups(self) -> float:
        """Distinct rows of a global batch, as TorchRec has it."""
        return self.distinct_rows

    def expected_miss_rate(self, clf: float) -> float:
        """Of a cache with that load factor."""
        return float(np.interp(clf, self.load_factors, self.miss_rates))

    @property
    def cacheability(self) -> float:
        """The area under the curve, as that of TorchRec's `EmbeddingOffloadStats`."""
        return float(np.trapezoid(self.miss_rates, self.load_factors))


def lru_statistics(tables: Tables) -> list[LruStatistics]:
    """Those of each table."""
    rows = tables.num_embeddings.astype(np.float64)
    shares, counts = tables.row_popularity.steps(rows)
    found = []
    for share, count, reads, total in zip(shares, counts, tables.lookups_per_batch, rows, strict=True):
        missed = np.exp(-np.outer(BATCHES, share * reads))  # (N, steps), that none of t batches read the row
        read = -np.expm1(-share * reads) * count
        distinct = float(read.sum())
        kept = (1.0 - missed) @ count / max(float(count.sum()), 1e-300)
        misses = missed @ read / max(distinct, 1e-300) if distinct else 1.0 - kept
        found.append(LruStatistics(min(distinct, total), np.append(np.minimum(kept, 1.0), 1.0), np.append(misses, 0.0)))
    return found


__all__ = ["PlannerError", "planned"]

_OPTIMIZERS = {
    **{"adagrad": Adagrad, "adam": Adam, "lamb": LAMB, "partial_rowwise_adam": PartialRowWiseAdam},
    **{"rowwise_adagrad": RowWiseAdagrad, "sgd": SGD},
}
_ONE_NUMBER = ("adagrad", "lamb", "partial_rowwise_adam")
_DTYPES = {"fp8": "NFP8"}  # TorchRec's name, where it is another
_KERNELS = ("fused", "dense")
_HOST_KERNELS = ("fused_uvm", "fused_uvm_caching")  # all rows are in host memory, and of the second some in HBM, too
_SMALLEST_CACHE = 1e-3
"""The load factor from which caches are scaled up; 0 would count as no cache."""


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
def planned(
    task: Task,
    extra_bytes: float,
    sharding_types: tuple[str, ...],
    min_partition: int,
    sort_by: str,
    offloads: bool,
) -> Any:
    """TorchRec's plan of a task whose tables have names that differ, with `extra_bytes` of memory more on each device.

    With host memory TorchRec may choose kernels that read rows there. They are named "fused" in the plan, because the
    cost model knows the best split of each device. On CPUs TorchRec counts memory as that of hosts, and has no blocks
    of rows for pooled tables. Fast links are told it as those of a host: over a domain of several it would plan blocks
    of rows for all of them (`pod_size`), which no `table_row_wise` of ShardGym has.

    Args:
        offloads: whether the only proposer is that which scales caches up, and is told their statistics.

    Raises:
        PlannerError: it finds none.
    """
    tables, topology = task.tables, task.topology
    memory = _memory_of(topology)
    count, batch_size = topology.num_devices, max(1, tables.workload.batch_size // topology.num_devices)
    hardware = {
        "world_size": count,
        "local_world_size": min(topology.devices_per_host, count),
        "compute_device": topology.device.device_type,
        f"{memory}_mem_bw": topology.device.dram_gb_per_s * 1e6,
        "intra_host_bw": topology.links.intra_host_gb_per_s * 1e6,
        "inter_host_bw": topology.links.inter_host_gb_per_s * 1e6,
    }
    caps = {f"{memory}_cap": topology.memory_cap_bytes}
    if memory == "hbm" and topology.host is not None:
        hardware["hbm_to_ddr_mem_bw"] = topology.host.read_gb_per_s * 1e6
        hbm = np.minimum(topology.memory_cap_bytes, topology.host.hbm_bytes)
        caps = {"hbm_cap": hbm, "ddr_cap": topology.memory_cap_bytes - hbm}
    told = {name: [int(cap * _counted_share(tables.workload)) for cap in each] for name, each in caps.items()}
    told[f"{memory}_cap"] = [int(cap + extra_bytes) for cap in told[f"{memory}_cap"]]
    constraints = _constraints(task, sharding_types, min_partition, offloads)
    planner = EmbeddingShardingPlanner(
        topology=TorchRecTopology(**hardware, custom_topology_data=CustomTopologyData(told, count)),
        batch_size=batch_size,
        # Not told of uneven memory, or it would make uneven blocks of rows, with which TorchRec trains wrongly.
        enumerator=_InOrder(EmbeddingEnumerator(TorchRecTopology(**hardware), batch_size, constraints)),
        proposer=[EmbeddingOffloadScaleupProposer()] if offloads else None,
        partitioner=GreedyPerfPartitioner(SortBy(sort_by)),
        constraints=constraints,
        storage_reservation=FixedPercentageStorageReservation(0.0),
        debug=False,
        stats=[],
    )
    sharders = [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]
    plan = planner.plan(module=_module(tables), sharders=sharders)
    for module in plan.plan.values():
        for table in module.values():
            if table.compute_kernel in _HOST_KERNELS:
                table.compute_kernel = "fused"
    return plan


def _memory_of(topology: Topology) -> str:
    """What TorchRec calls the memory in which a device has its tables."""
    return "ddr" if topology.device.device_type == "cpu" else "hbm"


def _module(tables: Tables) -> torch.nn.Module:
    """The tables in TorchRec, without memory for them, and with the optimizer whose memory it estimates.

    Sequence tables of each dim are a collection, because TorchRec wants one dim.
    """
    meta = torch.device("meta")
    bags: list[EmbeddingBagConfig] = []
    sequences: dict[int, list[EmbeddingConfig]] = {}
    for table, name in enumerate(tables.names):
        dim = int(tables.embedding_dim[table])
        config = {
            "name": name,
            "num_embeddings": int(tables.num_embeddings[table]),
            "embedding_dim": dim,
            "feature_names": [f"{name}_{feature}" for feature in range(int(tables.num_features[table]))],
            "data_type": DataType[
                _DTYPES.get(dtype := tables.workloads[tables.group[table]].weight_dtype, dtype.upper())
            ],
        }
        if tables.pooled[table]:
            bags.append(EmbeddingBagConfig(**config))
        else:
            sequences.setdefault(dim, []).append(EmbeddingConfig(**config))
    collections: list[torch.nn.Module] = [EmbeddingBagCollection(device=meta, tables=bags)] if bags else []
    collections += [EmbeddingCollection(device=meta, tables=each) for each in sequences.values()]
    module = collections[0] if len(collections) == 1 else torch.nn.ModuleList(collections)
    group = dict(zip(tables.names, tables.group.tolist(), strict=True))
    for path, parameter in module.named_parameters():
        optimizer = tables.workloads[group[path.removesuffix(".weight").rpartition(".")[2]]].optimizer
        apply_optimizer_in_backward(_OPTIMIZERS[optimizer], [parameter], {"lr": 0.1})
    return module


def _counted_share(workload: Workload) -> float:
    """The share of the memory of tables that TorchRec counts; the least of any group.

    It gives the moments of Adam the dtype of the weights (planner/shard_estimators.py, `_get_optimizer_multipler`);
    they are FP32. Of all optimizers that it does not name, it counts one number for each weight.
    """
    shares = []
    for each in workload.workloads:
        moments, bytes_of_weight = np.max(each.state.per_weight), each.weight_bytes
        counted = bytes_of_weight * (1 + (min(moments, 1) if each.optimizer in _ONE_NUMBER else moments))
        shares.append(counted / (bytes_of_weight + STATE_BYTES * moments))
    return float(min(shares))


def _constraints(
    task: Task, sharding_types: tuple[str, ...], min_partition: int, offloads: bool
) -> dict[str, ParameterConstraints]:
    """What each table may be, by the constraints of the task, too, and its pooling factors, by its name."""
    tables, topology = task.tables, task.topology
    limits = task.constraints or Constraints.none(len(tables), topology.num_devices)
    can_split = tables.embedding_dim.max() >= 2 * min_partition
    types = [name for name in sharding_types if name != COLUMN_WISE or can_split]
    of_host = devices_of_hosts(topology)
    legal = {
        **{name: limits.sharding_types[:, number].copy() for number, name in enumerate(SHARDING_TYPES)},
        TABLE_WISE: limits.may_be_whole,
        COLUMN_WISE: limits.may_be_cut,
    }
    legal[ROW_WISE] &= has_equal_blocks(tables.num_embeddings, topology.num_devices)
    legal[TABLE_ROW_WISE] &= has_equal_blocks(tables.num_embeddings, max(of_host, 1)) & (of_host > 0)
    kernels = {IN_HBM: _KERNELS, IN_HOST: _HOST_KERNELS[:1], CACHED: _HOST_KERNELS[1:]}
    kernels[ANYWHERE] = _KERNELS if topology.host is None else _KERNELS + _HOST_KERNELS
    rows_in = np.full(len(tables), ANYWHERE) if tables.rows_in is None else tables.rows_in
    features = tables.num_features.tolist()
    caches: list[CacheParams | None] = [None] * len(tables)
    if offloads:
        caches = [CacheParams(load_factor=_SMALLEST_CACHE, stats=each) for each in lru_statistics(tables)]
    return {
        name: ParameterConstraints(
            sharding_types=[kind for kind in types if legal[kind][table]],
            compute_kernels=list(kernels[int(rows_in[table])]),
            cache_params=caches[table],
            min_partition=max(min_partition, int(limits.min_columns[table])),
            pooling_factors=[float(tables.pooling_factor[table] / features[table])] * features[table],
        )
        for table, name in enumerate(tables.names)
    }


class _InOrder:
    """TorchRec's enumerator, with the options of each table in the order in which its sharder lists their types.

    Those of a type have the order of the kernels. TorchRec intersects sets of names. Their order, which decides between
    options that it holds for equal, would differ from process to process with the seed of Python's hashes.
    """

    def __init__(self, enumerator: EmbeddingEnumerator) -> None:
        self._enumerator = enumerator

    def enumerate(self, module: torch.nn.Module, sharders: list[Any]) -> list[Any]:
        options = self._enumerator.enumerate(module, sharders)
        types = sharders[0].sharding_types("cuda")  # all, of which CPUs have some
        of_table = {option.name: position for position, option in enumerate(options)}
        kernels = (*_KERNELS, *_HOST_KERNELS)

        def place(option: Any) -> tuple[int, int, int]:
            return of_table[option.name], types.index(option.sharding_type), kernels.index(option.compute_kernel)

        return sorted(options, key=place)

    def populate_estimates(self, options: list[Any]) -> None:
        self._enumerator.populate_estimates(options)
