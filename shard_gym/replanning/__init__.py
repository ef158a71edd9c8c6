"""Replanning: tables that drift over days, the environment, the agents, and the suites.

Its problem and its suites join those of `shard_gym.tasks` here.
"""

from shard_gym.replanning import drifting
from shard_gym.replanning.drift.own import DRIFT_FORMAT
from shard_gym.replanning.drift.suite import DriftSuite
from shard_gym.replanning.drift.tasks import DriftTask
from shard_gym.replanning.env.env import EmbeddingReplanningEnv
from shard_gym.replanning.problem import ReplanningProblem
from shard_gym.tasks import PROBLEMS
from shard_gym.tasks.suites.load import FORMATS
from shard_gym.tasks.suites.own import FORMATS as OWN_FORMATS

PROBLEMS[ReplanningProblem.name] = ReplanningProblem()
FORMATS.append(drifting)
OWN_FORMATS[ReplanningProblem.name] = DRIFT_FORMAT

__all__ = ["DriftSuite", "DriftTask", "EmbeddingReplanningEnv"]
