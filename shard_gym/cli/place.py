"""`shard-gym place`: tables in, a plan out."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal

from shard_gym.cli.agent_options import AgentOptions, parse_options
from shard_gym.cli.console import output
from shard_gym.cli.explained import print_explanation
from shard_gym.cli.named_agents import require_problem
from shard_gym.cli.options import (
    ANALYTICAL,
    CostModelOptions,
    OptionalFloat,
    OptionalInt,
    OptionalPath,
    OptionalStr,
    placing_agent,
    proven_bound,
)
from shard_gym.cli.pools import pool_source
from shard_gym.envs.real.tasks import as_measured
from shard_gym.errors import InvalidOptionError, InvalidTablesError
from shard_gym.explain import Explanation, explain
from shard_gym.hardware import hardware_profile
from shard_gym.interop.torchrec import torchrec_json
from shard_gym.io.files import require_writable, write_json
from shard_gym.placement import to_plan
from shard_gym.pools import load_pool
from shard_gym.problems import problem_of
from shard_gym.sharding import plan_to_json
from shard_gym.tables import Tables
from shard_gym.tasks import Task, TaskSuite
from shard_gym.text import counted, format_bytes
from shard_gym.topology import DeviceSpec

GIB = 2**30


def place(
    tables: str,
    hardware: str,
    num_devices: int,
    option: AgentOptions,
    agent: str = "local-search",
    memory_cap_gib: OptionalFloat = None,
    embedding_dim: OptionalInt = None,
    weight_dtype: OptionalStr = None,
    optimizer: OptionalStr = None,
    cost: CostModelOptions = ANALYTICAL,
    seed: int = 0,
    format: Literal["shard-gym", "torchrec"] = "shard-gym",
    module: str = "",
    out: OptionalPath = None,
) -> None:
    """Place the tables of a model; print the plan as JSON, or write it to a file.

    Agents that split tables, such as plan-search, make a sharding plan.

    Args:
        tables: pool file (.json) with the model's tables, or name of a pool that ships with ShardGym.
        hardware: name of the hardware profile, for example a100-dgx.
        num_devices: number of devices.
        agent: name of the agent that places the tables, or folder of a training run.
        option: an option of the agent, such as max_queries=5000; repeat it for more. `shard-gym agents` lists them all.
        memory_cap_gib: GiB that tables may take on each device; the whole device memory if not given.
        embedding_dim: dim of every table; required if the file has none, refused if it has its own.
        weight_dtype: fp16 or fp32; that of the file if not given.
        optimizer: sgd or rowwise_adagrad; that of the file if not given.
        cost: the cost model of the placement. With measured costs, agents that ask a cost model plan under analytical.
        seed: of the agent, if it is random.
        format: torchrec writes the JSON of TorchRec's ShardingPlan.
        module: with torchrec, path of the EmbeddingBagCollection in the model that is wrapped.
        out: write the plan to this JSON file, and print the cost of each device; without it, the JSON is printed.
    """
    if module and format != "torchrec":
        raise InvalidOptionError("--module is a path in the JSON of TorchRec; give --format torchrec, too.")
    if out is not None:
        require_writable(out)
    require_problem(agent, "placement")
    loaded = load_tables(tables, embedding_dim).with_training(weight_dtype=weight_dtype, optimizer=optimizer)
    profile = hardware_profile(hardware)
    model = cost.make()
    placer = placing_agent(agent, cost, model, seed, None, **parse_options(option))
    if num_devices > len(loaded) and not getattr(placer, "splits", False):
        raise InvalidOptionError(
            f"--num-devices is {num_devices:,}, but {tables} has {counted(len(loaded), 'table')}: the other devices "
            f"would stay empty. Give at most {len(loaded):,}."
        )
    topology = profile.topology(num_devices, memory_cap_bytes=cap_bytes(memory_cap_gib, profile.device))
    console = output()
    task = Task(Path(tables).stem, loaded, topology, splittable=getattr(placer, "splits", False))
    if not task.splittable:
        task = as_measured(TaskSuite("place", (task,)), model)[0]
    problem = problem_of(task)
    problem.require_agent(placer)
    answer = problem.checked(problem.asker(placer)(task), task)
    explanation = explain(task, answer, problem.model(model), lower_bound_ms=proven_bound(placer, model))
    content = answer_to_json(explanation, agent)
    if format == "torchrec":
        content = torchrec_json(explanation.plan, loaded, topology, module)
    if out is None:
        console.out(json.dumps(content, indent=1, allow_nan=False), highlight=False)
        return
    write_json(out, content)
    print_explanation(console, explanation)
    console.print(f"\nPlan written to {out}.", style="dim", markup=False)


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


def cap_bytes(gib: float | None, device: DeviceSpec) -> int | None:
    """The memory cap in bytes, at most the memory of `device`."""
    if gib is None:
        return None
    if not 1 <= gib * GIB < math.inf:
        raise InvalidOptionError(f"--memory-cap-gib must be a positive number, not {gib!r}.")
    if gib * GIB > device.memory_bytes:
        raise InvalidOptionError(
            f"--memory-cap-gib is {gib:,g}, but a device ({device.name}) has {format_bytes(device.memory_bytes)} of "
            "memory. Give at most that, or leave the option out."
        )
    return int(gib * GIB)


def answer_to_json(explanation: Explanation, agent: str) -> dict[str, Any]:
    """A placement or plan as a JSON value, every table by its name."""
    record: dict[str, Any] = {"agent": agent, "cost_model": explanation.cost_model, "cost_ms": explanation.total_ms}
    tables, devices = explanation.task.tables, explanation.devices
    if explanation.noun == "plan":
        return record | {"plan": plan_to_json(explanation.plan, tables)}
    per_device = to_plan(devices, explanation.task.num_devices)
    return record | {
        "placement": {name: int(device) for name, device in zip(tables.names, devices, strict=True)},
        "devices": [[tables.names[table] for table in held] for held in per_device],
    }
