"""How far to trust a cost: the errors of the cost model on measurements that it was not fitted to, and how much the
ratio of two costs depends on what nobody measured."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shard_gym.cost_models
from shard_gym.common.errors import unknown_name
from shard_gym.common.io.files import read_shipped
from shard_gym.cost_models import AdditiveCostModel, AnalyticalCostModel
from shard_gym.cost_models.analytical.assumptions import ASSUMED, VariedShardingModel, assumed_scales
from shard_gym.cost_models.analytical.grouped import model_of
from shard_gym.cost_models.analytical.index_exchange import EXPOSED, HIDDEN
from shard_gym.cost_models.analytical.sharding import COMMUNICATION_BYTES
from shard_gym.hardware import PROFILES, Topology, hardware_profile
from shard_gym.planning.explanation import estimate_of_checked
from shard_gym.plans import ShardingPlan, check_plan
from shard_gym.tables import RowPopularity, Tables, Workload, rounded_statistics
from shard_gym.tables.row_popularity import reuse_statistics
from shard_gym.tables.tables import MAX_BYTES
from shard_gym.tasks import Task
from shard_gym.tasks.groups import task_of_plan

EVIDENCE = Path(shard_gym.cost_models.__file__).parent / "evidence"

PHASES = ("forward", "backward", "inside hosts", "across hosts")
"""What evidence is about: the two computations, and the links that the exchanges pass."""

EXPONENTS = (-0.2, 0.2)  # added to the exponents of the lookups
EQUAL = 0.005  # plans cost the same where they differ by less, whatever is assumed
SAME = 1e-9  # ratios whose logarithms differ by less are equal
MAX_REMADE = 100
"""Tables whose lookups are varied, the costliest; the statistics of one take about a millisecond."""


@dataclass(frozen=True)
class Evidence:
    """How far the analytical cost model is from published measurements of one phase on one kind of hardware.

    Errors are exp(mean |ln(predicted / measured)|) - 1; 0.1 is 10% off on average.
    """

    measurements: int
    sources: int  #: publications that they are from
    held_out_error: float  #: of a fit that did not see them
    worst_factor: float  #: the largest factor between such a prediction and a measurement, either way
    fitted_error: float  #: of the constants in the package, which were fitted to them, too
    note: str  #: what limits them, a clause; empty if nothing does


OPTIMIZERS, WEIGHT_DTYPES = ("rowwise_adagrad", "sgd"), ("fp16", "fp32")
"""Of the measurements; those with Adam are compared on docs/results/cost-model-errors.md, and counted nowhere."""


def evidence(hardware: str, phase: str) -> Evidence | None:
    """The evidence on a hardware profile for one of `PHASES`; None if nobody published a measurement.

    Raises:
        UnknownNameError: there is no such profile or phase.
        DamagedFileError: the file of the package was changed.
    """
    hardware_profile(hardware)
    if phase not in PHASES:
        raise unknown_name("phase", phase, PHASES)
    found = _evidence().get(hardware, {}).get(phase)
    return None if found is None else Evidence(**found)


@lru_cache(maxsize=1)
def _evidence() -> dict[str, dict[str, dict[str, Any]]]:
    data = read_shipped(EVIDENCE, AnalyticalCostModel().fingerprint, "evidence of the cost model")
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(data)["hardware"]
    return found


def is_analytical(fingerprint: str) -> bool:
    """Whether evidence is about the cost model with this fingerprint: the analytical one with its fitted constants.

    The exchange of the indices may be exposed, which takes what links take.
    """
    own = AnalyticalCostModel().fingerprint
    owns = (own, AnalyticalCostModel(index_exchange=EXPOSED).fingerprint)
    return fingerprint in (*owns, *(f"{own}-{dtype}" for own in owns for dtype in COMMUNICATION_BYTES))


def hardware_of(topology: Topology) -> str | None:
    """The name of the hardware profile with the devices of `topology`; None if there is none."""
    return next((name for name, profile in PROFILES.items() if profile.device == topology.device), None)


def evidence_on(topology: Topology, workload: Workload | None = None) -> dict[str, Evidence | None]:
    """The evidence on these devices by phase, without links that the topology does not have.

    Devices of no profile have none, nor have other links than those of the profile, nor the backward of an optimizer
    that is in none of the measurements (`OPTIMIZERS`), nor computation with weights in BF16, nor of several groups of
    tables.
    """
    hardware = hardware_of(topology)
    wanted = dict(zip(PHASES, (True, True, topology.num_devices > 1, topology.num_domains > 1), strict=True))
    found: dict[str, Evidence | None] = {}
    for phase in (phase for phase, exists in wanted.items() if exists):
        own = hardware is not None and (phase in PHASES[:2] or PROFILES[hardware].links == topology.links)
        found[phase] = evidence(hardware, phase) if own and hardware else None
    if workload is not None and not is_measured(workload):
        of_one = len(workload.workloads) == 1
        found |= dict.fromkeys(["backward"] if of_one and workload.weight_dtype in WEIGHT_DTYPES else PHASES[:2])
    return found


def is_measured(workload: Workload) -> bool:
    """Whether measurements that are counted have these weights and this optimizer, of one group of tables."""
    first, *others = workload.workloads
    return not others and first.optimizer in OPTIMIZERS and first.weight_dtype in WEIGHT_DTYPES


@dataclass(frozen=True)
class Robustness:
    """The ratio of the costs of two plans, and what it is under other assumptions."""

    ratio: float  #: cost of the first plan over that of the second
    #: By name of an assumed term that a plan may have, the ratios with it at its least, which mostly is 0, and at twice
    #: its value (`shard_gym.cost_models.analytical.assumptions`).
    terms: Mapping[str, tuple[float, float]]
    together: tuple[float, float]  #: the ratios with all of them at their least, and at twice their values
    #: The ratios with the exponents of the lookups 0.2 lower and 0.2 higher; None where no law of the lookups is known.
    lookups: tuple[float, float] | None
    remade: int  #: tables whose lookups were varied, the costliest
    index_exchange: str = HIDDEN  #: of these ratios
    #: The ratio with an exposed exchange of the indices, if that is hidden, or the reverse; None where there is none.
    other_exchange: float | None = None

    @property
    def term_range(self) -> tuple[float, float]:
        """The least and the largest ratio of all assumptions, the ratio itself among them."""
        return _range([self.ratio, *self.together, *(each for pair in self.terms.values() for each in pair)])

    @property
    def lookup_range(self) -> tuple[float, float] | None:
        """The least and the largest ratio of all exponents; None where no law is known."""
        return None if self.lookups is None else _range([self.ratio, *self.lookups])

    @property
    def most(self) -> str | None:
        """The name of the term that moves the ratio most; None if none does."""

        def moves(name: str) -> float:
            return max(abs(math.log(each / self.ratio)) for each in self.terms[name])

        name = max(self.terms, key=moves)
        return name if moves(name) > SAME else None

    @property
    def is_certain(self) -> bool:
        """Whether the same plan is cheaper under all assumptions."""
        low, high = _range([*self.term_range, *(self.lookup_range or ()), self.other_exchange or self.ratio])
        return low > 1 or high < 1


def _range(ratios: list[float]) -> tuple[float, float]:
    return min(ratios), max(ratios)


def robustness(
    plan_a: ShardingPlan,
    plan_b: ShardingPlan,
    tables: Tables,
    topology: Topology,
    communication_dtype: str = "fp32",
    sync_every: int = 0,
    index_exchange: str = HIDDEN,
    num_devices_a: int | None = None,
) -> Robustness:
    """How the ratio of the costs of two plans changes with what nobody measured; memory caps do not matter.

    Lookups are varied where the tables have a law of popularity; recorded ones are not.

    Args:
        communication_dtype: of pooled outputs and their gradients on the links.
        sync_every: iterations after which copies of tables are averaged (`Task`), for plans with groups.
        index_exchange: whether the exchange of the indices is hidden or exposed; one ratio is of the other case.
        num_devices_a: how many devices `plan_a` is for, if not for those of `topology`.

    Raises:
        InvalidPlanError: a plan is none of these tables on these devices.
    """
    roomy = topology.with_caps(MAX_BYTES)
    task = Task("robustness", tables, roomy, splittable=True, sync_every=sync_every)
    plans, sizes = [plan_a, plan_b], [num_devices_a or topology.num_devices, topology.num_devices]

    def of_size(whole: Topology, size: int) -> Topology:
        return whole.with_caps(MAX_BYTES, size)

    for plan, size in zip(plans, sizes, strict=True):
        own = task_of_plan(plan, replace(task, topology=of_size(roomy, size)))
        check_plan(plan, own.tables, own.topology)

    def ratio(scales: Mapping[str, float], read: Tables = tables, exchange: str = index_exchange) -> float:
        model = VariedShardingModel(scales, communication_dtype, exchange)
        varied = model.varied_topology(roomy)
        old_ms, new_ms = (
            _cost_ms(plan, replace(task, tables=read, topology=of_size(varied, size)), model)
            for plan, size in zip(plans, sizes, strict=True)
        )
        return old_ms / new_ms

    lookups, remade = None, 0
    if isinstance(tables.popularity, RowPopularity):
        chosen = _costliest(tables, roomy)
        lower, higher = (ratio({}, read) for read in other_lookups(tables, tables.popularity, chosen, EXPONENTS))
        lookups, remade = (lower, higher), len(chosen)
    scales = assumed_scales(plans, of_size(topology, max(sizes)), communication_dtype)
    low, high = (ratio({name: pair[end] for name, pair in scales.items()}) for end in (0, 1))
    terms = {name: (ratio({name: least}), ratio({name: most})) for name, (least, most) in scales.items()}
    other = HIDDEN if index_exchange == EXPOSED else EXPOSED
    other_exchange = ratio({}, exchange=other) if max(sizes) > 1 else None
    return Robustness(ratio({}), terms, (low, high), lookups, remade, index_exchange, other_exchange)


def _cost_ms(plan: ShardingPlan, task: Task, model: AdditiveCostModel) -> float:
    """The cost of a checked plan."""
    own = task_of_plan(plan, task)
    return estimate_of_checked(model_of(own.topology, model), plan, own.tables, own.topology).total_ms


def _costliest(tables: Tables, topology: Topology) -> NDArray[np.int64]:
    """At most `MAX_REMADE` indices of the tables that cost most by themselves."""
    model = AnalyticalCostModel()
    costs = model.single_table_costs(model.loads(tables, topology), topology)
    return np.argsort(-costs, kind="stable")[:MAX_REMADE]


def other_lookups(
    tables: Tables, popularity: RowPopularity, chosen: NDArray[np.int64], changes: tuple[float, ...]
) -> Iterator[Tables]:
    """The tables with each of `changes` added to the exponents of the `chosen` ones."""
    rows, lookups = tables.num_embeddings[chosen].astype(np.float64), tables.lookups_per_batch[chosen]
    for change in changes:
        all_exponents = popularity.s.copy()
        exponents = all_exponents[chosen] = np.maximum(popularity.s[chosen] + change, 0.0)
        exact = reuse_statistics(rows, lookups, popularity.q[chosen], exponents)
        changed: dict[str, Any] = {"popularity": RowPopularity(popularity.q, all_exponents)}
        for name, values in rounded_statistics(exact, rows, lookups)._asdict().items():
            changed[name] = getattr(tables, name).copy()
            changed[name][chosen] = values
        yield replace(tables, **changed)


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
    how = "" if workload is None or is_measured(workload) else f", {workload.named}"
    return f"Mean error of the cost model on held-out measurements, {hardware}{how}: {phases}."


def _phase(phase: str, found: Evidence | None) -> str:
    name = f"links {phase}" if phase.endswith("hosts") else phase
    if found is None:
        return f"{name} not measured"
    note = f" ({found.note})" * bool(found.note)
    return f"{name} {found.held_out_error:.0%} of {found.measurements:,}{note}"


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
