"""What a drop-in plan costs and holds, how certain that is, and TorchRec's plan beside it, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shard_gym.common.text import format_bytes, format_ms, format_seconds, listed
from shard_gym.cost_models.base import PHASES
from shard_gym.interop.replicas import replicas_note
from shard_gym.planning.dropin.options import outside_devices
from shard_gym.planning.dropin.problem import CostedPlan, PlanningTask
from shard_gym.planning.trust import evidence_sentence


@dataclass
class Searched:
    """What was done for a plan, besides the plan."""

    hardware: str = ""  #: which, and how that was found, a clause
    sentence: str = ""  #: seeds and evaluations
    compared: str = ""  #: why there is no plan of TorchRec to compare with, a sentence
    theirs: CostedPlan | None = None  #: TorchRec's plan
    compare_s: float = 0.0  #: seconds that it took
    away: Sequence[str] = field(default_factory=list)  #: its tables with rows outside the memory of a device
    own_ms: float = 0.0  #: what ShardGym's plan costs, where TorchRec's is taken
    taken: bool = False  #: whether TorchRec's plan was taken, as it costs less
    instead: bool = False  #: whether TorchRec's plan was taken, as ShardGym found none


def report_of(
    costed: CostedPlan | None, problem: PlanningTask | None, searched: Searched, notes: Sequence[str], seconds: float
) -> str:
    """The text that is logged below TorchRec's statistics.

    Args:
        costed: the plan; None where its cost is not known, for which `notes` have the reason.
        notes: what is approximated, and what TorchRec planned.
        seconds: that planning took.
    """
    lines = [f"ShardGym planned in {format_seconds(seconds)}."]
    if costed is not None and problem is not None:
        tables, topology = costed.tables, problem.topology
        slowest = costed.estimate.phases_ms.max(axis=0).tolist()
        phases = ", ".join(f"{name} {format_ms(ms)}" for name, ms in zip(PHASES, slowest, strict=True))
        lines.append(f"Embeddings cost {format_ms(costed.estimate.total_ms)} ms an iteration ({phases}).")
        if away := outside_devices(costed.options):
            lines.append(f"Of {listed(away)}, rows outside their devices' memory are costed as if they were in it.")
        lines.append(f"Hardware: {searched.hardware}.")
        used = problem.used_bytes(costed.options)
        fullest = int((used / topology.memory_cap_bytes).argmax())
        kind = {"hbm": "HBM", "ddr": "memory"}[problem.memory]
        lines.append(
            f"{kind} of tables on the fullest device, rank {fullest}: {format_bytes(used[fullest])} of the "
            f"{format_bytes(topology.memory_cap_bytes[fullest])} that the storage reservation leaves."
        )
        lines.append(evidence_sentence(topology, problem.model.fingerprint, tables.workload))
        lines += [searched.sentence] * bool(searched.sentence)
        lines += _compared(costed, searched)
        lines += [replicas] if (replicas := replicas_note(costed.plan, tables)) else []
    lines += [f"Note: {note}." for note in dict.fromkeys(note.rstrip(".") for note in notes)]
    return "\n".join(lines)


def _compared(costed: CostedPlan, searched: Searched) -> list[str]:
    theirs = searched.theirs
    if theirs is None:
        return [searched.compared] * bool(searched.compared)
    cost = theirs.estimate.total_ms
    found = f"TorchRec's plan, found in {format_seconds(searched.compare_s)}"
    if searched.taken:
        return [f"{found}, costs less than ShardGym's ({format_ms(searched.own_ms)} ms), and is the one returned."]
    times = f"{cost / costed.estimate.total_ms:.2f} times as much" if costed.estimate.total_ms else "as much"
    said = f"{found}, costs {format_ms(cost)} ms under the same costs, {times}."
    if searched.away:
        said += f" It keeps rows of {listed(searched.away)} outside their devices' memory, which this cost leaves out."
    elif cost < costed.estimate.total_ms:
        said += " It is not returned, as it does not fit by what ShardGym counts, or not the `ranks` that are given."
    return [said]
