"""`shard-gym dataset`: placements of agents as a data set for offline RL."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import tyro

from shard_gym.agents import Agent, agent_names
from shard_gym.agents.named import agent_named, require_problem
from shard_gym.agents.training.offline import dataset_path, repeated_evaluations, write_dataset
from shard_gym.cli.console import FAILED, new_progress, new_table, output, print_table, say, sentence
from shard_gym.cli.evaluate import evaluate_all
from shard_gym.cli.options import OptionalInt
from shard_gym.common.checks import checked_count, checked_seed
from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.text import counted, format_bytes, format_ms
from shard_gym.cost_models import make_cost_model
from shard_gym.evaluation import Evaluation
from shard_gym.tasks import load_suite

if TYPE_CHECKING:
    from minari import MinariDataset

Names = Annotated[list[tuple[str, ...]], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME ...")]


def dataset(
    agent: Names,
    suite: str,
    out: str,
    split: str = "train",
    episodes: OptionalInt = None,
    cost_model: str = "analytical",
    reward: str = "terminal",
    observation: str = "compact",
    seed: int = 0,
) -> None:
    """Write placements of agents as a data set for offline RL, in Minari's format.

    Each placement is replayed through the environment.

    Tasks that an agent fails have no episode.

    Args:
        agent: names of agents, or folders of training runs.
        suite: name or file of the suite; `shard-gym suites` lists them, and says how to draw fresh tasks.
        out: name and version of the data set, such as mixdim-4/greedy-v0. MINARI_DATASETS_PATH names the folder of
            all data sets; ~/.minari/datasets if it is not set.
        split: split of the suite, train or test.
        episodes: most episodes of each agent; one of each task if not given. Where there are more than tasks, the
            tasks come again, with the next seed; a placement that an agent repeats is not recorded again.
        cost_model: analytical, or the file of a neural cost model (.safetensors); also for agents that ask one.
        reward: terminal, dense or normalized.
        observation: compact, full or features; the size of full grows with the number of tables.
        seed: of the stochastic agents.
    """
    names = list(dict.fromkeys(chain.from_iterable(agent)))
    if not names:
        raise InvalidOptionError(f"Name agents with --agent NAME. Known: {', '.join(agent_names('placement'))}.")
    for name in names:
        require_problem(name, "placement")
    if episodes is not None:
        checked_count("--episodes", episodes)
    checked_seed(seed)
    path = dataset_path(out)
    tasks = load_suite(suite, split)
    model = make_cost_model(cost_model, additive=True)

    def make(name: str, turn: int) -> Agent:
        return agent_named(name, cost_model=model, seed=seed + turn)

    evaluations = repeated_evaluations(names, make, tasks, episodes or len(tasks), model, evaluate_all)
    with new_progress() as progress:
        bar = progress.add_task("replaying", total=None)
        written = write_dataset(
            out,
            evaluations,
            suite,
            split=split,
            cost_model=cost_model,
            reward=reward,
            observation=observation,
            progress=lambda done, total: progress.update(bar, completed=done, total=total),
        )
    _print(written, evaluations, names)
    size = format_bytes(sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))
    steps = f"{counted(written.total_episodes, 'episode')}, {counted(written.total_steps, 'step')}, {size}"
    say(f"\nWritten to {path}: {steps}.", "dim")
    say(f'Next, in Python: dataset = minari.load_dataset("{out}")')


def _print(written: MinariDataset, evaluations: Sequence[Evaluation], names: Sequence[str]) -> None:
    about = list(written.storage.get_episode_metadata(range(written.total_episodes)))
    table = new_table()
    table.add_column("agent", overflow="fold", min_width=12)
    for header in ("episodes", "mean ms", "failed"):
        table.add_column(header, justify="right", no_wrap=True)
    failures = {name: [r for e in evaluations if e.agent == name for r in e.tasks if not r.valid] for name in names}
    for name in names:
        costs = [float(each["cost_ms"]) for each in about if each["agent"] == name]
        mean = format_ms(sum(costs) / len(costs)) if costs else "-"
        table.add_row(sentence(name), f"{len(costs):,}", mean, f"{len(failures[name]):,}")
    print_table(output(), table)
    for name, failed in failures.items():
        if failed:
            output().print(sentence(f"\n{name} failed, first on {failed[0].task}: {failed[0].failure}", FAILED))
