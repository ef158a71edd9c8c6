"""JSON and TOML of strangers: what is not plain, or too much, is refused before values are made."""

from __future__ import annotations

import time
from typing import Any

import pytest

from shard_gym.common.errors import DamagedFileError
from shard_gym.common.io.parsing import MAX_DEPTH, parse_json, parse_toml, require_fields, require_schema

PLAIN = '{"a": [1, 2.5, null, true, "\\u00fc [[{"], "b": {"\\\\": "\\"]"}}'


def test_plain_json_and_toml_are_read() -> None:
    assert parse_json(PLAIN.encode(), "x") == {"a": [1, 2.5, None, True, "ü [[{"], "b": {"\\": '"]'}}
    assert parse_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, "x") is not None
    assert parse_json(b'"\\ud83d\\ude00"', "x") == "\N{GRINNING FACE}"
    toml = "a.b = \"x.y.z........................................ # no comment\"  # a.b.c: a comment\nc = '\\'\n"
    assert parse_toml(toml.encode(), "x") == {"a": {"b": f"x.y.z{'.' * 40} # no comment"}, "c": "\\"}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32-le"])
def test_only_utf_8_is_read(encoding: str) -> None:
    with pytest.raises(DamagedFileError, match="x is not readable JSON"):
        parse_json(PLAIN.encode(encoding), "x")
    with pytest.raises(DamagedFileError, match="x is not readable TOML"):
        parse_toml("a = 1".encode(encoding), "x")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"[" * (MAX_DEPTH + 40) + b"]" * (MAX_DEPTH + 40), "32 deep"),
        (b"[" * 10**6, "is not readable JSON"),
        (b'{"a": 1', "delimiter"),
        (b'"\xff"', "codec can't decode"),
        (b"[" + b"[]," * 10**6 + b"[]]", "more than 1,000,000 lists and objects"),
        (b"{" + b",".join(b'"%d":1' % n for n in range(10_001)) + b"}", "more than 10,000 keys"),
        (b'{"a":1,"a":2}', "the key 'a' occurs twice"),
        (b'"\\ud800"', "surrogates not allowed"),
        (b"9" * 5_000, "is not readable JSON"),
        (b"1e999", "is too large"),
        (b"[NaN]", "is not allowed"),
        (b"", "is not readable JSON"),
    ],
)
def test_json_that_is_refused(data: bytes, says: str) -> None:
    began = time.process_time()
    with pytest.raises(DamagedFileError, match=f"x is not readable JSON.*{says}|{says}"):
        parse_json(data, "x")
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"a" + b".a" * 20_000 + b" = 1", "more than 32 parts"),
        (b'a = "\'"\nb' + b".a" * 40 + b" = '\"'", "more than 32 parts"),
        (b"# it's\nb" + b".a" * 40 + b" = 1 # it's", "more than 32 parts"),
        (b'a = """x"""', "several lines"),
        (b"a = '''x'''", "several lines"),
        (b"a = " + b"[" * 9_000, "is not readable TOML"),
        (b"a = 1\na = 2", "is not readable TOML"),
        (b"\xff", "is not readable TOML"),
    ],
)
def test_toml_that_is_refused(data: bytes, says: str) -> None:
    began = time.process_time()
    with pytest.raises(DamagedFileError, match=says):
        parse_toml(data, "x")
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("record", "schema", "says"),
    [
        ({"schema": True}, 1, "must have the schema 1, not True"),
        ({}, 1, "must have the schema 1, not None"),
        ({"schema": 2}, 1, "has schema 2, but this version reads 1; update shard-gym"),
        ({"schema": "costs/10"}, "costs/9", "has schema 'costs/10', but this version reads 'costs/9'; update"),
        ({"schema": "other/10"}, "costs/9", "must have the schema 'costs/9'"),
        ({"schema": "costs/" + "9" * 5_000}, "costs/9", "must have the schema 'costs/9'"),
        ([], 1, r"x must be an object, not \[\]"),
    ],
)
def test_schemas_are_of_the_same_type(record: Any, schema: int | str, says: str) -> None:
    with pytest.raises(DamagedFileError, match=says):
        require_schema(record, schema, "x")
    assert require_schema({"schema": schema}, schema, "x") == {"schema": schema}


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"a": 1}, "x lacks the key 'b'"),
        ({"a": 1, "b": 2.0, "z": 1}, "x has the unknown key 'z'; known are a, b, c"),
        ({"a": True, "b": 2.0}, "x has a True, but it must be int"),
        ({"a": 1, "b": "2"}, "x has b '2', but it must be float"),
        ({"a": 1, "b": 10**400}, "x has b 1000.*, but it must be float"),
        ({"a": 1, "b": 1, "c": 3}, "x has c 3, but it must be str or null"),
        (3, "x must be an object, not 3"),
    ],
)
def test_fields_have_their_types(record: Any, says: str) -> None:
    kinds, optional = {"a": int, "b": float}, {"c": (str, type(None))}
    with pytest.raises(DamagedFileError, match=says):
        require_fields(record, kinds, "x", optional)
    assert require_fields({"a": 1, "b": 2, "c": None}, kinds, "x", optional)
