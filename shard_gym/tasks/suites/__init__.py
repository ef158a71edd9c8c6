"""The named task suites: data with checksums, shipped in the package."""

from shard_gym.tasks.suites.info import SPLITS, SuiteInfo
from shard_gym.tasks.suites.load import load_suite, suite_info, suite_names
from shard_gym.tasks.suites.own import save_suite

__all__ = ["SPLITS", "SuiteInfo", "load_suite", "save_suite", "suite_info", "suite_names"]
