"""`shard-gym place`: tables in, a plan out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from numpy.typing import NDArray

from shard_gym.agents import Agent
from shard_gym.agents.base.agent import MAX_QUERIES
from shard_gym.agents.search.balance import MORE, balanced, fullest, joined
from shard_gym.agents.search.local_search import LocalSearchAgent
from shard_gym.agents.search.plan_search import Ended
from shard_gym.agents.search.restarts import RestartedSearch, restarted
from shard_gym.cli.agent_options import AgentOptions, parse_options
from shard_gym.cli.compared import (
    TORCHREC,
    compared_to_json,
    explained_plan,
    on_devices_of_file,
    print_comparison,
    require_sync_every,
    torchrec_plan,
    warn_if_other_split,
    warn_if_over,
)
from shard_gym.cli.console import errors, output, warn
from shard_gym.cli.explained import print_explanation
from shard_gym.cli.memory import (
    host_room_bytes,
    host_sentence,
    host_to_json,
    print_memory,
    room_bytes,
    warn_if_full,
    warn_of_caches,
)
from shard_gym.cli.named_agents import require_problem
from shard_gym.cli.options import (
    ANALYTICAL,
    CostModelOptions,
    IndexExchange,
    OptionalDeviceType,
    OptionalFloat,
    OptionalFloats,
    OptionalInt,
    OptionalPath,
    OptionalStr,
    placing_agent,
    proven_bound,
)
from shard_gym.cli.planning import OwnModel, Planned, planned
from shard_gym.cli.pools import pool_source
from shard_gym.cli.replicas import (
    OptionalReplicas,
    note_of,
    print_replicas,
    replicas_are_wrong,
    replicas_to_json,
    require_no_replicas,
    warn_of_widths,
    without_replicas,
)
from shard_gym.cli.traffic import print_traffic, traffic_to_json
from shard_gym.cli.trusted import evidence_to_json, print_baseline, print_robustness
from shard_gym.common.errors import InvalidOptionError, InvalidTablesError
from shard_gym.common.io.files import require_writable, write_json
from shard_gym.common.text import counted, format_ms, format_percent
from shard_gym.cost_models import (
    AdditiveCostModel,
    AnalyticalCostModel,
    AnalyticalShardingModel,
    CostModel,
    with_index_exchange,
)
from shard_gym.hardware.profiles import hardware_profile
from shard_gym.interop.plan_files import hbm_rows_of_file, how_made, plan_of_file
from shard_gym.interop.torchrec_json import torchrec_json
from shard_gym.planning.comparison import Comparison
from shard_gym.planning.explanation import Explanation, explain
from shard_gym.planning.index_dedup import deduplicated
from shard_gym.plans import plan_to_json
from shard_gym.plans.files import GROUPS, HBM_ROWS, groups_to_json
from shard_gym.plans.placement import to_plan
from shard_gym.plans.plan import ONE_GROUP
from shard_gym.tables.pools import Pool, load_pool
from shard_gym.tables.pools.recorded_lookups import RecordedLookups, lookups_of_file, tables_with_lookups
from shard_gym.tables.tables import Tables
from shard_gym.tasks.problems import problem_of

Balance = Literal["yes", "no"]


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
            f"{format_percent(self.after)} full instead of {format_percent(self.before)}; --balance no takes the "
            "cheapest."
        )

    def to_json(self) -> dict[str, Any]:
        """The same numbers."""
        shares = {"fullest_device": self.after, "fullest_device_of_cheapest": self.before}
        return {"balance": shares | {"cheapest_ms": self.cheapest_ms}}


def relieved(plan: Planned, cost_model: CostModel, balance: Balance) -> tuple[Planned, Relief | None]:
    """The answer of plan-search or local-search with tables whole whose splits gain nothing (`joined`), and made less
    full (`balanced`) unless `balance` is "no"; None where it is as full as before.
    """
    agent, task, problem = plan.agent, plan.task, problem_of(plan.task)
    model = problem.model(cost_model)
    if not isinstance(model, AdditiveCostModel) or not isinstance(agent, (RestartedSearch, LocalSearchAgent)):
        return plan, None
    forms: dict[str, Any] = {}
    now = problem.cost_ms(plan.answer, task, model)
    if isinstance(agent, RestartedSearch) and [cost for cost, _ in agent.found[:1]] == [now]:  # the last search's
        forms["others"] = [answer for _, answer in agent.found[1:]]
    if task.splittable and isinstance(agent, RestartedSearch):
        forms |= {"sharding_types": agent.search.sharding_types, "max_shards": agent.search.max_shards}
    cheapest = joined(plan.answer, task, model)
    answer = cheapest if balance == "no" else balanced(cheapest, task, model, **forms)
    if answer is cheapest:
        return replace(plan, answer=cheapest), None
    answer = joined(answer, task, model)
    shares = fullest(cheapest, task), fullest(answer, task)
    return replace(plan, answer=answer), Relief(*shares, problem.cost_ms(cheapest, task, model))


LONGER = 5  # times the evaluations that a search made, which a longer one is told to make


def searched_sentence(agent: Agent) -> str:
    """The seeds and evaluations of a search, and what ended it; empty for an agent that does not restart."""
    if not isinstance(agent, RestartedSearch) or agent.tried is None:
        return ""
    tried, most = agent.tried, agent.search.max_queries
    why = {
        Ended.NOTHING_NEW: "it ended by itself, as changes bring nothing new.",
        Ended.FEW_TABLES: "more bring nothing new for so few tables.",
        Ended.BUDGET: "the budget ended the search; "
        + (
            "a larger max_queries or max_seconds searches longer."
            if agent.search.max_seconds is not None or most == MAX_QUERIES
            else f"--option max_queries={min(LONGER * most, MAX_QUERIES)} searches longer."
        ),
    }[tried.ended]
    return f"{agent.name}, {counted(len(tried.seeds), 'seed')}, {counted(tried.evaluations, 'evaluation')}: {why}"


def searched_to_json(agent: Agent) -> dict[str, Any]:
    """The same as a JSON value; empty for an agent that does not restart."""
    if not isinstance(agent, RestartedSearch) or agent.tried is None:
        return {}
    tried = agent.tried
    ended = tried.ended.name.lower().replace("_", " ")
    return {"search": {"seeds": list(tried.seeds), "evaluations": tried.evaluations, "ended_by": ended}}


Lookups = Annotated[list[Path], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="FILE")]


def with_lookups(
    source: str, tables: Tables, files: Sequence[Path], cost: CostModelOptions
) -> tuple[Tables, CostModelOptions]:
    """The tables with the statistics of the files, in batches of --batch-size, and the options of the cost model.

    Without files, the tables stay, and a note says where their statistics are from.

    Args:
        source: name or path of the pool of the tables.
        cost: with --batch-size, which is that of the lookups; only costs that are measured need it, too.
    """
    if not files:
        warn(statistics_note(source, load_pool(pool_source(source))), "dim")
        return tables, cost
    size = tables.workload.batch_size if cost.batch_size is None else cost.batch_size
    recorded = tables_with_lookups(tables, _read(files, tables, size), size)
    return recorded, cost if cost.measures else replace(cost, batch_size=None)


def _read(files: Sequence[Path], tables: Tables, size: int) -> Iterator[RecordedLookups]:
    """The lookups of each file; a note names the columns and the samples that are not counted."""
    for path in files:
        lookups = lookups_of_file(path, tables.names)
        if lookups.left_out:
            columns = counted(len(lookups.left_out), "column")
            warn(f"{path}: no table reads {columns}: {', '.join(lookups.left_out)}.", "dim")
        yield lookups
        rest = lookups.num_samples % size
        if rest:
            warn(f"{path}: {counted(rest, 'sample')} at the end fill no batch of {size:,} and are not counted.", "dim")


def statistics_note(source: str, pool: Pool) -> str:
    """Where the lookup statistics of a pool are from: the law that is assumed, or what its card says."""
    law = pool.popularity
    if law is None:
        return f"Lookup statistics are those of {source}, whose card says: {pool.card.how_made}"
    shape = f"(k + q)^-s with q {_range(law.q)} and" if law.q.any() else "k^-s with"
    return (
        f"Lookup statistics are assumed, not recorded: row k of a table is read with probability ~ {shape} s "
        f"{_range(law.s)}. --lookups counts recorded ones."
    )


def _range(values: NDArray[np.float64]) -> str:
    low, high = f"{values.min():.4g}", f"{values.max():.4g}"
    return low if low == high else f"{low} to {high}"


def place(
    tables: str,
    hardware: str,
    num_devices: int,
    option: AgentOptions,
    lookups: Lookups,
    agent: OptionalStr = None,
    whole: bool = False,
    devices_per_host: OptionalInt = None,
    devices_per_domain: OptionalInt = None,
    memory_cap_gib: OptionalFloats = None,
    reserve: OptionalFloat = None,
    host_memory: OptionalFloat = None,
    embedding_dim: OptionalInt = None,
    weight_dtype: OptionalStr = None,
    optimizer: OptionalStr = None,
    communication_dtype: str = "fp32",
    cross_host_ratio: float = 1.0,
    index_exchange: IndexExchange = "hidden",
    sync_every: int = 0,
    replicas: OptionalReplicas = None,
    balance: Balance = "yes",
    index_dedup: bool = False,
    cost: CostModelOptions = ANALYTICAL,
    seed: int = 0,
    format: Literal["shard-gym", "torchrec"] = "shard-gym",
    module: str = "",
    device_type: OptionalDeviceType = None,
    compare: OptionalStr = None,
    out: OptionalPath = None,
) -> None:
    """Place the tables of a model; print the plan as JSON, or write it to a file.

    Without --agent, plan-search looks for the cheapest plan; it may split tables.

    Rows for which the HBM has no room lie in host memory.

    Args:
        tables: pool file (.json) with the model's tables, or name of a pool that ships with ShardGym.
        hardware: name of the hardware profile, such as a100-dgx, or a folder of shard-gym calibrate.
        num_devices: number of devices.
        lookups: NPZ or Parquet file of recorded lookups, whose statistics the tables get; repeat it for more. A column
            is found by the name of its table. Batches have --batch-size samples, or those of the tables.
        agent: name of the agent that plans, or folder of a training run; plan-search if not given.
        whole: whether all tables stay whole; without --agent, local-search then places them.
        option: an option of the agent, such as max_queries=5000; repeat it for more. `shard-gym agents` lists them all.
        devices_per_host: devices of a host, which have its local ranks and memory; that of the hardware if not given.
        devices_per_domain: devices joined by fast links, such as NVLink; those of a host if not given.
        memory_cap_gib: GiB that tables and their buffers may take on each device, instead of a reserve: one number, or
            one for each device, such as 40,40,20,20.
        reserve: share of each device's memory that is kept for dense parameters, activations and the allocator; 0.15 if
            neither it nor a cap is given.
        host_memory: GiB of each host for rows that the HBM has no room for, 0 for none; what the reserve leaves of it
            if not given.
        embedding_dim: dim of every table; required if the file has none, refused if it has its own.
        weight_dtype: bf16, fp16 or fp32; that of the file if not given.
        optimizer: adam, rowwise_adagrad or sgd; that of the file if not given.
        communication_dtype: of outputs and their gradients on the links: fp32, fp16, bf16, fp8, int8 or mx4, as in
            TorchRec's QCommsConfig.
        cross_host_ratio: share of the bytes leaving a host that are sent, below 1 for models that compress them.
        index_exchange: exposed if every iteration waits for the exchange of the indices, because no pipeline hides it
            (TorchRec's TrainPipelineSparseDist does); plans are then made for it.
        sync_every: iterations after which copies of tables are averaged, if groups of devices may hold all of them
            (2D sparse parallelism, TorchRec's DMPCollection); 0 for one group.
        replicas: no for a plan without data_parallel tables, which TorchRec trains by a dense optimizer; yes, if not
            given, but for sequence tables on CPUs, where TorchRec reads replicas wrongly. Copies in groups of devices
            are none of these.
        balance: no for the cheapest answer of plan-search or local-search; yes for one within 1% of its cost whose
            fullest device is less full, if more than half of that device is taken. Other agents' answers, groups of
            devices and rows in host memory stay as they are.
        index_dedup: whether a device asks for a row of a sequence table once in a batch, as with TorchRec's
            EmbeddingCollectionSharder(use_index_dedup=True).
        cost: the cost model of the placement. With measured costs, agents that ask a cost model plan under analytical.
        seed: of the agent, if it is random; plan-search also takes the next ones, where plans of seeds differ.
        format: torchrec writes the JSON of TorchRec's ShardingPlan.
        module: with torchrec, path of the collection in the model that is wrapped; if not given, it is the collection.
        device_type: with torchrec, cpu or cuda in the placements of shards; that of the hardware if not given.
        compare: file with the plan that you have, in the JSON of ShardGym or TorchRec, to show beside the new one; or
            torchrec, for the default plan of TorchRec's planner.
        out: write the plan to this JSON file, and print the cost of each device; without it, the JSON is printed.
    """
    if module and format != "torchrec":
        raise InvalidOptionError("--module is a path in the JSON of TorchRec; give --format torchrec, too.")
    if device_type is not None and format != "torchrec":
        raise InvalidOptionError("--device-type is of the placements in the JSON of TorchRec; give --format torchrec.")
    if out is not None:
        require_writable(out)
    if agent is not None:
        require_problem(agent, "placement")
    loaded = load_tables(tables, embedding_dim)
    loaded = loaded.with_training(weight_dtype=weight_dtype, optimizer=optimizer, training=cost.training)
    loaded, cost = with_lookups(tables, loaded, lookups, cost)
    as_given = loaded
    if index_dedup:
        if loaded.pooled.all():
            raise InvalidOptionError(f"--index-dedup is for sequence tables, and {tables} has none.")
        if sync_every:
            raise InvalidOptionError(
                "Give --index-dedup or --sync-every, not both: the devices of a group ask for rows by themselves."
            )
        loaded = deduplicated(loaded, num_devices)
    if format == "torchrec" and loaded.pooled.any() and not loaded.pooled.all():
        raise InvalidOptionError(
            f"{tables} has pooled and sequence tables, which are modules of their own in TorchRec. Write the plan in "
            "ShardGym's format, and make TorchRec's in Python: to_torchrec(plan, tables, topology, model)."
        )
    profile, options = hardware_profile(hardware), parse_options(option)
    model = sent_in(communication_dtype, with_index_exchange(cost.make(), index_exchange))
    room = room_bytes(memory_cap_gib, reserve, profile.device, num_devices)
    host = host_room_bytes(host_memory, reserve, profile, room)
    own = OwnModel(
        *(Path(tables).stem, tables, loaded, profile, num_devices, room, model, host, cross_host_ratio, sync_every),
        devices_per_host=devices_per_host,
        devices_per_domain=devices_per_domain,
    )
    given, hbm_rows, on_file = None, None, own
    if compare is not None and compare != TORCHREC:
        on_file = on_devices_of_file(own, compare)
        if index_dedup:
            on_file = replace(on_file, tables=deduplicated(as_given, on_file.num_devices))
        given = plan_of_file(compare, loaded, on_file.topology)
        hbm_rows = hbm_rows_of_file(compare, loaded, on_file.topology)
        require_sync_every(own, given)
        if how_made(compare).index_dedup != index_dedup:
            how = "without" if index_dedup else "with"
            warn(f"{compare} is a plan {how} index dedup; both plans are costed as this one.")
    torchrec = placing_agent(TORCHREC, cost, model, seed) if compare == TORCHREC else None  # errors before the work

    on_devices = device_type or profile.device.device_type
    left_out = replicas == "no" or (replicas is None and replicas_are_wrong(loaded, on_devices))

    def made(name: str) -> Agent:
        able = placing_agent(name, cost, model, seed, None, **options)
        return restarted(without_replicas(able) if left_out else able)

    plan = planned(own, agent, made, whole=whole)
    if searched := searched_sentence(plan.agent):
        warn(searched, "dim")
    plan, relief = relieved(plan, model, balance)
    if relief is not None:
        warn(relief.sentence(), "dim")
    own = plan.own
    if torchrec is not None:
        given = torchrec_plan(own, torchrec)
    old_own = replace(own, num_devices=on_file.num_devices, tables=on_file.tables)
    old = None if given is None else explained_plan(old_own, given)
    bound = None if plan.lowered else proven_bound(plan.agent, plan.task, model)
    explanation = explain(plan.task, plan.answer, problem_of(plan.task).model(model), lower_bound_ms=bound)
    if replicas == "no":
        require_no_replicas(explanation, plan.name)
    content = answer_to_json(explanation, plan.name) | ({"index_dedup": True} if index_dedup else {})
    content |= searched_to_json(plan.agent) | ({} if relief is None else relief.to_json())
    comparison = None if old is None else Comparison(old, explanation, compare or "", plan.name)
    if comparison is not None:
        content["compared"] = compared_to_json(comparison)
        warn_if_other_split(comparison.before, comparison.before_name, hbm_rows)
        warn_if_over(comparison.before, comparison.before_name, own.rooms_of(comparison.before))
    if format == "torchrec":
        warn_of_caches(explanation)
        warn_of_widths(explanation)
        if not module:
            warn("Without --module, the plan is for a model that is itself the collection of the tables.", "dim")
        if out is None and (note := note_of(explanation)):
            warn(note)
        content = torchrec_json(explanation.plan, loaded, explanation.task.topology, module, device_type)
    has = own.rooms_of(explanation)
    warn_if_full(explanation, has)
    if out is None and own.host_bytes:
        warn(host_sentence(explanation), "dim")
    console = output()
    if out is None:
        console.out(json.dumps(content, indent=1, allow_nan=False), highlight=False)
    else:
        write_json(out, content)
        print_explanation(console, explanation)
        if comparison is None:
            print_baseline(console, explanation, tables, index_dedup)
        kept = 0 if memory_cap_gib is not None else profile.device.memory_bytes - own.one_room
        print_memory(console, explanation, has, kept)
        print_traffic(console, explanation)
        print_replicas(console, explanation)
    if comparison is not None:
        shown = errors() if out is None else console
        print_comparison(shown, comparison)
        devices = on_file.num_devices
        if devices == num_devices or not index_dedup:  # else the tables of both differ
            old_plan = comparison.before.plan, comparison.before_name
            print_robustness(shown, *old_plan, explanation, tables, plan.task, devices, index_dedup)
    if out is None:
        return
    console.print(f"\nPlan written to {out}.", style="dim", markup=False)


def sent_in(communication_dtype: str, model: CostModel) -> CostModel:
    """The analytical cost model with outputs of that dtype on the links; another cost model knows FP32 alone."""
    if communication_dtype == "fp32":
        return model
    if type(model) is not AnalyticalCostModel:
        raise InvalidOptionError(
            f"--communication-dtype is {communication_dtype!r}, but the cost model {model.name!r} knows FP32 alone; "
            "leave out --cost-model."
        )
    return AnalyticalShardingModel(communication_dtype, model.constants, model.host_policy.name, model.index_exchange)


def load_tables(name_or_path: str, embedding_dim: int | None) -> Tables:
    """The tables of a pool, each with a dim and a name of its own."""
    pool = load_pool(pool_source(name_or_path))
    if pool.dims_known == (embedding_dim is not None):
        raise InvalidOptionError(
            f"The tables of {name_or_path} have embedding dims of their own; leave out --embedding-dim."
            if pool.dims_known
            else f"The tables of {name_or_path} have no embedding dims; choose one for all with --embedding-dim."
        )
    tables = pool.tables if embedding_dim is None else pool.tables.with_dims(embedding_dim)
    doubled = sorted({name for name in tables.names if tables.names.count(name) > 1})
    if doubled:
        raise InvalidTablesError(f"Two tables of {name_or_path} are named {doubled[0]!r}; give each its own.")
    return tables


def answer_to_json(explanation: Explanation, agent: str) -> dict[str, Any]:
    """A placement or plan as a JSON value, every table by its name."""
    record: dict[str, Any] = {"agent": agent, "cost_model": explanation.cost_model, "cost_ms": explanation.total_ms}
    record["index_exchange_ms"] = explanation.index_exchange_ms
    record |= evidence_to_json(explanation)
    tables, devices, traffic = explanation.task.tables, explanation.devices, traffic_to_json(explanation)
    host = host_to_json(explanation)
    if explanation.noun == "plan":
        groups = explanation.plan.groups
        in_groups = {} if groups == ONE_GROUP else {GROUPS: groups_to_json(groups)}
        plan = plan_to_json(explanation.plan, tables, explanation.task.topology)
        return record | in_groups | {"plan": plan} | replicas_to_json(explanation) | host | traffic
    per_device = to_plan(devices, explanation.task.num_devices)
    placed = {
        "placement": {name: int(device) for name, device in zip(tables.names, devices, strict=True)},
        "devices": [[tables.names[table] for table in held] for held in per_device],
    }
    if host:
        placed[HBM_ROWS] = dict(zip(tables.names, explanation.split.hbm_rows.tolist(), strict=True))
    return record | placed | host | traffic
