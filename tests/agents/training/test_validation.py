"""The learning curve of a run: the same tasks in every iteration, scored by hand, and as whole after a stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from shard_gym.agents import PAPER_HEURISTICS, make_agent
from shard_gym.agents.training import Learner, Report, TrainingRun, Validation, load_curve, make_learner, run
from shard_gym.agents.training.validation import goal_of, guided_rivals, spread_over_sizes
from shard_gym.common.errors import DamagedFileError, InvalidOptionError, NoPlacementFoundError
from shard_gym.common.io.arrays import save_arrays
from shard_gym.cost_models import AnalyticalCostModel, CostModel
from shard_gym.evaluation import evaluate
from shard_gym.evaluation.curve import CURVE, Curve
from shard_gym.tasks import load_suite

Make = Callable[..., TrainingRun]
RIVALS = [make_agent(name) for name in PAPER_HEURISTICS]
REPLANNING = "drift-strong-30"


def rnn(iterations: int = 3) -> Learner:
    return make_learner("rnn", "dlrm-20x4", iterations=iterations, episodes=2, hidden=4)


@pytest.fixture
def make(folder: Path) -> Make:
    def made(*, tasks: int = 3, resume: bool = False, iterations: int = 3) -> TrainingRun:
        learner = rnn(iterations)
        return TrainingRun(learner, folder, {}, resume=resume, validation=Validation(learner, RIVALS, tasks))

    return made


def test_each_point_is_the_cost_of_the_agent_of_its_iteration(make: Make, folder: Path) -> None:
    training, expected = make(), []

    def tell(learner: Any, _: Any) -> None:
        suite = spread_over_sizes(learner.suite, 3)
        found, simple = evaluate(learner.agent(), suite), evaluate(make_agent(curve.reference), suite)
        ratio = (found.costs_ms / simple.costs_ms).mean() - 1.0
        expected.append((learner.iteration, 2 * learner.iteration, found.mean_cost_ms, ratio, found.failures))

    assert training.validation
    curve = training.validation.curve
    training.run(tell)
    points = [tuple(vars(point).values()) for point in load_curve(folder).points]
    assert points == [pytest.approx(each) for each in expected]
    assert len({point[2] for point in points}) > 1
    assert load_curve(folder / CURVE) == curve
    logged = EventAccumulator(str(folder / "log")).Reload().Scalars("validation/to_reference")
    assert [(event.step, event.value) for event in logged] == [(each[0], pytest.approx(each[3])) for each in expected]


def test_an_answer_that_fails_costs_its_penalty_and_is_counted_in_the_line(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = make()
    assert training.validation
    tasks = list(spread_over_sizes(training.learner.suite, 3))

    class Stuck:
        name = "stuck"

        def place(self, task: Any) -> Any:
            if task.name == tasks[1].name:
                raise NoPlacementFoundError("It has no room.")
            return make_agent(training.validation.curve.reference).place(task)

    monkeypatch.setattr(training.learner, "agent", Stuck)
    training.run()
    point, model = training.validation.curve.points[-1], AnalyticalCostModel()
    reference = evaluate(make_agent(training.validation.curve.reference), spread_over_sizes(training.learner.suite, 3))
    excess = model.penalty_ms(tasks[1].tables, tasks[1].topology) / reference.costs_ms[1] - 1.0
    assert point.to_reference == pytest.approx(excess / 3)
    assert training.validation.last == f"validation {excess / 3:.1%} over {reference.agent}, 1 of 3 failed"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Curve:
    """That of a run that was not stopped."""
    learner, folder = rnn(), tmp_path_factory.mktemp("whole")
    TrainingRun(learner, folder, {}, validation=Validation(learner, RIVALS, 3)).run()
    return load_curve(folder)


@pytest.mark.parametrize("stop", ["agent", "training", "told"])
def test_a_stopped_run_goes_on_with_the_same_curve(
    make: Make, whole: Curve, folder: Path, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    def saving(path: Path, kind: str, *rest: Any) -> None:
        if stop == kind and training.learner.iteration == 2:
            raise KeyboardInterrupt
        save_arrays(path, kind, *rest)

    def tell(learner: Any, _: Any) -> None:
        if stop == "told" and learner.iteration == 2:
            raise KeyboardInterrupt

    training = make()
    with monkeypatch.context() as patched:
        patched.setattr(run, "save_arrays", saving)
        with pytest.raises(KeyboardInterrupt):
            training.run(tell)
    make(resume=True).run()
    assert load_curve(folder) == whole
    assert [point.iteration for point in whole.points] == [1, 2, 3]


def test_a_curve_has_at_most_fifty_points_the_last_included(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    training = make(tasks=1, iterations=101)
    monkeypatch.setattr(training.learner, "iterate", lambda: Report(1.0, {}))
    training.run()
    assert training.validation
    assert [point.iteration for point in training.validation.curve.points] == [*range(3, 101, 3), 101]


def test_a_curve_of_other_tasks_is_not_continued(make: Make) -> None:
    make(iterations=1).run()
    with pytest.raises(InvalidOptionError, match=r"has tasks \[.*\], not \[.*on as many tasks"):
        make(tasks=2, iterations=1, resume=True)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.replace('"iteration": 2', '"iteration": 1'), "not in the order"),
        (lambda text: text.replace('"failures": 0', '"failures": "none"'), "Point 1 of .* has failures 'none', but"),
        (
            lambda text: text.replace('"mean_cost_ms": ', '"mean_cost_ms": -'),
            "Point 1 of .* has mean_cost_ms -.* least 0",
        ),
        (lambda text: text.replace('"tasks": [', '"tasks": [7, '), r"has tasks \[7, .*must be names"),
        (lambda text: text.replace('"reference"', '"rival"'), "unknown key"),
        (lambda text: text[:40], "curve.json"),
    ],
)
def test_a_damaged_curve_is_refused(make: Make, folder: Path, change: Callable[[str], str], says: str) -> None:
    make(tasks=1, iterations=2).run()
    path = folder / CURVE
    path.write_text(change(path.read_text()))
    with pytest.raises(DamagedFileError, match=says):
        make(tasks=1, iterations=2, resume=True)


def test_the_tasks_are_spread_over_the_sizes_of_the_suite() -> None:
    suite = load_suite("mixdim-4", "train")
    for count in (1, 2, 5, 50, 60):
        chosen = spread_over_sizes(suite, count)
        sizes = [task.num_tables for task in chosen]
        assert len(chosen) == len({task.name for task in chosen}) == min(count, len(suite))
        assert sizes == sorted(sizes)
        if count > 1:
            every = [task.num_tables for task in suite]
            assert (sizes[0], sizes[-1]) == (min(every), max(every))


def test_no_validation_is_cheap_where_costs_are_measured_or_replanned() -> None:
    class Estimates(CostModel):
        name, version = "estimates", "1"
        estimate = AnalyticalCostModel().estimate
        penalty_ms = AnalyticalCostModel().penalty_ms

    pytest.importorskip("stable_baselines3")
    assert Validation.is_cheap(make_learner("walk", "dlrm-20x4"))
    assert not Validation.is_cheap(make_learner("walk", "dlrm-20x4", cost_model=Estimates()))
    assert not Validation.is_cheap(make_learner("surco", "dlrm-20x4"))
    assert not Validation.is_cheap(make_learner("ppo", REPLANNING, num_envs=2, width=4))


def test_it_wants_at_least_one_task() -> None:
    with pytest.raises(InvalidOptionError, match="number of tasks to validate on"):
        Validation(rnn(), RIVALS, -1)


@pytest.mark.parametrize(
    ("agent", "options", "guided"),
    [
        ("maskable-ppo", {}, ("cost-greedy",)),
        ("maskable-ppo", {"observation": "features"}, ()),
        ("rnn", {}, ()),
        ("dreamshard", {}, ()),
    ],
)
def test_who_sees_costs_is_compared_with_who_looks_at_costs(
    agent: str, options: dict[str, Any], guided: tuple[str, ...]
) -> None:
    tasks, model = spread_over_sizes(load_suite("mixdim-4", "train"), 5), AnalyticalCostModel()
    assert guided_rivals(agent, options, tasks) == guided
    goal = goal_of(tasks, model, guided)
    assert goal is not None
    assert goal.agent == "moldable"
