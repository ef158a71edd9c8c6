"""Options of agents as commands take them: --option KEY=VALUE."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import tyro

from shard_gym.common.checks import is_number
from shard_gym.common.errors import InvalidOptionError

AgentOptions = Annotated[list[str], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="KEY=VALUE")]

Option = bool | int | float | str | None

_WORDS: dict[str, Option] = {"true": True, "false": False, "none": None}
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?", re.IGNORECASE)
"""As Python writes numbers; `int` and `float` also take blanks, underscores and other digits."""

RESERVED = {
    "device": "--device",
    "name": "--agent",
    "suite": "--suite",
    "seed": "--seed",
    "cost_model": "--cost-model",
    "data": "--data",
}
"""Arguments of learners that are no options, and their flags."""


def parse_options(given: Sequence[str]) -> dict[str, Option]:
    """The options `given` as KEY=VALUE; a value is a Boolean (true, false), none, an integer, a number or a text."""
    options: dict[str, Option] = {}
    for each in given:
        key, equals, text = each.partition("=")
        if not key or not equals:
            raise InvalidOptionError(f"--option wants KEY=VALUE, such as iterations=20, not {each!r}.")
        if key in RESERVED:
            raise InvalidOptionError(f"{key} is no option of an agent; give it with {RESERVED[key]}.")
        if key in options:
            raise InvalidOptionError(f"The option {key!r} is given twice; give it once.")
        options[key] = _parsed(text)
    return options


def _parsed(text: str) -> Option:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind, form in ((int, _INTEGER), (float, _NUMBER)):
        try:
            value = kind(text) if form.fullmatch(text) else None
        except ValueError:  # an integer of thousands of digits
            continue
        if is_number(value):
            return value
    return text
