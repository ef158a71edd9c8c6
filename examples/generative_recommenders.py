"""Plans two generative recommenders for 8 and 64 devices: MLPerf's DLRMv3, served, and HSTU on KuaiRand, trained.

Their tables are few, of dim 512, and the largest of DLRMv3 has a billion rows. `shard-gym pools mlperf-dlrm-v3` prints
what is published of them and what is assumed. A device has as many samples as in the published configuration.
"""

from dataclasses import replace

from shard_gym.planning import plan
from shard_gym.tables import Tables, load_pool

HARDWARE = "h200-dgx"
PUBLISHED = 8  # devices that the batch of the pools is for
GIB = 2**30


def at_batch_size(tables: Tables, batch_size: int) -> Tables:
    """The same tables in larger batches: what these read follows from the popularity of the rows."""
    return Tables.from_popularity(
        num_embeddings=tables.num_embeddings,
        embedding_dim=tables.embedding_dim,
        pooling_factor=tables.pooling_factor,
        num_features=tables.num_features,
        popularity=tables.row_popularity,
        workload=replace(tables.workload, batch_size=batch_size),
        names=tables.names,
        pooled=tables.pooled,
    )


for name in ("mlperf-dlrm-v3", "hstu-kuairand"):
    pool = load_pool(name)
    for num_devices in (PUBLISHED, 64):
        tables = at_batch_size(pool.tables, pool.tables.workload.batch_size * num_devices // PUBLISHED)
        found = plan(tables, HARDWARE, num_devices)
        host = found.memory.host.max() / GIB
        hbm = (found.memory.total - found.memory.host).max() / GIB
        print(f"{pool.name} on {num_devices} devices of {HARDWARE}, {tables.workload.batch_size:,} samples")
        print(f"  {found.cost_ms:.3f} ms; the fullest device has {hbm:.1f} GiB in HBM and {host:.1f} in host memory")
        for table, sharding in zip(tables.names, found.plan.tables, strict=True):
            print(f"  {table:<22} {sharding.sharding_type:<16} {len(sharding.shards)} shards")
