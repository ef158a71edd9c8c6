"""What an engineer asks of a plan: how to make one, how it is explained, compared, and how far to trust its cost."""

from shard_gym.planning.comparison import Comparison
from shard_gym.planning.explanation import Explanation, explain
from shard_gym.planning.given_plans import ExplainedPlan, compare, explain_plan
from shard_gym.planning.hot_rows import with_hot_tables
from shard_gym.planning.index_dedup import deduplicated
from shard_gym.planning.planned import PlannedModel, plan
from shard_gym.planning.served_rows import copied_shares
from shard_gym.planning.setups import what_if
from shard_gym.planning.trust import Robustness, evidence_on, robustness

__all__ = [
    "Comparison",
    "ExplainedPlan",
    "Explanation",
    "PlannedModel",
    "Robustness",
    "compare",
    "copied_shares",
    "deduplicated",
    "evidence_on",
    "explain",
    "explain_plan",
    "plan",
    "robustness",
    "what_if",
    "with_hot_tables",
]
