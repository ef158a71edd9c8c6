"""The host policies by name: which rows are in HBM where a topology has host memory."""

from __future__ import annotations

from collections.abc import Mapping

from shard_gym.cost_models.host_cache import LRU
from shard_gym.cost_models.host_policy import HostPolicy
from shard_gym.cost_models.host_rows import STATIC
from shard_gym.errors import unknown_name

HOST_POLICIES: Mapping[str, HostPolicy] = {policy.name: policy for policy in (STATIC, LRU)}
"""The best split of rows for good (host_rows.py), and a cache (host_cache.py)."""


def host_policy_named(name: str) -> HostPolicy:
    """The policy of that name; UnknownNameError if there is none."""
    if not isinstance(name, str) or name not in HOST_POLICIES:
        raise unknown_name("host policy", name, HOST_POLICIES)
    return HOST_POLICIES[name]
