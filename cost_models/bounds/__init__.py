"""Lower bounds on the costs of all placements or plans of a task, by linear programs, and proofs of them."""

from shard_gym.cost_models.bounds.placements import lower_bound_ms
from shard_gym.cost_models.bounds.plans import PlanProof, plan_lower_bound_ms, prove, proven_ms

__all__ = ["PlanProof", "lower_bound_ms", "plan_lower_bound_ms", "prove", "proven_ms"]
