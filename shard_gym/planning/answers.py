"""How a model is planned: by the agent that suits its tables, within the memory that training leaves, and not fuller
than need be."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shard_gym.agents import Agent, CostGuidedAgent
from shard_gym.agents.base.agent import MAX_QUERIES
from shard_gym.agents.search import LocalSearchAgent
from shard_gym.agents.search.balance import MORE, balanced, fullest, joined
from shard_gym.agents.search.plan_search import Ended
from shard_gym.agents.search.restarts import RestartedSearch
from shard_gym.common.errors import (
    InvalidConstraintsError,
    InvalidOptionError,
    InvalidPlanError,
    InvalidTaskError,
    MemoryExceededError,
    NoPlacementFoundError,
    StatesExceedHbmError,
    TableTooLargeError,
)
from shard_gym.common.report import Note, Tell
from shard_gym.common.text import counted, format_bytes, format_ms, format_percent
from shard_gym.cost_models import AdditiveCostModel, CostModel, make_cost_model
from shard_gym.cost_models.analytical.index_exchange import HIDDEN
from shard_gym.planning.misfit import misfit, missing_bytes
from shard_gym.planning.model import ModelOnDevices
from shard_gym.plans import ShardingPlan
from shard_gym.plans.caps import packed_caps
from shard_gym.plans.memory import training_memory, whole_table_bytes
from shard_gym.plans.needs import GROUPS, HOST_MEMORY, require_supported
from shard_gym.plans.plan import DATA_PARALLEL
from shard_gym.tasks import Answer, Task, problem_of
from shard_gym.tasks.groups import task_of_plan

WHOLE, SPLITTING = "local-search", "plan-search"
"""The agents that answer where none is named: of whole tables, and of plans, which may split tables."""

OR_SPLIT = f"An agent that splits tables, such as {SPLITTING}, can do it: leave out `agent` and `whole`."

ATTEMPTS = 3  # plans that are made until one leaves room for its buffers

LONGER = 5  # times the evaluations that a search made, which a longer one is told to make

BY_BUDGET = "the budget ended the search"

Make = Callable[[str], Agent]
"""Makes an agent from its name."""


@dataclass(frozen=True)
class FittingAnswer:
    """A checked answer whose tables and buffers fit the devices."""

    name: str  #: of the agent that gave it
    agent: Agent
    task: Task  #: its caps are the room for tables and buffers
    answer: Answer
    lowered: bool  #: whether the agent was told lower caps; what it proved then holds for these alone
    own: ModelOnDevices  #: the tables and devices, with host memory if they need it


def fitting_answer(
    own: ModelOnDevices, name: str | None, make: Make, tell: Tell, *, whole: bool = False
) -> FittingAnswer:
    """The answer of the agent `name`; of None that of `SPLITTING`, or of `WHOLE` where only whole tables have a cost.

    Host memory is used only if no plan was found whose rows are all in HBM, or rows of a table must be in host memory.

    Args:
        make: makes an agent from its name.
        whole: whether all tables stay whole; then `WHOLE` answers for None.

    Raises:
        InvalidOptionError: the named agent does not suit the tables.
        NoPlacementFoundError: the tables fit no plan, or none was found; the message has numbers.
    """
    knows, name = HOST_MEMORY in own.model.supports, WHOLE if whole and name is None else name
    limits = own.limits
    if limits is not None and limits.needs_host:
        if not knows:
            raise InvalidOptionError(
                f"`constraints` keep rows of {own.tables.names[(*limits.in_host, *limits.cached)[0]]!r} in host "
                f"memory, but the cost model {own.model.name!r} does not know it; leave out `cost_model`."
            )
        return _answered(own, name, make, tell, whole)
    try:
        return _answered(own.in_hbm, name, make, tell, whole)
    except (NoPlacementFoundError, _TooLargeWholeError) as error:
        if not own.has_host:
            if not own.caps_hinder_host:
                raise
            raise type(error)(
                f"{error} Host memory could hold rows of them, but with it all devices have one memory cap: give one "
                "number to `memory_cap_gib` to use it."
            ) from error
        if not knows:
            raise type(error)(
                f"{error} Host memory could hold rows of them, but the cost model {own.model.name!r} does not know it; "
                "leave out `cost_model` to use it."
            ) from error
    return _answered(own, name, make, tell, whole)


class _TooLargeWholeError(InvalidOptionError):
    """A table fits no device whole, and the agent splits none."""


def _answered(own: ModelOnDevices, name: str | None, make: Make, tell: Tell, whole: bool) -> FittingAnswer:
    agent = None if name is None else make(name)
    if whole and not getattr(agent, "places", True):
        raise InvalidOptionError(
            f"`whole=True` asks for whole tables, and {name} has plan(task) alone: give it place(task), or leave it "
            "out."
        )
    splits = not whole and (agent is None or getattr(agent, "splits", False))
    if own.sync_every and (own.has_host or not splits):
        raise InvalidOptionError(
            "`sync_every` averages copies of tables in groups of devices, which "
            + ("host memory does not allow: give `host_memory=0`." if splits else f"{name!r} does not plan. {OR_SPLIT}")
        )
    if own.sync_every:
        _require_costs_of_parts(own.model, "`sync_every` asks for plans")
        supports = make_cost_model(own.model, splits=True).supports
        require_supported(f"The cost model {own.model.name!r}", {GROUPS}, supports, costs=True)
    if own.num_devices > len(own.tables) and not splits:
        count = len(own.tables)
        raise InvalidOptionError(
            f"`num_devices` is {own.num_devices:,}, but {own.source} has {counted(count, 'table')}: the other devices "
            f"would stay empty. Give at most {count:,}. {OR_SPLIT}"
        )
    if missing_bytes(own.tables, own.topology):
        raise NoPlacementFoundError(_misfit(own))
    if agent is None or name is None:
        return _by_default(own, make, tell)
    too_large = _too_large(own, own.largest_room)
    if too_large and not splits:
        raise _TooLargeWholeError(f"Agent {name!r} places whole tables, but {too_large}. {OR_SPLIT}")
    if splits:
        _require_costs_of_parts(own.model, f"agent {name!r} splits tables")
    return _within(own, name, agent, splits)


def _by_default(own: ModelOnDevices, make: Make, tell: Tell) -> FittingAnswer:
    """The plan of `SPLITTING`; of `WHOLE` where the cost model costs no parts of tables, or no plan was found."""
    why_split = (
        _too_large(own, int(own.rooms.max())) or _too_few(own) or "`sync_every` asks for plans" * bool(own.sync_every)
    )
    try:
        _require_costs_of_parts(own.model, f"tables have to be split: {why_split}")
    except InvalidOptionError as unknown:
        if why_split:
            raise
        text = f"Whole tables, by {WHOLE}: the cost model {own.model.name!r} does not cost parts of tables."
        tell(Note(text, is_warning=False))
        try:
            return _within(own, WHOLE, make(WHOLE), splits=False)
        except NoPlacementFoundError as error:
            raise NoPlacementFoundError(f"{error} {unknown}") from error
    try:
        return _within(own, SPLITTING, make(SPLITTING), splits=True)
    except NoPlacementFoundError as error:
        if not why_split:  # parts have more buffers than whole tables
            with suppress(NoPlacementFoundError, InvalidConstraintsError):
                return _within(own, WHOLE, make(WHOLE), splits=False)
        if own.constraints is not None:
            raise
        raise NoPlacementFoundError(_misfit(own)) from error


def _within(own: ModelOnDevices, name: str, agent: Agent, splits: bool) -> FittingAnswer:
    if not own.has_host:
        return _within_room(own, name, agent, splits)
    try:
        return _within_host_memory(own, name, agent, splits)
    except NoPlacementFoundError as error:
        if packed_caps(own.tables, own.topology) is None:
            raise
        with suppress(NoPlacementFoundError):
            return _within_host_memory(own, name, agent, splits, packed=True)
        raise error


def _misfit(own: ModelOnDevices) -> str:
    return misfit(own.source, own.tables, own.topology, constrained=own.constraints is not None)


def _require_costs_of_parts(model: CostModel, why: str) -> None:
    try:
        make_cost_model(model, splits=True)
    except InvalidOptionError as error:
        raise InvalidOptionError(
            f"The cost model {model.name!r} does not cost parts of tables, and {why}. Leave out `cost_model`."
        ) from error


def _too_large(own: ModelOnDevices, room: int) -> str:
    """Which table does not fit into `room` bytes of a device whole, a clause; empty if all do."""
    needed = whole_table_bytes(own.tables)
    largest = int(needed.argmax())
    if needed[largest] <= room:
        return ""
    has = "the largest device" if np.ptp(own.rooms) else "a device"
    return (
        f"table {own.tables.names[largest]} needs {format_bytes(needed[largest])} with its buffers, and {has} has "
        f"{format_bytes(room)}{' of HBM' * bool(own.has_host and room == own.one_room)} for it"
    )


def _too_few(own: ModelOnDevices) -> str:
    """That whole tables would leave devices empty, a clause; empty if they need not."""
    count = len(own.tables)
    return "" if own.num_devices <= count else f"{counted(count, 'table')} whole would leave devices empty"


def _within_host_memory(
    own: ModelOnDevices, name: str, agent: Agent, splits: bool, *, packed: bool = False
) -> FittingAnswer:
    """The answer of an agent with host memory; it plans again where buffers take more HBM than it was told of."""
    of_buffers = int((whole_table_bytes(own.tables) - own.tables.memory_bytes).sum())
    told = -(-of_buffers // own.num_devices)  # the least that those of the fullest device take
    for _ in range(ATTEMPTS):
        if told >= own.one_room:
            raise NoPlacementFoundError(
                f"The buffers of a training step need {format_bytes(told)} of the HBM of a device, which has "
                f"{format_bytes(own.one_room)} for them and for rows; host memory is for rows alone. Give more "
                "devices, more HBM, or smaller batches."
            )
        try:
            task = own.task(own.beside(told, packed=packed), splits)
            problem = problem_of(task)
            problem.require_agent(agent)
            answer = _checked_answer(name, agent, task)
        except InvalidConstraintsError:
            raise
        except InvalidTaskError as error:
            raise NoPlacementFoundError(_misfit(own)) from error
        except StatesExceedHbmError as error:
            raise _too_many_states(name, own, error) from error
        buffers = int(training_memory(answer, task.tables, task.num_devices).buffers.max())
        if buffers <= told:
            break
        told = buffers
    try:
        final = own.task(own.beside(min(buffers, own.one_room - 1), packed=packed), splits)
        answered_by = getattr(agent, "answered_by", name)
        checked = problem.checked(answer, final)
    except StatesExceedHbmError as error:
        raise _too_many_states(name, own, error) from error
    except MemoryExceededError as error:
        raise NoPlacementFoundError(
            f"{name} found no plan that leaves room for the buffers of a training step, {format_bytes(buffers)} of the "
            f"{format_bytes(own.one_room)} of HBM of a device. Another agent may find one; or give more devices, "
            "memory, or smaller batches."
        ) from error
    return FittingAnswer(answered_by, agent, final, checked, buffers < told or packed, own)


def _checked_answer(name: str, agent: Agent, task: Task) -> Answer:
    """The checked answer of an agent, which may not know constraints."""
    problem = problem_of(task)
    returned = problem.asker(agent)(task)
    answer: Answer = problem.checked(returned, replace(task, constraints=None, known_placement=None))
    try:
        task.require_constraints(answer)
    except InvalidPlanError as error:
        raise InvalidPlanError(
            f"{name} does not keep to the constraints. {error} Leave out `agent`, or name one that does, such as "
            f"{SPLITTING}."
        ) from error
    return answer


def _too_many_states(name: str, own: ModelOnDevices, error: StatesExceedHbmError) -> NoPlacementFoundError:
    what = "HBM holds the states of all rows" if own.tables.rows_in is None else "memories hold what must be in them"
    return NoPlacementFoundError(f"{name} found no plan whose {what}. {error}")


def _within_room(own: ModelOnDevices, name: str, agent: Agent, splits: bool) -> FittingAnswer:
    """The answer of an agent, which plans again with lower caps where tables leave too little for their buffers."""
    caps, failure = own.rooms, ""
    for attempt in range(ATTEMPTS):
        try:
            task = own.task(own.topology.with_caps(caps), splits)
            problem = problem_of(task)
            problem.require_agent(agent)
            answer = _checked_answer(name, agent, task)
        except (InvalidTaskError, MemoryExceededError, NoPlacementFoundError) as error:
            if failure:  # with lower caps, of which the user knows nothing
                break
            if isinstance(error, TableTooLargeError):
                raise NoPlacementFoundError(_misfit(own)) from error
            raise
        in_group = task_of_plan(answer, task) if isinstance(answer, ShardingPlan) else task
        memory = training_memory(answer, in_group.tables, in_group.num_devices)
        has = own.rooms_in(answer)
        device = int((memory.total - has).argmax())
        over = int(memory.total[device] - has[device])
        if over <= 0:
            whole_room = replace(task.topology, memory_cap_bytes=own.topology.memory_cap_bytes)
            answered_by = getattr(agent, "answered_by", name)  # agents may leave a task to another
            return FittingAnswer(answered_by, agent, replace(task, topology=whole_room), answer, attempt > 0, own)
        failure = failure or (
            f"{name} found no plan that leaves room for the buffers of a training step: device {device} would hold "
            f"{format_bytes(memory.tables[device])} of tables and {format_bytes(memory.buffers[device])} of buffers, "
            f"and has {format_bytes(has[device])} for both."
        )
        caps = np.minimum(caps - over, caps if attempt == 0 else own.rooms - int(memory.buffers.max()))
        if caps.max() < 1:
            break
        caps = np.maximum(caps, 1)  # less than any table needs: a device that stays empty
    raise NoPlacementFoundError(
        f"{failure} Another agent may find one; or give more devices, memory, or smaller batches."
    )


@dataclass(frozen=True)
class Relief:
    """How full the fullest device was, as a share of what tables and buffers may take, and is."""

    before: float
    after: float
    cheapest_ms: float  #: what the cheapest answer costs

    def sentence(self) -> str:
        """The shares before and after."""
        return (
            f"Within {MORE:.0%} of the cheapest answer ({format_ms(self.cheapest_ms)} ms), the fullest device is "
            f"{format_percent(self.after)} full instead of {format_percent(self.before)}; `balance=False` takes the "
            "cheapest."
        )

    def to_json(self) -> dict[str, Any]:
        """The same numbers."""
        shares = {"fullest_device": self.after, "fullest_device_of_cheapest": self.before}
        return {"balance": shares | {"cheapest_ms": self.cheapest_ms}}


def relieved(
    plan: FittingAnswer, cost_model: CostModel, *, balance: bool = True
) -> tuple[FittingAnswer, Relief | None]:
    """The answer of plan-search or local-search with tables whole whose splits gain nothing (`joined`), and made less
    full (`balanced`); unless `balance`, only if that costs less. None where it is as full as before, or was not asked.
    """
    agent, task, problem = plan.agent, plan.task, problem_of(plan.task)
    model = problem.model(cost_model)
    if not isinstance(model, AdditiveCostModel) or not isinstance(agent, (RestartedSearch, LocalSearchAgent)):
        return plan, None
    forms: dict[str, Any] = {}
    now = float(problem.costs_ms([plan.answer], task, model)[0])
    if isinstance(agent, RestartedSearch) and [cost for cost, _ in agent.found[:1]] == [now]:  # the last search's
        forms["others"] = [answer for _, answer in agent.found[1:]]
    if task.splittable and isinstance(agent, RestartedSearch):
        forms |= {"sharding_types": agent.search.sharding_types, "max_shards": agent.search.max_shards}
    cheapest = joined(plan.answer, task, model)
    answer = balanced(cheapest, task, model, **forms)
    if answer is cheapest:
        return replace(plan, answer=cheapest), None
    answer = joined(answer, task, model)
    cheapest_ms, cost_ms = problem.costs_ms([cheapest, answer], task, model).tolist()
    if not balance:
        return replace(plan, answer=answer if cost_ms < cheapest_ms else cheapest), None
    return replace(plan, answer=answer), Relief(fullest(cheapest, task), fullest(answer, task), cheapest_ms)


def searched_sentence(agent: Agent) -> str:
    """The seeds and evaluations of a search, and what ended it; empty for an agent that does not restart."""
    if not isinstance(agent, RestartedSearch) or agent.tried is None:
        return ""
    tried, most = agent.tried, agent.tried.most
    why = {
        Ended.NOTHING_NEW: "it ended by itself, as changes bring nothing new.",
        Ended.FEW_TABLES: "more bring nothing new for so few tables.",
        Ended.BUDGET: f"{BY_BUDGET}; "
        + (
            "a larger max_queries or max_seconds searches longer."
            if agent.search.max_seconds is not None or most == MAX_QUERIES
            else f"`agent_options={{'max_queries': {min(LONGER * most, MAX_QUERIES)}}}` searches longer."
        ),
    }[tried.ended]
    return f"{agent.name}, {counted(len(tried.seeds), 'seed')}, {counted(tried.evaluations, 'evaluation')}: {why}"


def unknown_sentence(found: FittingAnswer) -> str:
    """What an agent that plans by an estimate of its own does not know of how the plan is costed; empty if nothing."""
    model = found.own.model
    dtype, policy = getattr(model, "communication_dtype", "fp32"), getattr(model, "host_policy", None)
    missed = [
        *([f"messages in {dtype.upper()}"] if dtype != "fp32" else []),
        *(["an exposed exchange of indices"] if getattr(model, "index_exchange", HIDDEN) != HIDDEN else []),
        *(["caches of rows in HBM"] if found.own.has_host and policy is not None and policy.name == "lru" else []),
    ]
    if not missed or not found.agent.estimates:
        return ""
    return (
        f"{found.name} plans by an estimate of its own that does not know {' or '.join(missed)}. Its plan is costed "
        f"with {'them' if len(missed) > 1 else 'that'}; {SPLITTING} also plans so."
    )


def searched_to_json(agent: Agent) -> dict[str, Any]:
    """The same as a JSON value; empty for an agent that does not restart."""
    if not isinstance(agent, RestartedSearch) or agent.tried is None:
        return {}
    tried = agent.tried
    ended = tried.ended.name.lower().replace("_", " ")
    return {"search": {"seeds": list(tried.seeds), "evaluations": tried.evaluations, "ended_by": ended}}


def without_replicas(agent: Agent) -> Agent:
    """The agent without data_parallel among the sharding types that it may use; as it is if it names none."""
    types = getattr(agent, "sharding_types", ())
    if DATA_PARALLEL not in types:
        return agent
    changed: Any = copy(agent)
    changed.sharding_types = tuple(each for each in types if each != DATA_PARALLEL)
    able: Agent = changed
    return able


def proven_bound(agent: Agent, task: Task, model: CostModel) -> float | None:
    """`Agent.last_bound_ms`, if it bounds all answers to the task under `model`.

    It is a bound of whole tables, which a plan may cost less than; and an agent may have planned under another model
    (see `make_placing_agent`).
    """
    asked = isinstance(agent, CostGuidedAgent) and agent.cost_model.fingerprint == model.fingerprint
    return agent.last_bound_ms if asked and not task.splittable else None
