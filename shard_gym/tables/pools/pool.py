"""Pools: tables to sample tasks from, with the popularity of their rows and a card about their origin."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.errors import DamagedFileError, InvalidOptionError, InvalidTablesError
from shard_gym.common.io.files import (
    INDEX,
    read_bytes,
    read_index,
    read_shipped,
    sha256_of,
    write_atomically,
    write_json,
)
from shard_gym.common.io.parsing import Kinds, parse_json, require_fields, require_schema
from shard_gym.tables.row_popularity import RowPopularity, RowSteps
from shard_gym.tables.tables import Tables
from shard_gym.tables.workload import Workload

SCHEMA = "shard-gym-pool/1"
DEFAULT_DIM = 16
DATA = Path(__file__).parent / "data"

_COLUMNS = ("num_embeddings", "pooling_factor", "distinct_rows", "reuse_histogram", "access_histogram", "num_features")
_CARD_KEYS: dict[str, type] = {
    **dict.fromkeys(("title", "source", "how_made"), str),
    **dict.fromkeys(("published_facts", "assumptions", "how_close"), list),
}
_KEYS: Kinds = {
    **{"schema": str, "name": str, "card": dict, "workload": dict},
    **{"names": (list, type(None)), "embedding_dim": (list, type(None))},
    **dict.fromkeys(_COLUMNS, list),
    "law": (dict, type(None)),  # the popularity
}
_OPTIONAL: Kinds = {"steps": dict, "pooled": list}  # the popularity, as recorded; of pools with sequence tables


@dataclass(frozen=True)
class PoolCard:
    """The origin of a pool's tables, and how far to trust them."""

    title: str  #: one line
    source: str  #: where the facts come from, with the licence
    how_made: str  #: how the tables were derived from those facts
    published_facts: tuple[str, ...] = ()  #: what the source states
    assumptions: tuple[str, ...] = ()  #: choices that the source does not state
    how_close: tuple[str, ...] = ()  #: differences between the pool and the published facts


@dataclass(frozen=True, eq=False)
class Pool:
    """Tables to sample tasks from.

    Attributes:
        tables: its T tables.
        popularity: the law of the popularity of the T tables' rows, that of `tables`, too; or None if only the
            histograms are known, or `tables` have steps of recorded lookups.
        dims_known: False if the data has no embedding dims; those of `tables` are then a choice and are not stored.

    Raises:
        InvalidTablesError: the popularity is for another number of tables.
    """

    name: str
    tables: Tables
    card: PoolCard
    popularity: RowPopularity | None = None
    dims_known: bool = True

    def __post_init__(self) -> None:
        if self.popularity is not None and len(self.popularity) != len(self.tables):
            raise InvalidTablesError(
                f"Pool {self.name!r} has {len(self.tables)} tables but row popularities of {len(self.popularity)}."
            )
        if self.popularity is not None:
            object.__setattr__(self, "tables", replace(self.tables, popularity=self.popularity))
        elif isinstance(self.tables.popularity, RowPopularity):
            object.__setattr__(self, "popularity", self.tables.popularity)

    def __len__(self) -> int:
        return len(self.tables)

    def __repr__(self) -> str:
        return f"Pool({self.name!r}, {self.tables!r})"

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the pool's file."""
        return sha256_of(to_bytes(self))


def pool_names() -> tuple[str, ...]:
    """The sorted names of the pools that ship with ShardGym."""
    return tuple(sorted(read_index(DATA)))


def load_pool(name_or_path: str | Path, *, embedding_dim: int = DEFAULT_DIM) -> Pool:
    """A pool that ships with ShardGym, by name, or the pool in a file.

    Args:
        name_or_path: one of `pool_names()`, or the path of a file written by `save_pool`: a Path, or a text that ends
            in .json.
        embedding_dim: the dim of every table if the data has none; ignored otherwise.

    Raises:
        UnknownNameError: no pool of that name ships with ShardGym.
        DamagedFileError: the file is missing or not a pool, or the file of a shipped pool was changed.
        InvalidTablesError: `embedding_dim` is not a multiple of 4.
    """
    if isinstance(name_or_path, Path) or str(name_or_path).endswith(".json"):
        path = Path(name_or_path)
        return from_bytes(read_bytes(path), str(path), embedding_dim)
    data, source = read_shipped(DATA, name_or_path, "pool"), str(DATA / f"{name_or_path}.json")
    if type(embedding_dim) is int:
        return _parsed(data, source, embedding_dim)
    return from_bytes(data, source, embedding_dim)


def pool_source(name_or_path: str) -> str | Path:
    """The argument for `load_pool`: a Path for what looks like one, else the name of a pool that ships."""
    path = Path(name_or_path)
    separators = (os.sep, os.altsep or os.sep)
    if not (path.suffix.lower() == ".json" or path.is_file() or any(mark in name_or_path for mark in separators)):
        return name_or_path
    if path.suffix.lower() != ".json":
        raise InvalidOptionError(
            f"{name_or_path} is not a pool file: the name of one ends in .json. Custom tables can be written "
            f"with shard_gym.tables.pools.save_pool. Pools that ship with ShardGym: {', '.join(pool_names())}."
        )
    return path


def save_pool(pool: Pool, path: str | Path) -> None:
    """Write `pool` to `path` atomically. Equal pools give equal bytes, and `load_pool` returns equal numbers."""
    write_atomically(Path(path), to_bytes(pool))


def ship_pools(pools: Iterable[Pool]) -> None:
    """Write pools into the package and their SHA-256 into the index; for the generators of the shipped pools."""
    for pool in pools:
        save_pool(pool, DATA / f"{pool.name}.json")
        index = {**read_index(DATA), pool.name: pool.sha256}
        write_json(DATA / INDEX, dict(sorted(index.items())))
        print(f"{pool.name}: {len(pool)} tables, SHA-256 {pool.sha256}", *pool.card.how_close, sep="\n  ")


def to_bytes(pool: Pool) -> bytes:
    """The content of a pool's file: JSON with one key per line, numbers in their shortest exact form."""
    tables, popularity, steps = pool.tables, pool.popularity, pool.tables.popularity
    default_names = tables.names == tuple(f"table_{i}" for i in range(len(tables)))
    record = {
        "schema": SCHEMA,
        "name": pool.name,
        "card": {field.name: getattr(pool.card, field.name) for field in fields(PoolCard)},
        "workload": tables.workload.to_json(),
        "names": None if default_names else list(tables.names),
        "embedding_dim": tables.embedding_dim.tolist() if pool.dims_known else None,
        **{column: _numbers_of(getattr(tables, column)) for column in _COLUMNS},
        "law": None if popularity is None else {"q": _numbers_of(popularity.q), "s": _numbers_of(popularity.s)},
    }
    if not tables.pooled.all():
        record["pooled"] = tables.pooled.tolist()
    if isinstance(steps, RowSteps):
        record["steps"] = {"rows": _numbers_of(steps.rows), "shares": _numbers_of(steps.shares)}
    dump = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    lines = (f"{dump(key)}:{dump(value)}" for key, value in record.items())
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _numbers_of(array: NDArray[Any]) -> list[Any]:
    """A 1-D or 2-D array as lists of numbers, with integers for whole numbers."""
    lists = [[int(x) if x == int(x) else x for x in row] for row in np.atleast_2d(array).tolist()]
    return lists if array.ndim == 2 else lists[0]


def from_bytes(data: bytes, source: str, embedding_dim: int = DEFAULT_DIM) -> Pool:
    """The pool in `data`; DamagedFileError, which names `source`, if it is none."""
    record = require_fields(require_schema(parse_json(data, source), SCHEMA, source), _KEYS, source, _OPTIONAL)
    if not record["name"]:
        raise DamagedFileError(f"{source} has no name: its key 'name' is ''.")
    card, dims, law = _card(record["card"], source), record["embedding_dim"], record["law"]
    if law is not None:
        require_fields(law, {"q": list, "s": list}, f"The law of {source}")
    steps = record.get("steps")
    if steps is not None:
        require_fields(steps, {"rows": list, "shares": list}, f"The steps of {source}")
    if law is not None and steps is not None:
        raise DamagedFileError(f"{source} has both a law and steps of its rows' popularity. Remove one of them.")
    try:
        tables = Tables(
            workload=Workload.from_json(record["workload"], f"The workload of {source}"),
            names=record["names"] or (),
            embedding_dim=np.full(np.size(record["num_embeddings"]), 4) if dims is None else dims,
            popularity=None if steps is None else RowSteps(**steps),
            pooled=record.get("pooled", ()),
            **{column: record[column] for column in _COLUMNS},
        )
        popularity = None if law is None else RowPopularity(**law)
        pool = Pool(record["name"], tables, card, popularity, dims_known=dims is not None)
    except DamagedFileError:
        raise
    except ValueError as error:
        raise DamagedFileError(f"{source} does not describe valid tables: {error}") from error
    return pool if pool.dims_known else replace(pool, tables=tables.with_dims(embedding_dim))


_parsed = lru_cache(maxsize=16)(from_bytes)  # once for each content of a file: nothing in a pool can be changed


def _card(record: dict[str, Any], source: str) -> PoolCard:
    require_fields(record, _CARD_KEYS, f"The card of {source}")
    for name, value in record.items():
        if isinstance(value, list) and not all(isinstance(item, str) for item in value):
            raise DamagedFileError(f"{name} of the card of {source} must be a list of texts.")
    values: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in record.items()}
    return PoolCard(**values)
