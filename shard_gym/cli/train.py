"""`shard-gym train`: a learned agent, trained on a suite."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from shard_gym.agents import PAPER_HEURISTICS, Agent, make_agent
from shard_gym.agents.training import Learner, Report, TrainingRun, Validation, make_learner
from shard_gym.agents.training.run import AGENT, LOG, OnReport
from shard_gym.agents.training.validation import NUM_TASKS
from shard_gym.cli.agent_options import AgentOptions, parse_options
from shard_gym.cli.console import REFERENCE, errors, new_progress, output, say, sentence
from shard_gym.cli.evaluate import evaluate_all, print_evaluations
from shard_gym.cli.measuring import print_spread, warn_of_load
from shard_gym.cli.options import CostModelOptions, OptionalInt, OptionalPath, command_line
from shard_gym.cost_models import CostEstimate, CostModel, CountedEstimates
from shard_gym.envs.real.tasks import as_measured
from shard_gym.errors import InvalidOptionError
from shard_gym.evaluation import Evaluation, evaluate
from shard_gym.io.files import require_writable
from shard_gym.io.pictures import require_picture, save_picture
from shard_gym.plots import plot_learning
from shard_gym.problems import problem_of
from shard_gym.suites import load_suite
from shard_gym.suites.best_known import best_known_costs
from shard_gym.tasks import Suite
from shard_gym.text import counted, format_seconds

MEASUREMENTS = "measurements.sqlite"  # file of a run's folder that keeps what was measured
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
    def make(self, cache: Path | None = None) -> CostModel:
        given = vars(self) if self.measures else {**vars(self), "device": None}
        return CostModelOptions(**given).make(cache)


def train(
    agent: str,
    suite: str,
    out: Path,
    option: AgentOptions,
    split: str = "train",
    cost: TrainingCosts = TrainingCosts(),
    data: OptionalPath = None,
    seed: int = 0,
    resume: bool = False,
    validate: OptionalInt = None,
    plot: OptionalPath = None,
    no_evaluate: bool = False,
) -> None:
    """Train a learned agent, and compare it with agents that need no training.

    Every iteration is saved: resume a run that was stopped with --resume. After each one the agent answers the same
    few training tasks, and the line of its progress says how far they cost under or over the best simple agent.

    With measured costs, a warning says if the machine is not idle.

    Args:
        agent: dreamshard, autoshard, neuroshard, surco, attention, rnn, ppo, maskable-ppo, a2c or dqn; on suites of
            replanning ppo, maskable-ppo or recurrent-ppo.
        suite: name of the suite; `shard-gym suites` lists them.
        out: folder for the trained agent, the state of its training, and the log for TensorBoard.
        option: an option of the agent, such as iterations=20; repeat it for more. `shard-gym agents` lists them all.
        split: split to learn from, train or test.
        cost: the cost model of the placements that the agent learns from. Measurements are kept in the run's folder
            unless --cache says where, so that a run that was killed measures nothing twice.
        data: folder of measurements (shard-gym collect) to learn from in place of new ones; for dreamshard. The run
            keeps its checksum, so it does not resume after the folder changed.
        seed: of everything random.
        resume: resume the run in the folder, if there is one.
        validate: training tasks, of all sizes, that are answered after each iteration, of long runs after up to 50 of
            them; 0 for none. 5 if not given, but none where that takes long: with measured costs, of replanning, and
            for surco.
        plot: draw what these tasks cost over the iterations to this file, .png, .svg or .pdf.
        no_evaluate: do not answer the test tasks afterwards. With measured costs they never are: see shard-gym race.
    """
    options: dict[str, Any] = parse_options(option) | ({} if data is None else {"data": str(data)})
    if plot is not None:
        require_picture(plot)
    if cost.measures:
        require_writable(out / MEASUREMENTS)
        out.mkdir(parents=True, exist_ok=True)
    model = cost.make(cache=out / MEASUREMENTS)
    tasks = as_measured(load_suite(suite, split), model)
    learner = make_learner(agent, tasks, cost_model=model, seed=seed, device=cost.trains_on, **options)
    validation = _validation(learner, validate)
    if plot is not None and validation is None:
        raise InvalidOptionError("--plot draws the validation of each iteration, and there is none; add --validate 5.")
    run = TrainingRun(learner, out, options, resume=resume, validation=validation)
    try:
        comparable = not (cost.measures or data)  # the costs in `data` are of other tables
        if cost.measures:
            warn_of_load()
        spreads: list[float] = []
        goal = _goal(tasks, model) if comparable else None
        with watch(learner, goal, spreads, validation) as on_report:
            trained = run.run(on_report)
        done = f"{counted(learner.iterations, 'iteration')}, {_evaluations(learner)}, {format_seconds(run.seconds)}"
        output().print(sentence(f"Trained {learner.name}: {done}."))
        say(f"Written to {run.folder / AGENT}.", "dim")
        if plot is not None and validation is not None:
            save_picture(plot_learning({learner.name: validation.curve}), plot)
            say(f"Drawn to {plot}.", "dim")
        if spreads:
            print_spread("The iterations of a measurement", float(np.median(spreads)), "--iterations")
        if not (no_evaluate or cost.measures):
            _compare(agent, trained, load_suite(suite), model)
    except KeyboardInterrupt:
        given = {"agent": agent, "suite": suite, "out": out, "option": option, "split": split, **vars(cost)}
        given["data"] = data
        given |= {"seed": seed, "validate": validate, "plot": plot, "no_evaluate": no_evaluate}
        command = command_line("train", **given, resume=True)
        message = f"Interrupted. All finished iterations are saved; resume with:\n{command}"
        raise KeyboardInterrupt(message) from None
    evaluating = command_line("evaluate", agent=[out, problem_of(tasks[0]).rivals[-1]], suite=suite)
    if cost.measures:
        rivals = [str(out), REFERENCE, *PAPER_HEURISTICS]
        measuring = {name: value for name, value in vars(cost).items() if name not in ("cost_model", "cache")}
        evaluating = command_line("race", suite=suite, entry=rivals, **measuring, out="runs/race")
    watching = shlex.join(["tensorboard", "--logdir", str(out / LOG)])
    say(f"\nNext: {evaluating}\n      {watching}")


def _validation(learner: Learner, count: int | None) -> Validation | None:
    """The validation on `count` tasks; if that is not given, on `NUM_TASKS` where it is cheap."""
    if count is None:
        count = NUM_TASKS if Validation.is_cheap(learner) else 0
    if count == 0:
        return None
    problem = problem_of(learner.suite[0])
    rivals = [make_agent(name, suite=learner.suite.name) for name in problem.goals or problem.rivals]
    return Validation(learner, rivals, count)


def _goal(tasks: Suite[Any], model: CostModel) -> Evaluation | None:
    """The cheapest of the problem's goals on the tasks to learn from, of those that fail on the fewest."""
    goals = problem_of(tasks[0]).goals
    evaluations = [evaluate(make_agent(name, suite=tasks.name), tasks, model) for name in goals]
    return min(evaluations, key=lambda each: (each.failures, each.mean_cost_ms), default=None)


@contextmanager
def watch(
    learner: Learner,
    goal: Evaluation | None,
    spreads: list[float] | None = None,
    validation: Validation | None = None,
) -> Iterator[OnReport]:
    """Show the progress of training on standard error, below the heuristic to beat on the same tasks, if it is known.

    A terminal gets a progress bar that is erased at the end; anything else gets at most `MAX_LINES` lines. The bar
    counts measurements where costs are measured, else iterations, and says what an iteration does, because it stands
    still while networks are trained. The spreads of measurements are added to `spreads`.
    """
    console, model, problem = errors(), learner.cost_model, problem_of(learner.suite[0])
    beginning = f"{learner.name} on {learner.suite.name} {learner.suite.split}"
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
                progress.update(bar, completed=model.queries, description=f"{learner.name}\n{_evaluations(learner)}")

            model.on_estimate = measured

        def begin(stage: str) -> None:
            iteration = f"iteration {learner.iteration + 1}/{learner.iterations}"
            progress.update(bar, description=f"{iteration}\n{stage}\n{_evaluations(learner)}")

        learner.on_stage = begin

        def show(learner: Learner, report: Report) -> None:
            iteration = f"iteration {learner.iteration}/{learner.iterations}"
            cost = f"mean cost {problem.format_cost(report.mean_cost_ms)} {problem.unit}"
            said = [cost, *([validation.last] if validation and validation.last else []), _evaluations(learner)]
            done = model.queries if isinstance(model, CountedEstimates) else learner.iteration
            progress.update(bar, completed=done, description="\n".join([iteration, *said]))
            due = learner.iteration % interval == 0 or learner.iteration == learner.iterations
            if due and not console.is_terminal:
                console.print(sentence(f"{iteration}: {', '.join(said)}"), soft_wrap=True)

        yield show


def _evaluations(learner: Learner) -> str:
    if not isinstance(learner.cost_model, CountedEstimates):
        replans = problem_of(learner.suite[0]).name == "replanning"
        return counted(learner.true_cost_queries, "decision" if replans else "cost-model evaluation")
    return f"{counted(learner.true_cost_queries, 'measurement')}, {counted(learner.failures, 'failure')}"


def _compare(name: str, trained: Agent, tasks: Suite[Any], model: CostModel) -> None:
    problem = problem_of(tasks[0])
    others = dict.fromkeys((*problem.rivals, problem.reference))
    agents = {name: trained, **{other: make_agent(other, suite=tasks.name) for other in others}}
    model = problem.model(model)
    evaluations = list(evaluate_all(agents, tasks, model).values())
    reference = next(each for each in evaluations if each.agent == problem.reference)
    output().print()
    print_evaluations(output(), evaluations, reference, best_known_costs(tasks, model), problem)
