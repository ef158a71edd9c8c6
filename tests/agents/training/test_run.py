"""A run in a folder: it goes on where it was stopped, wherever that was, and refuses what is not its own."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import load_agent
from shard_gym.agents.training import Learner, Report, TrainingRun, make_learner, run
from shard_gym.common.errors import (
    DamagedFileError,
    InvalidCheckpointError,
    InvalidOptionError,
    TrainingDivergedError,
    UnwritablePathError,
)
from shard_gym.common.io.arrays import load_arrays, save_arrays
from shard_gym.common.io.lock import LOCK
from shard_gym.tasks import TaskSuite

Make = Callable[..., TrainingRun]
FILES = [("agent.safetensors", "agent"), ("training.safetensors", "training")]


@pytest.fixture
def make(folder: Path) -> Make:
    """A run of the walk in `folder`; the options go to the walk, and `seed` and `suite` to what makes it."""

    def made(*, resume: bool = False, suite: str = "dlrm-20x4", seed: int = 0, **options: Any) -> TrainingRun:
        return TrainingRun(make_learner("walk", suite, seed=seed, **options), folder, options, resume=resume)

    return made


def contents(folder: Path) -> list[Any]:
    """Arrays, bit by bit, and what was said of them but for the time it took."""
    found: list[Any] = []
    for name, kind in FILES:
        arrays, about = load_arrays(folder / name, kind)
        about.get("trained", about).pop("seconds")
        found.append(({key: (each.dtype.str, each.shape, each.tobytes()) for key, each in arrays.items()}, about))
    return found


def logged(folder: Path, name: str) -> dict[int, float]:
    """What TensorBoard shows of one number, by iteration; each iteration may stand once only."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "log")).Reload().Scalars(name)
    assert len({event.step for event in events}) == len(events)
    return {event.step: event.value for event in events}


def test_a_run_leaves_the_agent_the_state_the_configuration_and_a_log(make: Make, folder: Path) -> None:
    training = make()
    said: list[tuple[int, float, int]] = []
    agent = training.run(lambda learner, report: said.append((learner.iteration, report.mean_cost_ms, learner.seed)))
    assert sorted(path.name for path in folder.iterdir() if path.name != LOCK) == [
        "agent.safetensors",
        "config.json",
        "log",
        "training.safetensors",
    ]
    arrays, about = load_arrays(folder / "agent.safetensors", "agent")
    assert float(arrays["position"]) == agent.position
    assert (about["agent"], about["legs"]) == ("walk", 2)
    assert about["trained"]["true_cost_queries"] == about["trained"]["iteration"] == 4
    config = json.loads((folder / "config.json").read_text())
    assert config.items() <= about["trained"].items()
    assert (config["suite"], config["split"], config["seed"], config["options"]) == ("dlrm-20x4", "train", 0, {})
    assert [iteration for iteration, _, _ in said] == [1, 2, 3, 4]
    costs = logged(folder, "mean_cost_ms")
    assert costs == {iteration: pytest.approx(cost) for iteration, cost, _ in said}
    assert logged(folder, "true_cost_queries") == {1: 1, 2: 2, 3: 3, 4: 4}
    assert logged(folder, "position")[4] == pytest.approx(agent.position)


def test_programs_that_follow_the_writer_of_tensorboard_see_the_log(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `wandb.init(sync_tensorboard=True)`, which puts a class of its own in the place of the writer."""
    from tensorboard.summary.writer import event_file_writer

    seen = []

    class Following(event_file_writer.EventFileWriter):  # type: ignore[misc]
        def __init__(self, logdir: str, *rest: Any, **options: Any) -> None:
            seen.append(Path(logdir))
            super().__init__(logdir, *rest, **options)

    monkeypatch.setattr(event_file_writer, "EventFileWriter", Following)
    make().run()
    assert seen == [folder / "log"]
    assert len(logged(folder, "position")) == 4


@pytest.mark.parametrize("stop", ["iterate", "log", "agent", "training", "told"])
def test_a_run_stopped_anywhere_goes_on_to_the_same_end(
    make: Make, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, walk: Any, stop: str
) -> None:
    """The stop comes in the third iteration: before it, before its log, before either of its files, and after all."""
    at = 3

    def tell(learner: Learner, _: Report) -> None:
        stop_if(stop == "told" and learner.iteration == at)

    def stop_if(wanted: bool) -> None:
        if wanted:
            raise KeyboardInterrupt

    def stopping(place: str, function: Any) -> Any:
        def call(*args: Any) -> Any:
            stop_if(stop == place and training.learner.iteration == at - (place == "iterate"))
            return function(*args)

        return call

    def saving(path: Path, kind: str, *rest: Any) -> None:
        stop_if(stop == kind and training.learner.iteration == at)
        save_arrays(path, kind, *rest)

    training = make()
    with monkeypatch.context() as patched:
        patched.setattr(walk, "iterate", stopping("iterate", walk.iterate))
        patched.setattr(run, "save_arrays", saving)
        patched.setattr(run.TrainingLog, "add", stopping("log", run.TrainingLog.add))
        with pytest.raises(KeyboardInterrupt):
            training.run(tell)
    finished = make(resume=True)
    assert finished.learner.iteration == at - (stop != "told")
    finished.run()
    whole = tmp_path / "whole"
    TrainingRun(make_learner("walk", "dlrm-20x4"), whole, {}).run()
    assert contents(folder) == contents(whole)
    for name in ("mean_cost_ms", "position", "true_cost_queries"):
        assert logged(folder, name) == logged(whole, name)


def test_one_program_at_a_time_trains_in_a_folder(make: Make) -> None:
    def second(learner: Learner, _: Report) -> None:
        with pytest.raises(InvalidOptionError, match=r"Another program is adding to .* name another folder"):
            make(resume=True).run()

    make().run(second)


def test_the_agent_of_an_unfinished_run_loads_with_a_warning(make: Make, folder: Path, killed: Any) -> None:
    killed(make(), 1)
    with pytest.warns(UserWarning, match=r"unfinished run: 1 of 4 iterations are done\. Finish it .* --resume"):
        load_agent(folder)
    make(resume=True).run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_agent(folder)


def test_a_finished_run_resumes_to_the_same_agent_without_another_iteration(make: Make, folder: Path) -> None:
    first = make()
    agent = first.run()
    before = {path: path.read_bytes() for path in folder.glob("*.*")}
    again = make(resume=True)
    assert again.run().position == agent.position
    assert again.seconds == first.seconds > 0
    assert again.learner.true_cost_queries == 4
    assert {path: path.read_bytes() for path in folder.glob("*.*")} == before
    whole = contents(folder)
    (folder / "agent.safetensors").write_bytes(b"damaged")
    make(resume=True).run()
    assert contents(folder) == whole


def test_what_could_be_measured_and_what_not_is_counted_on_after_a_resume(make: Make, folder: Path) -> None:
    first = make()
    first.learner.costed, first.learner.failures = 5, 2
    first.run()
    learner = make(resume=True).learner
    assert (learner.costed, learner.failures) == (5, 2)
    assert load_arrays(folder / "agent.safetensors", "agent")[1]["trained"]["failures"] == 2
    arrays, about = load_arrays(folder / "training.safetensors", "training")
    del about["costed"], about["failures"]  # as an older version wrote it
    save_arrays(folder / "training.safetensors", "training", arrays, about)
    assert make(resume=True).learner.failures == 0


def test_a_run_that_learns_from_other_sources_is_refused(folder: Path) -> None:
    def learner(**sources: Any) -> Learner:
        made = make_learner("walk", "dlrm-20x4")
        made.sources = sources
        return made

    TrainingRun(learner(data_sha256="a1"), folder, {}).run()
    assert load_arrays(folder / "agent.safetensors", "agent")[1]["trained"]["data_sha256"] == "a1"
    TrainingRun(learner(data_sha256="a1"), folder, {}, resume=True)
    for other, named in ((learner(data_sha256="b2"), "'b2'"), (learner(), "None")):
        with pytest.raises(InvalidOptionError, match=f"was started with data_sha256 'a1', not {named}"):
            TrainingRun(other, folder, {}, resume=True)


def test_incomplete_files_of_a_killed_save_are_removed(make: Make, folder: Path) -> None:
    make().run()
    (folder / ".shard-gym-abc").write_bytes(b"half a state")
    (folder / "notes").touch()
    make(resume=True)  # another program may train there until `run` has the folder to itself
    assert (folder / ".shard-gym-abc").exists()
    make(resume=True).run()
    assert list(folder.glob(".shard-gym-*")) == []
    assert (folder / "notes").exists()


def test_a_folder_with_a_run_is_only_resumed_and_only_if_it_is_whole(make: Make, folder: Path) -> None:
    make()  # not even begun
    with pytest.raises(InvalidOptionError, match=f"{folder} already holds a training run, or its agent. Resume it"):
        make()
    make(resume=True).run()
    agent, config = folder / "agent.safetensors", folder / "config.json"
    kept, configuration = agent.read_bytes(), config.read_text()
    for content, says in (("{", "not readable JSON"), ("[]", "not the configuration of a run")):
        config.write_text(content)
        with pytest.raises(DamagedFileError, match=says):
            make(resume=True)
    config.write_text(configuration)
    (folder / "training.safetensors").unlink()
    with pytest.raises(InvalidCheckpointError, match=r"an agent after 4 iterations, but no training\.safetensors"):
        make(resume=True)
    config.unlink()
    with pytest.raises(InvalidOptionError, match="already holds a training run, or its agent"):
        make()
    with pytest.raises(DamagedFileError, match=r"but no config\.json"):
        make(resume=True)
    assert agent.read_bytes() == kept


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seed": 1}, "started with seed 0, not 1"),
        ({"iterations": 5}, "started with options {}, not {'iterations': 5}"),
        ({"suite": "dlrm-40x4"}, "started with suite 'dlrm-20x4', not 'dlrm-40x4'"),
    ],
)
def test_another_configuration_is_rejected_by_its_key(make: Make, changes: dict[str, Any], says: str) -> None:
    make().run()
    with pytest.raises(InvalidOptionError, match=says):
        make(resume=True, **changes)


def test_another_agent_or_other_tasks_are_rejected(make: Make, folder: Path, walk: Any, suite: TaskSuite) -> None:
    learner = make().learner
    mine = TaskSuite(suite.name, suite.tasks[:3], suite.split)
    for tasks, name, says in ((suite, "run", "agent 'walk', not 'run'"), (mine, "walk", r"suite_sha256 '.*', not ''")):
        with pytest.raises(InvalidOptionError, match=says):
            TrainingRun(walk(tasks, learner.cost_model.model, 0, name=name), folder, {}, resume=True)


@pytest.mark.parametrize(
    ("arrays", "about", "says"),
    [
        ({"position": np.zeros(2)}, {}, r"not a state of this run. The state holds 'position' with shape \(2,\)"),
        ({"position": np.zeros(())}, {"seconds": "long"}, "does not hold the progress"),
        ({"position": np.zeros(())}, {"costed": None, "failures": None}, "does not hold the progress"),
        (
            {"position": np.zeros(())},
            {"iteration": 1.0},
            "does not hold the progress.*has iteration 1.0, but it must be int",
        ),
        ({"position": np.zeros(())}, {"iteration": 5}, "iteration is 5, but it must be from 0 to 4"),
        ({"position": np.zeros(())}, {"true_cost_queries": -5}, "true_cost_queries is -5, but it must be from 0"),
        ({"position": np.zeros(())}, {"failures": 10**40}, "failures is 1000.*, but it must be from 0"),
        ({"position": np.zeros(())}, {"surprise": 1}, "has the unknown key 'surprise'"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(
    make: Make, folder: Path, arrays: dict[str, Any], about: dict[str, Any], says: str
) -> None:
    make().run()
    progress = {"iteration": 1, "true_cost_queries": 1, "seconds": 0.0}
    save_arrays(folder / "training.safetensors", "training", arrays, progress | about)
    with pytest.raises(InvalidCheckpointError, match=says) as caught:
        make(resume=True)
    assert str(folder / "training.safetensors") in str(caught.value)


def test_a_file_in_the_place_of_a_folder_is_found_before_anything_is_written(make: Make, folder: Path) -> None:
    folder.parent.write_text("in the way")
    with pytest.raises(UnwritablePathError):
        make()
    folder.parent.unlink()
    folder.mkdir(parents=True)
    (folder / "log").write_text("mine")
    with pytest.raises(UnwritablePathError, match="where the log's folder should be"):
        make()
    assert [path.name for path in folder.iterdir()] == ["log"]


@pytest.mark.parametrize("raises", [False, True])
def test_weights_that_are_no_numbers_end_the_run_at_the_iteration_before(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    training = make()
    iterate = training.learner.iterate

    def diverging() -> Report:
        report = iterate()
        if training.learner.iteration == 2:
            training.learner.position = np.array(np.nan)
            if raises:
                raise ValueError("a distribution of NaN")
        return report

    monkeypatch.setattr(training.learner, "iterate", diverging)
    with pytest.raises(TrainingDivergedError, match=r"Iteration 3 of 'walk' .* smaller learning_rate") as caught:
        training.run()
    assert isinstance(caught.value.__cause__, ValueError) == raises
    assert make(resume=True).learner.iteration == 2


def test_other_errors_of_a_learner_are_its_own(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    training = make()
    monkeypatch.setattr(training.learner, "iterate", lambda: int("something else"))
    with pytest.raises(ValueError, match="something else"):
        training.run()
