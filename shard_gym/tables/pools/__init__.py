"""Table pools: the sets of tables from which tasks are sampled.

`load_pool("dlrm-2021")` returns a `Pool`: its tables, the popularity of their rows, and a card about their origin.
`pool_names()` lists the pools that ship; `load_pool("mine.json")` reads a custom pool, and `import_meta` makes one from
Meta's published lookup files.
"""

from shard_gym.tables.pools.meta import import_meta
from shard_gym.tables.pools.pool import Pool, PoolCard, load_pool, pool_names, pool_source, save_pool
from shard_gym.tables.row_popularity import RowPopularity

__all__ = ["Pool", "PoolCard", "RowPopularity", "import_meta", "load_pool", "pool_names", "pool_source", "save_pool"]
