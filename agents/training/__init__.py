"""Training of learned agents: `Learner`, the folder of a run, and learners by name."""

from shard_gym.agents.registry import LEARNERS, LearnerEntry, load_agent
from shard_gym.agents.training.learner import Learner, Report, make_learner
from shard_gym.agents.training.run import TrainingRun
from shard_gym.agents.training.validation import Validation
from shard_gym.evaluation.curve import Curve, load_curve

__all__ = [
    "LEARNERS",
    "Curve",
    "Learner",
    "LearnerEntry",
    "Report",
    "TrainingRun",
    "Validation",
    "load_agent",
    "load_curve",
    "make_learner",
]
