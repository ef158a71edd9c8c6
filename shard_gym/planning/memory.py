"""The memory of a training step: what tables and buffers take on each device and host, and where it is nearly full."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.report import Grid, Note, Printout
from shard_gym.common.text import counted, format_bytes, format_gib, format_ms, format_percent
from shard_gym.cost_models import AnalyticalShardingModel
from shard_gym.hardware import Topology
from shard_gym.planning.explanation import Explanation
from shard_gym.planning.misfit import devices_that_hold
from shard_gym.plans.constraints import CACHED_KERNEL
from shard_gym.plans.hbm_rows import split_bytes
from shard_gym.plans.memory import TrainingMemory, training_memory
from shard_gym.plans.plan import TABLE_WISE
from shard_gym.tables import RowPopularity, RowSteps, Tables
from shard_gym.tables.tables import CACHED as BEHIND_CACHE
from shard_gym.tables.tables import IN_HOST

GIB = 2**30

NEARLY_FULL = 0.9
"""Share of what tables and buffers may take, above which a device is named in a warning."""


CACHED = "analytical-lru"  # how the names of cost models begin whose HBM is a cache
MAX_HOSTS = 8  # hosts whose memory is printed
MAX_AWAY = 8  # tables with rows in host memory that are listed: those with most bytes there


def rooms(explanation: Explanation, room: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """(D,) int64, bytes that tables and buffers may take: `room` of HBM, and a device's part of its host's memory.

    Args:
        room: of each device, or (D,) bytes.
    """
    host = explanation.task.topology.host
    part = 0 if host is None else explanation.memory_cap_bytes - host.hbm_bytes
    return np.broadcast_to(room + part, explanation.memory_cap_bytes.shape)


def memory_report(
    explanation: Explanation, room: int | NDArray[np.int64], reserve: int = 0, devices: int = 16
) -> Printout:
    """What a training step holds on the fullest `devices`, with `room` bytes for it, and `reserve` bytes besides.

    Free memory is negative where there is too little. With host memory, what tables hold there has columns of its own;
    so has the memory cap where devices have different ones.

    Args:
        room: of each device, or (D,) bytes.
    """
    memory, differ = memory_of(explanation), bool(np.ptp(room))
    has = np.broadcast_to(room, explanation.task.num_devices)
    shown = np.sort(np.argsort(has - memory.total, kind="stable")[:devices])
    host = explanation.task.topology.host
    away = host is not None
    of_host = rooms(explanation, 0)
    of = "" if differ else f" of {format_gib(int(has[0]) + reserve)}{' of HBM' * away}"
    if host is not None and not reserve:  # the tasks of suites give tables a part of the HBM
        of = f"{of}, of which tables may take {format_gib(host.hbm_bytes)}"
    step = "a training step" if explanation.task.tables.workload.training else "serving"
    report, table = Printout(), Grid()
    report.heading(f"\nMemory of {step}, GiB{of}\n")
    kept = ["reserve"] * bool(reserve)
    for name in ("", *["cap"] * differ, "weights+state", "buffers", *kept, "free", *["in host memory"] * away):
        table.column(name, right=True, no_wrap=True)
    for device in shown.tolist():
        in_host = int(memory.host[device])
        own, buffers = int(memory.tables[device]) - in_host, int(memory.buffers[device])
        cap = int(has[device])
        numbers = (*[cap] * differ, own, buffers, *[reserve] * bool(reserve), cap - own - buffers)
        there = [f"{format_gib(in_host)}/{format_gib(of_host[device])}"] * away
        table.row(f"device {device}", *map(format_gib, numbers), *there)
    report.add(table)
    of_reserve = "; reserve: dense parameters, activations, allocator" * bool(reserve)
    gradients = ", gradients of replicas" * explanation.task.tables.workload.training
    report.line(f"buffers: inputs, outputs{gradients}{of_reserve}", "dim")
    left = memory.num_devices - len(shown)
    if left:
        report.line(f"{counted(len(shown), 'device')} shown, the fullest; {left} left out.", "dim")
    if away:
        report.line(hosts_sentence(explanation.task.topology, memory.host, caps=explanation.memory_cap_bytes))
        report.line(f"\n{host_sentence(explanation)}")
        report.add(_report_of_away(explanation))
    return report


def hosts_bytes(topology: Topology, held: NDArray[np.int64]) -> NDArray[np.int64]:
    """(hosts,) int64, the sums of (D,) bytes of the devices of each host."""
    found = np.zeros(topology.num_hosts, np.int64)
    np.add.at(found, topology.hosts, held)
    return found


def hosts_sentence(
    topology: Topology, held: NDArray[np.int64], why: str = "", caps: NDArray[np.int64] | None = None
) -> str:
    """What tables take of the memory of each host; `held` are (D,) bytes, `why` ends the sentence on them.

    Args:
        caps: (D,) int64, memory caps, where those of `topology` are raised.
    """
    caps = topology.memory_cap_bytes if caps is None else caps
    host, taken = topology.host, hosts_bytes(topology, held)
    has = [""] * topology.num_hosts
    if host is not None:
        parts = hosts_bytes(topology, np.maximum(caps - host.hbm_bytes, 0))
        every = parts if host.total_bytes is None else np.full_like(parts, host.total_bytes)
        has = [f" of {format_bytes(each)}" for each in every.tolist()]
    shown = [
        f"host {number} {format_bytes(each)}{of}" for number, (each, of) in enumerate(zip(taken, has, strict=True))
    ]
    more = f"; {counted(len(shown) - MAX_HOSTS, 'host')} more" * (len(shown) > MAX_HOSTS)
    return f"\nMemory of hosts for tables: {', '.join(shown[:MAX_HOSTS])}{more}{why}."


def _report_of_away(explanation: Explanation) -> Printout:
    """The tables with rows in host memory: which share of their rows is in HBM, and of what a batch reads."""
    count, names = len(explanation.task.tables), explanation.task.tables.names
    of, rows, columns = explanation.shards[:, 0], explanation.shards[:, 3], explanation.shards[:, 5]
    split, bytes_there = explanation.split, np.bincount(of, explanation.host_bytes, count)
    away = np.flatnonzero(bytes_there > 0)
    report, table = Printout(), Grid()
    if not away.size:
        return report
    in_hbm = np.bincount(of, split.hbm_rows * columns, count) / np.bincount(of, rows * columns, count)
    read_there = np.bincount(of, split.host_reads * columns, count)
    read = read_there + np.bincount(of, split.hbm_reads * columns, count)
    report.heading(f"\nRows in HBM of tables with rows in host memory ({len(away)} of {count})\n")
    table.column("table", overflow="ellipsis", no_wrap=True)
    for name in ("GiB in host", "rows in HBM", "reads in HBM"):
        table.column(name, right=True, no_wrap=True)
    shown = away[np.argsort(-bytes_there[away], kind="stable")][:MAX_AWAY]
    for each in shown.tolist():
        reads = 1.0 - read_there[each] / read[each] if read[each] else 1.0
        shares = (format_percent(share) for share in (in_hbm[each], reads))
        table.row(names[each], format_gib(int(bytes_there[each])), *shares)
    report.add(table)
    report.line("reads in HBM: of the different rows that a batch reads", "dim")
    if len(away) > len(shown):
        report.line(f"{len(away) - len(shown)} more.", "dim")
    return report


def host_sentence(explanation: Explanation) -> str:
    """Which share of the rows' bytes lies in host memory, what that costs, and what is known of the rows."""
    tables, in_host = explanation.task.tables, int(explanation.host_bytes.sum())
    of, *_, rows, _, columns = explanation.shards.T
    cells_bytes = rows * columns * split_bytes(tables.workload.select(of))
    if not in_host:
        behind = tables.are_in(BEHIND_CACHE)[of]
        if not behind.any():
            return "All rows are in HBM; nothing of the host memory is needed."
        kept = format_bytes(int(cells_bytes[behind].sum()))
        return (
            f"All rows have room in HBM, but tables that may be {CACHED_KERNEL} alone are behind a cache there: "
            f"TorchRec keeps all of their rows in host memory, too, {kept}."
        )
    assert explanation.all_in_hbm_ms is not None
    if explanation.cost_model.startswith(CACHED):
        return (
            "The cost is that of a cache in HBM, and all rows in host memory. The rows below are those of the best "
            "split without a cache, which `cost_model='analytical'` costs."
        )
    share = in_host / int(cells_bytes.sum())
    more = explanation.total_ms - explanation.all_in_hbm_ms
    return (
        f"{format_percent(share)} of the rows' bytes, {format_bytes(in_host)}, lie in host memory, which costs "
        f"{format_ms(more)} of {format_ms(explanation.total_ms)} ms; "
        f"{popularity_source(tables)}{_assumed_rates(explanation)}."
    )


def _assumed_rates(explanation: Explanation) -> str:
    """That the rates of host memory are assumed, a clause; empty if they are measured."""
    host = explanation.task.topology.host
    assumed = host is not None and any(each.startswith("[assumed]") for each in host.sources.values())
    return "; how fast devices read and update rows there is assumed" * assumed


def popularity_source(tables: Tables) -> str:
    """How it is known which rows are read most, a clause."""
    if tables.popularity is None:
        return "a law of the rows' popularity is assumed: from histograms alone the tail is assumed"
    if isinstance(tables.popularity, RowSteps):
        return "rows are ranked by their shares of the lookups, recorded or published"
    return "rows are ranked by the law of the tables' lookups"


def host_to_json(explanation: Explanation) -> dict[str, Any]:
    """The rows in host memory as a JSON value: bytes, their cost, and where their popularity is from; or nothing."""
    host = explanation.task.topology.host
    if host is None or explanation.all_in_hbm_ms is None:
        return {}
    tables = explanation.task.tables
    source = {RowSteps: "steps", RowPopularity: "law", type(None): "assumed law"}[type(tables.popularity)]
    found = {
        "hbm_bytes": host.hbm_bytes,
        "bytes_in_host": int(explanation.host_bytes.sum()),
        "bytes_in_each_host": hosts_bytes(explanation.task.topology, memory_of(explanation).host).tolist(),
        "cost_ms": explanation.total_ms - explanation.all_in_hbm_ms,
        "popularity": source,
    }
    return {"host_memory": found}


def caches_notes(explanation: Explanation) -> list[Note]:
    """A warning what a plan costs with the caches that TorchRec gives tables with rows in host memory."""
    task, cached_already = explanation.task, explanation.cost_model.startswith(CACHED)
    in_cache = explanation.host_bytes[~task.tables.are_in(IN_HOST)[explanation.shards[:, 0]]]
    if not in_cache.any() or cached_already or not task.tables.workload.training:
        return []
    dtype, index_exchange = explanation.communication_dtype, explanation.index_exchange
    model = AnalyticalShardingModel(dtype, host_policy="lru", index_exchange=index_exchange)
    cached = model.estimate(explanation.plan, task.tables, task.topology)
    text = (
        f"TorchRec keeps a cache of the tables with rows in host memory, and this plan then costs "
        f"{format_ms(cached.total_ms)} ms under analytical-lru, not {format_ms(explanation.total_ms)}. "
        "`cost_model='analytical-lru'` plans for caches."
    )
    return [Note(text)]


def full_notes(explanation: Explanation, room: int | NDArray[np.int64]) -> list[Note]:
    """A warning of the fullest device if it is nearly full, and say what brings it to `NEARLY_FULL`, if that is known.

    A table, or a part of one, is named only if its move is enough and leaves the other device within the same share.
    With host memory, that is HBM and host memory together: the HBM is filled on purpose.
    """
    memory, has = memory_of(explanation), rooms(explanation, room)
    full = int((memory.total > NEARLY_FULL * has).sum())
    if not full:
        return []
    device = int((memory.total / has).argmax())
    used, of_it = int(memory.total[device]), int(has[device])
    others = f" So {'is' if full == 2 else 'are'} {counted(full - 1, 'other device')}." * (full > 1)
    found = memory.shard_to_move(device, np.minimum((NEARLY_FULL * has).astype(int), explanation.memory_cap_bytes))
    if found is None:
        hint = f"No move of one table brings it to {NEARLY_FULL:.0%}.{_ways_to_room(explanation, memory, has)}"
    else:
        shard, target = found
        table = int(explanation.shards[shard, 0])
        part = "" if explanation.plan.tables[table].sharding_type == TABLE_WISE else "a part of "
        size = format_bytes(int(memory.of_shards[shard].sum()))
        hint = (
            f"To bring it to {NEARLY_FULL:.0%}, move {part}{explanation.task.tables.names[table]} ({size}) to device "
            f"{target}, which stays below that."
        )
    text = (
        f"Device {device} is {'nearly' if used <= of_it else 'more than'} full: tables and buffers take "
        f"{format_bytes(used)} of {format_bytes(of_it)}, {format_percent(used / of_it)}.{others} {hint}"
    )
    return [Note(text)]


def _ways_to_room(explanation: Explanation, memory: TrainingMemory, has: NDArray[np.int64]) -> str:
    """How much memory, and how many devices, leave every device `NEARLY_FULL` at most, a sentence; empty with hosts'
    memory, and with groups of devices.
    """
    topology, tables = explanation.task.topology, explanation.task.tables
    if topology.host is not None or topology.replicas is not None:
        return ""
    differ = bool(np.ptp(has))
    less = " that has less" * differ
    enough = int(memory.total[memory.total > NEARLY_FULL * has].max()) / NEARLY_FULL
    unit = (GIB if enough >= GIB else 2**20) / 100  # it is printed with two digits, and is rounded up
    of_each = f" {format_bytes(math.ceil(enough / unit) * unit)} for both on each device{less} would"
    limits = np.maximum((NEARLY_FULL * has).astype(np.int64), 1)
    count = devices_that_hold(tables, replace(topology, memory_cap_bytes=limits))
    if count is None:
        return f"{of_each}."
    kind = f" with {format_bytes(has.max())} each" * differ
    return f"{of_each}, or another plan for {counted(count, 'device')}{kind}."


def memory_of(explanation: Explanation) -> TrainingMemory:
    """What a training step holds on each device of an explained plan."""
    return training_memory(
        explanation.plan, explanation.task.tables, explanation.task.num_devices, explanation.host_bytes
    )
