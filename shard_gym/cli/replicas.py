"""The replicas of a plan: on the terminal and as JSON, and plans without them."""

from __future__ import annotations

from copy import copy
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from shard_gym.agents import Agent
from shard_gym.cli.console import sentence, warn
from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.text import format_ms, listed
from shard_gym.interop.replicas import replicas_note, replicated_tables, tables_of_mixed_widths
from shard_gym.planning.explanation import Explanation
from shard_gym.plans.plan import DATA_PARALLEL
from shard_gym.tables.tables import Tables

OptionalReplicas = Annotated[
    Literal["yes", "no"] | None, tyro.conf.arg(metavar="yes|no", help_behavior_hint="(optional)")
]


def without_replicas(agent: Agent) -> Agent:
    """The agent without data_parallel among the sharding types that it may use; as it is if it names none."""
    types = getattr(agent, "sharding_types", ())
    if DATA_PARALLEL not in types:
        return agent
    changed: Any = copy(agent)
    changed.sharding_types = tuple(each for each in types if each != DATA_PARALLEL)
    able: Agent = changed
    return able


def replicas_are_wrong(tables: Tables, device_type: str) -> bool:
    """Whether TorchRec reads replicas of the tables wrongly: sequence tables on CPUs; a line says so."""
    wrong = device_type == "cpu" and not tables.pooled.all()
    if wrong:
        warn(
            "Without replicas, as TorchRec 1.8 adds up the rows of sequence tables that are replicas on a CPU; "
            "--replicas yes allows them.",
            "dim",
        )
    return wrong


def warn_of_widths(explanation: Explanation) -> None:
    """Warn if a device has column shards of sequence tables of several widths, which FBGEMM does not train."""
    names = tables_of_mixed_widths(explanation.plan, explanation.task.tables)
    if names:
        warn(
            f"FBGEMM trains column shards of sequence tables on a device only where all are equally wide, and those of "
            f"{listed(names)} are not. Plan again with --option sharding_types=table_wise,row_wise."
        )


def require_no_replicas(explanation: Explanation, agent: str) -> None:
    """Raise InvalidOptionError if an agent that chooses no sharding types answered with replicas."""
    names = replicated_tables(explanation.plan, explanation.task.tables)
    if names:
        raise InvalidOptionError(
            f"--replicas is no, but {agent!r} makes {listed(names)} data_parallel, and has no option sharding_types "
            "that leaves replicas out. Name another agent, such as plan-search or torchrec."
        )


def note_of(explanation: Explanation) -> str:
    """`replicas_note` of what is explained; empty for a plan without replicas, and for tables that are served."""
    return replicas_note(explanation.plan, explanation.task.tables)


def without_them(explanation: Explanation) -> str:
    """What the plan costs without its replicas, a sentence; empty if that is not known."""
    cost, now = explanation.without_replicas_ms, explanation.total_ms
    if cost is None:
        return ""
    return f"With them whole, each on its best device, the plan costs {format_ms(cost)} ms ({cost / now - 1:+.1%})."


def print_replicas(console: Console, explanation: Explanation) -> None:
    """Print which tables are replicas, how TorchRec trains them and what they gain, if there are any trained ones."""
    note = note_of(explanation)
    if note:
        console.print()
        console.print(sentence(note), soft_wrap=True)
        console.print(sentence(without_them(explanation)), soft_wrap=True)


def replicas_to_json(explanation: Explanation) -> dict[str, Any]:
    """The tables that are replicas, the note of how they are trained, and the cost without; nothing without a note."""
    note = note_of(explanation)
    if not note:
        return {}
    names = replicated_tables(explanation.plan, explanation.task.tables)
    return {"replicas": {"tables": names, "note": note, "without_ms": explanation.without_replicas_ms}}
