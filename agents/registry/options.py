"""The options of every agent, with their defaults and a line about each, from signatures and docstrings.

Functions of learned agents raise MissingExtraError where a package that these need is not installed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import MISSING, fields
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from shard_gym.agents.registry.agents import AGENTS, LEARNERS, imported_for, learner_class
from shard_gym.agents.search.heuristics import PAPER_SCORES

COMMON = ("cost_model", "seed", "suite", "name", "score")  # parameters that commands have flags for
TUNED, REQUIRED = "tuned", "(required)"  # in place of a default: it is tuned for each suite, or for none


class AgentOption(NamedTuple):
    """An option of an agent."""

    name: str  # its name
    default: Any  # its default value
    about: str  # what it is, a sentence


def placing_options(name: str) -> list[AgentOption]:
    """The options that `make_agent(name, ...)` takes for an agent of `AGENTS`."""
    maker = _maker(name)
    if AGENTS[name].tuning:
        said = _described(maker.func if isinstance(maker, partial) else maker)
        default = TUNED if _tuning(name).tuned_suites(name) else REQUIRED
        return [AgentOption(each, default, said.get(each, "")) for each in inspect.signature(maker).parameters]
    return _of_parameters(maker)


def _maker(name: str) -> Any:
    """What makes an agent of `AGENTS`, without the arguments that its entry fixes."""
    return _tuning(name).TUNABLE[name].make if AGENTS[name].tuning else AGENTS[name].load(name)


def _tuning(name: str) -> ModuleType:
    """The module of the tuning of an agent of `AGENTS` that is tuned."""
    return import_module(AGENTS[name].tuning)


def training_options(name: str, problem: str = "") -> dict[str, list[AgentOption]]:
    """The options of an agent of `LEARNERS` by preset, the default one first; without presets, all of them under "".

    On a problem; if none is given, on the first that it learns.
    """
    learner = learner_class(name, problem)
    changed = learner.option_defaults(name)
    own = [
        option._replace(default=changed.get(option.name, option.default))
        for option in _of_parameters(learner)
        if option.name != "data"  # it has a flag, too
    ]
    if not learner.presets:
        return {"": own}
    default = next(option.default for option in own if option.name == "preset")
    return {
        preset: [*(option._replace(default=preset) for option in own), *_of_fields(learner.presets[preset])]
        for preset in (default, *(each for each in learner.presets if each != default))
    }


def trained_options(name: str) -> list[AgentOption]:
    """The options that `make_agent(folder, ...)` takes for a trained agent of `LEARNERS`."""
    entry = LEARNERS[name].learner()
    if not entry.options:
        return []
    kind = imported_for(name, entry.options_of)
    found = _of_fields(kind) if hasattr(kind, "__dataclass_fields__") else _of_parameters(kind)
    return [option for option in found if option.name in entry.options]


def about_agent(name: str) -> str:
    """What an agent of `AGENTS` is: the first sentence about its class, and what tells it from others of the class."""
    maker = _maker(name)
    kind, score = maker.func if isinstance(maker, partial) else maker, PAPER_SCORES.get(name)
    ending = f"; score: {_first_sentence(_doc(score)).removeprefix('(T,) ')}" if score else ""
    if AGENTS[name].tuning:
        more = _tuning(name).TUNABLE[name].about
        ending = f"; {_first_sentence(more)}" if more else ""
    return _first_sentence(_doc(kind)) + ending


def about_learner(name: str, preset: str = "", problem: str = "") -> str:
    """What an agent of `LEARNERS` is: the first sentence about its preset, or the class that trains it on a problem."""
    learner = learner_class(name, problem)
    return _first_sentence(_doc(learner.presets[preset] if preset else learner))


def _of_parameters(maker: Any) -> list[AgentOption]:
    """The parameters of a class or function that have defaults, without those in `COMMON`."""
    said = _described(maker)
    return [
        AgentOption(each.name, each.default, said.get(each.name, ""))
        for each in inspect.signature(maker).parameters.values()
        if each.default is not each.empty and each.name not in COMMON
    ]


def _of_fields(options: type) -> list[AgentOption]:
    said = _described(options)
    return [
        AgentOption(each.name, None if each.default is MISSING else each.default, said.get(each.name, ""))
        for each in fields(options)
    ]


def _described(subject: Any) -> dict[str, str]:
    """The first sentence about each argument or attribute in the docstrings of a class and of what it inherits from."""
    classes: Iterable[Any] = reversed(subject.__mro__) if isinstance(subject, type) else (subject,)
    found: dict[str, str] = {}
    for each in classes:
        for section in re.findall(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)+)", _doc(each), re.MULTILINE):
            for names, text in re.findall(r"^    ([\w, ]+): (.*(?:\n {8}.*)*)", section, re.MULTILINE):
                found |= dict.fromkeys(names.split(", "), _first_sentence(text))
    return found


def _doc(subject: Any) -> str:
    """Its own docstring: a class does not inherit one here."""
    return inspect.cleandoc(vars(subject).get("__doc__") or "" if isinstance(subject, type) else subject.__doc__ or "")


def _first_sentence(text: str) -> str:
    line = " ".join(text.split("\n\n")[0].replace("`", "").split())
    return re.split(r"(?<=\.) (?=[A-Z])", line)[0].rstrip(".")
