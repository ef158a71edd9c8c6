"""Embedding tables: sizes, how their rows are read and updated, and the pools of real ones."""

from shard_gym.tables.lookup_statistics import NUM_BINS, ReuseStatistics
from shard_gym.tables.row_popularity import RowPopularity, RowSteps
from shard_gym.tables.tables import FEATURE_NAMES, Tables
from shard_gym.tables.workload import Workload

__all__ = ["FEATURE_NAMES", "NUM_BINS", "ReuseStatistics", "RowPopularity", "RowSteps", "Tables", "Workload"]
