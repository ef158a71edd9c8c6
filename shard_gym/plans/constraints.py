"""Constraints: what plans of a task must keep to besides memory, table by table, and between tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.checks import ReadOnlyArrays, as_array, as_indices, holds_integers, is_integer, is_iterable
from shard_gym.common.errors import (
    InvalidConstraintsError,
    InvalidPlanError,
    short_repr,
)
from shard_gym.common.text import listed
from shard_gym.plans.plan import (
    COLUMN_WISE,
    DATA_PARALLEL,
    SHARDING_TYPES,
    TABLE_ROW_WISE,
    TABLE_WISE,
    ShardingPlan,
    plan_of_placement,
)
from shard_gym.tables import Tables
from shard_gym.tables.tables import ANYWHERE, CACHED, IN_HBM, IN_HOST

IN_HOST_KERNEL, CACHED_KERNEL = "fused_uvm", "fused_uvm_caching"
"""TorchRec's compute kernels of tables whose rows are all in host memory, without a cache in HBM and with one."""

_KEPT: Mapping[str, int] = {"in_hbm": IN_HBM, "in_host": IN_HOST, "cached": CACHED}
"""The sets of tables whose rows are kept in some memory, and which."""

_TW, _CW, _DP = (SHARDING_TYPES.index(name) for name in (TABLE_WISE, COLUMN_WISE, DATA_PARALLEL))


@dataclass(frozen=True, eq=False)
class Constraints(ReadOnlyArrays):
    """What plans for T tables on D devices must keep to.

    Attributes:
        sharding_types: (T, 5) bool, in the order of `SHARDING_TYPES`, which a table may have. A whole table on one
            device is table_wise and, with its only shard, column_wise: either permits it.
        min_columns: (T,) int64, the fewest columns of a column shard; 0 for no limit. A table with fewer is not cut.
        devices: (T, D) bool, the devices that may hold a shard, a block or a replica of a table.
        together: sets of tables, by number, that are whole on one device. No table is in two.
        apart: sets of tables of which no two have anything on one device.
        in_hbm: tables, by number, of which no rows may be in host memory.
        in_host: tables whose rows are all in host memory, and are read and updated there.
        cached: tables whose rows are in host memory, with a cache in HBM for those that are read most. Which rows these
            are is decided for each device, as of all tables in none of the three.
        least_bytes: (T, 5, 2) int64 or None: bytes that a search counts at least for a shard, block or replica of each
            sharding type, a constant and bytes for each of its columns, where they are more than the bytes of its
            weights and states; such as what another planner reserves. Checks of plans do not count them.
        empty_blocks: whether a search may put a table of few rows in blocks of which the last ones are empty, as other
            planners do.

    Raises:
        InvalidConstraintsError: an array has a wrong shape or dtype, a table may have no sharding type or no device, or
            sets of tables are none or contradict one another.
    """

    sharding_types: NDArray[np.bool_]
    min_columns: NDArray[np.int64]
    devices: NDArray[np.bool_]
    together: tuple[tuple[int, ...], ...] = ()
    apart: tuple[tuple[int, ...], ...] = ()
    in_hbm: tuple[int, ...] = ()
    in_host: tuple[int, ...] = ()
    cached: tuple[int, ...] = ()
    least_bytes: NDArray[np.int64] | None = None
    empty_blocks: bool = False

    def __post_init__(self) -> None:
        types = as_array("sharding_types", self.sharding_types, InvalidConstraintsError)
        devices = as_array("devices", self.devices, InvalidConstraintsError)
        least = as_array("min_columns", self.min_columns, InvalidConstraintsError)
        count = len(types) if types.ndim else 0
        for name, array, wants, shape in (
            ("sharding_types", types, np.bool_, (count, len(SHARDING_TYPES))),
            ("devices", devices, np.bool_, (count, *devices.shape[1:])),
            ("min_columns", least, np.integer, (count,)),
        ):
            if not count or array.shape != shape or not np.issubdtype(array.dtype, wants):
                raise InvalidConstraintsError(
                    f"{name} of Constraints must be {'truth values' if wants is np.bool_ else 'integers'} of the shape "
                    f"{'(T, D)' if name == 'devices' else shape}, not {short_repr(array.tolist())}."
                )
        if devices.ndim != 2 or not devices.shape[1]:
            raise InvalidConstraintsError("devices of Constraints must be truth values of the shape (T, D).")
        if (least < 0).any():
            raise InvalidConstraintsError(f"min_columns of Constraints must not be negative, as {int(least.min())} is.")
        for name, array in (("sharding type", types), ("device", devices)):
            if (none := ~array.any(axis=1)).any():
                raise InvalidConstraintsError(f"Table {int(none.argmax())} may have no {name}; allow one at least.")
        for name, array in (("sharding_types", types), ("devices", devices), ("min_columns", least.astype(np.int64))):
            array = array.copy()
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        if self.least_bytes is not None:
            least_bytes = as_array("least_bytes", self.least_bytes, InvalidConstraintsError)
            if least_bytes.shape != (count, len(SHARDING_TYPES), 2) or not holds_integers(least_bytes):
                raise InvalidConstraintsError(
                    f"least_bytes of Constraints must be integers of the shape {(count, len(SHARDING_TYPES), 2)}, "
                    f"not {least_bytes.dtype} of {least_bytes.shape}."
                )
            least_bytes = least_bytes.astype(np.int64)
            least_bytes.setflags(write=False)
            object.__setattr__(self, "least_bytes", least_bytes)
        for name in ("together", "apart"):
            object.__setattr__(self, name, _sets(name, getattr(self, name), count))
        kept: set[int] = set()
        for name in _KEPT:
            given = getattr(self, name)
            chosen = as_indices("table", given if len(given) else np.empty(0, np.int64), count, InvalidConstraintsError)
            own = set(chosen.tolist())
            if twice := kept & own:
                raise InvalidConstraintsError(f"Table {min(twice)} is in two of {', '.join(_KEPT)}; leave it in one.")
            kept |= own
            object.__setattr__(self, name, tuple(sorted(own)))
        seen: set[int] = set()
        for tables in self.together:
            if twice := seen & set(tables):
                raise InvalidConstraintsError(
                    f"Table {min(twice)} is in two sets of together; make one set of all tables that stay together."
                )
            seen |= set(tables)
            for others in self.apart:
                if len(both := sorted(set(tables) & set(others))) > 1:
                    raise InvalidConstraintsError(f"Tables {both[0]} and {both[1]} cannot be both together and apart.")

    @staticmethod
    def none(num_tables: int, num_devices: int) -> Constraints:
        """Those that permit everything: to be changed with `dataclasses.replace`."""
        return Constraints(
            np.ones((num_tables, len(SHARDING_TYPES)), np.bool_),
            np.zeros(num_tables, np.int64),
            np.ones((num_tables, num_devices), np.bool_),
        )

    def __len__(self) -> int:
        return len(self.min_columns)

    @property
    def num_devices(self) -> int:
        """D."""
        return int(self.devices.shape[1])

    @property
    def num_constrained(self) -> int:
        """The number of tables that are constrained in some way."""
        some = ~self.sharding_types.all(axis=1) | ~self.devices.all(axis=1) | (self.min_columns > 0)
        some[[*chain.from_iterable((*self._kept.values(), *self.together, *self.apart))]] = True
        return int(some.sum())

    @property
    def _kept(self) -> dict[str, tuple[int, ...]]:
        """The tables in each of `_KEPT`."""
        return {name: getattr(self, name) for name in _KEPT}

    @property
    def needs_host(self) -> bool:
        """Whether rows of a table must be in host memory."""
        return bool(self.in_host or self.cached)

    def placed(self, tables: Tables) -> Tables:
        """The tables with what is said of the memory of their rows (`Tables.rows_in`)."""
        if not any(self._kept.values()):
            return tables
        rows_in = np.full(len(tables), ANYWHERE) if tables.rows_in is None else tables.rows_in.copy()
        for name, where in _KEPT.items():
            rows_in[[*self._kept[name]]] = where
        return tables.with_rows_in(rows_in)

    @cached_property
    def conflicts(self) -> NDArray[np.bool_] | None:
        """(T, T) bool, which tables must be apart; None if there are none."""
        if not self.apart:
            return None
        conflicts = np.zeros((len(self), len(self)), np.bool_)
        for tables in self.apart:
            conflicts[np.ix_(tables, tables)] = True
        np.fill_diagonal(conflicts, False)
        return conflicts

    @cached_property
    def companions(self) -> dict[int, tuple[int, ...]]:
        """For each table that stays together with others all of these, itself included."""
        return {table: tables for tables in self.together for table in tables}

    @cached_property
    def may_be_whole(self) -> NDArray[np.bool_]:
        """(T,) bool, whether a table may be whole on one device."""
        return np.asarray(self.sharding_types[:, [_TW, _CW]].any(axis=1))

    @cached_property
    def may_be_cut(self) -> NDArray[np.bool_]:
        """(T,) bool, whether a table may have several column shards."""
        single = np.ones(len(self), np.bool_)
        single[[*self.companions]] = False
        return np.asarray(single & self.sharding_types[:, _CW])

    def may_spread(self, sharding_type: str, devices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(T,) bool, whether a table may have blocks of rows, or replicas, on all of these devices."""
        kind = SHARDING_TYPES.index(sharding_type)
        single = np.ones(len(self), np.bool_)
        single[[*self.companions, *chain.from_iterable(self.apart)]] = False
        return np.asarray(single & self.sharding_types[:, kind] & self.devices[:, devices].all(axis=1))

    def bytes_of(self, sharding_type: str, columns: NDArray[np.int64], memory: NDArray[np.int64]) -> NDArray[np.int64]:
        """(T,) int64, bytes of a part of each table with (T,) `columns` and `memory` of its own; see `least_bytes`."""
        if self.least_bytes is None:
            return memory
        constant, of_column = self.least_bytes[:, SHARDING_TYPES.index(sharding_type)].T
        return np.asarray(np.maximum(memory, constant + of_column * columns))

    def told(self, table: int) -> str:
        """What a table may be, and where: the middle of a sentence after its name."""
        types = [name for name, yes in zip(SHARDING_TYPES, self.sharding_types[table], strict=True) if yes]
        kinds = "of any sharding type" if len(types) == len(SHARDING_TYPES) else f"{' or '.join(types)} only"
        where = np.flatnonzero(self.devices[table])
        noun = "device" if len(where) == 1 else "devices"
        devices = "" if len(where) == self.num_devices else f", on {noun} {short_repr(where.tolist())[1:-1]} only"
        least = int(self.min_columns[table])
        return f"may be {kinds}{devices}" + (f", with {least} columns of a shard at least" if least else "")

    def may_have_columns(self, width: NDArray[np.int64], tables: Tables) -> NDArray[np.bool_]:
        """(T,) bool, whether column shards may have (T,) `width` columns; those of a whole table are as wide as it."""
        dims = tables.embedding_dim
        part = self.may_be_cut & (width >= np.minimum(self.min_columns, dims))
        return np.where(width == dims, self.may_be_whole, part)

    def may_have_parts(
        self, sharding_type: str, width: NDArray[np.int64], parts: int, tables: Tables
    ) -> NDArray[np.bool_]:
        """(T,) bool, whether each table may have parts of that type somewhere.

        Args:
            sharding_type: a table that is whole on one device is table_wise or column_wise.
            width: (T,) columns of a part.
            parts: how many make a table; those of table_row_wise are on a host, on any that may have them.
            tables: the T tables.
        """
        if sharding_type in (TABLE_WISE, COLUMN_WISE):
            return self.may_have_columns(width, tables)
        every = np.arange(self.num_devices)
        in_hosts = sharding_type == TABLE_ROW_WISE and len(every) % parts == 0
        hosts = every.reshape(-1, parts) if in_hosts else every[None]
        return np.asarray(np.any([self.may_spread(sharding_type, host) for host in hosts], axis=0))

    def open_to(
        self, tables: Sequence[int] | NDArray[np.int64], held: NDArray[np.int64], on: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """(D,) bool, the devices that may hold `tables` beside the parts of the tables `held`, which are `on` devices.

        Companions of `tables` keep them on their own device.
        """
        first = list(tables)
        every = np.arange(self.num_devices)
        free = np.asarray(self.devices[first].all(axis=0))
        if self.conflicts is not None and len(held):
            free = free & ~np.isin(every, on[self.conflicts[first][:, held].any(axis=0)])
        for table in first:
            if mates := self.companions.get(table):
                placed = on[np.isin(held, mates)]
                if len(placed):
                    free = free & (every == placed[0])
        return free

    def of_parts(self, table: NDArray[np.int64]) -> Constraints:
        """Those of whole parts of the tables, (P,) the table of each; of tables apart, all their parts are."""
        parts = [np.flatnonzero(table == number).tolist() for number in range(len(self))]

        def sets(of_tables: Iterable[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
            found = (tuple(part for number in each for part in parts[number]) for each in of_tables)
            return tuple(each for each in found if len(each) > 1)

        types = np.ones((len(table), len(SHARDING_TYPES)), np.bool_)
        none = np.zeros(len(table), np.int64)
        kept: dict[str, Any] = {}
        for name, own in self._kept.items():
            kept[name] = tuple(np.flatnonzero(np.isin(table, own)).tolist())
        return Constraints(types, none, self.devices[table], sets(self.together), sets(self.apart), **kept)

    def crowded(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Tables that must be apart and the fewer devices that they may all be on; None where there are no such.

        Hall's theorem: each table of a set has a device of its own unless some of them have fewer devices in all than
        they are. Tables that stay together with others may be only where all of these may be.
        """
        for members in self.apart:
            open_to = [self.devices[list(self.companions.get(each, (each,)))].all(axis=0) for each in members]
            holder: dict[int, int] = {}  # of a device the position of the table that has it
            for first in range(len(members)):
                came_from: dict[int, int] = {}  # of a device the position of the table that asks for it
                queue, free = [first], -1
                while queue and free < 0:
                    table = queue.pop(0)
                    for device in np.flatnonzero(open_to[table]).tolist():
                        if device not in came_from:
                            came_from[device] = table
                            if device not in holder:
                                free = device
                                break
                            queue.append(holder[device])
                if free < 0:
                    crowd = {first, *(holder[device] for device in came_from)}
                    return tuple(members[each] for each in sorted(crowd)), tuple(sorted(came_from))
                while free >= 0:  # each table on the way takes the device that it asked for
                    table = came_from[free]
                    before = next((device for device, held in holder.items() if held == table), -1)
                    holder[free] = table
                    if before >= 0:
                        del holder[before]
                    free = before
        return None

    def on(self, num_devices: int) -> Constraints:
        """Those of another number of devices, if no table is kept to some of them.

        Raises:
            InvalidConstraintsError: a table is.
        """
        if num_devices == self.num_devices:
            return self
        if not self.devices.all():
            table = int((~self.devices.all(axis=1)).argmax())
            raise InvalidConstraintsError(
                f"Table {table} {self.told(table)}, of {self.num_devices}; of {num_devices} others may hold it. "
                "Give the constraints of these devices."
            )
        return replace(self, devices=np.ones((len(self), num_devices), np.bool_))

    def on_replicas(self, numbers: NDArray[np.int64]) -> Constraints:
        """Those of one of G groups of devices, (G, D / G) `numbers`, which all have the same plan."""
        devices = np.asarray(self.devices[:, numbers].all(axis=1))
        if (none := ~devices.any(axis=1)).any():
            raise InvalidConstraintsError(
                f"Table {int(none.argmax())} may be on no device of every one of {len(numbers)} groups; "
                "pin it to as many devices as there are groups, or plan for one group."
            )
        return replace(self, devices=devices)

    def problem_of(self, plan: ShardingPlan, tables: Tables) -> str:
        """What a valid plan does that these constraints forbid, a sentence; empty if nothing."""
        table, device, _, _, _, columns = plan.shard_arrays().T
        for number, sharding in enumerate(plan.tables):
            whole = len(sharding.shards) == 1 and sharding.shard_type in (TABLE_WISE, COLUMN_WISE)
            kind = SHARDING_TYPES.index(sharding.shard_type)
            if not (self.may_be_whole[number] if whole else self.sharding_types[number, kind]):
                allowed = [name for name, yes in zip(SHARDING_TYPES, self.sharding_types[number], strict=True) if yes]
                return f"Table {tables.names[number]!r} is {sharding.sharding_type}, but may be {listed(allowed)} only."
        for wrong, what in (
            (columns < np.minimum(self.min_columns, tables.embedding_dim)[table], "columns"),
            (~self.devices[table, device], "device"),
        ):
            if wrong.any():
                first = int(wrong.argmax())
                name = tables.names[int(table[first])]
                if what == "columns":
                    least = int(self.min_columns[table[first]])
                    return (
                        f"A shard of table {name!r} has {int(columns[first])} columns, but none may have below {least}."
                    )
                allowed_on = np.flatnonzero(self.devices[table[first]]).tolist()
                return (
                    f"Table {name!r} is on device {int(device[first])}, but it may be on "
                    f"{'device' if len(allowed_on) == 1 else 'devices'} {short_repr(allowed_on)[1:-1]} only."
                )
        for members in self.together:
            places = [plan.tables[member].devices for member in members]
            if len({tuple(each) for each in places}) > 1 or len(places[0]) > 1:
                names = listed([repr(tables.names[member]) for member in members])
                return f"Tables {names} must be whole on one device, but are on the devices {short_repr(places)}."
        for members in self.apart:
            of_set = np.isin(table, members)
            pairs = np.unique(np.stack([device[of_set], table[of_set]]), axis=1)
            shared = np.flatnonzero(pairs[0, 1:] == pairs[0, :-1])
            if len(shared):
                one, other = (tables.names[int(pairs[1, shared[0] + more])] for more in (0, 1))
                return f"Tables {one!r} and {other!r} are both on device {int(pairs[0, shared[0]])}, but must be apart."
        return ""

    def require(self, answer: Any, tables: Tables) -> None:
        """Raise InvalidPlanError if a valid plan, or placement, does what these constraints forbid."""
        plan = answer if isinstance(answer, ShardingPlan) else plan_of_placement(np.asarray(answer), tables)
        if problem := self.problem_of(plan, tables):
            raise InvalidPlanError(problem)

    def to_numbers(self) -> dict[str, Any]:
        """The fields as lists of integers, for files of tasks (`constraints_from_numbers`).

        Raises:
            InvalidConstraintsError: they have `least_bytes` or `empty_blocks`, which belong to no file.
        """
        for name, given in (("least_bytes", self.least_bytes is not None), ("empty_blocks", self.empty_blocks)):
            if given:
                raise InvalidConstraintsError(f"Constraints with {name} cannot be written to a file; leave them out.")
        return {
            "sharding_types": self.sharding_types.astype(int).tolist(),
            "min_columns": self.min_columns.tolist(),
            "devices": self.devices.astype(int).tolist(),
            "together": [list(each) for each in self.together],
            "apart": [list(each) for each in self.apart],
            **{name: list(own) for name, own in self._kept.items() if own},
        }

    def to_json(self, tables: Tables) -> dict[str, Any]:
        """The record that `constraints_from_json` reads; names of tables must differ.

        Raises:
            InvalidConstraintsError: two tables that are constrained have one name.
        """
        record: dict[str, Any] = {}
        for number, name in enumerate(tables.names):
            own: dict[str, Any] = {}
            if not self.sharding_types[number].all():
                own["sharding_types"] = [
                    kind for kind, yes in zip(SHARDING_TYPES, self.sharding_types[number], strict=True) if yes
                ]
            if self.min_columns[number]:
                own["min_partition"] = int(self.min_columns[number])
            if not self.devices[number].all():
                own["devices"] = np.flatnonzero(self.devices[number]).tolist()
            if number in self.in_hbm:
                replicas = bool(self.sharding_types[number, _DP])
                fused = bool(np.delete(self.sharding_types[number], _DP).any())
                own["compute_kernels"] = ["dense"] * replicas + ["fused"] * fused
            elif number in self.in_host:
                own["compute_kernels"] = [IN_HOST_KERNEL]
            elif number in self.cached:
                own["compute_kernels"] = [CACHED_KERNEL]
            if own:
                record[name] = own
        sets = {
            name: [[tables.names[table] for table in each] for each in getattr(self, name)]
            for name in ("together", "apart")
        }
        named = [*record, *(name for some in sets.values() for each in some for name in each)]
        for name in named:
            if tables.names.count(name) > 1:
                raise InvalidConstraintsError(f"Two tables are named {name!r}, so constraints cannot name them.")
        return ({"tables": record} if record else {}) | {name: some for name, some in sets.items() if some}


def _sets(name: str, given: Any, count: int) -> tuple[tuple[int, ...], ...]:
    """Sets of at least two of `count` tables."""
    sets = tuple(given) if is_iterable(given) else None
    if sets is None or not all(is_iterable(each) and all(map(is_integer, each)) for each in sets):
        raise InvalidConstraintsError(
            f"{name} must be lists of table numbers, such as [[0, 1]], not {short_repr(given)}."
        )
    found = []
    for each in sets:
        tables = tuple(int(table) for table in each)
        if len(set(tables)) != len(tables) or len(tables) < 2 or min(tables) < 0 or max(tables) >= count:
            raise InvalidConstraintsError(
                f"A set in {name} has two or more different tables of 0 to {count - 1}, not {short_repr(list(each))}."
            )
        found.append(tables)
    return tuple(found)
