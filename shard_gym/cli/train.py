"""`shard-gym train`: an agent that learns, trained on a suite."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import tyro

from shard_gym.agents import PAPER_HEURISTICS, Agent, make_agent
from shard_gym.agents.training import Learner, Report, TrainingRun, make_learner
from shard_gym.agents.training.run import AGENT, LOG, OnReport
from shard_gym.cli import PROG
from shard_gym.cli.console import REFERENCE, errors, new_progress, output, sentence
from shard_gym.cli.evaluate import evaluate_all, print_evaluations
from shard_gym.cli.options import Measured, Measuring, true_cost_model
from shard_gym.cost_models import AdditiveCostModel, CostModel, CountedEstimates
from shard_gym.envs.real.tasks import as_measured
from shard_gym.errors import InvalidOptionError
from shard_gym.evaluation import Evaluation, evaluate
from shard_gym.io.files import require_writable
from shard_gym.suites import load_suite
from shard_gym.suites.best_known import best_known_costs
from shard_gym.tasks import TaskSuite
from shard_gym.text import counted, format_ms, format_seconds

Option = bool | int | float | str

RESERVED = {"name": "--agent", "suite": "--suite", "seed": "--seed", "cost_model": "--cost-model"}
"""Arguments of learners that are no options, and their flags."""

MEASUREMENTS = "measurements.sqlite"
"""File of a run's folder that keeps what was measured, so that a run that was killed measures nothing twice."""

MAX_LINES = 50
"""Lines about iterations where standard error is no terminal."""


def train(
    agent: str,
    suite: str,
    out: Path,
    option: Annotated[list[str], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="KEY=VALUE")],
    split: str = "train",
    cost_model: str = "analytical",
    seed: int = 0,
    resume: bool = False,
    no_evaluate: bool = False,
    measuring: Measured = Measuring(),  # noqa: B008 - it cannot be changed
) -> None:
    """Train an agent that learns, and compare it with the greedy heuristics.

    Every iteration is saved: resume a run that was stopped with --resume.

    Args:
        agent: dreamshard, rnn, ppo, maskable-ppo, a2c or dqn.
        suite: name of the suite; `shard-gym suites` lists them.
        out: folder for the trained agent, the state of its training, and the log for TensorBoard.
        option: an option of the agent, such as iterations=20; repeat it for more options. An unknown name is answered
            with the list of those that exist.
        split: split to learn from, train or test.
        cost_model: cost model of the placements that the agent learns from: analytical, the file of a neural one, or
            measured.
        seed: of everything random.
        resume: resume the run in the folder, if there is one.
        no_evaluate: do not place the test tasks afterwards. With measured costs they never are: shard-gym race
            measures them.
        measuring: how measured costs are measured. The run's folder keeps the measurements unless --cache is given.
    """
    options = parse_options(option)
    require_writable(out / MEASUREMENTS)
    if cost_model == "measured":
        out.mkdir(parents=True, exist_ok=True)
    model = true_cost_model(cost_model, measuring, cache=out / MEASUREMENTS)
    tasks = as_measured(load_suite(suite, split), model)
    learner = make_learner(agent, tasks, cost_model=model, seed=seed, **options)
    run = TrainingRun(learner, out, options, resume=resume)
    fast = isinstance(model, AdditiveCostModel)
    try:
        goal = _best_heuristic(tasks, model) if fast else None
        with watch(learner, goal) as on_report:
            trained = run.run(on_report)
        done = f"{counted(learner.iterations, 'iteration')}, {_evaluations(learner)}, {format_seconds(run.seconds)}"
        output().print(sentence(f"Trained {learner.name}: {done}."))
        output().print(sentence(f"Written to {run.folder / AGENT}.", "dim"), soft_wrap=True)
        if fast and not no_evaluate:
            _compare(agent, trained, load_suite(suite), model)
    except KeyboardInterrupt:
        given = {"agent": agent, "suite": suite, "out": out, "split": split, "cost-model": cost_model, "seed": seed}
        flags = [part for name, value in given.items() for part in (f"--{name}", str(value))]
        flags += [part for pair in measuring.flags.items() for part in pair]
        flags += [part for each in option for part in ("--option", each)]
        command = shlex.join([PROG, "train", *flags, *["--no-evaluate"] * no_evaluate, "--resume"])
        message = f"Interrupted. All finished iterations are saved; resume with:\n{command}"
        raise KeyboardInterrupt(message) from None
    evaluating = shlex.join([PROG, "evaluate", "--agent", str(out), "--suite", suite])
    if not fast:
        entries = [str(out), REFERENCE, *PAPER_HEURISTICS]
        flags = [part for entry in entries for part in ("--entry", entry)]
        evaluating = shlex.join([PROG, "race", "--suite", suite, *flags])
    watching = shlex.join(["tensorboard", "--logdir", str(out / LOG)])
    output().print(sentence(f"\nNext: {evaluating}\n      {watching}"), soft_wrap=True)


def parse_options(given: Sequence[str]) -> dict[str, Option]:
    """The options `given` as KEY=VALUE; a value is a Boolean (true, false), an integer, a number or a text.

    Raises:
        InvalidOptionError: one has another form, is given twice, or has a flag of its own.
    """
    options: dict[str, Option] = {}
    for each in given:
        key, equals, text = each.partition("=")
        if not key or not equals:
            raise InvalidOptionError(f"--option wants KEY=VALUE, such as iterations=20, not {each!r}.")
        if key in RESERVED:
            raise InvalidOptionError(f"{key} is no option of an agent; give it with {RESERVED[key]}.")
        if key in options:
            raise InvalidOptionError(f"The option {key!r} is given twice; give it once.")
        options[key] = _parsed(text)
    return options


def _parsed(text: str) -> Option:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if math.isfinite(value):
            return value
    return text


def _best_heuristic(tasks: TaskSuite, model: CostModel) -> Evaluation:
    """The cheapest of the greedy heuristics on the tasks to learn from."""
    evaluations = [evaluate(make_agent(name), tasks, model) for name in PAPER_HEURISTICS]
    return min(evaluations, key=lambda each: each.mean_cost_ms)


@contextmanager
def watch(learner: Learner, goal: Evaluation | None) -> Iterator[OnReport]:
    """Show the progress of training on standard error, below the heuristic to beat on the same tasks, if it is known.

    A terminal gets a progress bar that is erased at the end; anything else gets at most `MAX_LINES` lines. The bar
    counts measurements where costs are measured, and iterations elsewhere.
    """
    console = errors()
    beginning = f"{learner.name} on {learner.suite.name} {learner.suite.split}"
    if goal is not None:
        best = f"{goal.agent} {format_ms(goal.mean_cost_ms)} ms"
        beginning += f", to beat on all {counted(len(goal.tasks), 'task')}: {best}"
    console.print(sentence(beginning), soft_wrap=not console.is_terminal)
    interval = math.ceil(learner.iterations / MAX_LINES)
    model = learner.cost_model
    with new_progress() as progress:
        bar = progress.add_task(learner.name, total=learner.iterations, completed=learner.iteration)
        if isinstance(model, CountedEstimates):
            progress.update(bar, total=learner.planned_queries, completed=model.queries)
            model.on_estimate = lambda: progress.update(
                bar,
                completed=model.queries,
                description=f"{_evaluations(learner)}\n{counted(learner.failures, 'failure')}",
            )

        def show(learner: Learner, report: Report) -> None:
            iteration = f"iteration {learner.iteration}/{learner.iterations}"
            cost, evaluations = f"mean cost {format_ms(report.mean_cost_ms)} ms", _evaluations(learner)
            completed = model.queries if isinstance(model, CountedEstimates) else learner.iteration
            progress.update(bar, completed=completed, description=f"{iteration}\n{cost}\n{evaluations}")
            due = learner.iteration % interval == 0 or learner.iteration == learner.iterations
            if due and not console.is_terminal:
                console.print(sentence(f"{iteration}: {cost}, {evaluations}"), soft_wrap=True)

        yield show


def _evaluations(learner: Learner) -> str:
    measures = isinstance(learner.cost_model, CountedEstimates)
    return counted(learner.true_cost_queries, "measurement" if measures else "cost-model evaluation")


def _compare(name: str, trained: Agent, tasks: TaskSuite, model: CostModel) -> None:
    """Print the trained agent on the test tasks, beside the heuristics and random."""
    agents = {name: trained, **{other: make_agent(other) for other in (*PAPER_HEURISTICS, REFERENCE)}}
    evaluations = evaluate_all(agents, tasks, model)
    output().print()
    print_evaluations(output(), list(evaluations.values()), evaluations[REFERENCE], best_known_costs(tasks, model))
