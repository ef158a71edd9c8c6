"""The bytes that the devices of a plan send each other in an iteration.

- Pooled outputs and partial sums are sent in the forward, and as many bytes of gradients come back in the backward:
  what a device receives in the forward it sends in the backward (`collectives.py` says who sends what).
- Gradients of replicas are all-reduced once: in rings inside each of H domains of fast links (by default a host), 2
  (W - 1)/W of the bytes per device, and in one across domains, 2 (1 - 1/H) of them per domain, which its W network
  cards share (nccl-tests, doc/PERFORMANCE.md). So all domains send alike. `all_reduce_ms` counts devices instead of
  domains, which differs where these are unequal.

Bytes follow from the plan alone, whatever the cost model; of tables that are served, those of the forward alone.
Indices on their way to the shards are counted by themselves (`received_index_bytes`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.cost_models.analytical.collectives import all_to_all_bytes, host_reduce_scatter_bytes
from shard_gym.cost_models.analytical.index_exchange import index_bytes, index_exchange_ms
from shard_gym.cost_models.analytical.sharding import COMMUNICATION_BYTES, LEAST_SUMMED_BYTES
from shard_gym.hardware import Topology
from shard_gym.plans import ShardingPlan
from shard_gym.plans.plan import DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE, blocks_of_rows
from shard_gym.plans.statistics import shard_tables
from shard_gym.tables import Tables

GRADIENT_BYTES = 4  # of a number of a dense gradient, which is FP32


def sent_bytes(
    plan: ShardingPlan, tables: Tables, topology: Topology, communication_dtype: str = "fp32"
) -> dict[str, FloatArray]:
    """(D, 2) float64 of each collective: bytes an iteration that each device sends inside its domain, and to others.

    The collectives are all_to_all, reduce_scatter, host_reduce_scatter and all_reduce.

    Args:
        plan: a checked plan.
        communication_dtype: a name in `COMMUNICATION_BYTES`, of pooled outputs and their gradients on the links.
    """
    shards = plan.shard_arrays()
    table, device, _, rows, _, columns = shards.T
    kinds = np.array([sharding.shard_type for sharding in plan.tables])[table]
    of_rows = (kinds == ROW_WISE) | (kinds == TABLE_ROW_WISE)
    parts = np.where(of_rows & ~tables.pooled[table], blocks_of_rows(shards), 1)
    bags = np.where(parts > 0, tables.outputs_per_batch[table] / np.maximum(parts, 1), 0.0)
    of_number = COMMUNICATION_BYTES[communication_dtype]
    of_sum = max(of_number, LEAST_SUMMED_BYTES)
    outputs, partial = bags * columns * of_number, bags * columns * of_sum

    def on_devices(chosen: NDArray[np.bool_], num_bytes: FloatArray) -> FloatArray:
        return np.bincount(device[chosen], num_bytes[chosen], topology.num_devices).astype(np.float64)

    replicated = kinds == DATA_PARALLEL
    of_rows &= tables.pooled[table]
    in_hosts = of_rows & (kinds == TABLE_ROW_WISE) & (topology.num_hosts > 1)
    scattered = of_rows & ~in_hosts
    cluster = topology.cluster()
    near, beside, far = host_reduce_scatter_bytes(on_devices(in_hosts, partial), cluster, of_number / of_sum)
    forward = {
        "all_to_all": all_to_all_bytes(on_devices(~(replicated | in_hosts | scattered), outputs), cluster),
        "reduce_scatter": all_to_all_bytes(on_devices(scattered, partial), cluster),
        "host_reduce_scatter": (near, far),
    }
    training = tables.workload.training
    gradients = on_devices(replicated, GRADIENT_BYTES * rows * columns.astype(np.float64)) * training
    members = np.bincount(topology.domains)[topology.domains]
    ring = 2.0 * gradients / members
    around = np.stack([ring * (members - 1), ring * (1.0 - 1.0 / topology.num_domains)], axis=-1)
    shrunk = np.array([1.0, topology.cross_host_ratio])
    sent = {name: np.stack(pair, axis=-1) * shrunk for name, pair in forward.items()}
    found = {name: each + _received(each, topology) * training for name, each in sent.items()}
    if beside.any():  # to other hosts of the domain; inside a host all send as much, so each receives what it sends
        received = near + _received_from_others(beside, topology.hosts, topology.domains)
        found["host_reduce_scatter"][:, 0] = near + beside + received * training
    return found | {"all_reduce": around}


def total_sent_bytes(
    plan: ShardingPlan, tables: Tables, topology: Topology, communication_dtype: str = "fp32"
) -> FloatArray:
    """(D, 2) float64, the same of all collectives together."""
    return np.asarray(sum(sent_bytes(plan, tables, topology, communication_dtype).values()))


def received_index_bytes(plan: ShardingPlan, tables: Tables, topology: Topology) -> FloatArray:
    """(D,) float64, bytes of the indices that each device gets for its shards, those of its own samples included.

    Args:
        plan: a checked plan.
    """
    arrays = plan.shard_arrays()
    kinds, blocks = np.array([sharding.shard_type for sharding in plan.tables])[arrays[:, 0]], blocks_of_rows(arrays)
    received = np.zeros(len(arrays))
    for kind in set(kinds.tolist()) - {DATA_PARALLEL}:
        chosen = kinds == kind  # a column shard gets the same whatever its width is
        shards = shard_tables(tables.select(arrays[chosen, 0]), kind, topology, blocks=blocks[chosen])
        received[chosen] = index_bytes(shards, kind)
    return np.bincount(arrays[:, 1], received, topology.num_devices).astype(np.float64)


def index_exchange_of_plan_ms(plan: ShardingPlan, tables: Tables, topology: Topology) -> float:
    """Ms of the exchange of the indices under a checked plan; what a model with `index_exchange="exposed"` adds."""
    return float(index_exchange_ms(received_index_bytes(plan, tables, topology), topology.cluster()))


def _received(sent: FloatArray, topology: Topology) -> FloatArray:
    """(D, 2) bytes that each device receives of (D, 2) sent ones, which every device spreads evenly over the others."""
    domains = topology.domains
    members = np.bincount(domains)[domains]
    near = sent[:, 0] / np.maximum(members - 1, 1)
    far = sent[:, 1] / np.maximum(topology.num_devices - members, 1)
    return np.stack([np.bincount(domains, near)[domains] - near, far.sum() - np.bincount(domains, far)[domains]], -1)


def _received_from_others(sent: FloatArray, inner: NDArray[np.int64], outer: NDArray[np.int64]) -> FloatArray:
    """(D,) bytes that each device receives of what others spread evenly over their `outer` group without `inner`."""
    count = np.bincount(outer)[outer] - np.bincount(inner)[inner]
    each = sent / np.maximum(count, 1)
    return np.asarray(np.bincount(outer, each)[outer] - np.bincount(inner, each)[inner])
