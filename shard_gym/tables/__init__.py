"""Embedding tables: sizes, how their rows are read and updated, and the pools of real ones."""

from shard_gym.tables.lookup_statistics import BIN_UPPER_EDGES, NUM_BINS, ReuseStatistics, rounded_statistics
from shard_gym.tables.pools import Pool, load_pool
from shard_gym.tables.row_popularity import Popularity, RowPopularity, RowSteps
from shard_gym.tables.tables import AMOUNT_NAMES, FEATURE_NAMES, MAX_DIM, Tables
from shard_gym.tables.workload import STATE_BYTES, Workload

__all__ = [
    "AMOUNT_NAMES",
    "BIN_UPPER_EDGES",
    "FEATURE_NAMES",
    "MAX_DIM",
    "NUM_BINS",
    "STATE_BYTES",
    "Pool",
    "Popularity",
    "ReuseStatistics",
    "RowPopularity",
    "RowSteps",
    "Tables",
    "Workload",
    "load_pool",
    "rounded_statistics",
]
