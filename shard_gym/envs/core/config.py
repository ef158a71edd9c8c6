"""`EnvConfig`: the arguments of environments as one frozen object; and the checks of their arguments and of resets."""

from __future__ import annotations

import importlib.util
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from shard_gym.common.checks import is_integer, is_one_of
from shard_gym.common.errors import InvalidOptionError, install_extra, short_repr, similar, wrong_kind
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.envs.core.episode_batch import EpisodeBatch
from shard_gym.tasks import Suite, TaskSource, load_suite
from shard_gym.tasks.suites.own import MAX_PADDING, suite_of_record

RENDER_MODES: list[str] = ["ansi", "rgb_array"] if importlib.util.find_spec("matplotlib") else ["ansi"]
"""The render modes that work with the packages installed here."""

ILLEGAL = ("terminate", "redirect")
"""What an illegal action does: it ends the episode, or a legal action is done in its place."""

Env = TypeVar("Env")
Config = TypeVar("Config", bound="EnvConfig")
P = ParamSpec("P")


def require_render_mode(mode: Any) -> None:
    """Raise InvalidOptionError unless it is None or one of `RENDER_MODES`."""
    if mode is not None and not is_one_of(mode, RENDER_MODES):
        raise InvalidOptionError(
            f"render_mode must be None or one of {RENDER_MODES}, not {short_repr(mode)}. "
            + ("There is no window: print what render() returns with 'ansi'. " if is_one_of(mode, ["human"]) else "")
            + f"'rgb_array' is a picture, and needs matplotlib. {install_extra('viz')}"
        )


@dataclass(frozen=True, eq=False)
class EnvConfig(ABC):
    """The arguments of an environment; the class of the scalar environment documents them.

    The fields of a subclass are the parameters of its scalar environment, and they are options of its vector one.
    """

    render_mode: str | None = field(default=None, kw_only=True)
    illegal: str = field(default="terminate", kw_only=True)
    info_text: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if not is_one_of(self.illegal, ILLEGAL):
            raise wrong_kind("illegal", self.illegal, " or ".join(map(repr, ILLEGAL)))
        if not isinstance(self.info_text, bool):
            raise wrong_kind("info_text", self.info_text, "True or False")
        require_render_mode(self.render_mode)

    @abstractmethod
    def source_of(self, suite: Any) -> Any:
        """Where tasks come from, if `suite` is the argument; raises InvalidOptionError if it is of another kind."""

    @abstractmethod
    def episodes(self, num_envs: int) -> EpisodeBatch[Any]:
        """`num_envs` episodes with these arguments."""


def takes_fields_of(
    config: Callable[P, Config],
) -> Callable[[Callable[[Env, Config], None]], Callable[Concatenate[Env, P], None]]:
    """Decorates an `__init__` that takes a `config`: callers give the fields of the configuration as arguments."""

    def decorate(init: Callable[[Env, Config], None]) -> Callable[Concatenate[Env, P], None]:
        @wraps(init)
        def init_from_fields(self: Env, /, *values: P.args, **options: P.kwargs) -> None:
            require_fields_of(config, type(self).__name__, options)
            init(self, config(*values, **options))

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        signature = inspect.signature(config)
        init_from_fields.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[own, *signature.parameters.values()], return_annotation=None
        )
        return init_from_fields

    return decorate


def require_fields_of(config: Callable[..., EnvConfig], owner: str, options: Iterable[str]) -> None:
    """Raise TypeError, which names the environment `owner`, unless all options are fields of its configuration."""
    known = sorted(inspect.signature(config).parameters)
    for name in options:
        if name not in known:
            raise TypeError(
                f"{owner} got an unexpected keyword argument {name!r}.{similar(name, known)} "
                f"It takes: {', '.join(known)}."
            )


def checked_options(options: Any, *known: str) -> dict[str, Any]:
    """A copy of the options of a reset, which must all be `known`; empty for None."""
    if options is None:
        return {}
    quoted = [repr(name) for name in known]
    if not isinstance(options, Mapping):
        raise wrong_kind("options", options, f"None or a dict with the keys {', '.join(quoted)}, such as {{'task': 0}}")
    unknown = sorted(str(name) for name in options if name not in known)
    if unknown:
        listed = f"option {quoted[0]}" if len(quoted) == 1 else f"options {', '.join(quoted[:-1])} and {quoted[-1]}"
        raise InvalidOptionError(f"reset() knows the {listed}, not {unknown}.")
    return dict(options)


def task_source(suite: Any, split: str) -> TaskSource:
    """The suite of this name and split; a source of tasks is returned as it is."""
    found = named_suite(suite, split)
    if isinstance(found, type) or not isinstance(found, TaskSource):
        wanted = "the name of a suite of placement or sharding, a TaskSuite or a TaskSampler"
        raise wrong_suite(suite, wanted, "TaskSuite", found)
    return found


def named_suite(suite: Any, split: str) -> Any:
    """The suite of a name, of a file, or of a file's content as a spec has it; another object as it is."""
    if isinstance(suite, Mapping):
        return suite_of_record(suite, split)
    return load_suite(suite, split) if isinstance(suite, (str, Path)) else suite


def wrong_suite(suite: Any, wanted: str, wrapper: str, found: Any) -> InvalidOptionError:
    """The error that a suite is of another kind; it names the environment of that, or the `wrapper` of tasks."""
    hint = f"Wrap custom tasks in a suite: {wrapper}('mine', [task])."
    if isinstance(found, Suite):
        hint = environment_of(found[0].problem)
    return wrong_kind("suite", suite, wanted, hint)


def environment_of(problem: str) -> str:
    """A sentence that names the environment of a suite."""
    return f"It is a suite of {problem}: its environment is Embedding{problem.capitalize()}-v0."


def padding(name: str, given: int | None, needed: int, most: int = MAX_PADDING) -> int:
    """The padding that was given, or what is needed; less than that, or above `most`, is an InvalidOptionError."""
    if given is None:
        return int(needed)
    if not is_integer(given) or given < needed:
        raise InvalidOptionError(
            f"{name} must be an integer of at least {needed}, the suite's own; got {short_repr(given)}."
        )
    if given > most:
        raise InvalidOptionError(f"{name} must be at most {most:,}, not {short_repr(given)}.")
    return int(given)


def require_padding(what: str, needed: int, room: int) -> None:
    """Raise InvalidOptionError if the largest of other tasks need more than an environment was made for."""
    if needed > room:
        raise InvalidOptionError(
            f"These tasks have up to {needed} {what}, but this environment was made for {room}. Make it with "
            f"max_{what}={needed}."
        )


def require_model(model: AdditiveCostModel, own: AdditiveCostModel) -> None:
    """Raise InvalidOptionError if other tasks are scored by another cost model than the environment's own."""
    if model.fingerprint != own.fingerprint:
        raise InvalidOptionError(
            f"These tasks are scored by the cost model {model.fingerprint!r}, but this environment was made with "
            f"{own.fingerprint!r}. Make another one for them."
        )


def require_seed(seed: Any) -> None:
    """Raise InvalidOptionError for a bool or a time span, which Gymnasium takes for integers."""
    if isinstance(seed, (bool, np.timedelta64)):
        raise InvalidOptionError(f"A seed is an integer of at least 0, or None, not {short_repr(seed)}.")
