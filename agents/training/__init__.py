"""Training: what an agent that learns is, the run that trains it, and the table of those there are."""

from shard_gym.agents.training.learner import Learner, Report
from shard_gym.agents.training.registry import LEARNERS, Family, load_agent, make_learner
from shard_gym.agents.training.run import TrainingRun

__all__ = ["LEARNERS", "Family", "Learner", "Report", "TrainingRun", "load_agent", "make_learner"]
