"""How far to trust a printed cost: the evidence of the cost model, and the ratio of two plans under other
assumptions."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from shard_gym.agents import make_agent
from shard_gym.cli.console import sentence
from shard_gym.common.errors import NoPlacementFoundError
from shard_gym.cost_models.analytical.assumptions import ASSUMED
from shard_gym.cost_models.analytical.index_exchange import EXPOSED
from shard_gym.hardware.topology import Topology
from shard_gym.planning.explanation import Explanation
from shard_gym.planning.trust import (
    Evidence,
    Robustness,
    evidence_on,
    hardware_of,
    is_analytical,
    is_measured,
    robustness,
)
from shard_gym.plans import ShardingPlan, plan_of_placement
from shard_gym.plans.plan import ONE_GROUP
from shard_gym.tables.workload import Workload
from shard_gym.tasks.task import Task

EQUAL = 0.005
"""Plans cost the same where they differ by less, whatever is assumed."""

BASELINE = "lookup-greedy"
"""The agent whose placement stands beside a new plan where the user names no other: it takes milliseconds."""


def print_evidence(console: Console, topology: Topology, cost_model: str, workload: Workload | None = None) -> None:
    """Print how far the cost model with this fingerprint is from measurements on these devices."""
    console.print(sentence(f"\n{evidence_sentence(topology, cost_model, workload)}", "dim"))


def evidence_sentence(topology: Topology, cost_model: str, workload: Workload | None = None) -> str:
    """The mean errors of a cost model on measurements that it was not fitted to, phase by phase."""
    if cost_model.startswith("measured"):
        where = ", but for the exchange: one device stood for all" if "-sequential-" in cost_model else ""
        return f"This cost is measured, not estimated{where}."
    if not is_analytical(cost_model):
        return f"Errors of the cost model {cost_model}: see its card, or shard-gym report-cost-model."
    hardware = hardware_of(topology)
    if hardware is None and topology.device.rates is not None:
        return f"Cost model on {topology.device.name}: {topology.device.sources.get('rates', 'calibrated')}."
    if hardware is None:
        return f"Cost model on {topology.device.name}: not measured, as it is no hardware profile of ShardGym."
    phases = "; ".join(_phase(phase, found) for phase, found in evidence_on(topology, workload).items())
    how = "" if workload is None or is_measured(workload) else f", {workload.weight_dtype}, {workload.optimizer}"
    return f"Mean error of the cost model on held-out measurements, {hardware}{how}: {phases}."


def _phase(phase: str, found: Evidence | None) -> str:
    name = f"links {phase}" if phase.endswith("hosts") else phase
    if found is None:
        return f"{name} not measured"
    note = f" ({found.note})" * bool(found.note)
    return f"{name} {found.held_out_error:.0%} of {found.measurements:,}{note}"


def evidence_to_json(explanation: Explanation) -> dict[str, Any]:
    """The same as a JSON value: by phase the mean error and the number of measurements, or null; none if unknown."""
    if not is_analytical(explanation.cost_model):
        return {}
    found = evidence_on(explanation.task.topology, explanation.task.tables.workload)
    return {
        "held_out_errors": {
            phase: each and {"mean_error": each.held_out_error, "measurements": each.measurements}
            for phase, each in found.items()
        }
    }


def print_baseline(console: Console, explanation: Explanation, source: str, index_dedup: bool = False) -> None:
    """Print what the placement of `BASELINE` costs in comparison, where it has another one.

    Args:
        source: the pool that the tables are from.
    """
    task = explanation.task
    if explanation.plan.groups != ONE_GROUP:
        console.print(sentence("\nTo compare it with one group, plan without --sync-every.", "dim"))
        return
    try:
        placement = make_agent(BASELINE).place(task)
    except NoPlacementFoundError:
        console.print(
            sentence(
                f"\n{BASELINE} places whole tables, which do not fit, so no plan stands beside this one: name one with "
                "--compare.",
                "dim",
            )
        )
        return
    baseline = plan_of_placement(placement, task.tables)
    if baseline != explanation.plan:
        print_robustness(
            console, baseline, f"The placement of {BASELINE}", explanation, source, index_dedup=index_dedup
        )


def print_robustness(
    console: Console,
    other: ShardingPlan,
    name: str,
    explanation: Explanation,
    source: str,
    whole: Task | None = None,
    num_devices: int | None = None,
    index_dedup: bool = False,
) -> None:
    """Print how a plan compares with the explained one, whatever nobody measured; of the analytical cost model only.

    Args:
        other: a plan of the same tables.
        name: of it, at the beginning of a sentence.
        source: the pool that the tables are from.
        whole: the task of all devices, where plans may have groups.
        num_devices: how many devices the other plan is for, if not for as many as the task has.
        index_dedup: whether the lookups are those after dedup.
    """
    if not is_analytical(explanation.cost_model):
        return
    task, sent = whole or explanation.task, (explanation.communication_dtype, explanation.index_exchange)
    plans = other, explanation.plan
    found = robustness(*plans, task.tables, task.topology, sent[0], task.sync_every, sent[1], num_devices)
    console.print(sentence(f"\n{robustness_sentence(found, name, task.num_tables, index_dedup)}"))


def robustness_sentence(found: Robustness, name: str, num_tables: int, index_dedup: bool = False) -> str:
    """The ratio of the costs of the plan `name` and of the explained one, and its ranges."""
    low, high = found.term_range
    all_of_them = (low, high, *(found.lookup_range or ()), found.other_exchange or found.ratio)
    if max(all_of_them) < 1 + EQUAL and min(all_of_them) > 1 - EQUAL:
        return f"{name} costs as much as this plan, within {EQUAL:.1%}, whatever nobody measured."
    most = "" if found.most is None else f", most by {ASSUMED[found.most]}"
    parts = [
        f"{name} costs {found.ratio:.2f} times as much as this plan: {low:.2f} to {high:.2f} if what nobody measured "
        f"took no time, or twice as long{most};"
    ]
    if found.lookup_range is None:
        which = "those after dedup" if index_dedup else "recorded ones"
        parts.append(f"lookups are not varied, as {which} follow no law.")
    else:
        least, largest = found.lookup_range
        which = "" if found.remade == num_tables else f" of the {found.remade:,} costliest tables"
        parts.append(
            f"{least:.2f} to {largest:.2f} if the exponents of the lookups{which} were 0.2 lower, or 0.2 higher."
        )
    if found.other_exchange is not None:
        how = "if a pipeline hides" if found.index_exchange == EXPOSED else "without a pipeline that hides"
        parts.append(f"It is {found.other_exchange:.2f} {how} the exchange of the indices.")
    if not found.is_certain:
        parts.append("So the model does not tell for certain which of the two is faster.")
    return " ".join(parts)
