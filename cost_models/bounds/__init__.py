"""Lower bounds on the costs of all placements or plans of a task, by linear programs."""

from shard_gym.cost_models.bounds.placements import lower_bound_ms
from shard_gym.cost_models.bounds.plans import plan_lower_bound_ms

__all__ = ["lower_bound_ms", "plan_lower_bound_ms"]
