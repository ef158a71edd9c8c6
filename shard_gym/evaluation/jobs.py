"""Evaluations as jobs: agents answer tasks in other processes, or on nodes of a cluster."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol

from shard_gym.common.errors import JobError
from shard_gym.common.jobs import Jobs
from shard_gym.common.text import counted
from shard_gym.cost_models import CostModel
from shard_gym.evaluation.evaluations import Evaluation, TaskResult, evaluate, summarized
from shard_gym.tasks import Suite, problem_of


class AgentMaker(Protocol):
    """What makes an agent in any process; it is pickled."""

    @property
    def answers_alone(self) -> bool:
        """Whether its answer to a task is the same whatever it answered before."""
        ...

    def packed(self) -> AgentMaker:
        """The same with what it needs of this machine."""
        ...

    def make(self) -> Any:
        """The agent."""
        ...


def evaluate_in_jobs(
    agents: Mapping[str, AgentMaker],
    tasks: Suite[Any],
    model: CostModel,
    where: Jobs,
    on_results: Callable[[str, int], None] = lambda label, count: None,
) -> dict[str, Evaluation]:
    """Every agent on every task, as `evaluate` has it in one process; the results name the agents by their keys.

    `on_results` is called with the key of an agent and the number of tasks that it has just answered.

    Raises:
        JobError: an agent failed in a way that is no answer; the message names it and the task.
    """
    parts, jobs = list[tuple[str, int]](), list[tuple[bytes, Suite[Any], CostModel]]()
    alone = problem_of(tasks[0]).name != "replanning"  # episodes are played side by side
    for label, named in agents.items():
        packed = named.packed()
        some = [(task,) for task in tasks] if alone and packed.answers_alone else [tuple(tasks)]
        for number, part in enumerate(some):
            parts.append((label, number))
            jobs.append((pickle.dumps(packed), replace(tasks, tasks=part), model))
    found: dict[str, dict[int, list[TaskResult]]] = {label: {} for label in agents}
    try:
        for index, results in where.run(answered, jobs):
            label, number = parts[index]
            found[label][number] = results
            on_results(label, len(results))
    except JobError as error:
        if error.job is None:
            raise
        label, given = parts[error.job][0], jobs[error.job][1]
        on = f"task {given[0].name!r}" if len(given) == 1 else counted(len(given), "task")
        raise JobError(f"Agent {label!r} on {on}. {error}", error.job) from error
    return {
        label: summarized([each for number in sorted(of) for each in of[number]], tasks, model, label)
        for label, of in found.items()
    }


def answered(job: tuple[bytes, Suite[Any], CostModel]) -> list[TaskResult]:
    """What an agent, a pickled `AgentMaker`, answers to some tasks."""
    agent, tasks, model = job
    return list(evaluate(_made(agent), tasks, model).tasks)


@lru_cache(maxsize=8)
def _made(named: bytes) -> Any:
    maker: AgentMaker = pickle.loads(named)
    return maker.make()
