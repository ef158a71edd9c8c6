"""Tasks: tables on a topology; suites and samplers of them; and the problems, what an answer is."""

from shard_gym.tasks.problems import PROBLEMS, Answer, Attempt, Problem, problem_of
from shard_gym.tasks.sampler import TaskSampler, capped_task
from shard_gym.tasks.suites import load_suite, save_suite, suite_info, suite_names
from shard_gym.tasks.task import Suite, Task, TaskSource, TaskSuite

__all__ = [
    "PROBLEMS",
    "Answer",
    "Attempt",
    "Problem",
    "Suite",
    "Task",
    "TaskSampler",
    "TaskSource",
    "TaskSuite",
    "capped_task",
    "load_suite",
    "problem_of",
    "save_suite",
    "suite_info",
    "suite_names",
]
