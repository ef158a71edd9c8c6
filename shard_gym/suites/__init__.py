"""The named task suites: data with checksums, shipped in the package."""

from shard_gym.suites.load import SPLITS, SuiteInfo, load_suite, suite_info, suite_names

__all__ = ["SPLITS", "SuiteInfo", "load_suite", "suite_info", "suite_names"]
