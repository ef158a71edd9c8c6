"""`plan`: a model to shard in, a plan out, with what it costs, holds and sends, and how far to trust that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack, override

from shard_gym.agents import Agent, make_agent
from shard_gym.agents.named import agent_name, as_agent, make_placing_agent, require_problem
from shard_gym.agents.search.restarts import restarted
from shard_gym.common.checks import checked_flag, is_one_of
from shard_gym.common.errors import InvalidOptionError, NoPlacementFoundError, wrong_kind
from shard_gym.common.report import Note, Notes, Printout, Tell
from shard_gym.common.text import counted, listed
from shard_gym.cost_models.base import CostEstimate
from shard_gym.hardware import HardwareProfile, Topology
from shard_gym.interop.plan_files import FoundPlan, GivenPlan
from shard_gym.interop.replicas import replicas_are_wrong, replicas_note, replicated_tables, widths_note
from shard_gym.interop.torchrec import to_torchrec
from shard_gym.interop.torchrec_json import torchrec_json
from shard_gym.planning.answers import (
    FittingAnswer,
    Make,
    Relief,
    fitting_answer,
    proven_bound,
    relieved,
    searched_sentence,
    searched_to_json,
    unknown_sentence,
    without_replicas,
)
from shard_gym.planning.explained import (
    explanation_report,
    explanation_to_json,
    replicas_report,
    traffic_report,
)
from shard_gym.planning.explanation import Explanation, explain
from shard_gym.planning.given_plans import OLD, ComparedPlans, OldPlan, PlanLike
from shard_gym.planning.memory import caches_notes, full_notes, host_sentence, memory_of, memory_report
from shard_gym.planning.model import ModelOnDevices
from shard_gym.planning.reading import ModelOptions, given_plan, model_on_devices, require_options
from shard_gym.planning.trust import Evidence, evidence_on, is_analytical, robustness, robustness_sentence
from shard_gym.plans import ShardingPlan, plan_of_placement
from shard_gym.plans.memory import TrainingMemory
from shard_gym.plans.plan import ONE_GROUP
from shard_gym.tasks import problem_of

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ShardingPlan as TorchRecPlan

TORCHREC = "torchrec"
"""Stands for the plan of TorchRec's planner where a plan to compare with is asked for; also the name of its agent."""

BASELINE = "lookup-greedy"
"""The agent whose placement stands beside a new plan where the user names no other: it takes milliseconds."""

DEVICE_TYPES = ("cpu", "cuda")

NO_OPTIONS = {"name": "agent", "cost_model": "cost_model", "seed": "seed", "suite": ""}
"""Arguments that every agent is made with, and the arguments of `plan` that they are."""


@dataclass(frozen=True, eq=False)
class PlannedModel:
    """A plan of a model's tables; `str` is what `shard-gym place` prints of it."""

    agent: str  #: the name of the agent that answered
    explanation: Explanation  #: what the plan costs, device by device; of a plan with groups, one of these
    model: ModelOnDevices  #: the tables and devices, with host memory if they need it
    answer: FittingAnswer  #: the agent's answer, and the agent
    relief: Relief | None  #: how full the fullest device is, and that of the cheapest answer; None if as full
    compared: ComparedPlans | None  #: the plan beside the one that it was to be compared with
    notes: tuple[Note, ...]  #: what was said while it was made

    @property
    def plan(self) -> ShardingPlan:
        """The plan; of a placement that of whole tables."""
        return self.explanation.plan

    @property
    def cost_ms(self) -> float:
        """Ms of the embedding part of an iteration, under the cost model."""
        return self.explanation.total_ms

    @property
    def estimate(self) -> CostEstimate:
        """The cost, and the (D, 4) ms of each phase on each device."""
        return CostEstimate(self.explanation.phases_ms, self.cost_ms)

    @property
    def memory(self) -> TrainingMemory:
        """The bytes of tables and buffers on each device."""
        return memory_of(self.explanation)

    @property
    def room(self) -> NDArray[np.int64]:
        """(D,) int64, bytes of HBM that tables and buffers may take on each device."""
        return self.model.rooms_of(self.explanation)

    @property
    def evidence(self) -> Mapping[str, Evidence | None]:
        """By phase how far the cost model is from measurements on these devices that it was not fitted to, None where
        nobody measured; empty of other cost models than the analytical one."""
        task = self.explanation.task
        return evidence_on(task.topology, task.tables.workload) if is_analytical(self.explanation.cost_model) else {}

    @property
    def to_add(self) -> str:
        """What must be added to a program of TorchRec that trains by the plan, as tables are replicas; else empty."""
        return replicas_note(self.plan, self.model.tables)

    @property
    def full_notes(self) -> list[Note]:
        """A warning where a device is nearly full."""
        return full_notes(self.explanation, self.room)

    @property
    def torchrec_notes(self) -> list[Note]:
        """Warnings of what TorchRec and FBGEMM do otherwise: caches, and column shards that are not trained."""
        widths = widths_note(self.plan, self.model.tables)
        return [*caches_notes(self.explanation), *([Note(widths)] if widths else [])]

    @property
    def host_note(self) -> str:
        """What lies in host memory and costs there, a sentence; empty where the devices have none."""
        return host_sentence(self.explanation) if self.model.has_host else ""

    @property
    def warnings(self) -> list[Note]:
        """All that is to be said beside the report."""
        return [*self.notes, *self.full_notes]

    def report(self, *, narrow: bool = False) -> Printout:
        """What `shard-gym place --out` prints: devices and cost, how certain it is, memory, traffic, replicas, and the
        comparison.

        Args:
            narrow: whether names of tables have no room beside hosts.
        """
        explanation = self.explanation
        report = explanation_report(explanation, narrow=narrow)
        if self.compared is None:
            report.add(self._report_of_baseline())
        report.add(memory_report(explanation, self.room, self.model.reserve))
        report.add(traffic_report(explanation), replicas_report(explanation))
        if self.compared is not None:
            report.add(self.compared.report())
        return report

    def _report_of_baseline(self) -> Printout:
        """What the placement of `BASELINE` costs in comparison, where it has another one."""
        explanation, task, report = self.explanation, self.explanation.task, Printout()
        if self.plan.groups != ONE_GROUP:
            report.line("\nTo compare it with one group, plan without `sync_every`.", "dim")
            return report
        try:
            placement = make_agent(BASELINE).place(task)
        except NoPlacementFoundError:
            report.line(
                f"\n{BASELINE} places whole tables, which do not fit or may not be whole, so no plan stands beside "
                "this one: name one with `compare`.",
                "dim",
            )
            return report
        baseline = plan_of_placement(placement, task.tables)
        if baseline != self.plan and is_analytical(explanation.cost_model):
            sent = explanation.communication_dtype, task.sync_every, explanation.index_exchange
            found = robustness(baseline, self.plan, task.tables, task.topology, *sent)
            dedup = self.model.without_dedup is not None
            limits = task.constraints
            breaks = limits is not None and bool(limits.problem_of(baseline, task.tables))
            name = f"The placement of {BASELINE}" + ", which breaks the constraints," * breaks
            says = robustness_sentence(found, name, task.num_tables, dedup)
            report.line(f"\n{says}")
        return report

    def to_json(self) -> dict[str, Any]:
        """The plan as the JSON value that `shard-gym place` writes, every table by its name."""
        content = {"agent": self.agent} | explanation_to_json(self.explanation)
        content |= {"index_dedup": True} if self.model.without_dedup is not None else {}
        limits = self.model.limits
        content |= {} if limits is None else {"constraints": limits.to_json(self.model.tables)}
        content |= searched_to_json(self.answer.agent) | ({} if self.relief is None else self.relief.to_json())
        return content | ({} if self.compared is None else {"compared": self.compared.to_json()})

    def torchrec_json(self, module: str = "", device_type: Literal["cpu", "cuda"] | None = None) -> dict[str, Any]:
        """The plan as the JSON of TorchRec's `ShardingPlan`; see the function of that name for arguments and errors."""
        return torchrec_json(self.plan, self.model.tables, self.explanation.task.topology, module, device_type)

    def to_torchrec(self, model: nn.Module, device_type: Literal["cpu", "cuda"] | None = None) -> TorchRecPlan:
        """The plan as the argument `plan` of TorchRec's `DistributedModelParallel`; see the function of that name."""
        return to_torchrec(self.plan, self.model.tables, self.explanation.task.topology, model, device_type)

    @override
    def __str__(self) -> str:
        return str(self.report())

    @override
    def __repr__(self) -> str:
        return f"PlannedModel({self.plan!r}, {self.cost_ms:.4g} ms by {self.agent!r})"


def plan(
    model_or_tables: Any,
    hardware: str | Path | HardwareProfile | Topology | None = None,
    num_devices: int | None = None,
    *,
    agent: str | Path | Agent | None = None,
    whole: bool = False,
    agent_options: Mapping[str, Any] | None = None,
    seed: int = 0,
    replicas: bool | None = None,
    balance: bool = True,
    compare: PlanLike | None = None,
    device_type: Literal["cpu", "cuda"] | None = None,
    one_module: bool = False,
    on_note: Tell | None = None,
    **options: Unpack[ModelOptions],
) -> PlannedModel:
    """Plan the tables of a model: what `shard-gym place` computes.

    Without `agent`, plan-search looks for the cheapest plan; it may split tables. Rows for which the HBM has no room
    lie in host memory.

    Args:
        model_or_tables: `Tables`; a pool, its name, or the path of its file (.json); a model with collections of
            TorchRec; or a task, which has devices of its own.
        hardware: the name of a hardware profile, such as "a100-dgx", or the folder of a calibration; a profile; or the
            devices, a `Topology`, whose memory caps are what tables and their buffers may take.
        num_devices: how many devices; not with a `Topology`.
        agent: the agent that plans, its name, or the folder of a training run; plan-search if not given.
        whole: whether all tables stay whole, as those of a task that is not `splittable`; without an agent,
            local-search then places them.
        agent_options: options of the agent, such as {"max_queries": 5000}.
        seed: of the agent, if it is stochastic; plan-search also takes the next ones, where plans of seeds differ.
        replicas: False for a plan without data_parallel tables, which TorchRec trains by a dense optimizer; True, if
            None, but for sequence tables on CPUs, where TorchRec reads replicas wrongly. Copies in groups of devices
            are none of these.
        balance: False for the cheapest answer of plan-search or local-search; True for one within 1% of its cost whose
            fullest device is less full, if more than half of that device is taken.
        compare: the plan that you have, to stand beside the new one (see `explain_plan`); or "torchrec", for the
            default plan of TorchRec's planner.
        device_type: what the plan is trained on; that of the hardware if None.
        one_module: whether the plan is for one module of TorchRec, which has no pooled tables beside sequence tables.
        on_note: is called with each note when it is known; all are among the `warnings` of the result.
        options: see `ModelOptions`.

    Raises:
        NoPlacementFoundError: the tables fit no plan, or none was found; the message has numbers.
        InvalidOptionError, InvalidTablesError: an argument is impossible, or two do not go together; the message names
            the argument.
        UnknownNameError: there is no such pool, hardware, agent or cost model.
        InvalidPlanError: what is to be compared is no plan of these tables.
        DamagedFileError: a file cannot be read.
        MissingExtraError: a package that an agent or a file needs is not installed.
    """
    require_options(plan, options)
    whole, balance = checked_flag("`whole`", whole), checked_flag("`balance`", balance)
    one_module = checked_flag("`one_module`", one_module)
    if replicas is not None:
        if not isinstance(replicas, (bool, np.bool_)):
            raise wrong_kind("`replicas`", replicas, "True, False or None")
        replicas = bool(replicas)
    if device_type is not None and not is_one_of(device_type, DEVICE_TYPES):
        raise wrong_kind("`device_type`", device_type, "'cpu', 'cuda' or None")
    _check_agent_options(agent_options)
    notes = Notes(on_note)
    if isinstance(agent, (str, Path)):
        require_problem(str(agent), "placement")
    own = model_on_devices(model_or_tables, hardware, num_devices, notes, **options)
    if one_module and own.tables.pooled.any() and not own.tables.pooled.all():
        raise InvalidOptionError(
            f"{own.source} has pooled and sequence tables, which are modules of their own in TorchRec. Write the plan "
            "in ShardGym's format, and make TorchRec's in Python: to_torchrec(plan, tables, topology, model)."
        )
    old = torchrec = None
    if isinstance(compare, str) and compare == TORCHREC:  # errors before the work
        torchrec, said = make_placing_agent(TORCHREC, own.model, seed)
        notes.all(said)
    elif compare is not None:
        old = OldPlan.of(given_plan(compare, own, "compare", OLD), own, notes)
    made = _maker(own, agent, agent_options, seed, replicas, device_type, notes)
    name = None if agent is None else str(agent if isinstance(agent, (str, Path)) else agent_name(agent))
    whole = whole or (own.base is not None and not own.base.splittable)
    found = fitting_answer(own, name, made, notes, whole=whole)
    if searched := searched_sentence(found.agent):
        notes(Note(searched, is_warning=False))
    if unknown := unknown_sentence(found):
        notes(Note(unknown))
    if found.task.constraints is not None:
        kept = counted(found.task.constraints.num_constrained, "table")
        notes(Note(f"The plan keeps to the constraints of {kept}.", is_warning=False))
    found, relief = relieved(found, own.model, balance=balance)
    if relief is not None:
        notes(Note(relief.sentence(), is_warning=False))
    if torchrec is not None:
        old = _plan_of_torchrec(found.own, torchrec, notes)
    explanation = _explained(found)
    if replicas is False:
        _require_no_replicas(explanation, found.name)
    compared = None
    if old is not None:
        compared = old.compared(found.own, explanation, found.name, notes)
    return PlannedModel(found.name, explanation, found.own, found, relief, compared, tuple(notes.told))


def _check_agent_options(options: Any) -> None:
    if options is None:
        return
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise wrong_kind(
            "`agent_options`", options, "a mapping of options by their names, such as {'max_queries': 500}"
        )
    for name, argument in NO_OPTIONS.items():
        if name in options:
            instead = f"give it as `{argument}`" if argument else "a model has no suite"
            raise InvalidOptionError(f"`agent_options` has {name!r}, which is no option of an agent; {instead}.")


def _maker(
    own: ModelOnDevices,
    agent: Any,
    options: Mapping[str, Any] | None,
    seed: int,
    replicas: bool | None,
    device_type: str | None,
    notes: Notes,
) -> Make:
    """Makes the agents that are asked; a note says if they leave out replicas because TorchRec reads them wrongly."""
    left_out = replicas is False
    if replicas is None and replicas_are_wrong(own.tables, device_type or own.topology.device.device_type):
        left_out = True
        text = (
            "Without replicas, as TorchRec 1.8 adds up the rows of sequence tables that are replicas on a CPU; "
            "`replicas=True` allows them."
        )
        notes(Note(text, is_warning=False))
    given = None if agent is None or isinstance(agent, (str, Path)) else agent
    if given is not None and options:
        raise InvalidOptionError("`agent_options` are of an agent that is named; make the agent with them instead.")

    def made(name: str) -> Agent:
        if given is None:
            able, said = make_placing_agent(name, own.model, seed, None, **(options or {}))
            notes.all(said)
        else:
            able = as_agent(given, name)
        return restarted(without_replicas(able) if left_out else able)

    return made


def _plan_of_torchrec(own: ModelOnDevices, agent: Agent, notes: Notes) -> OldPlan | None:
    """The plan of TorchRec's planner, the `agent`; None, and a note that says why, if it finds none."""
    free = replace(own, constraints=None)  # its planner does not know constraints; what it breaks is told
    if own.base is not None:
        free = replace(free, base=replace(own.base, constraints=None))
    try:
        answer = fitting_answer(free, TORCHREC, lambda _: agent, notes).answer
    except NoPlacementFoundError as error:
        notes(Note(f"There is nothing to compare with. {str(error).splitlines()[0]}"))
        return None
    assert isinstance(answer, ShardingPlan)
    none = np.zeros(len(own.tables), np.bool_)
    return OldPlan(GivenPlan(TORCHREC, {}), own.num_devices, FoundPlan(answer, None, none))


def _explained(found: FittingAnswer) -> Explanation:
    model = found.own.model
    bound = None if found.lowered else proven_bound(found.agent, found.task, model)
    return explain(found.task, found.answer, problem_of(found.task).model(model), lower_bound_ms=bound)


def _require_no_replicas(explanation: Explanation, agent: str) -> None:
    """Raise InvalidOptionError if an agent that chooses no sharding types answered with replicas."""
    names = replicated_tables(explanation.plan, explanation.task.tables)
    if names:
        raise InvalidOptionError(
            f"`replicas=False` asks for none, but {agent!r} makes {listed(names)} data_parallel, and has no option "
            "sharding_types that leaves replicas out. Name another agent, such as plan-search or torchrec."
        )
