"""Evaluations as jobs: a task of an agent that ships or is trained is one; of any other agent all tasks are one."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from shard_gym.agents import AGENTS, Agent
from shard_gym.agents.training.run import AGENT
from shard_gym.cli.console import new_progress
from shard_gym.cli.job_options import JobOptions
from shard_gym.cli.named_agents import agent_named
from shard_gym.cost_models import CostModel
from shard_gym.errors import JobError
from shard_gym.evaluation import Evaluation, TaskResult, summarized
from shard_gym.evaluation import evaluate as evaluate_agent
from shard_gym.problems import problem_of
from shard_gym.tasks import Suite
from shard_gym.text import counted


class NamedAgent(NamedTuple):
    """What makes an agent in any process: the arguments of `agent_named`.

    Attributes:
        weights: the file of a trained agent, which then needs no name.
    """

    name: str
    cost_model: CostModel
    seed: int
    suite: str
    options: Mapping[str, Any]
    weights: bytes | None = None

    @property
    def answers_alone(self) -> bool:
        """Whether its answer to a task is the same whatever it answered before: it draws from `task_rng` alone."""
        return self.weights is not None or self.name in AGENTS

    def packed(self) -> NamedAgent:
        """The same with what it needs of this machine: the weights of a trained agent, the whole path of a file."""
        if self.name in AGENTS:
            return self
        path, colon, what = self.name.rpartition(":")
        if colon and not Path(self.name).exists():
            return self._replace(name=f"{Path(path).resolve()}:{what}") if path.endswith(".py") else self
        file = Path(self.name)
        return self._replace(weights=(file / AGENT if file.is_dir() else file).read_bytes())

    def make(self) -> Agent:
        """The agent; warnings are left to whoever names it first."""
        with TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            name = self.name
            if self.weights is not None:
                name = str(Path(folder, AGENT))
                Path(name).write_bytes(self.weights)
            return agent_named(name, cost_model=self.cost_model, seed=self.seed, suite=self.suite, **self.options)


def evaluate_in_jobs(
    agents: Mapping[str, NamedAgent], tasks: Suite[Any], model: CostModel, where: JobOptions
) -> dict[str, Evaluation]:
    """Every agent on every task, as `evaluate` has it in one process; the results name the agents by their keys."""
    parts, jobs = list[tuple[str, int]](), list[tuple[bytes, Suite[Any], CostModel]]()
    alone = problem_of(tasks[0]).name != "replanning"  # episodes are played side by side
    for label, named in agents.items():
        packed = named.packed()
        some = [(task,) for task in tasks] if alone and packed.answers_alone else [tuple(tasks)]
        for number, part in enumerate(some):
            parts.append((label, number))
            jobs.append((pickle.dumps(packed), replace(tasks, tasks=part), model))
    found: dict[str, dict[int, list[TaskResult]]] = {label: {} for label in agents}
    with new_progress() as progress:
        bars = {label: progress.add_task(label, total=len(tasks)) for label in agents}
        try:
            for index, results in where.run(answered, jobs):
                label, number = parts[index]
                found[label][number] = results
                progress.advance(bars[label], len(results))
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
    """What an agent, a pickled `NamedAgent`, answers to some tasks."""
    agent, tasks, model = job
    return list(evaluate_agent(_made(agent), tasks, model).tasks)


@lru_cache(maxsize=8)
def _made(named: bytes) -> Agent:
    agent: NamedAgent = pickle.loads(named)
    return agent.make()
