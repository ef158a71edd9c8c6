"""What a training step holds on each device: weights and optimizer states, buffers, and a reserve for everything else.

Formulas are those of TorchRec 1.8's planner (torchrec/distributed/planner/shard_estimators.py) unless said otherwise.
For a batch of B samples on D devices, and a table of dim E with L lookups and F B bags (one of each feature and sample)
in it, a shard holds

- inputs: 8 bytes for each index that it reads (`_calculate_shard_io_sizes`): all L of whole tables and of column
  shards, L / n of each of n row blocks that have rows, L / D of a replica. Twice, because a pipeline distributes the
  next batch meanwhile (`calculate_pipeline_io_cost`, TRAIN_SPARSE_DIST). Offsets are added, which TorchRec's planner
  leaves out: 8 bytes for each bag, of a replica for those of its own samples; and 4 bytes for each weight of a lookup.
  A prefetch for caches is not counted: rows in host memory are read in place.
- outputs: 4 bytes for each column of the shard and each bag, as with `run_embedding_at_peak_memory`. Each row block has
  partial sums of all bags; a replica has its own samples. Of a sequence table, a lookup is a bag. FBGEMM's outputs are
  FP32 whatever the weights are; TorchRec counts the bytes of a weight, and fewer than B bags of a feature whose pooling
  factor is below 1.
- gradients: of a replica, one for each weight, in the dtype of the weights. TorchRec's planner leaves them out; its
  data-parallel tables are trained by DistributedDataParallel, which keeps one copy (`gradient_as_bucket_view`). Other
  tables have none: their optimizer is fused into the backward. Tables that are served have none, either.

The reserve is for dense parameters, their gradients and states, activations (pooled outputs after the exchange
included), the sort of FBGEMM's backward, NCCL, and what the allocator loses: by default the 15% of
`EmbeddingShardingPlanner` (planners.py, heuristical_storage_reservation_percentage). That planner takes dense
parameters and inputs of 20 copies off, too, which needs the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shard_gym.plans.plan import (
    COLUMN_WISE,
    DATA_PARALLEL,
    ROW_WISE,
    TABLE_WISE,
    ShardingPlan,
    blocks_of_rows,
    plan_of_placement,
)
from shard_gym.tables import Tables

PARTS = ("tables", "inputs", "outputs", "gradients")
"""What `TrainingMemory` counts; all but the first are buffers."""

INDEX_BYTES, OUTPUT_BYTES = 8, 4
BATCHES_OF_INPUTS = 2


@dataclass(frozen=True, eq=False)
class TrainingMemory:
    """What a training step holds of S shards on D devices, bytes."""

    of_shards: NDArray[np.int64]  #: (S, 4) int64, bytes of each of `PARTS`
    devices: NDArray[np.int64]  #: (S,) int64, the device of each shard
    movable: NDArray[np.bool_]  #: (S,) bool, whether the shard can be on any device: whole tables and column shards
    num_devices: int  #: D
    host_bytes: NDArray[np.int64]  #: (S,) int64, bytes of each shard's table that are in host memory

    @property
    def of_devices(self) -> NDArray[np.int64]:
        """(D, 4) int64, bytes of each of `PARTS` on each device."""
        found = np.zeros((self.num_devices, len(PARTS)), np.int64)
        np.add.at(found, self.devices, self.of_shards)
        return found

    @property
    def tables(self) -> NDArray[np.int64]:
        """(D,) int64, bytes of weights and optimizer states."""
        return self.of_devices[:, 0]

    @property
    def buffers(self) -> NDArray[np.int64]:
        """(D,) int64, bytes of inputs, outputs and gradients."""
        return np.asarray(self.of_devices[:, 1:].sum(axis=1))

    @property
    def total(self) -> NDArray[np.int64]:
        """(D,) int64, bytes of tables and buffers, in HBM and in host memory."""
        return np.asarray(self.of_devices.sum(axis=1))

    @property
    def host(self) -> NDArray[np.int64]:
        """(D,) int64, bytes of tables in host memory."""
        found = np.zeros(self.num_devices, np.int64)
        np.add.at(found, self.devices, self.host_bytes)
        return found

    def shard_to_move(self, device: int, limits: NDArray[np.int64]) -> tuple[int, int] | None:
        """The shard to move from `device`, and the other device with most left; None if no move of one is enough.

        It is the smallest movable one that brings the device within its limit and leaves the other within its own.

        Args:
            limits: (D,) int64, bytes that tables and buffers should take on each device at most.
        """
        left = limits - self.total
        over, left[device] = -int(left[device]), -1
        target = int(left.argmax())
        size = self.of_shards.sum(axis=1)
        enough = np.flatnonzero((self.devices == device) & self.movable & (size <= left[target]) & (size >= over))
        return (int(enough[size[enough].argmin()]), target) if enough.size else None


def training_memory(
    answer: ArrayLike | ShardingPlan, tables: Tables, num_devices: int, host_bytes: NDArray[np.int64] | None = None
) -> TrainingMemory:
    """What a training step holds under a valid placement, (T,) ints, or a valid sharding plan.

    Args:
        host_bytes: (S,) int64, bytes of each shard in host memory (`shard_gym.plans.hbm_rows`); none by default.
    """
    plan = answer if isinstance(answer, ShardingPlan) else plan_of_placement(np.asarray(answer), tables)
    shards = plan.shard_arrays()
    table, devices, _, rows, _, columns = shards.T
    kinds = np.array([sharding.shard_type for sharding in plan.tables])[table]
    held = _held(tables.select(table).with_dims(columns), rows, kinds, blocks_of_rows(shards))
    in_host = np.zeros(len(held), np.int64) if host_bytes is None else host_bytes
    return TrainingMemory(held, devices, np.isin(kinds, (TABLE_WISE, COLUMN_WISE)), num_devices, in_host)


def whole_table_bytes(tables: Tables) -> NDArray[np.int64]:
    """(T,) int64, bytes of each table whole on a device, with its buffers. No plan holds less of all tables together:
    replicas share out their buffers, and all other splits have more.
    """
    return np.asarray(_held(tables, tables.num_embeddings, TABLE_WISE, 1).sum(axis=1))


def row_block_bytes(tables: Tables, num_devices: int) -> NDArray[np.int64]:
    """(T,) int64, bytes of the first of `num_devices` row blocks of each table, with its buffers; others have less."""
    return np.asarray(_held(tables, -(-tables.num_embeddings // num_devices), ROW_WISE, num_devices).sum(axis=1))


def replica_bytes(tables: Tables, num_devices: int) -> NDArray[np.int64]:
    """(T,) int64, bytes of each of `num_devices` replicas of each table, with its buffers."""
    return np.asarray(_held(tables, tables.num_embeddings, DATA_PARALLEL, num_devices).sum(axis=1))


def _held(
    tables: Tables, rows: NDArray[np.int64], kinds: NDArray[np.str_] | str, blocks: NDArray[np.int64] | int
) -> NDArray[np.int64]:
    """(S, 4) int64, bytes of each of `PARTS` of S shards: `rows` of each of S tables, one of `blocks` of its table
    (`blocks_of_rows`)."""
    replica, columns = np.equal(kinds, DATA_PARALLEL), tables.embedding_dim
    lookups = np.where(np.equal(blocks, 0), 0.0, tables.lookups_per_batch / np.maximum(blocks, 1))
    bags = tables.workload.batch_size * tables.num_features / np.where(replica, blocks, 1)
    bags = np.where(tables.pooled, bags, lookups)
    parts = (
        rows * tables.workload.row_bytes(columns),
        np.ceil(BATCHES_OF_INPUTS * (INDEX_BYTES * (lookups + bags) + tables.workload.lookup_weight_bytes * lookups)),
        np.ceil(OUTPUT_BYTES * bags * columns),
        np.where(replica & tables.workload.training, rows * columns * tables.workload.weight_bytes, 0),
    )
    return np.stack([part.astype(np.int64) for part in parts], axis=1)
