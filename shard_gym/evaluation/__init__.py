"""Evaluations of agents on suites, learning curves, and figures of both."""

from shard_gym.evaluation.evaluations import Evaluation, TaskResult, evaluate

__all__ = ["Evaluation", "TaskResult", "evaluate"]
