"""Data sets for offline RL in Minari's format: placements of agents, replayed through the environment."""

from __future__ import annotations

import importlib.util
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np

from shard_gym.agents.base import Agent
from shard_gym.agents.search.heuristics import RandomAgent
from shard_gym.common.errors import (
    DamagedFileError,
    InvalidOptionError,
    InvalidPlacementError,
    UnwritablePathError,
    missing_extra,
    wrong_kind,
)
from shard_gym.common.io.arrays import SUFFIX as WEIGHTS
from shard_gym.common.io.files import require_writable
from shard_gym.cost_models import AdditiveCostModel, make_cost_model
from shard_gym.envs.core.reward import make_reward
from shard_gym.envs.placement.observation import make_observation
from shard_gym.evaluation import Evaluation, evaluate
from shard_gym.evaluation.evaluations import Progress
from shard_gym.plans.placement import check_placement
from shard_gym.tasks import TaskSuite, load_suite
from shard_gym.tasks.suites.best_known import best_known_costs
from shard_gym.tasks.suites.own import SUFFIX as SUITE_FILE

if TYPE_CHECKING:
    from minari import MinariDataset

ENV_ID = "shard_gym:EmbeddingPlacement-v0"

NAME = re.compile(r"(?:(?![\w-]*-v\d+/)[\w-]{2,}/)*[\w-]+-v\d+", re.ASCII)
"""What Minari calls a data set: folders, a name and a version. A folder has no version: it would be a data set."""

ABOUT = "shard_gym"
"""Key of what is recorded about the environment in the metadata of a data set."""

BATCH = 16
"""Episodes that are in memory at the same time."""


class _Episode(NamedTuple):
    agent: str
    task: int
    placement: tuple[int, ...]


def write_dataset(
    name: str,
    evaluations: Iterable[Evaluation],
    suite: str | Path,
    *,
    split: str = "train",
    cost_model: str | Path = "analytical",
    reward: str = "terminal",
    observation: str = "compact",
    progress: Progress | None = None,
) -> MinariDataset:
    """Replay the placements of `evaluations` through `EmbeddingPlacement-v0` and write the episodes for Minari.

    An episode has the observations and infos of its T + 1 states and the actions and rewards of its T steps. Tasks that
    an agent failed have no episode, and equal placements of a task by the same agent have one. The metadata of an
    episode name its `agent`, its `task` and the `cost_ms` of the placement; its option `task` is the task's number.

    `dataset.recover_environment()` makes the environment again, and `eval_env=True` the one of the test tasks. Where
    the best known placements of all test tasks are known, the mean returns of random and of those are the reference
    scores for `minari.get_normalized_score`.

    Args:
        name: of the data set: "mixdim-4/greedy-v0". It is written where Minari keeps its data sets:
            `MINARI_DATASETS_PATH`, or ~/.minari/datasets.
        evaluations: what `evaluate` returned for agents on tasks of this suite and split.
        suite: name or file of the suite.
        cost_model: name or file of the cost model of the environment; costs and rewards are computed with it.
        observation: name of the observation. The size of "full" and of the data set grow with the number of tables.
        progress: called after every episode.

    Raises:
        InvalidOptionError: there is a data set of this name, the name is not valid, the evaluations are of other tasks
            or hold placements that are not valid, no task was placed, or an argument is of another kind.
        UnknownNameError: there is no suite, cost model, reward or observation of that name.
        UnwritablePathError: the data set cannot be written.
        MissingExtraError: Minari, h5py or Pillow is not installed.
    """
    path = dataset_path(name)
    again = "A data set names it, so that its environment can be made again."
    for argument, value in (("suite", suite), ("cost_model", cost_model)):
        if not isinstance(value, (str, Path)):
            raise wrong_kind(argument, value, "a name or the path of a file", again)
    for argument, value in (("reward", reward), ("observation", observation)):
        if not isinstance(value, str):
            raise wrong_kind(argument, value, "a name", again)
    make_reward(reward)
    make_observation(observation)
    tasks, model = load_suite(suite, split), make_cost_model(cost_model, additive=True)
    episodes = _episodes(evaluations, tasks)
    env = _make(suite, split, cost_model, reward, observation)
    held_out = _held_out(suite, tasks)
    import minari

    buffers = _replayed(env, episodes, progress)
    try:
        with warnings.catch_warnings():  # Minari asks for an author and a link
            warnings.filterwarnings("ignore", message="`(author|author_email|code_permalink)` is set to None")
            dataset = minari.create_dataset_from_buffers(
                name,
                list(islice(buffers, BATCH)),
                env=env.spec,
                eval_env=_make(suite, held_out.split, cost_model, reward, observation).spec,
                algorithm_name=", ".join(dict.fromkeys(episode.agent for episode in episodes)),
                description=f"Embedding table placement on the {tasks.split} tasks of {tasks.name}.",
                **_reference_scores(held_out, model, reward),
            )
        while batch := list(islice(buffers, BATCH)):
            dataset.update_dataset_from_buffer(batch)
        dataset.storage.update_episode_metadata(
            {"agent": each.agent, "task": tasks[each.task].name, "cost_ms": float(replayed.infos["cost_ms"][-1])}
            for each, replayed in zip(episodes, dataset.iterate_episodes(), strict=True)
        )
        dataset.storage.update_metadata({ABOUT: _about(env)})
        dataset = minari.load_dataset(name)
        recover_environment(dataset)
    except BaseException as error:
        shutil.rmtree(path, ignore_errors=True)
        if isinstance(error, OSError):
            raise UnwritablePathError(f"{path} cannot be written: {error.strerror or error}.") from error
        raise
    return dataset


def repeated_evaluations(
    names: Sequence[str],
    make: Callable[[str, int], Agent],
    tasks: TaskSuite,
    count: int,
    model: AdditiveCostModel,
    evaluate_all: Callable[[Mapping[str, Agent], TaskSuite, AdditiveCostModel], Mapping[str, Evaluation]],
) -> list[Evaluation]:
    """Every agent on `count` tasks, again and again in turns until it repeats all its placements.

    Args:
        names: of the agents.
        make: gives an agent by its name and the number of the turn, from 0 up.
        tasks: in each turn the same ones; fewer in the last one.
        count: placements of each agent.
        model: of the costs.
        evaluate_all: evaluates several agents, by name.
    """
    evaluations: list[Evaluation] = []
    seen: dict[str, set[tuple[str, str]]] = {}
    for turn, first in enumerate(range(0, count, len(tasks))):
        part = replace(tasks, tasks=tasks.tasks[: count - first])
        made = evaluate_all({name: make(name, turn) for name in names}, part, model)
        evaluations += made.values()
        repeats = set()
        for name, evaluation in made.items():
            placed = {(result.task, str(result.placement)) for result in evaluation.tasks}
            if placed <= seen.setdefault(name, set()):
                repeats.add(name)
            seen[name] |= placed
        names = [name for name in names if name not in repeats]
        if not names:
            break
    return evaluations


def recover_environment(dataset: MinariDataset, *, eval_env: bool = False) -> gymnasium.Env[Any, Any]:
    """The environment that the episodes of `dataset` were recorded in, or the one with the test tasks.

    Unlike `dataset.recover_environment`, it compares the suite and the cost model with those that were recorded.

    Raises:
        InvalidOptionError: `write_dataset` did not write the data set.
        DamagedFileError: the suite or the cost model has changed since.
    """
    if not hasattr(dataset, "storage"):
        raise wrong_kind("dataset", dataset, "what minari.load_dataset returns")
    recorded = dataset.storage.metadata.get(ABOUT)
    if not isinstance(recorded, dict):
        raise InvalidOptionError(f"The data set {dataset.id} was not written by shard-gym dataset.")
    env: gymnasium.Env[Any, Any] = dataset.recover_environment()
    for key, now in _about(env).items():
        if now != recorded.get(key):
            raise DamagedFileError(
                f"The data set {dataset.id} was recorded with {key.replace('_', ' ')} {recorded.get(key)!r}, but here "
                f"it is {now!r}. Install the version of shard-gym that wrote it, or record it again."
            )
    if eval_env:
        env = dataset.recover_environment(eval_env=True)
    return env


def dataset_path(name: str) -> Path:
    """Where Minari keeps the data set `name`, which does not exist yet.

    Raises:
        InvalidOptionError: the name is not valid, or there is a data set of this name.
        UnwritablePathError: it cannot be written.
        MissingExtraError: Minari, h5py or Pillow is not installed.
    """
    for package in ("minari", "h5py", "PIL"):
        if not importlib.util.find_spec(package):
            raise missing_extra(package, "minari", "A data set for offline RL")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        wanted = "a name and a version, such as 'mixdim-4/greedy-v0', in folders that have no version"
        raise wrong_kind("The name of a data set", name, wanted)
    from minari.storage import get_dataset_path

    try:
        path = Path(get_dataset_path(name))
        exists = path.exists()
    except OSError as error:
        raise UnwritablePathError(f"{error.filename} cannot be written: {error.strerror}.") from error
    if exists:
        raise InvalidOptionError(
            f"There is a data set {name} in {path}. Choose another name, such as the next version, or delete it: "
            f"minari delete {name}."
        )
    require_writable(path)
    return path


def _make(suite: str | Path, split: str, cost_model: str | Path, *names: str) -> gymnasium.Env[Any, Any]:
    """The environment; its arguments are texts, so that JSON holds its spec. Paths are absolute."""
    reward, observation = names
    arguments: dict[str, Any] = {
        "suite": _text(suite, SUITE_FILE),
        "split": split,
        "cost_model": _text(cost_model, WEIGHTS),
        "reward": reward,
        "observation": observation,
    }
    return gymnasium.make(ENV_ID, **arguments)


def _text(name_or_path: str | Path, suffix: str) -> str:
    is_path = isinstance(name_or_path, Path) or name_or_path.endswith(suffix)
    return str(Path(name_or_path).absolute()) if is_path else str(name_or_path)


def _held_out(suite: str | Path, tasks: TaskSuite) -> TaskSuite:
    try:
        held_out: TaskSuite = load_suite(suite, "test")
    except InvalidOptionError:
        return tasks
    return held_out


def _about(env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    placing: Any = env.unwrapped
    tasks = placing.tasks
    return {
        "suite": tasks.name,
        "suite_sha256": tasks.sha256,
        "split": tasks.split,
        "cost_model": placing.cost_model.fingerprint,
    }


def _episodes(evaluations: Iterable[Evaluation], tasks: TaskSuite) -> list[_Episode]:
    """The placements of all agents, each once."""
    if any(task.splittable for task in tasks):
        raise InvalidOptionError(f"Data sets hold placements, but the tables of {tasks.name!r} may be split.")
    number = {task.name: index for index, task in enumerate(tasks)}
    if not isinstance(evaluations, Iterable):
        raise wrong_kind("evaluations", evaluations, "a list of what shard_gym.evaluate returns")
    evaluations = list(evaluations)
    for each in evaluations:
        if not isinstance(each, Evaluation):
            raise wrong_kind("evaluations", each, "a list of what shard_gym.evaluate returns")
        if each.sha256 != tasks.sha256 or not all(result.task in number for result in each.tasks):
            raise InvalidOptionError(
                f"{each.agent} was evaluated on {each.suite} ({each.split}), but the data set is to be of {tasks.name} "
                f"({tasks.split}). Evaluate it there: evaluate(agent, {tasks.name!r}, split={tasks.split!r})."
            )
    found = [
        _Episode(each.agent, number[result.task], tuple(result.placement))
        for each in evaluations
        for result in each.tasks
        if result.valid and result.placement is not None
    ]
    for agent, index, placement in found:
        try:
            check_placement(placement, tasks[index].tables, tasks[index].topology)
        except InvalidPlacementError as error:
            raise InvalidOptionError(
                f"The evaluation of {agent} holds a placement of {tasks[index].name} that is not valid. {error}"
            ) from error
    if not found:
        raise InvalidOptionError("No agent placed a task, so there is nothing to write.")
    return list(dict.fromkeys(found))


def _replayed(env: gymnasium.Env[Any, Any], episodes: Sequence[_Episode], progress: Progress | None) -> Iterator[Any]:
    from minari.data_collector.episode_buffer import EpisodeBuffer

    placing: Any = env.unwrapped
    for done, episode in enumerate(episodes, start=1):
        options = {"task": episode.task}
        observation, info = env.reset(seed=0, options=options)
        observations, infos, rewards, over = [observation], [info], [], []
        problem = placing.problem
        order = problem.tables.order[problem.row.item(), : len(episode.placement)]
        actions = np.array(episode.placement, np.int64)[order]
        for action in actions:
            observation, reward, terminated, _, info = env.step(action)
            observations.append(observation)
            infos.append(info)
            rewards.append(float(reward))
            over.append(terminated)
        yield EpisodeBuffer(
            seed=0,
            options=options,
            observations={key: np.stack([each[key] for each in observations]) for key in observations[0]},
            actions=actions,
            rewards=np.array(rewards),
            terminations=np.array(over),
            truncations=np.zeros(len(over), np.bool_),
            infos={key: np.array([each[key] for each in infos]) for key in infos[0]},
        )
        if progress:
            progress(done, len(episodes))


def _reference_scores(tasks: TaskSuite, model: AdditiveCostModel, reward: str) -> dict[str, float]:
    """Mean returns of random and of the best known placements; empty if one is not known, or is not minus a cost."""
    if reward == "balance":
        return {}
    best = best_known_costs(tasks, model)
    if len(best) < len(tasks):
        return {}
    random = evaluate(RandomAgent(), tasks, model).costs_ms
    costs = np.array([random, [best[task.name] for task in tasks]])
    if reward == "normalized":
        costs /= [model.bounds(model.loads(task.tables, task.topology), task.topology)[0] for task in tasks]
    lowest, highest = (-costs.mean(axis=1)).tolist()
    return {"ref_min_score": lowest, "ref_max_score": highest}
