"""`shard-gym demo`: an agent trained in seconds beside heuristics, a picture, and a sharding plan explained."""

from __future__ import annotations

import shlex
import time
from importlib.util import find_spec
from pathlib import Path

from shard_gym.agents import make_agent
from shard_gym.cli import main
from shard_gym.cli.console import heading, output, say, sentence
from shard_gym.common.errors import MissingExtraError, missing_extra
from shard_gym.common.io.pictures import matplotlib_missing, require_picture, save_picture
from shard_gym.common.text import counted, format_seconds
from shard_gym.cost_models import make_cost_model
from shard_gym.envs.placement.rendering.view import PlacementView
from shard_gym.tasks import load_suite

SUITE = "dlrm-mixdim-4"
"""An open suite: the best agents that ask for no cost while they place are well above the best known placements."""

TASKS = 20  # test tasks of the comparison: the first ones

TRAINING = ("iterations=4", "measurements=10", "cost_updates=300")
HEURISTICS = ("lookup-greedy", "lane-greedy", "cost-greedy")
SPLIT = ("shard-4", "3")  # the suite and the test task of the sharding plan
PICTURED = 0  # the test task of the picture

PICTURE = "placement.png"

NEXT = (
    ("train another agent", "shard-gym train --agent maskable-ppo --suite mixdim-8 --out runs/ppo"),
    (
        "place the tables of your model",
        "python examples/make_tables.py && shard-gym place --tables my_tables.json --hardware a100-dgx --num-devices 2 "
        "--out plan.json",
    ),
    ("evaluate a custom solver", "python examples/custom_agent.py"),
)


def demo(out: Path = Path("demo"), seed: int = 0) -> None:
    """Train DreamShard for seconds, compare it with heuristics, show a sharding plan.

    Parts that need a package that is not installed are left out.

    Args:
        out: folder for the trained agent and the picture. An agent that is there already is not trained again.
        seed: of the training.
    """
    start, trained, picture = time.perf_counter(), out / "dreamshard", out / PICTURE
    no_picture, no_training = matplotlib_missing(), _torch_missing()
    if no_picture is None:
        require_picture(picture)
    for missing in filter(None, (no_training, no_picture)):
        output().print(sentence(f"Left out: {missing}", "yellow"))
    agents = list(HEURISTICS)
    if no_training is None:
        agents.insert(0, str(trained))
        options = [word for option in TRAINING for word in ("--option", option)]
        place = ["--suite", SUITE, "--out", str(trained), "--seed", str(seed)]
        _run(
            "DreamShard learns what placements cost from 40 of them, in 10 to 30 seconds.",
            ["train", "--agent", "dreamshard", *place, *options, "--no-evaluate", "--resume"],
        )
    _run(
        f"On {counted(TASKS, 'test task')} with tables that it has not seen: cost-greedy asks the cost model at every "
        "step, the others never do. A gap is what an agent costs more than the best known placement.",
        ["evaluate", "--suite", SUITE, "--tasks", str(TASKS), *(word for each in agents for word in ("--agent", each))],
    )
    if no_picture is None:
        _draw(agents[0], picture)
        output().print(sentence(f"\nOne of these tasks, placed by {HEURISTICS[0]} and by {agents[0]}: {picture}"))
    suite, task = SPLIT
    _run(
        "Tables may also be split. A search over sharding plans, and what its splits gain:",
        ["show", "--suite", suite, "--task", task, "--agent", "plan-search"],
    )
    heading(output(), f"\nDone in {format_seconds(time.perf_counter() - start)}. Next:")
    for what, command in NEXT:
        say(f"  {what}:\n    {command}")


def _run(why: str, words: list[str]) -> None:
    """Print a sentence and a command, then run the command here; a failure ends the demo."""
    heading(output(), f"\n{why}")
    say(f"$ {shlex.join(['shard-gym', *words])}\n", "cyan")
    if code := main(words):
        raise SystemExit(code)


def _torch_missing() -> MissingExtraError | None:
    for package in ("torch", "safetensors"):
        if find_spec(package) is None:
            return missing_extra(package, "torch", "Training")
    return None


def _draw(agent: str, path: Path) -> None:
    from shard_gym.envs.placement.rendering.figure import draw_comparison  # needs matplotlib

    model, task = make_cost_model("analytical", additive=True), load_suite(SUITE)[PICTURED]
    views = []
    for name in (HEURISTICS[0], agent):
        placement = make_agent(name).place(task)
        estimate = model.estimate(placement, task.tables, task.topology)
        views.append((Path(name).name, PlacementView(task, placement, estimate.phases_ms, estimate.total_ms)))
    save_picture(draw_comparison(views), path)
