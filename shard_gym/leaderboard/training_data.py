"""Training data: their overlap with the test tables of a suite, and the data that a trained agent's file records.

Entries name training data as

SUITE/SPLIT       the tasks of a split of a suite, such as dlrm-50x4/train
pool/POOL/HALF    own tasks, made from the half of a pool that the splits of all its suites use
pool/POOL         own tasks, made from the whole pool
other: TEXT       data from outside ShardGym
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from shard_gym.agents import AGENTS, make_agent
from shard_gym.agents.registry import AGENT
from shard_gym.agents.registry.agents import imported
from shard_gym.common.errors import InvalidOptionError, ShardGymError, short_repr
from shard_gym.tables import load_pool
from shard_gym.tasks import load_suite, problem_of, suite_info
from shard_gym.tasks.suites.drawing import halves

OTHER = "other: "
FORMS = f"SUITE/SPLIT, pool/POOL/train, pool/POOL or {OTHER}TEXT"

Options = Mapping[str, bool | int | float | str | None]
"""Options of an agent, by name."""

PoolTables = tuple[str, frozenset[str]]
"""The name of a pool, and the names of some of its tables."""


def overlap(data: str, suite: str) -> int:
    """How many tables of the test tasks of `suite` are among the training data named `data`.

    Raises:
        InvalidOptionError: `data` has none of the forms.
        UnknownNameError: there is no such suite or pool.
    """
    if data.startswith(OTHER) and data.removeprefix(OTHER).strip():
        return 0
    pool, trained = _tables(data)
    tested_pool, tested = _tables_of_split(suite, "test")
    return len(trained & tested) if pool == tested_pool else 0


@lru_cache(maxsize=256)
def _tables(data: str) -> PoolTables:
    match data.split("/"):
        case ["pool", pool]:
            return pool, frozenset(load_pool(pool).tables.names)
        case ["pool", pool, "train" | "test" as half]:
            names = load_pool(pool).tables.names
            return pool, frozenset(names[index] for index in halves(pool, len(names))[half])
        case [suite, split] if suite:
            return _tables_of_split(suite, split)
    raise InvalidOptionError(f"Training data are named {FORMS}; not {short_repr(data)}.")


@lru_cache(maxsize=256)
def _tables_of_split(suite: str, split: str) -> PoolTables:
    names = frozenset(name for task in load_suite(suite, split) for name in problem_of(task).tables_of(task).names)
    return suite_info(suite).pool, names


def check_training_data(data: list[str], suite: str) -> list[str]:
    """A sentence for each of the declared training data that is not valid, or that holds tables of the test tasks."""
    wrong = []
    for each in data:
        try:
            shared = overlap(each, suite)
        except ShardGymError as error:
            wrong.append(f"training.data names {short_repr(each)}. {error}")
            continue
        if shared:
            wrong.append(
                f"training.data names {short_repr(each)}, which holds {shared} tables of the test tasks of {suite}; "
                "an agent that learnt from them cannot be listed here."
            )
    return wrong


@dataclass(frozen=True)
class Training:
    """The training of an agent, as its file records it.

    Attributes:
        agent: name of the agent.
        data: SUITE/SPLIT of each suite it was trained on.
        queries: cost-model evaluations in training, in total.
        seconds: that the training took; None if it is not known.
        options: of the agent in training.
        cost_model: fingerprint of the cost model it was trained on.
        seed: of the training; None if the file does not say.
        finished: whether all iterations of the run are done.
    """

    agent: str
    data: tuple[str, ...]
    queries: int = 0
    seconds: float | None = None
    options: Options = field(default_factory=dict)
    cost_model: str = ""
    seed: int | None = None
    finished: bool = True


def recorded_training(agent: str, suite: str, options: Options | None = None) -> Training | None:
    """The training of a trained agent's file, or of an agent that ships trained or tuned; None for any other agent.

    Args:
        agent: name of an agent, the folder of a training run, or the file in it.
        suite: name of the suite it answers: an agent that ships trained has a checkpoint for each kind of hardware, and
            one that ships tuned has options for some suites.
        options: that the agent is made with; those are not tuned.

    Raises:
        InvalidCheckpointError: the file holds no agent of ShardGym.
        InvalidOptionError: the file does not record the training data.
        UnknownNameError: there is no such agent, and no such folder.
    """
    if agent not in AGENTS:
        if not Path(agent).exists():
            make_agent(agent)  # raises an error that lists the agents
        return _read_training(Path(agent))
    entry = AGENTS[agent]
    if entry.checkpoints:
        files = imported(agent, entry.checkpoints)
        found = files.get(suite_info(suite).hardware, files.get(""))
        return _read_training(found.path) if found else None
    if entry.tuning and set(import_module(entry.tuning).tuned_settings(agent, suite)) - set(options or ()):
        return Training(agent, (f"{suite}/train",))
    return None


def _read_training(path: Path) -> Training:
    from shard_gym.common.io.arrays import load_arrays

    path = path / AGENT if path.is_dir() else path
    about = load_arrays(path, "agent")[1]
    trained: Any = about.get("trained")
    try:
        data = (f"{trained['suite']}/{trained['split']}", *map(str, about.get("more_data", ())))
        return Training(
            str(trained["agent"]),
            data,
            int(trained["true_cost_queries"]),
            float(trained["seconds"]),
            dict(trained["options"]),
            str(trained.get("cost_model", "")),
            trained.get("seed"),
            trained.get("iteration") == trained.get("iterations"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidOptionError(
            f"{path} does not record its training data. Train it again with: shard-gym train."
        ) from error
