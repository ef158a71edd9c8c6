"""What entries are made from: agents that place the test tasks now, or evaluations that were written to files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shard_gym.agents import AGENTS, make_agent
from shard_gym.errors import DamagedFileError, InvalidOptionError
from shard_gym.evaluation import Evaluation, TaskResult, evaluate
from shard_gym.io.files import read_json
from shard_gym.leaderboard.schema import MAX_INT, ONE_SEED, SEEDS
from shard_gym.leaderboard.scorer import SCORED_BY
from shard_gym.leaderboard.store import SIMULATED
from shard_gym.leaderboard.verify import WITHOUT_CHANCE

Options = Mapping[str, bool | int | float | str]
OnSeed = Callable[[int], None]
"""Called with a seed when all tasks are placed with it."""


@dataclass(frozen=True)
class Training:
    """What a trained agent's file says of its training.

    Attributes:
        agent: name of the agent.
        data: SUITE/SPLIT for each thing it learnt from.
        queries: true costs asked, in all.
        options: of the agent in training.
    """

    agent: str
    data: tuple[str, ...]
    queries: int
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """An agent's evaluations, and what is known of it.

    Attributes:
        agent: its name.
        uses_chance: whether another seed may lead to another placement.
        evaluations: one for each seed, in their order.
        options: of the agent.
        training: None if it does not learn, or nobody knows.
        search_budget: placements it may try for one task; 0 if it does not search, or nobody knows.
    """

    agent: str
    uses_chance: bool
    evaluations: tuple[Evaluation, ...]
    options: Options
    training: Training | None = None
    search_budget: int = 0


def from_agents(agents: Sequence[str], suite: str, options: Options, on_seed: OnSeed | None = None) -> Source:
    """Let an agent place the test tasks of `suite`, with every seed it has to.

    Args:
        agents: a name, or folders of training runs: one, placed with by all seeds, or one for each seed.
        suite: name of the suite.
        options: to make the agent with.
        on_seed: called after each seed.

    Raises:
        InvalidOptionError: the agents are of several kinds, or of another number; or one cannot be made.
        UnknownNameError: there is no such agent, or no such suite.
        InvalidCheckpointError: a folder holds no agent.
    """
    trainings = [known_training(agent) for agent in agents]
    names = sorted({training.agent if training else agent for training, agent in zip(trainings, agents, strict=True)})
    if len(names) != 1 or len(agents) not in (1, len(SEEDS)):
        raise InvalidOptionError(
            f"Name one agent, or the folders of {len(SEEDS)} training runs of one agent, one for each seed; "
            f"got {', '.join(agents)}."
        )
    chance = names[0] not in WITHOUT_CHANCE
    evaluations, budget = [], 0
    for seed in SEEDS if chance else ONE_SEED:
        agent = make_agent(agents[seed % len(agents)], cost_model=SCORED_BY[SIMULATED], seed=seed, **options)
        budget = agent.search_budget
        evaluations.append(evaluate(agent, suite, SCORED_BY[SIMULATED]))
        if on_seed:
            on_seed(seed)
    training = _together([training for training in trainings if training is not None])
    return Source(
        names[0], chance, tuple(evaluations), {**(training.options if training else {}), **options}, training, budget
    )


def _together(trainings: Sequence[Training]) -> Training | None:
    """Runs of one agent as one: all they learnt from, and what the costliest asked."""
    if not trainings:
        return None
    data = dict.fromkeys(each for training in trainings for each in training.data)
    return Training(trainings[0].agent, tuple(data), max(each.queries for each in trainings), trainings[0].options)


def from_files(paths: Sequence[Path], uses_chance: bool, options: Options) -> Source:
    """Evaluations of one agent from files, one for each seed in their order.

    Raises:
        DamagedFileError, InvalidOptionError: see `read_evaluation`; or they are of several agents.
    """
    evaluations = tuple(read_evaluation(path) for path in paths)
    names = sorted({evaluation.agent for evaluation in evaluations})
    if len(names) != 1:
        raise InvalidOptionError(f"The evaluations of an entry are of one agent, but these are of {', '.join(names)}.")
    return Source(names[0], uses_chance, evaluations, options)


def read_evaluation(path: Path) -> Evaluation:
    """What `shard-gym evaluate --out` wrote for one agent, or `write_json` of `Evaluation.to_json()`.

    Raises:
        DamagedFileError: it is no such file.
        InvalidOptionError: it holds several agents.
    """
    record = read_json(path)
    if isinstance(record, list):
        raise InvalidOptionError(f"{path} holds {len(record)} agents; evaluate one agent and seed for each file.")
    try:
        tasks = tuple(TaskResult(**result) for result in record["tasks"])
        evaluation = Evaluation(**{**record, "interval_ms": tuple(record["interval_ms"]), "tasks": tasks})
    except (TypeError, KeyError) as error:
        raise DamagedFileError(f"{path} is no evaluation of one agent: {error}.") from error
    texts = (evaluation.suite, evaluation.split, evaluation.sha256, evaluation.agent, *(each.task for each in tasks))
    numbers = [number for each in tasks for number in (each.cost_ms, each.seconds, each.true_cost_queries)]
    if not tasks or not all(isinstance(text, str) for text in texts) or not all(map(_is_number, numbers)):
        raise DamagedFileError(f"{path} is no evaluation of one agent: a value has another type.")
    return evaluation


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= MAX_INT


def known_training(agent: str) -> Training | None:
    """How a trained agent's file, or an agent that comes trained, learnt; None for an agent that does not learn.

    Args:
        agent: name of an agent, the folder of a training run, or the file in it.

    Raises:
        InvalidCheckpointError: the file is no agent of ShardGym.
        InvalidOptionError: it does not say what it was trained on.
        UnknownNameError: there is no such agent, and no such folder.
    """
    if agent == "dreamshard":
        from shard_gym.agents.dreamshard.pretrained import PRETRAINED

        parts = [_training(checkpoint.path) for checkpoint in PRETRAINED.values()]
        return Training(agent, tuple(part.data[0] for part in parts), sum(part.queries for part in parts))
    if agent in AGENTS:
        return None
    if not Path(agent).exists():
        make_agent(agent)  # says which agents there are
    return _training(Path(agent))


def _training(path: Path) -> Training:
    from shard_gym.agents.training.run import AGENT
    from shard_gym.io.arrays import load_arrays

    path = path / AGENT if path.is_dir() else path
    trained: Any = load_arrays(path, "agent")[1].get("trained")
    try:
        data = (f"{trained['suite']}/{trained['split']}",)
        return Training(str(trained["agent"]), data, int(trained["true_cost_queries"]), dict(trained["options"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidOptionError(
            f"{path} does not say what it was trained on. Train it anew with: shard-gym train."
        ) from error
