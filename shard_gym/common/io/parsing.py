"""Parsing of JSON and TOML that anybody may have written: encoding, size and depth are checked before values are made.

A value is refused where it would take gigabytes or minutes, where two readers may see different values (NaN, duplicate
keys, byte order marks, other encodings than UTF-8), and where it is not of the kind that its reader expects.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from shard_gym.common.checks import is_number
from shard_gym.common.errors import DamagedFileError, missing_extra, short_repr

MAX_DEPTH = 32  # lists and objects inside each other, and parts of a dotted key
MAX_KEYS = 10_000  # keys of one object
MAX_CONTAINERS = 1_000_000  # lists and objects in one file; an empty one takes 60 bytes of memory
KEYS_EACH = 10  # keys that a file may have for each of the lists and objects that it may have

_BRACKETS = b'[]{}"'
_OTHERS = bytes(code for code in range(256) if code not in _BRACKETS)
_MULTI_LINE = ('"""', "'''")
_TOML_TEXT = re.compile(r"""("(?:[^"\\\n]|\\.)*"|'[^'\n]*')|#[^\n]*""")

Kinds = Mapping[str, type | tuple[type, ...]]
"""The keys of an object with the type of each value; a float may also be an integer, and an integer is no bool."""


def parse_json(data: bytes, source: str, max_containers: int = MAX_CONTAINERS) -> Any:
    """The JSON value in `data`; a DamagedFileError, which names `source`, if it is none within the limits of this
    module.
    """
    try:
        text = _decoded(data)
        if data.count(b"[") + data.count(b"{") > max_containers:
            raise ValueError(f"it has more than {max_containers:,} lists and objects")
        if data.count(b":") > KEYS_EACH * max_containers:
            raise ValueError(f"it has more than {KEYS_EACH * max_containers:,} keys")
        if _too_deep(data):
            raise ValueError(f"lists and objects are more than {MAX_DEPTH} deep")
        value = json.loads(text, parse_float=_finite, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
        if "\\u" in text:
            _check_surrogates(value)
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise DamagedFileError(f"{source} is not readable JSON: {error}.") from error
    return value


def parse_toml(data: bytes, source: str) -> dict[str, Any]:
    """The TOML document in `data`, which must be UTF-8 and has no text of several lines; else a DamagedFileError."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError as error:
            raise missing_extra("tomli", "leaderboard", "Reading TOML") from error
    try:
        text = _decoded(data)
        if any(quotes in text for quotes in _MULTI_LINE):
            raise ValueError("texts of several lines are not allowed")
        bare = _TOML_TEXT.sub("", text)
        if any(line.count(".") > MAX_DEPTH for line in bare.splitlines()):  # tomllib's time grows with their cube
            raise ValueError(f"a dotted key has more than {MAX_DEPTH} parts")
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise DamagedFileError(f"{source} is not readable TOML: {error}.") from error


def require_schema(record: Any, schema: int | str, source: str) -> dict[str, Any]:
    """`record`, if it is an object with that "schema", else a DamagedFileError; `True` and `1.0` are not 1."""
    if not isinstance(record, dict):
        raise DamagedFileError(f"{source} must be an object, not {short_repr(record)}.")
    found = record.get("schema")
    if type(found) is type(schema) and found == schema:
        return record
    name, number = _version(schema)
    other, newer = _version(found)
    if other == name and newer > number:
        raise DamagedFileError(
            f"{source} has schema {short_repr(found)}, but this version reads {short_repr(schema)}; update shard-gym."
        )
    raise DamagedFileError(f"{source} must have the schema {schema!r}, not {short_repr(found)}.")


def require_fields(record: Any, kinds: Kinds, source: str, optional: Kinds | None = None) -> dict[str, Any]:
    """`record`, if it is an object with these keys and no others, and values of these types, or a DamagedFileError."""
    if not isinstance(record, dict):
        raise DamagedFileError(f"{source} must be an object, not {short_repr(record)}.")
    known = {**kinds, **(optional or {})}
    for key in record:
        if key not in known:
            raise DamagedFileError(f"{source} has the unknown key {short_repr(key)}; known are {', '.join(known)}.")
    for key, kind in known.items():
        if key not in record:
            if key in kinds:
                raise DamagedFileError(f"{source} lacks the key {key!r}.")
            continue
        allowed = kind if isinstance(kind, tuple) else (kind,)
        value = record[key]
        if type(value) not in allowed and not (float in allowed and type(value) is int and is_number(value)):
            wanted = " or ".join("null" if each is type(None) else each.__name__ for each in allowed)
            raise DamagedFileError(f"{source} has {key} {short_repr(value)}, but it must be {wanted}.")
    return record


def _decoded(data: bytes) -> str:
    text = data.decode("utf-8")
    if text.startswith("\ufeff"):
        raise ValueError("it begins with a byte order mark; write it as UTF-8 without one")
    return text


def _too_deep(data: bytes) -> bool:
    """Whether brackets are nested deeper than MAX_DEPTH; each removal of the innermost ones lowers the depth by one."""
    if b"\\" in data:
        data = re.sub(rb"\\.", b"", data, flags=re.DOTALL)
    brackets = re.sub(rb'"[^"]*"', b"", data.translate(None, _OTHERS))
    for _ in range(MAX_DEPTH):
        inner = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(inner) == len(brackets):
            break  # nothing is left, or brackets that do not match, which the parser refuses
        brackets = inner
    return b"[]" in brackets or b"{}" in brackets


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits} is too large")
    return value


def _refuse_constant(token: str) -> float:
    raise ValueError(f"the number {token} is not allowed")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(pairs) > MAX_KEYS:
        raise ValueError(f"one object has more than {MAX_KEYS:,} keys")
    if len(record) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {short_repr(twice)} occurs twice in one object")
    return record


def _check_surrogates(value: Any) -> None:
    """Refuse halves of a character, which JSON can escape and no file can hold."""
    for text in _texts(value):
        if not text.isascii():
            text.encode()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _version(schema: Any) -> tuple[str, int]:
    """The name and the number of a schema: ("costs/", 2) of "costs/2", ("", 2) of 2, and -1 without a number."""
    if type(schema) is int:
        return "", schema
    found = re.fullmatch(r"(\D{0,80})(\d{1,9})", schema) if isinstance(schema, str) else None
    return (found[1], int(found[2])) if found else ("", -1)
