"""`shard-gym show` of a suite of drifting tasks: an episode of replanning, hour by hour."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from shard_gym.agents.replanning.oracle import best_sequence
from shard_gym.agents.replanning.plan_table import PlanTable
from shard_gym.agents.replanning.tuned import tuned_agent
from shard_gym.cli.agent_options import Option
from shard_gym.cli.console import heading, new_table, output, print_table, sentence
from shard_gym.cost_models import make_sharding_cost_model
from shard_gym.drift.suites import load_drift_suite
from shard_gym.envs.replanning.episode_data import episode_data
from shard_gym.envs.replanning.history import NO_PLAN
from shard_gym.envs.replanning.play import PlayedEpisode, Player, Recorded, play
from shard_gym.envs.replanning.rendering import render_ansi
from shard_gym.errors import InvalidOptionError
from shard_gym.io.pictures import save_picture
from shard_gym.text import counted, format_change, format_seconds

ORACLE = "oracle"
"""The best sequence, which knows the future."""


def show_episode(
    suite: str, agent: str, settings: Mapping[str, Option], task: int | str, split: str, seed: int, picture: Path | None
) -> None:
    """Print what an agent does in an episode, and what never re-planning and the best sequence would have taken."""
    chosen, model, console = load_drift_suite(suite, split).task(task), make_sharding_cost_model("analytical"), output()
    best = best_sequence(PlanTable.of(episode_data(chosen, model)), chosen.task.topology, chosen.pause_s)
    oracle = Recorded(best.actions[None])
    players: dict[str, Player] = {"never": tuned_agent("never", suite)}
    if agent != ORACLE:
        players[agent] = tuned_agent(agent, suite, seed, **settings)
    elif settings:
        raise InvalidOptionError(f"The oracle has no options, but got {', '.join(settings)}. Leave them out.")
    played = {name: play(player, [chosen], model)[0] for name, player in (players | {ORACLE: oracle}).items()}
    task_of = chosen.task
    heading(
        console,
        f"{chosen.name}: {counted(task_of.num_tables, 'table')} on {task_of.num_devices} x "
        f"{task_of.topology.device.name},\n{chosen.pause_s:g} s for a plan, decided by {agent}\n",
    )
    console.print(sentence(render_ansi(chosen, played[agent].history)))
    _print_totals(played)
    if picture is not None:
        from shard_gym.envs.replanning.figure import draw  # needs matplotlib

        save_picture(draw(chosen, {name: each.history for name, each in played.items()}), picture)
        console.print(sentence(f"\nPicture written to {picture}.", "dim"))


def _print_totals(played: Mapping[str, PlayedEpisode]) -> None:
    """A row for each agent."""
    table = new_table()
    for name in ("", "total", "over the\noracle", "iterations", "pauses", "migrations", "plans", "repairs"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name, each in played.items():
        spent = [format_seconds(spent) if spent else "0 s" for spent in each.history.seconds.sum(axis=0).tolist()]
        made = int(np.sum(each.history.kinds != NO_PLAN))
        over = "" if name == ORACLE else format_change(each.seconds / played[ORACLE].seconds - 1.0)
        table.add_row(name, format_seconds(each.seconds), over, *spent, str(made), str(int(each.history.repairs.sum())))
    print_table(output(), table)
