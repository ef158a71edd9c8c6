"""The bytes that devices send in an iteration: as a table and as JSON."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from shard_gym.cli.console import heading, new_table, print_table
from shard_gym.explain import Explanation
from shard_gym.text import format_mib


def print_traffic(console: Console, explanation: Explanation, devices: int = 16) -> None:
    """Print what each of `devices` sends inside its host and, where there are several, to other hosts; and all do."""
    topology, sent = explanation.task.topology, explanation.traffic
    if topology.num_devices == 1:
        return
    across = topology.num_hosts > 1
    gradients = ", gradients" * explanation.task.tables.workload.training
    heading(console, f"\nSent in an iteration, MiB: outputs, partial sums{gradients}\n")
    totals = [format_mib(count) for count in sent.sum(axis=0)[: 1 + across]]
    table = new_table(footer=True)
    table.add_column("", "all devices", justify="right", no_wrap=True)
    if across:
        table.add_column("host", "", justify="right", no_wrap=True)
    for name, total in zip(("inside its host", "to other hosts"), totals, strict=False):
        table.add_column(name, total, justify="right", no_wrap=True)
    for device in explanation.busiest(devices).tolist():
        numbers = [format_mib(count) for count in sent[device, : 1 + across]]
        table.add_row(f"device {device}", *[str(explanation.hosts[device])] * across, *numbers)
    print_table(console, table)


def traffic_to_json(explanation: Explanation) -> dict[str, Any]:
    """The host of each device, and the MiB of an iteration that it sends inside its host and to other hosts."""
    inside, across = (explanation.traffic / 2**20).T.tolist()
    return {
        "hosts": explanation.hosts.tolist(),
        "sent_mib": {"inside_its_host": inside, "to_other_hosts": across},
    }
