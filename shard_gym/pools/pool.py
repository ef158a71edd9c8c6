"""A pool: the tables tasks are drawn from, with the law of their requests and a card that says where they come from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.errors import DamagedFileError, InvalidTablesError, unknown_name
from shard_gym.io.files import parse_json, sha256_of, write_atomically
from shard_gym.pools.popularity import RowPopularity
from shard_gym.tables import Tables, Workload

SCHEMA = "shard-gym-pool/1"
DEFAULT_DIM = 16
DATA = Path(__file__).parent / "data"
INDEX = DATA / "index.json"

_COLUMNS = ("num_embeddings", "pooling_factor", "distinct_rows", "reuse_histogram", "access_histogram", "num_features")
_WORKLOAD_KEYS = ("batch_size", "weight_dtype", "optimizer")
_KEYS = ("schema", "name", "card", "workload", "names", "embedding_dim", *_COLUMNS, "law")


@dataclass(frozen=True)
class PoolCard:
    """What a reader must know before trusting a pool.

    Attributes:
        title: one line.
        source: where the facts come from, with the licence.
        how_made: how the tables were made from those facts.
        published_facts: what the source states.
        assumptions: what it does not state and was chosen here.
        how_close: measured distances between the pool and the published facts.
    """

    title: str
    source: str
    how_made: str
    published_facts: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    how_close: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Pool:
    """The tables tasks are drawn from.

    Attributes:
        name: the pool's name.
        tables: its T tables.
        card: origin, method and closeness.
        law: the law of the requests, or None when only the histograms are known.
        dims_known: False when the data has no embedding dims, so that those of `tables` are a choice and not stored.

    Raises:
        InvalidTablesError: the law is not for as many tables.
    """

    name: str
    tables: Tables
    card: PoolCard
    law: RowPopularity | None = None
    dims_known: bool = True

    def __post_init__(self) -> None:
        if self.law is not None and len(self.law) != len(self.tables):
            raise InvalidTablesError(
                f"Pool {self.name!r} has {len(self.tables)} tables but a request law for {len(self.law)}."
            )

    def __len__(self) -> int:
        return len(self.tables)

    def __repr__(self) -> str:
        return f"Pool({self.name!r}, {self.tables!r})"

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the pool's canonical bytes: those of its file."""
        return sha256_of(to_bytes(self))


def pool_names() -> tuple[str, ...]:
    """Names of the pools that ship with ShardGym, sorted."""
    return tuple(sorted(_index()))


def load_pool(name_or_path: str | Path, *, embedding_dim: int = DEFAULT_DIM) -> Pool:
    """A pool that ships with ShardGym, by name, or one from a file, by a path that ends in .json.

    Args:
        name_or_path: one of `pool_names()`, or the path of a file written by `save_pool`.
        embedding_dim: the width given to every table when the data has none; ignored otherwise.

    Raises:
        UnknownNameError: no pool of that name ships with ShardGym.
        DamagedFileError: the file is missing, is not a pool, or (for a shipped pool) is not the one that was shipped.
        InvalidTablesError: `embedding_dim` is not a multiple of 4.
    """
    if isinstance(name_or_path, Path) or str(name_or_path).endswith(".json"):
        path = Path(name_or_path)
        return from_bytes(_read(path), str(path), embedding_dim)
    known = _index()
    if name_or_path not in known:
        raise unknown_name("pool", name_or_path, known)
    path = DATA / f"{name_or_path}.json"
    data = _read(path)
    if sha256_of(data) != known[name_or_path]:
        raise DamagedFileError(
            f"{path} is not the file that was shipped: its SHA-256 is {sha256_of(data)} instead of "
            f"{known[name_or_path]}. Reinstall shard-gym, or load a pool of your own by its path."
        )
    return from_bytes(data, str(path), embedding_dim)


def save_pool(pool: Pool, path: str | Path) -> None:
    """Write `pool` to `path` atomically; equal pools give equal bytes, and `load_pool` gives equal numbers back."""
    write_atomically(Path(path), to_bytes(pool))


def ship_pool(pool: Pool) -> None:
    """Write `pool` into the package and its SHA-256 into the index; used by the generators."""
    save_pool(pool, DATA / f"{pool.name}.json")
    known = _index() if INDEX.exists() else {}
    known[pool.name] = pool.sha256
    write_atomically(INDEX, (json.dumps(known, indent=1, sort_keys=True) + "\n").encode())


def to_bytes(pool: Pool) -> bytes:
    """The canonical bytes of a pool: JSON with one key per line, numbers in their shortest exact form."""
    tables = pool.tables
    default_names = tables.names == tuple(f"table_{i}" for i in range(len(tables)))
    record = {
        "schema": SCHEMA,
        "name": pool.name,
        "card": {field.name: getattr(pool.card, field.name) for field in fields(PoolCard)},
        "workload": {key: getattr(tables.workload, key) for key in _WORKLOAD_KEYS},
        "names": None if default_names else list(tables.names),
        "embedding_dim": _short(tables.embedding_dim) if pool.dims_known else None,
        **{column: _short(getattr(tables, column)) for column in _COLUMNS},
        "law": None if pool.law is None else {"q": _short(pool.law.q), "s": _short(pool.law.s)},
    }
    lines = (f"{json.dumps(key)}:{_dump(value)}" for key, value in record.items())
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _short(array: NDArray[Any]) -> list[Any]:
    """Numbers as lists, whole ones without a decimal point."""
    values = array.tolist()
    if array.ndim == 2:
        return [[int(x) if x == int(x) else x for x in row] for row in values]
    return [int(x) if x == int(x) else x for x in values]


def from_bytes(data: bytes, source: str, embedding_dim: int = DEFAULT_DIM) -> Pool:
    """The pool in `data`; `source` is named in messages.

    Raises:
        DamagedFileError: `data` is not a pool; the message says why.
    """
    record = parse_json(data, source)
    _check_keys(record, _KEYS, source, "a pool")
    if record["schema"] != SCHEMA:
        raise DamagedFileError(
            f"{source} has schema {record['schema']!r}; this version of shard-gym reads {SCHEMA!r}. "
            "Write the file again with save_pool, or install the version that wrote it."
        )
    if not isinstance(record["name"], str) or not record["name"]:
        raise DamagedFileError(f"{source} has no name: its key 'name' is {record['name']!r}.")
    card = _card(record["card"], source)
    dims = record["embedding_dim"]
    if not isinstance(record["num_embeddings"], list):
        raise DamagedFileError(f"{source}: num_embeddings is {record['num_embeddings']!r}, not a list of numbers.")
    count = len(record["num_embeddings"])
    try:
        tables = Tables(
            workload=_workload(record["workload"], source),
            names=() if record["names"] is None else tuple(_strings(record["names"], source, "names")),
            embedding_dim=np.full(count, 4) if dims is None else _numbers(dims),
            **{column: _numbers(record[column]) for column in _COLUMNS},
        )
        law = _law(record["law"], source)
        pool = Pool(record["name"], tables, card, law, dims_known=dims is not None)
    except (InvalidTablesError, TypeError, OverflowError) as error:
        raise DamagedFileError(f"{source} does not describe usable tables: {error}") from error
    if pool.dims_known:
        return pool
    return Pool(pool.name, tables.with_dims(embedding_dim), card, law, dims_known=False)


def _card(record: Any, source: str) -> PoolCard:
    names = [field.name for field in fields(PoolCard)]
    _check_keys(record, names, source, "the card")
    title, origin, how_made = _strings([record[name] for name in names[:3]], source, "card")
    lists = (tuple(_strings(record[name], source, f"card.{name}")) for name in names[3:])
    return PoolCard(title, origin, how_made, *lists)


def _workload(record: Any, source: str) -> Workload:
    _check_keys(record, _WORKLOAD_KEYS, source, "the workload")
    return Workload(**record)


def _law(record: Any, source: str) -> RowPopularity | None:
    if record is None:
        return None
    _check_keys(record, ("q", "s"), source, "the law")
    return RowPopularity(_numbers(record["q"]), _numbers(record["s"]))


def _numbers(value: Any) -> Any:
    """`value` if it is a list of numbers or of such lists; numpy would take texts such as "12" for numbers."""
    if not isinstance(value, list):
        raise TypeError(f"a list of numbers was expected, not {value!r}.")
    for item in value:
        if isinstance(item, list):
            _numbers(item)
        elif isinstance(item, bool) or not isinstance(item, (int, float)):
            raise TypeError(f"{item!r} stands where a number was expected.")
    return value


def _strings(value: Any, source: str, what: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise DamagedFileError(f"{source} has something other than a list of texts in {what}.")
    return value


def _check_keys(record: Any, wanted: Sequence[str], source: str, what: str) -> None:
    """Refuse anything but an object with exactly the wanted keys."""
    if not isinstance(record, Mapping):
        raise DamagedFileError(f"{source} does not hold {what}: an object was expected, not {type(record).__name__}.")
    missing = [key for key in wanted if key not in record]
    unknown = [key for key in record if key not in wanted]
    if missing or unknown:
        raise DamagedFileError(
            f"{source} is not as expected in {what}: "
            f"missing keys {missing or 'none'}, unknown keys {unknown or 'none'}."
        )


def _index() -> dict[str, str]:
    """The names of the shipped pools and the SHA-256 of their files."""
    record = parse_json(_read(INDEX), str(INDEX))
    if not isinstance(record, dict) or not all(isinstance(value, str) for value in record.values()):
        raise DamagedFileError(f"{INDEX} does not map pool names to checksums. Reinstall shard-gym.")
    return record


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be read: {error.strerror or error}.") from error
