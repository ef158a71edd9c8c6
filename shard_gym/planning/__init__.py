"""What an engineer asks of a plan: how it is explained, compared, and how far to trust its cost."""

from shard_gym.planning.comparison import Comparison
from shard_gym.planning.explanation import Explanation, explain
from shard_gym.planning.hot_rows import with_hot_tables
from shard_gym.planning.index_dedup import deduplicated
from shard_gym.planning.served_rows import copied_shares
from shard_gym.planning.trust import Robustness, evidence_on, robustness

__all__ = [
    "Comparison",
    "Explanation",
    "Robustness",
    "copied_shares",
    "deduplicated",
    "evidence_on",
    "explain",
    "robustness",
    "with_hot_tables",
]
