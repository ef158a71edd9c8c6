"""Plans that a user has: one explained, and two compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Unpack, override

from shard_gym.common.report import Note, Notes, Printout, Tell
from shard_gym.common.text import counted
from shard_gym.cost_models import InferenceCostModel
from shard_gym.hardware import MAX_DEVICES, HardwareProfile, Topology
from shard_gym.interop.plan_files import FoundPlan, GivenPlan
from shard_gym.planning.comparison import Comparison, compared_to_json, comparison_report
from shard_gym.planning.explained import explanation_report, replicas_report, task_heading, traffic_report
from shard_gym.planning.explanation import Explanation
from shard_gym.planning.memory import full_notes, hosts_sentence, memory_report
from shard_gym.planning.model import ModelOnDevices, broken_notes, other_split_notes, over_notes
from shard_gym.planning.reading import GIVEN, ModelOptions, given_plan, model_on_devices, require_options
from shard_gym.planning.trust import Robustness, is_analytical, robustness, robustness_sentence
from shard_gym.plans import ShardingPlan
from shard_gym.plans.hbm_rows import split_bytes
from shard_gym.plans.needs import HOST_MEMORY, TRAINING
from shard_gym.plans.plan import ONE_GROUP

if TYPE_CHECKING:
    from torchrec.distributed.types import ShardingPlan as TorchRecPlan

PlanLike: TypeAlias = "str | Path | ShardingPlan | HasPlan | ArrayLike | TorchRecPlan | Mapping[str, Any]"
"""A plan as a user has it; `explain_plan` says more."""

OLD, NEW = "the old plan", "the new plan"
"""Names of plans that are compared, where they are in no files."""


class HasPlan(Protocol):
    """A result that has a plan, such as a `PlannedModel`."""

    @property
    def plan(self) -> ShardingPlan:
        """The plan."""


WHOLE_THERE = " in TorchRec, which keeps all rows of tables with fused_uvm or fused_uvm_caching there"


@dataclass(frozen=True, eq=False)
class ExplainedPlan:
    """A plan that a user has, explained; `str` is what `shard-gym show` prints of it."""

    name: str  #: of its file; "the plan" if it is in none
    explanation: Explanation
    room: NDArray[np.int64]  #: (D,) int64, bytes for tables and buffers on each device, or on those of a group
    reserve: int  #: bytes of each device that are kept besides
    over: bool  #: whether it exceeds the room; a warning has said so
    topology: Topology  #: the devices, with host memory if the hardware has some
    whole_in_host: NDArray[np.int64]  #: (D,) int64, bytes of tables of which TorchRec keeps all rows in host memory
    notes: tuple[Note, ...]  #: what was said while it was read

    @property
    def plan(self) -> ShardingPlan:
        """The plan."""
        return self.explanation.plan

    @property
    def cost_ms(self) -> float:
        """Its cost."""
        return self.explanation.total_ms

    @property
    def full_notes(self) -> list[Note]:
        """A warning where a device is nearly full; none where the plan exceeds the memory."""
        return [] if self.over else full_notes(self.explanation, self.room)

    @property
    def warnings(self) -> list[Note]:
        """All that is to be said beside the report."""
        return [*self.notes, *self.full_notes]

    def report(self, devices: int = 16, names: int = 2, moves: int = 5, *, narrow: bool = False) -> Printout:
        """The cost of each of `devices`, the memory, and what is sent; `explanation_report` says the rest."""
        explanation, report = self.explanation, Printout()
        whose = self.name if self.name == GIVEN else f"the plan of {self.name}"
        how = f"{whose}, costed by {explanation.cost_model}"
        report.heading(task_heading(explanation.task, how))
        report.add(explanation_report(explanation, devices, names, moves, narrow=narrow))
        report.add(memory_report(explanation, self.room, self.reserve, devices))
        if self.whole_in_host.any():
            report.line(hosts_sentence(self.topology, self.whole_in_host, WHOLE_THERE))
        report.add(traffic_report(explanation, devices), replicas_report(explanation))
        return report

    @override
    def __str__(self) -> str:
        return str(self.report())


@dataclass(frozen=True, eq=False)
class ComparedPlans:
    """Two plans of the same tables side by side; `str` is what `shard-gym place --compare` prints of them."""

    comparison: Comparison
    #: How far the ratio of their costs depends on what nobody measured; None under another cost model than the
    #: analytical one, and where the tables of both differ, because ids are deduplicated on other numbers of devices.
    robustness: Robustness | None
    index_dedup: bool  #: whether ids are deduplicated
    notes: tuple[Note, ...] = ()  #: what was said while they were read

    @classmethod
    def of(cls, comparison: Comparison, own: ModelOnDevices, notes: tuple[Note, ...] = ()) -> ComparedPlans:
        """A comparison whose new plan is of the model `own`."""
        old, new, dedup = comparison.before, comparison.after, own.without_dedup is not None
        devices, found = old.task.num_devices * old.plan.groups.count, None
        if is_analytical(new.cost_model) and (devices == own.num_devices or not dedup):
            one_group = new.plan.groups == ONE_GROUP
            tables, topology = (new.task.tables, new.task.topology) if one_group else (own.tables, own.topology)
            how = new.communication_dtype, own.sync_every, new.index_exchange, devices
            found = robustness(old.plan, new.plan, tables, topology, *how)
        return cls(comparison, found, dedup, notes)

    @property
    def warnings(self) -> list[Note]:
        """All that is to be said beside the report."""
        return list(self.notes)

    @property
    def ratio(self) -> float:
        """The cost of the first plan over that of the second."""
        return self.comparison.before.total_ms / self.comparison.after.total_ms

    def report(self) -> Printout:
        """Both in numbers, the tables that change, what moves, and how certain the ratio of their costs is."""
        report = comparison_report(self.comparison)
        if self.robustness is not None:
            tables = self.comparison.after.task.num_tables
            says = robustness_sentence(self.robustness, self.comparison.before_name, tables, self.index_dedup)
            report.line(f"\n{says}")
        return report

    def to_json(self) -> dict[str, Any]:
        """The same as a JSON value (`compared_to_json`)."""
        return compared_to_json(self.comparison)

    @override
    def __str__(self) -> str:
        return str(self.report())


def explain_plan(
    model_or_tables: Any,
    plan: PlanLike,
    hardware: str | Path | HardwareProfile | Topology | None = None,
    num_devices: int | None = None,
    *,
    on_note: Tell | None = None,
    **options: Unpack[ModelOptions],
) -> ExplainedPlan:
    """What each device costs under a plan that you have: what `shard-gym show` computes of one.

    A plan in a file that says how many devices it is for is explained on these.

    Args:
        model_or_tables: see `plan`.
        plan: the path of a file in the JSON of ShardGym or TorchRec, a plan, what `plan` returns, a placement (a
            device for each table), a plan of TorchRec, or the JSON of a plan.
        hardware: see `plan`.
        num_devices: see `plan`.
        on_note: is called with each note when it is known; all are among the `warnings` of the result.
        options: see `ModelOptions`.

    Raises:
        InvalidPlanError: it is no plan of these tables on these devices.
        InvalidOptionError, InvalidTablesError, UnknownNameError, DamagedFileError: see `plan`.
    """
    require_options(explain_plan, options)
    notes = Notes(on_note)
    own = model_on_devices(model_or_tables, hardware, num_devices, notes, say_statistics=False, **options)
    given = given_plan(plan, own, "plan")
    if given.made.cost_model.startswith(InferenceCostModel.name) and TRAINING in own.model.supports:
        name = InferenceCostModel.name
        notes(Note(f"{given.name} is a plan for serving; `cost_model={name!r}` costs it so."))
    own = own.on(_devices_of(given, own.num_devices, notes))
    if given.made.index_dedup and own.without_dedup is None:
        own = own.deduplicated()
    with_host, found = own.topology, given.of(own.tables, own.topology)
    if not own.needs_host(found.plan, found.hbm_rows):
        own = own.in_hbm
    explanation = (own if found.plan.groups == ONE_GROUP else own.in_hbm).explained(found.plan)
    notes.all(other_split_notes(explanation, given.name, found.hbm_rows))
    room = own.rooms_of(explanation)
    over = over_notes(explanation, given.name, room)
    notes.all(over)
    notes.all(broken_notes(own, found.plan, given.name))
    in_host = _bytes_whole_in_host(found, explanation)
    if in_host.any() and HOST_MEMORY not in own.model.supports:
        notes(
            Note(
                f"{given.name} keeps rows in host memory, which the cost model {own.model.name!r} does not know; what "
                "follows is of all rows in HBM."
            )
        )
    return ExplainedPlan(
        *(Path(given.name).name, explanation, room, own.reserve, bool(over), with_host, in_host),
        notes=tuple(notes.told),
    )


def _devices_of(given: GivenPlan, asked: int, tell: Tell) -> int:
    """How many devices a plan is explained on: those that it says it is for, or else as many as are `asked` for; tells
    where they differ."""
    told, devices = given.devices, counted(asked, "device")
    if told.is_known and told.number != asked:
        number = counted(told.number, "device")
        tell(Note(f"{given.name} is a plan for {number}, not for {asked}. What follows is of these."))
        return told.number
    if 0 < told.number < asked:
        text = f"{given.name} names no device above {told.number - 1}; the others of {devices} hold nothing."
        tell(Note(text, is_warning=False))
    return asked


def _bytes_whole_in_host(found: FoundPlan, explanation: Explanation) -> NDArray[np.int64]:
    """(D,) int64, bytes of tables of which TorchRec keeps all rows in host memory."""
    tables, shards = explanation.task.tables, found.plan.shard_arrays()
    in_host = np.zeros(explanation.task.num_devices, np.int64)
    away = found.whole_in_host[shards[:, 0]]
    size = shards[:, 3] * shards[:, 5] * split_bytes(tables.workload.select(shards[:, 0]))
    np.add.at(in_host, shards[:, 1], away * size)
    return in_host


@dataclass(frozen=True)
class OldPlan:
    """A plan that a new one is compared with, on devices of its own."""

    given: GivenPlan
    num_devices: int
    found: FoundPlan

    @classmethod
    def of(cls, given: GivenPlan, own: ModelOnDevices, tell: Tell) -> OldPlan:
        """The plan of the tables of `own`, on as many devices as it is for; tells if the new one has others.

        Of a plan that does not say how many these are, they are those of `own` if they may be, or all of the hosts up
        to the last device with a shard; of a host, the next power of two.

        Raises:
            InvalidPlanError: it is none of these tables.
            InvalidOptionError: it is for groups, and it is not said how often their copies are averaged.
        """
        told, asked, size = given.devices, own.num_devices, own.topology.devices_per_host
        within = min(1 << max(told.number - 1, 0).bit_length(), size)
        most = told.number if told.is_known else within if told.number <= size else -(-told.number // size) * size
        devices = asked if told.number <= asked <= most or not 1 <= most <= MAX_DEVICES else most
        if devices != asked:
            says = "is" if told.is_known else f"names no device above {told.number - 1}, so it is taken for"
            known = f"{says} a plan for {counted(most, 'device')}"
            tell(Note(f"{given.name} {known}, and the new one is for {asked}. Each is costed on its own devices."))
        there = own.on(devices)
        found = given.of(there.tables, there.topology)
        own.require_sync_every(found.plan)
        dedup = own.without_dedup is not None
        if given.made.index_dedup != dedup:
            how = "without" if dedup else "with"
            tell(Note(f"{given.name} is a plan {how} index dedup; both plans are costed as this one."))
        return cls(given, devices, found)

    def compared(self, own: ModelOnDevices, after: Explanation, after_name: str, tell: Tell) -> ComparedPlans:
        """It beside the explained new plan, with the host memory of `own`; tells where it exceeds its memory."""
        then = own.on(self.num_devices)
        before = then.explained(self.found.plan)
        for note in broken_notes(then, self.found.plan, self.given.name):
            tell(note)
        for note in other_split_notes(before, self.given.name, self.found.hbm_rows):
            tell(note)
        for note in over_notes(before, self.given.name, own.rooms_of(before)):
            tell(note)
        return ComparedPlans.of(Comparison(before, after, self.given.name, after_name), own)


def compare(
    model_or_tables: Any,
    before: PlanLike,
    after: PlanLike,
    hardware: str | Path | HardwareProfile | Topology | None = None,
    num_devices: int | None = None,
    *,
    on_note: Tell | None = None,
    **options: Unpack[ModelOptions],
) -> ComparedPlans:
    """Two plans of the same tables side by side: what `shard-gym place --compare` shows of an old and a new plan.

    Args:
        model_or_tables: see `plan`.
        before: the plan that you have; see `explain_plan`.
        after: the plan that may take its place, for `num_devices` devices; the first may be for others.
        hardware: see `plan`.
        num_devices: see `plan`.
        on_note: is called with each note when it is known; all are among the `warnings` of the result.
        options: see `ModelOptions`.

    Raises:
        InvalidPlanError: one is no plan of these tables on these devices.
        InvalidOptionError, InvalidTablesError, UnknownNameError, DamagedFileError: see `plan`.
    """
    require_options(compare, options)
    notes = Notes(on_note)
    own = model_on_devices(model_or_tables, hardware, num_devices, notes, **options)
    old = OldPlan.of(given_plan(before, own, "before", OLD), own, notes)
    given = given_plan(after, own, "after", NEW)
    new = given.of(own.tables, own.topology)
    if not (own.needs_host(old.found.plan, old.found.hbm_rows) or own.needs_host(new.plan, new.hbm_rows)):
        own = own.in_hbm
    own = own if new.plan.groups == ONE_GROUP == old.found.plan.groups else own.in_hbm
    explanation = own.explained(new.plan)
    notes.all(other_split_notes(explanation, given.name, new.hbm_rows))
    notes.all(over_notes(explanation, given.name, own.rooms_of(explanation)))
    notes.all(broken_notes(own, new.plan, given.name))
    return replace(old.compared(own, explanation, given.name, notes), notes=tuple(notes.told))
