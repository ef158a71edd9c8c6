"""`shard-gym train`: a learned agent, trained on a suite."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from shard_gym.agents import Agent, load_agent, make_agent
from shard_gym.agents.registry import AGENT
from shard_gym.agents.training import Curve, Learner, Report, TrainingRun, Validation, load_curve, make_learner
from shard_gym.agents.training.jobs import TrainingJob, said_of, train_in_jobs, validation_of, work_of
from shard_gym.agents.training.run import CONFIG, LOG, OnReport
from shard_gym.agents.training.validation import goal_of, guided_rivals
from shard_gym.cli.console import REFERENCE, errors, new_progress, output, say, sentence
from shard_gym.cli.evaluate import evaluate_all, print_evaluations
from shard_gym.cli.job_options import HERE, JobOptions
from shard_gym.cli.measuring import print_spread, warn_of_load
from shard_gym.cli.options import AgentOptions, CostModelOptions, OptionalInt, OptionalPath, parse_options
from shard_gym.common.checks import checked_count
from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.io.files import require_writable
from shard_gym.common.io.pictures import require_picture, save_picture
from shard_gym.common.text import command_line, counted
from shard_gym.cost_models import CostEstimate, CostModel, CountedEstimates
from shard_gym.envs.real.tasks import as_measured
from shard_gym.evaluation import Evaluation
from shard_gym.evaluation.curve import CURVE
from shard_gym.evaluation.evaluations import student_interval
from shard_gym.evaluation.plots import plot_learning
from shard_gym.tasks import Problem, Suite, load_suite, problem_of
from shard_gym.tasks.suites.best_known import best_known_costs

MEASUREMENTS = "measurements.sqlite"  # file of a run's folder that keeps what was measured
NOTHING_TO_DRAW = "--plot draws the validations, and there are none; add --validate 5."
MAX_LINES = 50  # lines about iterations where standard error is no terminal


@dataclass(frozen=True)
class TrainingCosts(CostModelOptions):
    """The cost model of the placements, how it measures, and the device to train on.

    Attributes:
        device: what the networks are trained on, cpu or cuda; cpu if not given. With measured costs what those are
            measured on: nothing else then uses the GPUs, and the networks are trained on the CPU.
    """

    @property
    def trains_on(self) -> str:
        """The device of the networks."""
        return self.device if self.device and not self.measures else "cpu"

    @override
    def make(self, cache: Path | None = None, suite: Suite[Any] | None = None) -> CostModel:
        given = vars(self) if self.measures else {**vars(self), "device": None}
        return CostModelOptions(**given).make(cache, suite)


def train(
    agent: str,
    suite: str,
    out: Path,
    option: AgentOptions,
    split: str = "train",
    cost: TrainingCosts = TrainingCosts(),
    data: OptionalPath = None,
    seed: int = 0,
    seeds: OptionalInt = None,
    where: JobOptions = HERE,
    resume: bool = False,
    validate: OptionalInt = None,
    plot: OptionalPath = None,
    no_evaluate: bool = False,
) -> None:
    """Train a learned agent, and compare it with agents that need no training.

    Every iteration is saved: resume a run that was stopped with --resume.

    After each one, some training tasks are answered: see --validate and --plot.

    With measured costs, a warning says if the machine is not idle.

    Args:
        agent: dreamshard, autoshard, neuroshard, surco, attention, stepwise, rnn, ppo, maskable-ppo, a2c or dqn; on
            suites of replanning ppo, maskable-ppo or recurrent-ppo.
        suite: name of the suite; `shard-gym suites` lists them, and says how to draw fresh tasks.
        out: folder for the trained agent, the state of its training, and the log for TensorBoard.
        option: an option of the agent, such as iterations=20; repeat it for more. `shard-gym agents` lists them all.
        split: split to learn from, train or test.
        cost: the cost model of the placements that the agent learns from. Measurements are kept in the run's folder
            unless --cache says where, so that a run that was killed measures nothing twice.
        data: folder of measurements (shard-gym collect) to learn from in place of new ones; for dreamshard. The run
            keeps its checksum, so it does not resume after the folder changed.
        seed: of everything random.
        seeds: train with that many seeds from --seed on, in the folders seed-0, seed-1, ... of
            --out, and give the mean and the spread of what they cost on the test tasks.
        where: where several seeds train, at the same time then; the agents are the same. Of a cluster the files of a
            seed come back when it is done.
        resume: resume the run in the folder, if there is one; with --seeds those that are there.
        validate: number of training tasks, the same ones of all sizes, that the agent answers after each iteration,
            or after 50 of a long run. Progress says how far they cost under or over the best simple agent; they are no
            part of training. 0 for none; 5 if not given, but none where that is slow: with measured costs, on suites
            of replanning, and for surco.
        plot: draw what these tasks cost over the iterations to this file, .png, .svg or .pdf.
        no_evaluate: do not answer the test tasks afterwards. With measured costs they never are: see shard-gym race.
    """
    options: dict[str, Any] = parse_options(option) | ({} if data is None else {"data": str(data)})
    if plot is not None:
        require_picture(plot)
    folders = _folders(out, seed, seeds, resume)
    if seeds is None:
        where.refuse("A training with one seed is one job. Train with several, by --seeds.")
    if data is not None:
        where.refuse("The measurements of --data are in a folder that other nodes may lack.")
    if cost.measures:
        where.refuse("Costs are measured one after another, on a machine that does nothing else.")
        require_writable(out / MEASUREMENTS)
        out.mkdir(parents=True, exist_ok=True)
    loaded = load_suite(suite, split)
    model = cost.make(out / MEASUREMENTS, loaded)
    tasks = as_measured(loaded, model)
    goal, trained, curves = None, dict[str, Agent](), dict[str, Curve]()
    rival = problem_of(tasks[0]).rivals[-1]
    try:
        if where.elsewhere:
            start = TrainingJob(agent, tasks, model, seed, cost.trains_on, options, validate)
            trained, curves = _side_by_side(start, folders, where, drawn=plot is not None)
        for each, folder in ({} if where.elsewhere else folders).items():
            learner = make_learner(agent, tasks, cost_model=model, seed=each, device=cost.trains_on, **options)
            validation = validation_of(learner, validate)
            if plot is not None and validation is None:
                raise InvalidOptionError(NOTHING_TO_DRAW)
            run = TrainingRun(learner, folder, options, resume=resume, validation=validation)
            if (
                plot is not None
                and validation
                and learner.iteration >= learner.iterations
                and not validation.curve.points
            ):
                raise InvalidOptionError(
                    f"The run in {folder} is finished, and was not validated: there is no curve for --plot to draw. "
                    "Train in another folder for one."
                )
            if not trained and cost.measures:
                warn_of_load()
            if not (trained or cost.measures or data):  # the costs in `data` are of other tables
                goal = goal_of(tasks, model, guided_rivals(agent, options, tasks))
            called = agent if seeds is None else f"{agent}/{folder.name}"
            trained[called] = _trained(run, goal, called)
            if validation is not None:
                curves[called] = validation.curve
        if plot is not None:
            save_picture(plot_learning(curves), plot)
            say(f"Drawn to {plot}.", "dim")
        if not (no_evaluate or cost.measures):
            rival = _compare(trained, load_suite(suite), model, guided_rivals(agent, options, tasks))
    except KeyboardInterrupt:
        given = {"agent": agent, "suite": suite, "out": out, "option": option, "split": split, **vars(cost)}
        given |= {"data": data, "seed": seed, "seeds": seeds, "validate": validate, "plot": plot}
        given |= vars(where) if where.elsewhere else {}
        command = command_line("train", **given, no_evaluate=no_evaluate, resume=True)
        kept = "seeds" if where.cluster else "iterations"
        message = f"Interrupted. All finished {kept} are saved; resume with:\n{command}"
        raise KeyboardInterrupt(message) from None
    places = [*folders.values()]
    evaluating = command_line("evaluate", agent=[*places, goal.agent if goal and no_evaluate else rival], suite=suite)
    if cost.measures:
        rivals = [*map(str, places), REFERENCE, *problem_of(tasks[0]).rivals]
        measuring = {name: value for name, value in vars(cost).items() if name not in ("cost_model", "cache")}
        evaluating = command_line("race", suite=suite, entry=rivals, **measuring, out="runs/race")
    watching = shlex.join(["tensorboard", "--logdir", str(out / LOG if seeds is None else out)])
    say(f"\nNext: {evaluating}\n      {watching}")


def _folders(out: Path, seed: int, seeds: int | None, resume: bool) -> dict[int, Path]:
    """The folder of each seed; InvalidOptionError if one of several holds a run that is not to be resumed."""
    if seeds is None:
        return {seed: out}
    folders = {each: out / f"seed-{each}" for each in range(seed, seed + checked_count("--seeds", seeds))}
    for folder in folders.values():
        if not resume and (folder / CONFIG).exists():
            raise InvalidOptionError(
                f"{folder} already holds a training run. Resume it and the others (--resume), or name another folder."
            )
    return folders


def _trained(run: TrainingRun, goal: Evaluation | None, called: str) -> Agent:
    """The agent at the end of a run, whose progress is shown."""
    learner, spreads = run.learner, list[float]()
    with watch(learner, goal, spreads, run.validation, called) as on_report:
        trained = run.run(on_report)
    _tell(called, work_of(run), run.folder)
    if spreads:
        print_spread("The iterations of a measurement", float(np.median(spreads)), "--iterations")
    return trained


def _side_by_side(
    first: TrainingJob, folders: Mapping[int, Path], where: JobOptions, *, drawn: bool
) -> tuple[dict[str, Agent], dict[str, Curve]]:
    """Train with all seeds, in jobs: the agents, and where there were validations, their curves."""
    names = {seed: f"{first.agent}/{folder.name}" for seed, folder in folders.items()}
    paths = list(folders.values())
    if drawn:
        learner = make_learner(first.agent, first.tasks, cost_model=first.cost_model, **first.options)
        if validation_of(learner, first.validate) is None:
            raise InvalidOptionError(NOTHING_TO_DRAW)
    with new_progress() as progress:
        bar = progress.add_task(first.agent, total=len(folders))

        def show(index: int, work: str) -> None:
            _tell([*names.values()][index], work, paths[index])
            progress.advance(bar)

        train_in_jobs([first._replace(seed=each) for each in folders], paths, where, show)
    agents = {names[seed]: load_agent(folder, cost_model=first.cost_model) for seed, folder in folders.items()}
    validated = {seed: folder / CURVE for seed, folder in folders.items() if (folder / CURVE).exists()}
    return agents, {names[seed]: load_curve(path) for seed, path in validated.items()}


def _tell(called: str, work: str, folder: Path) -> None:
    output().print(sentence(f"Trained {called}: {work}."))
    say(f"Written to {folder / AGENT}.", "dim")


@contextmanager
def watch(
    learner: Learner,
    goal: Evaluation | None,
    spreads: list[float] | None = None,
    validation: Validation | None = None,
    called: str = "",
) -> Iterator[OnReport]:
    """Show the progress of training on standard error, below the heuristic to beat on the same tasks, if it is known.

    A terminal gets a progress bar that is erased at the end; anything else gets at most `MAX_LINES` lines. The bar
    counts measurements where costs are measured, else iterations, and says what an iteration does, because it stands
    still while networks are trained. The spreads of measurements are added to `spreads`.
    """
    console, model, problem = errors(), learner.cost_model, problem_of(learner.suite[0])
    beginning = f"{called or learner.name} on {learner.suite.name} {learner.suite.split}"
    if goal is not None:
        best = f"{goal.agent} {problem.format_cost(goal.mean_cost_ms)} {problem.unit}"
        beginning += f", to beat on all {counted(len(goal.tasks), 'task')}: {best}"
    console.print(sentence(beginning), soft_wrap=not console.is_terminal)
    interval = math.ceil(learner.iterations / MAX_LINES)
    with new_progress() as progress:
        bar = progress.add_task(learner.name, total=learner.iterations, completed=learner.iteration)
        if isinstance(model, CountedEstimates):
            progress.update(bar, total=learner.planned_queries, completed=model.queries)

            def measured(estimate: CostEstimate | None) -> None:
                if spreads is not None and estimate is not None and "spread" in estimate.details:
                    spreads.append(estimate.details["spread"])
                progress.update(bar, completed=model.queries, description=f"{learner.name}\n{said_of(learner)}")

            model.on_estimate = measured

        def begin(stage: str) -> None:
            iteration = f"iteration {learner.iteration + 1}/{learner.iterations}"
            progress.update(bar, description=f"{iteration}\n{stage}\n{said_of(learner)}")

        learner.on_stage = begin

        def show(learner: Learner, report: Report) -> None:
            iteration = f"iteration {learner.iteration}/{learner.iterations}"
            cost = f"mean cost {problem.format_cost(report.mean_cost_ms)} {problem.unit}"
            said = [cost, *([validation.last] if validation and validation.last else []), said_of(learner)]
            done = model.queries if isinstance(model, CountedEstimates) else learner.iteration
            progress.update(bar, completed=done, description="\n".join([iteration, *said]))
            due = learner.iteration % interval == 0 or learner.iteration == learner.iterations
            if due and not console.is_terminal:
                console.print(sentence(f"{iteration}: {', '.join(said)}"), soft_wrap=True)

        yield show


def _compare(trained: Mapping[str, Agent], tasks: Suite[Any], model: CostModel, guided: Sequence[str]) -> str:
    """Print what trained agents cost on the test tasks beside simple ones; of several also the mean, as of seeds.

    Returns:
        The best of the simple ones: that fails on the fewest tasks, at the least cost.
    """
    problem = problem_of(tasks[0])
    model = problem.model(model)
    others = dict.fromkeys((*problem.rivals, *guided, problem.reference))
    agents = {**trained, **{other: make_agent(other, cost_model=model, suite=tasks.name) for other in others}}
    say(f"Answering {counted(len(tasks), 'test task')} ...", "dim")
    evaluations = evaluate_all(agents, tasks, model)
    output().print()
    reference = evaluations[problem.reference]
    best = best_known_costs(tasks, model)
    print_evaluations(output(), list(evaluations.values()), reference, best, problem, rivals=others)
    if len(trained) > 1:
        say(_over_seeds([evaluations[name] for name in trained], problem))
    return min(others, key=lambda other: (evaluations[other].failures, evaluations[other].mean_cost_ms))


def _over_seeds(evaluations: list[Evaluation], problem: Problem[Any]) -> str:
    """The mean cost of several seeds and its spread, in a sentence."""
    means = np.array([each.mean_cost_ms for each in evaluations])
    low, high = map(problem.format_cost, student_interval(means))
    mean, spread = problem.format_cost(float(means.mean())), problem.format_cost(float(means.std(ddof=1)))
    failed = sum(each.failures for each in evaluations)
    penalties = f" {counted(failed, 'answer')} failed, which counts as the penalty." if failed else ""
    return (
        f"\nMean of {len(means)} seeds: {mean} {problem.unit}, 95% interval {low} to {high} (Student's, over the "
        f"seeds), standard deviation {spread}.{penalties}"
    )
