"""The bytes that devices send in an iteration: as a table and as JSON."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from shard_gym.cli.console import heading, new_table, print_table
from shard_gym.common.text import format_mib
from shard_gym.planning.explanation import Explanation


def print_traffic(console: Console, explanation: Explanation, devices: int = 16) -> None:
    """Print what each of `devices` sends inside its domain and, where there are several, to others; and all do."""
    topology, sent = explanation.task.topology, explanation.traffic
    if topology.num_devices == 1:
        return
    across, group = topology.num_domains > 1, topology.fast_group
    gradients = ", gradients" * explanation.task.tables.workload.training
    heading(console, f"\nSent in an iteration, MiB: outputs, partial sums{gradients}\n")
    totals = [format_mib(count) for count in sent.sum(axis=0)[: 1 + across]]
    table = new_table(footer=True)
    table.add_column("", "all devices", justify="right", no_wrap=True)
    if across:
        table.add_column(group, "", justify="right", no_wrap=True)
    for name, total in zip((f"inside its {group}", f"to other {group}s"), totals, strict=False):
        table.add_column(name, total, justify="right", no_wrap=True)
    for device in explanation.busiest(devices).tolist():
        numbers = [format_mib(count) for count in sent[device, : 1 + across]]
        table.add_row(f"device {device}", *[str(topology.domains[device])] * across, *numbers)
    print_table(console, table)


def traffic_to_json(explanation: Explanation) -> dict[str, Any]:
    """The host of each device, its domain if that has several, and the MiB that it sends in an iteration in its domain
    (its host by default) and to others."""
    inside, across = (explanation.traffic / 2**20).T.tolist()
    topology, group = explanation.task.topology, explanation.task.topology.fast_group
    return {
        "hosts": explanation.hosts.tolist(),
        **({} if group == "host" else {"domains": topology.domains.tolist()}),
        "sent_mib": {f"inside_its_{group}": inside, f"to_other_{group}s": across},
    }
