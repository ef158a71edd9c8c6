"""Training of learned agents: `Learner`, the folder of a run, and the table of learners."""

from shard_gym.agents.training.learner import Learner, Report
from shard_gym.agents.training.registry import LEARNERS, LearnerEntry, load_agent, make_learner
from shard_gym.agents.training.run import TrainingRun

__all__ = ["LEARNERS", "Learner", "LearnerEntry", "Report", "TrainingRun", "load_agent", "make_learner"]
