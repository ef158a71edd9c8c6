"""Items: what a search puts on devices, one device each: the tables of a task, or the shards of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.cost_models.base import AdditiveCostModel
from shard_gym.hardware import Cluster
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.placement import Placement
from shard_gym.plans.plan import TABLE_WISE
from shard_gym.tasks import Task

MANY_DEVICES = 64
"""With fewer, it is faster to cost all devices anew for each candidate: 56 us instead of 101 with 16 devices."""


class NoRoomError(Exception):
    """An item fits no device; its number is `item`, and `most_free` are the bytes left on the emptiest device."""

    def __init__(self, item: int, most_free: int) -> None:
        super().__init__(f"Item {item} fits no device.")
        self.item, self.most_free = item, most_free


@dataclass(frozen=True, eq=False)
class Items:
    """I items and the D devices for them."""

    model: AdditiveCostModel  # the cost model of the loads
    cluster: Cluster  # the topology
    loads: FloatArray  # (I, K) float64, what each adds to its device
    memory: IntArray  # (I,) int64, bytes
    free: IntArray  # (D,) int64, bytes that each device has for items
    fixed: FloatArray | None = None  # (D, K) float64, loads of what stays on the devices, such as replicas
    table: IntArray | None = None  # (I,) int64, of which table of the constraints each is; None for the I tables
    constraints: Constraints | None = None  # which devices may hold them

    @staticmethod
    def of_tables(task: Task, model: AdditiveCostModel) -> Items:
        """The whole tables of `task`."""
        return Items(
            model,
            task.topology.cluster(),
            model.loads(task.tables, task.topology),
            counted_bytes(task),
            task.topology.memory_cap_bytes,
            constraints=task.constraints,
        )

    def __len__(self) -> int:
        return len(self.memory)

    @property
    def num_devices(self) -> int:
        """D."""
        return len(self.free)

    def device_loads(self, placement: Placement) -> FloatArray:
        """(D, K) loads of the devices with the items where the (I,) `placement` puts them."""
        loads = self.model.reduce(self.loads, placement, self.num_devices)
        return loads if self.fixed is None else self.model.add(self.fixed, loads)

    def memory_left(self, placement: Placement) -> IntArray:
        """(D,) int64, bytes that remain; negative where the items do not fit."""
        left = self.free.copy()
        np.subtract.at(left, placement, self.memory)
        return left

    def cost_ms(self, placement: Placement) -> float:
        """The cost of a placement of the items."""
        return float(self.model.costs(self.device_loads(placement), self.cluster)[1])

    @property
    def tables(self) -> IntArray:
        """(I,) int64, the table of each item."""
        return np.arange(len(self)) if self.table is None else self.table


def counted_bytes(task: Task) -> IntArray:
    """(T,) int64, bytes of the whole tables, or what the constraints say that a search counts for them."""
    own, limits = task.tables.memory_bytes, task.constraints
    return own if limits is None else limits.bytes_of(TABLE_WISE, task.tables.embedding_dim, own)


def put_in_order(
    memory: IntArray,
    free: IntArray,
    order: Iterable[int],
    choose: Callable[[int, IntArray], int],
    constraints: Constraints | None = None,
    table: IntArray | None = None,
    few_first: bool = True,
) -> Placement:
    """(I,) int64, each item in `order` on the device that `choose(item, devices with room)` says; or NoRoomError.

    Under `constraints` devices with room are those that may hold the item, of (I,) `table` or of the table of its own
    number; items that stay together are put one after another; and with `few_first` those come first that are kept
    apart from others, or to few devices.
    """
    if constraints is not None:
        given, table = np.array([*order], np.int64), np.arange(len(memory)) if table is None else table
        if few_first:
            few = constraints.devices.sum(axis=1)
            if constraints.conflicts is not None:
                few = few - constraints.num_devices * constraints.conflicts.any(axis=1)
            given = given[np.argsort(few[table[given]], kind="stable")]
        return _put_under(constraints, memory, free, given.tolist(), choose, table)
    placement, left = np.empty(len(memory), np.int64), free.copy()
    for item in order:
        fitting = np.flatnonzero(left >= memory[item])
        if fitting.size == 0:
            raise NoRoomError(int(item), int(left.max()))
        device = placement[item] = choose(item, fitting)
        left[device] -= memory[item]
    return placement


def _put_under(
    constraints: Constraints,
    memory: IntArray,
    free: IntArray,
    order: Iterable[int],
    choose: Callable[[int, IntArray], int],
    table: IntArray,
) -> Placement:
    """See `put_in_order`."""
    placement, left, put = np.empty(len(memory), np.int64), free.copy(), np.zeros(len(memory), np.bool_)
    for first in order:
        if put[first]:
            continue
        mates = np.isin(table, constraints.companions.get(int(table[first]), ()))
        items = [first, *(item for item in np.flatnonzero(mates & ~put).tolist() if item != first)]
        may_hold = constraints.open_to(table[items], table[put], placement[put])
        fitting = np.flatnonzero(may_hold & (left >= memory[items].sum()))
        if fitting.size == 0:
            raise NoRoomError(int(first), int(left[may_hold].max(initial=0)))
        device = choose(first, fitting)
        for item in items:
            placement[item], put[item] = device, True
            left[device] -= memory[item]
        for item in items[1:]:
            choose(item, np.array([device]))
    return placement


def put_where_cheapest(
    items: Items, order: Iterable[int], most_devices: int | None = None, first: IntArray | None = None
) -> Placement:
    """(I,) int64, each item in `order` on the device where what is placed so far costs least; or NoRoomError.

    At most I D evaluations, or I `most_devices` if only so many of the devices with room, the least busy, are tried.
    With (I,) `first`, only the first so many devices may hold an item.

    Equal costs are common because an item rarely makes the slowest device slower. Then the device whose own phases are
    shortest afterwards is taken.
    """
    model = items.model
    held = np.zeros((items.num_devices, items.loads.shape[1])) if items.fixed is None else items.fixed.copy()
    own_phases = model.device_phases(held)
    many = items.num_devices >= MANY_DEVICES
    costs_with_one = model.costs_with_one if many else partial(AdditiveCostModel.costs_with_one, model)

    def choose(item: int, fitting: IntArray) -> int:
        if first is not None:
            fitting = fitting[fitting < first[item]]
            if not len(fitting):
                raise NoRoomError(item, 0)
        if most_devices is not None and len(fitting) > most_devices:
            fitting = fitting[np.argpartition(own_phases[fitting].sum(axis=-1), most_devices)[:most_devices]]
        joined = model.add(held[fitting], items.loads[item])
        phases, costs = costs_with_one(items.cluster, held, own_phases, fitting, joined)
        best = np.lexsort((phases.sum(axis=-1), costs))[0]
        device: int = fitting[best]
        held[device] = joined[best]
        own_phases[device] = phases[best]
        return device

    return put_in_order(items.memory, items.free, order, choose, items.constraints, items.table)


def put_where_emptiest(items: Items) -> Placement:
    """(I,) int64, the largest item first, each on the device with the most free bytes; or NoRoomError."""
    order = np.argsort(-items.memory, kind="stable")
    if items.constraints is not None:
        with suppress(NoRoomError):
            return _emptiest_under(items, order, few_first=True)
        return _emptiest_under(items, order, few_first=False)
    placement, left = np.empty(len(items), np.int64), items.free.copy()
    for item in order:
        device = placement[item] = int(left.argmax())
        left[device] -= items.memory[item]
        if left[device] < 0:
            raise NoRoomError(int(item), int(left[device] + items.memory[item]))
    return placement


def _emptiest_under(items: Items, order: IntArray, *, few_first: bool) -> Placement:
    """See `put_where_emptiest`."""
    held = items.free.copy()

    def choose(item: int, fitting: IntArray) -> int:
        emptiest = int(fitting[held[fitting].argmax()])
        held[emptiest] -= items.memory[item]
        return emptiest

    return put_in_order(items.memory, items.free, order, choose, items.constraints, items.table, few_first)
