"""The study of measured costs: agents learn from a few measured placements, and a race on unseen tasks compares them.

A folder of the study holds

measurements.sqlite    what was measured in training
training/NAME-seedK/   the training runs
placements.json        the options of the study, and the placements of all entries, by name
race/                  the race, see `leaderboard.race_files`; race-2/ and so on if it is repeated

Each part is made once: a study that was stopped continues where it was, and measures nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from shard_gym.agents import PAPER_HEURISTICS, Agent, make_agent
from shard_gym.agents.dreamshard.agent import DreamShardAgent
from shard_gym.agents.dreamshard.options import PRESETS
from shard_gym.agents.search import LocalSearchAgent
from shard_gym.agents.training import Learner, TrainingRun, make_learner
from shard_gym.agents.training.run import AGENT
from shard_gym.checks import checked_count
from shard_gym.cost_models import CostModel
from shard_gym.cost_models.analytical import AnalyticalCostModel
from shard_gym.cost_models.calibration import calibrated_profile
from shard_gym.cost_models.measured import model as measured
from shard_gym.envs.real.tasks import as_measured
from shard_gym.errors import DamagedFileError, InvalidOptionError
from shard_gym.evaluation import evaluate, score
from shard_gym.experiments.study import DREAM_SEARCH, LOCAL_SEARCH, PAPER
from shard_gym.hardware import HardwareProfile
from shard_gym.io.arrays import load_arrays
from shard_gym.io.files import read_json, write_json
from shard_gym.io.lock import exclusive_access
from shard_gym.leaderboard.race import Race
from shard_gym.leaderboard.racing import run_race
from shard_gym.placement import Placement
from shard_gym.suites import load_suite
from shard_gym.tasks import Task, TaskSuite

if TYPE_CHECKING:
    from shard_gym.agents.dreamshard.learner import DreamShardLearner

MEASUREMENTS, TRAINING, PLACEMENTS, RACE = "measurements.sqlite", "training", "placements.json", "race"

OPTIONS, PLACED = "options", "placements"
"""Keys of the file of placements."""

RANDOM, CALIBRATED, POLICY = "random", "local-search, calibrated", "maskable-ppo"

ITERATIONS, WARMUP = 5, 1
"""Of a measurement. What differs between two measurements of a placement is more than what differs between the
iterations of one, so time is better spent on more measurements."""

OnStep = Callable[[str], None]
"""Called with what is done now."""


def method_name(preset: str, measurements: int) -> str:
    """The name of a preset of DreamShard trained on so many measured placements."""
    return f"{preset}-{measurements}"


def seeded_name(method: str, seed: int) -> str:
    """The name of a method's entry in the race."""
    return f"{method}-seed{seed}"


class CalibratedSearchAgent(Agent):
    """Local search under the analytical model with the numbers of a calibrated profile.

    Args:
        profile: its device and links replace those of the task.
        seed: of the search.
    """

    name = CALIBRATED

    def __init__(self, profile: HardwareProfile, seed: int = 0) -> None:
        self.profile = profile
        self._search = LocalSearchAgent(seed=seed)

    def calibrated(self, task: Task) -> Task:
        """`task` with the calibrated device and links."""
        topology = replace(task.topology, device=self.profile.device, links=self.profile.links)
        return replace(task, topology=topology)

    def place(self, task: Task) -> Placement:
        """See `Agent`."""
        return self._search.place(self.calibrated(task))


@dataclass(frozen=True)
class HardwareStudy:
    """What is compared, and how it is measured.

    Attributes:
        folder: of the study.
        suite: agents learn from its training tasks and race on its test tasks.
        device: "cpu" or "cuda"; it stands for all devices of a task (layout `sequential`).
        budgets: numbers of placements that DreamShard is trained on, ascending.
        seeds: seeds of everything that learns.
        tasks: test tasks in the race, the first ones; 0 for all.
        rounds: rounds of a race.
        races: number of races, of the same placements.
        policy_iterations: training iterations of MaskablePPO; None for its own number.

    Raises:
        InvalidOptionError: a number has no meaning.
        UnknownNameError: there is no such suite.
    """

    folder: Path
    suite: str = "cpu-40x4"
    device: str = "cpu"
    budgets: tuple[int, ...] = (100, 300)
    seeds: int = 3
    tasks: int = 0
    rounds: int = 3
    races: int = 1
    policy_iterations: int | None = None

    def __post_init__(self) -> None:
        for name in ("seeds", "rounds", "races"):
            checked_count(name, getattr(self, name))
        for budget in self.budgets:
            for preset, options in PRESETS.items():
                if budget < options().measurements or budget % options().measurements:
                    raise InvalidOptionError(
                        f"{budget} measured placements are no whole number of iterations of {preset}, which measures "
                        f"{options().measurements} in each."
                    )
        if not self.budgets or sorted(set(self.budgets)) != list(self.budgets):
            raise InvalidOptionError(f"budgets must be ascending numbers of placements, not {self.budgets}.")
        if not 0 <= self.tasks <= len(self.test):
            raise InvalidOptionError(f"tasks must be from 1 to {len(self.test)}, or 0 for all; it is {self.tasks}.")

    def measuring(self) -> measured.MeasuredCostModel:
        """A new cost model that measures; what it measures in training is kept."""
        cache = self.folder / MEASUREMENTS
        cache.parent.mkdir(parents=True, exist_ok=True)
        return measured.MeasuredCostModel(
            self.device, layout="sequential", iterations=ITERATIONS, warmup=WARMUP, cache=cache
        )

    @cached_property
    def test(self) -> TaskSuite:
        """The tasks of the race, as they are measured."""
        suite = as_measured(load_suite(self.suite, "test"), measured.MeasuredCostModel(self.device))
        return TaskSuite(suite.name, suite.tasks[: self.tasks], suite.split) if self.tasks else suite

    def learner(self, preset: str, budget: int, seed: int) -> DreamShardLearner:
        """DreamShard, trained; it is trained now if it was not before, or not to the end."""
        iterations = budget // PRESETS[preset]().measurements
        options: dict[str, str | int] = {"preset": preset, "iterations": iterations}
        with self.measuring() as model:
            return cast(
                "DreamShardLearner", self._trained("dreamshard", method_name(preset, budget), seed, model, options)
            )

    def policy(self, seed: int) -> Agent:
        """MaskablePPO, trained under the surrogate of dream-search with the largest budget; it measures nothing."""
        surrogate = self.learner(DREAM_SEARCH, self.budgets[-1], seed).agent().cost_model
        options = {} if self.policy_iterations is None else {"iterations": self.policy_iterations}
        return self._trained(POLICY, POLICY, seed, surrogate, options).agent()

    def calibrated(self, seed: int) -> CalibratedSearchAgent:
        """Local search under the model that is calibrated on the measurements of dream-search."""
        learner = self.learner(DREAM_SEARCH, self.budgets[-1], seed)
        return CalibratedSearchAgent(calibrated_profile(learner.measurements), seed)

    def contestants(self) -> Iterator[tuple[str, Callable[[], Agent]]]:
        """The entries of the race, by name, and what makes their agents."""
        for name in (RANDOM, *PAPER_HEURISTICS, LOCAL_SEARCH):
            yield name, partial(make_agent, name)
        for seed in range(self.seeds):
            for budget in reversed(self.budgets):  # the largest first: the others repeat a part of its measurements
                for preset in (DREAM_SEARCH, PAPER):
                    name = seeded_name(method_name(preset, budget), seed)
                    yield name, partial(self._dreamshard, preset, budget, seed)
            yield seeded_name(CALIBRATED, seed), partial(self.calibrated, seed)
            yield seeded_name(POLICY, seed), partial(self.policy, seed)

    def _dreamshard(self, preset: str, budget: int, seed: int) -> Agent:
        return self.learner(preset, budget, seed).agent()

    def measured_in_training(self, name: str) -> int:
        """Number of placements that were measured for an entry that is trained."""
        about: dict[str, float] = load_arrays(self.folder / TRAINING / name / AGENT, "agent")[1]["trained"]
        return int(about["true_cost_queries"])

    @property
    def options(self) -> dict[str, Any]:
        """What is compared, by the name of the attribute."""
        return {name: value for name, value in asdict(self).items() if name != "folder"}

    @property
    def placed_alike(self) -> dict[str, str | int | None]:
        """What changes placements, but not the names of their entries."""
        return {
            "suite": self.suite,
            "SHA-256": load_suite(self.suite, "test").sha256,
            "tasks": len(self.test),
            "device": self.device,
            "largest budget": self.budgets[-1],
            "policy_iterations": self.policy_iterations,
        }

    def _trained(self, agent: str, name: str, seed: int, model: CostModel, options: Mapping[str, str | int]) -> Learner:
        suite = as_measured(load_suite(self.suite, "train"), measured.MeasuredCostModel(self.device))
        learner = make_learner(agent, suite, cost_model=model, seed=seed, **options)
        TrainingRun(learner, self.folder / TRAINING / seeded_name(name, seed), options, resume=True).run()
        return learner


class Facts(NamedTuple):
    """What a race does not tell.

    Attributes:
        options: of the study, see `HardwareStudy.options`.
        cost_model: fingerprint of the analytical model.
        measured: of each trained entry the number of placements that were measured for it.
        estimates_ms: of each model that placements were searched under, by the entry that it made: the (N,) ms that it
            estimates for the placements of `RANDOM`, of the greedy heuristics, and its own; None without a placement.
    """

    options: dict[str, Any]
    cost_model: str
    measured: dict[str, int]
    estimates_ms: dict[str, dict[str, list[float | None]]]


def race_folder(number: int) -> str:
    """Name of the folder of a race, from 0 up."""
    return RACE if number == 0 else f"{RACE}-{number + 1}"


def perform(study: HardwareStudy, on_step: OnStep = lambda step: None) -> list[Race]:
    """Train what is not trained yet, place the test tasks, and run the races, or what is left of them.

    Raises:
        MeasurementError: the machine cannot measure; what was measured is kept.
        InvalidOptionError: the folder holds another study.
        DamagedFileError: the placements in the folder cannot be read.
        UnwritablePathError: the folder cannot be written to.
        MissingExtraError: a package is not installed.
    """
    study.folder.mkdir(parents=True, exist_ok=True)
    with exclusive_access(study.folder):
        kept = _kept_placements(study)
        for name, agent in study.contestants():
            if name not in kept:
                on_step(f"{name}: training and placing")
                kept[name] = [each.placement for each in evaluate(agent(), study.test).tasks]
                write_json(study.folder / PLACEMENTS, {OPTIONS: study.placed_alike, PLACED: kept})
        placements = {
            name: [None if each is None else np.array(each) for each in kept[name]] for name, _ in study.contestants()
        }
        races = []
        with study.measuring() as model:
            for folder in map(race_folder, range(study.races)):
                show = partial(_show, on_step, folder)
                races.append(
                    run_race(study.folder / folder, study.test, placements, model, rounds=study.rounds, progress=show)
                )
    return races


def _show(on_step: OnStep, race: str, done: int, total: int) -> None:
    on_step(f"{race}: {done:,} of {total:,} measurements")


def _kept_placements(study: HardwareStudy) -> dict[str, list[list[int] | None]]:
    """The placements that the folder of `study` holds, by entry."""
    path = study.folder / PLACEMENTS
    if not path.exists():
        return {}
    content = read_json(path)
    if not isinstance(content, dict) or set(content) != {OPTIONS, PLACED}:
        raise DamagedFileError(f"{path} does not hold the placements of a study. Delete it, and they are made again.")
    for name, value in study.placed_alike.items():
        if content[OPTIONS].get(name) != value:
            raise InvalidOptionError(
                f"{study.folder} holds a study whose {name} is {content[OPTIONS].get(name)}, not {value}. Name another "
                "folder."
            )
    kept: dict[str, list[list[int] | None]] = content[PLACED]
    return kept


def facts_of(study: HardwareStudy, race: Race) -> Facts:
    """The facts of a study that was performed."""
    counts, estimates = {}, {}
    makers: dict[str, Agent] = {LOCAL_SEARCH: LocalSearchAgent()}
    for seed in range(study.seeds):
        makers[seeded_name(CALIBRATED, seed)] = study.calibrated(seed)
        for preset, budget in product((DREAM_SEARCH, PAPER), study.budgets):
            name = seeded_name(method_name(preset, budget), seed)
            counts[name] = study.measured_in_training(name)
            makers[name] = study.learner(preset, budget, seed).agent()
    for name, agent in makers.items():
        estimates[name] = {
            entry: [_estimate(agent, task, own) for task, own in zip(study.test, race.placements[entry], strict=True)]
            for entry in (RANDOM, *PAPER_HEURISTICS, name)
        }
    return Facts(study.options, AnalyticalCostModel().fingerprint, counts, estimates)


def _estimate(agent: Agent, task: Task, placement: Placement | None) -> float | None:
    """Ms that the model of `agent` estimates."""
    if placement is None:
        return None
    if isinstance(agent, CalibratedSearchAgent):
        return score(agent.calibrated(task), placement, AnalyticalCostModel())
    return score(task, placement, agent.cost_model if isinstance(agent, DreamShardAgent) else AnalyticalCostModel())
