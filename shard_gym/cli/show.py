"""`shard-gym show`: one answer explained: a placement or plan device by device, an episode hour by hour."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.agents.named import require_problem
from shard_gym.cli.console import heading, is_narrow, new_table, output, print_report, print_table, sentence, tell
from shard_gym.cli.options import (
    ANALYTICAL,
    AgentOptions,
    CostModelOptions,
    IndexExchange,
    Option,
    OptionalFloat,
    OptionalFloats,
    OptionalInt,
    OptionalPath,
    OptionalStr,
    numbers,
    parse_options,
    placing_agent,
)
from shard_gym.common.checks import checked_count
from shard_gym.common.errors import InvalidOptionError, NoPlacementFoundError
from shard_gym.common.io.pictures import require_picture, save_picture
from shard_gym.common.report import Printout
from shard_gym.common.text import counted, format_change, format_seconds
from shard_gym.cost_models import AdditiveCostModel, with_index_exchange
from shard_gym.cost_models.analytical.index_exchange import EXPOSED
from shard_gym.envs.real.tasks import as_measured
from shard_gym.planning import Explanation, explain, explain_plan
from shard_gym.planning.answers import proven_bound
from shard_gym.planning.explained import explanation_report, task_heading, traffic_report
from shard_gym.planning.explanation import view_of
from shard_gym.planning.memory import full_notes, memory_report
from shard_gym.planning.trust import evidence_sentence
from shard_gym.replanning import DriftSuite, DriftTask
from shard_gym.replanning.env.history import NO_PLAN, History
from shard_gym.tasks import Suite, load_suite, problem_of
from shard_gym.tasks.suites.best_known import best_known_costs
from shard_gym.tasks.suites.bounds import lower_bounds

EITHER = (
    "show explains an answer to a task, with --suite and --agent, or a plan of your own tables, with --tables, --plan, "
    "--hardware and --num-devices."
)


@dataclass(frozen=True)
class OwnPlanOptions:
    """A plan that you have, of the tables of your model, instead of a suite and an agent.

    Attributes:
        tables: pool file (.json) with the model's tables, or name of a pool that ships with ShardGym.
        plan: file with the plan, as `shard-gym place` or TorchRec writes it in JSON.
        hardware: name of the hardware profile, such as a100-dgx, or a folder of shard-gym calibrate.
        num_devices: number of devices that the plan is for.
        devices_per_host: devices of a host, which have its local ranks and memory; that of the hardware if not given.
        devices_per_domain: devices joined by fast links, such as NVLink; those of a host if not given.
        memory_cap_gib: GiB that tables and their buffers may take on each device, instead of a reserve: one number, or
            one for each device, such as 40,40,20,20.
        reserve: share of each device's memory that is kept for the rest of the model; 0.15 if neither it nor a cap is
            given.
        host_memory: GiB of each host for rows that the HBM has no room for, 0 for none; what the reserve leaves of it
            if not given.
        embedding_dim: dim of every table; required if the file has none, refused if it has its own.
        weight_dtype: fp32, fp16, bf16, int8 or fp8; that of the file if not given.
        optimizer: sgd, rowwise_adagrad, adagrad, adam, partial_rowwise_adam or lamb; that of the file if not given.
        sync_every: of a plan for groups of devices, iterations after which their copies of tables are averaged.
    """

    tables: OptionalStr = None
    plan: OptionalPath = None
    hardware: OptionalStr = None
    num_devices: OptionalInt = None
    devices_per_host: OptionalInt = None
    devices_per_domain: OptionalInt = None
    memory_cap_gib: OptionalFloats = None
    reserve: OptionalFloat = None
    host_memory: OptionalFloat = None
    embedding_dim: OptionalInt = None
    weight_dtype: OptionalStr = None
    optimizer: OptionalStr = None
    sync_every: OptionalInt = None

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self))

    def require_alone(self, others: Mapping[str, bool]) -> None:
        """Raise InvalidOptionError if one of the `others`, options of a suite by name, is given, too."""
        for name, given in others.items():
            if given:
                raise InvalidOptionError(f"--{name} is an option of a task of a suite. {EITHER}")


DEVICES, NAMES, MOVES = 16, 2, 5  # so many are listed, unless another number is asked for
SUITES_PLAN = OwnPlanOptions()  # none: an agent answers a task of a suite
ORACLE = "oracle"  # the best sequence of an episode, with hindsight


@dataclass(frozen=True)
class Asked:
    """What is to be shown."""

    suite: Suite[Any]
    task: int | str
    agent: str
    options: Mapping[str, Option]
    cost: CostModelOptions
    seed: int
    devices: int
    names: int
    moves: int
    picture: Path | None
    index_exchange: IndexExchange


def show(
    option: AgentOptions,
    suite: OptionalStr = None,
    agent: OptionalStr = None,
    own: OwnPlanOptions = SUITES_PLAN,
    task: int | str = 0,
    split: str = "test",
    cost: CostModelOptions = ANALYTICAL,
    seed: int = 0,
    devices: int = DEVICES,
    names: int = NAMES,
    moves: int = MOVES,
    picture: OptionalPath = None,
    index_exchange: IndexExchange = None,
) -> None:
    """Explain an answer, or a plan that you have: what each device costs.

    Args:
        suite: name of the suite; `shard-gym suites` lists them, and says how to draw fresh tasks.
        agent: name of the agent that answers, or folder of a training run; of replanning also oracle.
        option: an option of the agent, such as max_queries=5000; repeat it for more. `shard-gym agents` lists them all.
        own: a plan of your own tables, instead of a suite and an agent.
        task: number of the task in the split, or its name.
        split: split of the suite, train or test.
        cost: the cost model of the answer. With measured costs, agents that ask a cost model plan under analytical.
        seed: of the agent, if it is stochastic.
        devices: number of devices to list; the most loaded, if there are more.
        names: number of tables to name on each device, the costliest first.
        moves: number of moves that reduce the cost to list, the largest gain first; none with measured costs.
        picture: also draw the placement, or the episode, to this file (.png, .svg, .pdf); needs matplotlib.
        index_exchange: exposed if every iteration waits for the exchange of the indices, because no pipeline hides it,
            else hidden; that of the cost model if not given.
    """
    checked_count("--devices", devices, 1)
    checked_count("--names", names, 0)
    checked_count("--moves", moves, 0)
    if picture is not None:
        require_picture(picture)
    if own:
        others = {"suite": suite, "agent": agent, "option": option, "task": task, "seed": seed}
        own.require_alone({name: bool(given) for name, given in others.items()} | {"split": split != "test"})
        _show_plan(own, cost, index_exchange, devices, names, moves, picture)
        return
    if suite is None or agent is None:
        raise InvalidOptionError(f"--{'suite' if suite is None else 'agent'} is missing. {EITHER}")
    loaded = load_suite(suite, split)
    asked = Asked(
        loaded, task, agent, parse_options(option), cost, seed, devices, names, moves, picture, index_exchange
    )
    show_one = _show_episode if loaded.task(task).problem == "replanning" else _show_answer
    show_one(asked)


def _show_answer(asked: Asked) -> None:
    model = with_index_exchange(asked.cost.make(suite=asked.suite), asked.index_exchange)
    suite = as_measured(asked.suite, model)
    task, problem, console = suite.task(asked.task), problem_of(suite.task(asked.task)), output()
    model = problem.model(model)
    require_problem(asked.agent, problem.name)
    agent = placing_agent(asked.agent, model, asked.seed, suite.name, **asked.options)
    problem.require_agent(agent)
    answer = problem.checked(problem.asker(agent)(task), task)
    stored = lower_bounds(suite, model).get(task.name)
    bound = max(filter(None, (stored, proven_bound(agent, task, model))), default=None)
    best = best_known_costs(suite, model).get(task.name)
    explanation = explain(task, answer, model, best_known_ms=best, lower_bound_ms=bound)
    report = Printout()
    report.heading(task_heading(task, f"placed by {asked.agent}, costed by {model.fingerprint}"))
    narrow = is_narrow(console)
    report.add(explanation_report(explanation, asked.devices, asked.names, asked.moves, narrow=narrow))
    host = task.topology.host
    caps = int(task.topology.memory_cap_bytes.max()) if host is None else host.hbm_bytes
    room = max(task.topology.device.memory_bytes, caps)
    report.add(memory_report(explanation, room, devices=asked.devices), traffic_report(explanation, asked.devices))
    print_report(console, report)
    for note in full_notes(explanation, room):
        tell(note)
    if asked.picture is not None:
        _draw(explanation, f"{task.name}, placed by {asked.agent}", asked.picture)


def _show_plan(
    own: OwnPlanOptions,
    cost: CostModelOptions,
    index_exchange: IndexExchange,
    devices: int,
    names: int,
    moves: int,
    picture: Path | None,
) -> None:
    """The plan that a user has, of the tables of their model."""
    missing = [name for name in ("tables", "plan", "hardware", "num_devices") if getattr(own, name) is None]
    if missing:
        raise InvalidOptionError(f"--{missing[0].replace('_', '-')} is missing. {EITHER}")
    assert own.plan is not None
    shown = explain_plan(
        own.tables,
        own.plan,
        own.hardware,
        own.num_devices,
        on_note=tell,
        devices_per_host=own.devices_per_host,
        devices_per_domain=own.devices_per_domain,
        memory_cap_gib=numbers("--memory-cap-gib", own.memory_cap_gib),
        reserve=own.reserve,
        host_memory=own.host_memory,
        embedding_dim=own.embedding_dim,
        weight_dtype=own.weight_dtype,
        optimizer=own.optimizer,
        sync_every=0 if own.sync_every is None else checked_count("--sync-every", own.sync_every),
        cost_model=cost.for_tables(),
        index_exchange=index_exchange,
    )
    console = output()
    print_report(console, shown.report(devices, names, moves, narrow=is_narrow(console)))
    for note in shown.full_notes:
        tell(note)
    if picture is not None:
        _draw(shown.explanation, f"{shown.explanation.task.name}, the plan of {shown.name}", picture)


def _draw(explanation: Explanation, title: str, path: Path) -> None:
    from shard_gym.envs.placement.rendering.figure import draw  # needs matplotlib

    save_picture(draw(view_of(explanation), title=title), path)
    output().print(sentence(f"\nPicture written to {path}.", "dim"))


def _show_episode(asked: Asked) -> None:
    """An episode of replanning, beside one in which no plan is made but those that must be, and the best sequence."""
    from shard_gym.replanning.env.episode_data import episode_data
    from shard_gym.replanning.env.oracle import best_sequence
    from shard_gym.replanning.env.plan_table import PlanTable
    from shard_gym.replanning.env.play import history_of, play, player_of
    from shard_gym.replanning.env.rendering import render_ansi

    if (
        asked.index_exchange == EXPOSED
        or asked.cost != ANALYTICAL
        or (asked.devices, asked.names, asked.moves) != (DEVICES, NAMES, MOVES)
    ):
        raise InvalidOptionError(
            f"Suite {asked.suite.name!r} drifts: its episodes are shown with analytical costs, without devices, tables "
            "and moves. Leave out the options of the cost model, --index-exchange, --devices, --names and --moves."
        )
    if asked.agent == ORACLE and asked.options:
        raise InvalidOptionError(f"The oracle has no options, but got {', '.join(asked.options)}. Leave them out.")
    task: DriftTask = asked.suite.task(asked.task)
    problem, console = problem_of(task), output()
    model = problem.model(asked.cost.make())
    assert isinstance(model, AdditiveCostModel)
    if asked.agent != ORACLE:
        require_problem(asked.agent, problem.name)
    names = {problem.reference: {}, asked.agent: asked.options}
    agents = {
        name: placing_agent(name, model, asked.seed, asked.suite.name, **options)
        for name, options in names.items()
        if name != ORACLE
    }
    for agent in agents.values():
        problem.require_agent(agent)
    suite, histories = dataclasses.replace(asked.suite, tasks=(task,)), {}
    assert isinstance(suite, DriftSuite)
    for name, agent in agents.items():
        [played] = play(player_of(agent), suite, model)
        if played.failure:
            raise NoPlacementFoundError(f"Agent {name!r} fails at task {task.name!r}: {played.failure}")
        histories[name] = played.history
    best = best_sequence(PlanTable.of(episode_data(task, model)), task.topology, task.pause_s)
    histories[ORACLE] = history_of(task, best.actions, model)
    tables, devices = counted(task.num_tables, "table"), f"{task.num_devices} x {task.topology.device.name}"
    how = f"{task.pause_s:g} s for a plan, decided by {asked.agent}"
    heading(console, f"{task.name}: {tables} on {devices},\n{how}\n")
    console.print(sentence(render_ansi(task, histories[asked.agent])))
    _print_histories(histories)
    console.print(sentence(f"\n{evidence_sentence(task.topology, model.fingerprint)}", "dim"))
    if asked.picture is not None:
        from shard_gym.replanning.env.figure import draw  # needs matplotlib

        save_picture(draw(task, histories), asked.picture)
        console.print(sentence(f"\nPicture written to {asked.picture}.", "dim"))


def _print_histories(histories: Mapping[str, History]) -> None:
    table = new_table()
    for name in ("", "total", "over the\noracle", "iterations", "pauses", "migrations", "plans", "repairs"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    least = float(histories[ORACLE].seconds.sum())
    for name, history in histories.items():
        total = float(history.seconds.sum())
        spent = [format_seconds(spent) for spent in history.seconds.sum(axis=0).tolist()]
        made = int(np.sum(history.kinds != NO_PLAN))
        over = "" if name == ORACLE else format_change(total / least - 1.0)
        table.add_row(name, format_seconds(total), over, *spent, str(made), str(int(history.repairs.sum())))
    print_table(output(), table)
