"""Whether an agent learnt from tables that it is tested on, by what its entry declares.

Training data are named as

SUITE/SPLIT       the tasks of a split of a suite, such as dlrm-50x4/train
pool/POOL/HALF    tasks of one's own, made from the half of a pool that the splits of all suites respect
pool/POOL         tasks made from the whole pool
other: TEXT       what is not ShardGym's
"""

from __future__ import annotations

from functools import lru_cache

from shard_gym.errors import InvalidOptionError, ShardGymError, short_repr
from shard_gym.pools import load_pool
from shard_gym.suites import load_suite, suite_info
from shard_gym.suites.build import halves

OTHER = "other: "
FORMS = f"SUITE/SPLIT, pool/POOL/train, pool/POOL or {OTHER}TEXT"

Named = tuple[str, frozenset[str]]
"""A pool, and the names of some of its tables."""


def overlap(data: str, suite: str) -> int:
    """How many tables of the test tasks of `suite` are among the training data named `data`.

    Raises:
        InvalidOptionError: `data` has none of the forms.
        UnknownNameError: there is no such suite or pool.
    """
    if data.startswith(OTHER) and data.removeprefix(OTHER).strip():
        return 0
    pool, trained = _tables(data)
    tested_pool, tested = _of_split(suite, "test")
    return len(trained & tested) if pool == tested_pool else 0


@lru_cache(maxsize=256)
def _tables(data: str) -> Named:
    match data.split("/"):
        case ["pool", pool]:
            return pool, frozenset(load_pool(pool).tables.names)
        case ["pool", pool, "train" | "test" as half]:
            names = load_pool(pool).tables.names
            return pool, frozenset(names[index] for index in halves(pool, len(names))[half])
        case [suite, split] if suite:
            return _of_split(suite, split)
    raise InvalidOptionError(f"Training data are named {FORMS}; not {short_repr(data)}.")


@lru_cache(maxsize=256)
def _of_split(suite: str, split: str) -> Named:
    names = frozenset(name for task in load_suite(suite, split) for name in task.tables.names)
    return suite_info(suite).pool, names


def objections(data: list[str], suite: str) -> list[str]:
    """A sentence for each of the declared training data that cannot be, or that has tables of the test tasks."""
    found = []
    for each in data:
        try:
            shared = overlap(each, suite)
        except ShardGymError as error:
            found.append(f"training.data names {short_repr(each)}. {error}")
            continue
        if shared:
            found.append(
                f"training.data names {short_repr(each)}, which holds {shared} tables of the test tasks of {suite}; "
                "an agent that learnt from them cannot be listed here."
            )
    return found
