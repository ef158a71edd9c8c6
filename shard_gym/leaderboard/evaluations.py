"""Evaluations that become an entry: of agents that run now, or from files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shard_gym.agents import AGENTS, make_agent
from shard_gym.common.errors import DamagedFileError, InvalidOptionError, short_repr
from shard_gym.common.io.files import read_json
from shard_gym.common.io.parsing import require_fields
from shard_gym.evaluation import Evaluation, TaskResult, evaluate
from shard_gym.leaderboard.entry import MAX_INT, ONE_SEED, SEEDS, is_stochastic
from shard_gym.leaderboard.leagues import most_for
from shard_gym.leaderboard.training_data import Options, Training, recorded_training
from shard_gym.tasks import load_suite


@dataclass(frozen=True)
class EvaluatedAgent:
    """An agent's evaluations on the test tasks of a suite, and the facts about the agent that an entry declares.

    Attributes:
        name: of the agent; an agent of ShardGym keeps its name there.
        stochastic: whether its answers depend on the seed; it then needs an evaluation for each of five seeds.
        evaluations: one for each of `seeds`, in their order.
        options: of the agent.
        training_data: what it learnt from (see `training_data.py`); empty if it does not learn.
        training_queries: cost-model evaluations in training, in total; those of the seed with the most.
        training_seconds: of the seed that took longest; None if it does not learn, or its training is not known.
        search_budget: answers it may try for one task, under any cost model; 0 if it does not search.
        planning_queries: evaluations of the scoring cost model for one task, mean; None for those that the evaluations
            counted. An agent counts by a method `true_cost_queries(fingerprint)`.
    """

    name: str
    stochastic: bool
    evaluations: tuple[Evaluation, ...]
    options: Options = field(default_factory=dict)
    training_data: Sequence[str] = ()
    training_queries: int = 0
    training_seconds: float | None = None
    search_budget: int = 0
    planning_queries: float | None = None

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds it is evaluated with."""
        return SEEDS if self.stochastic else ONE_SEED


def evaluate_agent(
    agents: Sequence[str], suite: str, options: Options, on_seed: Callable[[int], None] = lambda seed: None
) -> EvaluatedAgent:
    """Evaluate an agent on the test tasks of `suite` with every seed that an entry needs.

    Args:
        agents: a name, or folders of training runs: one, used with all seeds, or one for each seed.
        suite: name of the suite.
        options: to make the agent with.
        on_seed: called after each seed.

    Raises:
        InvalidOptionError: the agents differ in more than their seed, or their number is wrong; a training run is not
            finished; one folder is given of an agent that no seed changes; or an agent cannot be made.
        UnknownNameError: there is no such agent, or no such suite.
        InvalidCheckpointError: a folder holds no agent.
    """
    recorded = [recorded_training(agent, suite, options) for agent in agents]
    names = sorted({training.agent if training else agent for training, agent in zip(recorded, agents, strict=True)})
    if len(names) != 1 or len(agents) not in (1, len(SEEDS)):
        raise InvalidOptionError(
            f"Name one agent, or the folders of {len(SEEDS)} training runs of one agent, one for each seed; "
            f"got {', '.join(agents)}."
        )
    trainings = [training for training in recorded if training is not None]
    if agents[0] not in AGENTS:
        _require_one_training(agents, trainings)
    stochastic = is_stochastic(names[0])
    evaluations: list[Evaluation] = []
    one_run = trainings and len(agents) == 1 and agents[0] not in AGENTS
    budget, tasks = 0, load_suite(suite)
    for seed in SEEDS if stochastic else ONE_SEED:
        agent = make_agent(agents[seed % len(agents)], cost_model=tasks.cost_model, seed=seed, suite=suite, **options)
        evaluations.append(evaluate(agent, suite, tasks.cost_model))
        budget = most_for(agent, tasks)
        if one_run and len(evaluations) == 2 and _answers(evaluations[0]) == _answers(evaluations[1]):
            raise InvalidOptionError(
                f"{agents[0]} answers alike with every seed, because only its training is stochastic. Give the folders "
                f"of {len(SEEDS)} training runs, one for each of the seeds {list(SEEDS)}."
            )
        on_seed(seed)
    trained = {}
    if trainings and agents[0] not in AGENTS:
        trained = dict(trainings[0].options)
        if names[0] in AGENTS:
            trained.setdefault("preset", "dream-search")  # tells it from the one that ships (see `can_replay`)
    return EvaluatedAgent(
        names[0],
        stochastic,
        tuple(evaluations),
        options={**trained, **options},
        training_data=tuple(dict.fromkeys(data for training in trainings for data in training.data)),
        training_queries=max((training.queries for training in trainings), default=0),
        training_seconds=max((each.seconds for each in trainings if each.seconds is not None), default=None),
        search_budget=budget,
    )


def _require_one_training(agents: Sequence[str], trainings: Sequence[Training]) -> None:
    """Refuse folders of runs that are not finished, or that differ in more than their seed."""
    first = trainings[0]
    for folder, training in zip(agents, trainings, strict=True):
        if not training.finished:
            raise InvalidOptionError(
                f"{folder} is the agent of an unfinished run. Finish it first: the same shard-gym train with --resume."
            )
        for what, own, other in (
            ("training data", training.data, first.data),
            ("options", training.options, first.options),
            ("cost model", training.cost_model, first.cost_model),
        ):
            if own != other:
                raise InvalidOptionError(
                    f"The training runs of an entry differ in their seed alone, but the {what} of {folder} are "
                    f"{short_repr(own)}, and those of {agents[0]} {short_repr(other)}."
                )
    seeds = [training.seed for training in trainings]
    if len(set(seeds)) < len(seeds):
        raise InvalidOptionError(
            f"The training runs of an entry have seeds of their own, but those of {', '.join(agents)} are {seeds}."
        )


def _answers(evaluation: Evaluation) -> list[object]:
    return [result.answer for result in evaluation.tasks]


def read_evaluations(paths: Sequence[Path], stochastic: bool, options: Options) -> EvaluatedAgent:
    """The evaluations of one agent from files, one for each seed in their order.

    Raises:
        DamagedFileError, InvalidOptionError: see `read_evaluation`; or they are of several agents.
    """
    evaluations = tuple(read_evaluation(path) for path in paths)
    names = sorted({evaluation.agent for evaluation in evaluations})
    if len(names) != 1:
        raise InvalidOptionError(f"The evaluations of an entry are of one agent, but these are of {', '.join(names)}.")
    return EvaluatedAgent(names[0], stochastic, evaluations, options)


def read_evaluation(path: Path) -> Evaluation:
    """An evaluation of one agent, as `shard-gym evaluate --out` or `write_json(path, evaluation.to_json())` writes it.

    Raises:
        DamagedFileError: it is no such file.
        InvalidOptionError: it holds several agents.
    """
    record = read_json(path)
    if isinstance(record, list):
        raise InvalidOptionError(f"{path} holds {len(record)} agents; evaluate one agent and seed for each file.")
    source = f"{path}, the evaluation of one agent,"
    require_fields(record, _EVALUATION, source)
    for number, task in enumerate(record["tasks"]):
        if isinstance(task, dict):
            for noun in ("plan", "sequence"):  # evaluations of before there were such answers have none
                task.setdefault(noun, None)
            task.setdefault("answered_by", "")
        require_fields(task, _TASK, f"Task {number} of {source}")
        placement = task["placement"]
        if placement is not None and not all(type(device) is int and abs(device) < MAX_INT for device in placement):
            raise DamagedFileError(f"The placement of task {number} of {source} must be a list of device numbers.")
        if not 0 <= task["true_cost_queries"] <= MAX_INT or min(task["seconds"], task["cost_ms"]) < 0:
            raise DamagedFileError(f"Task {number} of {source} has a negative number, or more than {MAX_INT} queries.")
    interval = record["interval_ms"]
    if len(interval) != 2 or not all(type(each) in (int, float) for each in interval):
        raise DamagedFileError(f"interval_ms of {source} must be two numbers, not {short_repr(interval)}.")
    tasks = tuple(TaskResult(**task) for task in record["tasks"])
    return Evaluation(**{**record, "interval_ms": tuple(interval), "tasks": tasks})


_EVALUATION: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("suite", "sha256", "split", "agent", "cost_model"), str),
    **{"mean_cost_ms": float, "interval_ms": list, "failures": int, "tasks": list},
}
_TASK: dict[str, type | tuple[type, ...]] = {
    **{"task": str, "cost_ms": float, "valid": bool, "seconds": float, "true_cost_queries": int},
    **{"placement": (list, type(None)), "failure": str, "plan": (list, type(None))},
    **{"sequence": (str, type(None)), "answered_by": str},
}
