"""Agents as commands name them: those of the package, trained ones, and your own classes and functions."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from numpy.typing import ArrayLike

from shard_gym.agents import Agent, make_agent
from shard_gym.cost_models import CostModel
from shard_gym.errors import InvalidOptionError
from shard_gym.tasks import Task


class OwnAgent(Agent):
    """An agent of yours, which needs no more than `place(task)`."""

    def __init__(self, name: str, place: Callable[[Task], ArrayLike]) -> None:
        self.name = name
        self._place = place

    def place(self, task: Task) -> Any:
        """See `Agent`; what it returns is checked by whoever asks."""
        return self._place(task)


def agent_named(name: str, *, cost_model: str | CostModel = "analytical", seed: int = 0, **options: Any) -> Agent:
    """The agent that a command's --agent names.

    Args:
        name: as for `make_agent`; or of your own: FILE.py:NAME or MODULE:NAME, where NAME is a class, a function that
            makes an agent, a function of a task that returns its placement, or an agent. A class or maker gets the
            arguments `cost_model` and `seed` if it has parameters of these names.
        cost_model, seed, options: as for `make_agent`.

    Raises:
        InvalidOptionError: there is no such file, module or name, or what has that name is no agent.
        UnknownNameError, InvalidCheckpointError, MissingExtraError: see `make_agent`.
    """
    where, colon, what = name.rpartition(":")
    if not colon or Path(name).exists():
        return make_agent(name, cost_model=cost_model, seed=seed, **options)
    found = getattr(_module(where), what, None)
    if found is None:
        raise InvalidOptionError(f"There is nothing named {what!r} in {where}, as --agent {name} says.")
    if isinstance(found, type) or (callable(found) and "task" not in inspect.signature(found).parameters):
        given = {"cost_model": cost_model, "seed": seed} | options
        known = inspect.signature(found).parameters
        takes_all = any(each.kind is each.VAR_KEYWORD for each in known.values())
        wanted = {key: value for key, value in given.items() if key in known or takes_all or key in options}
        try:
            inspect.signature(found).bind(**wanted)
        except TypeError as error:
            raise InvalidOptionError(f"{name} cannot be made with the options {sorted(wanted)}: {error}.") from error
        found = found(**wanted)
    place = getattr(found, "place", found)
    if not callable(place):
        raise InvalidOptionError(f"{name} is no agent: it has no place(task), and it is no function of a task.")
    return found if isinstance(found, Agent) else OwnAgent(str(getattr(found, "name", what)), place)


def _module(where: str) -> ModuleType:
    """The module in a file, or of a name that can be imported from the current folder, too."""
    path = Path(where)
    if path.suffix == ".py":
        if not path.is_file():
            raise InvalidOptionError(f"There is no file {path}.")
        spec = importlib.util.spec_from_file_location(f"shard_gym_own_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look there
        sys.path.insert(0, str(path.parent.absolute()))  # for what stands beside it
        spec.loader.exec_module(module)
        return module
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name != where.partition(".")[0] and error.name != where:
            raise  # it imports what is not installed
        raise InvalidOptionError(
            f"There is no module {where!r}. Name FILE.py:NAME or MODULE:NAME, or an agent of the package."
        ) from error
