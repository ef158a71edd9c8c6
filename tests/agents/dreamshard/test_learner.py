"""DreamShard in training, and the checkpoints of the package, which place without torch."""

from __future__ import annotations

import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from shard_gym.agents import PAPER_HEURISTICS, RandomAgent, load_agent, make_agent
from shard_gym.agents.dreamshard.learner import DreamShardLearner
from shard_gym.agents.training import TrainingRun, make_learner
from shard_gym.agents.training.loads import ShardLoad, random_load
from shard_gym.common.errors import (
    DamagedFileError,
    InvalidCheckpointError,
    InvalidOptionError,
    NoPlacementFoundError,
    UnknownNameError,
)
from shard_gym.common.io.arrays import load_arrays
from shard_gym.cost_models import AnalyticalCostModel, CountedCostModel, make_cost_model
from shard_gym.cost_models.fitting import PlacementSampler, collect, load_measurements
from shard_gym.evaluation import evaluate
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.leaderboard.training_data import recorded_training
from shard_gym.plans import check_plan
from shard_gym.plans.placement import Placement, check_placement
from shard_gym.tables import Tables, Workload, load_pool
from shard_gym.tasks import Task, TaskSampler, TaskSuite, load_suite

Make = Callable[..., DreamShardLearner]
PRESETS = pytest.mark.parametrize("preset", ["paper", "dream-search"])
SMALL: dict[str, dict[str, Any]] = {
    "paper": {"iterations": 2, "measurements": 4, "cost_updates": 20, "policy_updates": 2, "episodes": 4},
    "dream-search": {"iterations": 2, "measurements": 6, "cost_updates": 20, "queries": 200},
}


@pytest.fixture(scope="session")
def new_learner(small_suite: TaskSuite) -> Callable[..., DreamShardLearner]:
    def make(preset: str, seed: int = 0, suite: TaskSuite = small_suite, **changes: Any) -> DreamShardLearner:
        return DreamShardLearner(
            suite, make_cost_model("analytical"), seed, preset=preset, **{**SMALL[preset], **changes}
        )

    return make


def test_it_finds_a_planted_optimum(planted_suite: Callable[..., Any], new_learner: Make, trained: Any) -> None:
    """Copies of the same tables: the best placement has one of each on every device."""
    suite, best = planted_suite(np.random.default_rng(0), 3, 4, 3)
    learner = new_learner("dream-search", suite=suite, iterations=2, measurements=10, cost_updates=50, queries=300)
    stages = list[str]()
    learner.on_stage = stages.append
    trained(learner)
    assert stages == ["measuring placements", "training the cost network"] * 2
    np.testing.assert_allclose(evaluate(learner.agent(), suite).costs_ms, best, rtol=0.01)
    assert (evaluate(RandomAgent(), suite).costs_ms > 1.1 * best).any()  # it was not easy


def test_the_policy_of_the_paper_learns_under_the_surrogate(
    planted_suite: Callable[..., Any], new_learner: Make, trained: Any
) -> None:
    suite, _ = planted_suite(np.random.default_rng(0), 1, 4, 3)
    learner = new_learner("paper", suite=suite, iterations=3, measurements=10, cost_updates=80, policy_updates=20)
    reports = trained(learner)
    assert evaluate(learner.agent(), suite).mean_cost_ms < 0.9 * reports[0].mean_cost_ms
    drawn = [report.numbers["surrogate_cost_ms"] for report in reports]  # mean of the episodes that the policy draws
    assert drawn[-1] < drawn[0]
    state = learner.state()
    with pytest.raises(InvalidCheckpointError, match="measurements"):
        learner.load_state({**state, "data.start": state["data.start"][:-2]})


def test_a_loaded_agent_searches_as_long_as_it_is_told(new_learner: Make, tmp_path: Path) -> None:
    TrainingRun(new_learner("dream-search"), tmp_path / "search", {}).run()
    long, short = (load_agent(tmp_path / "search", queries=queries) for queries in (800, 1))
    assert (long.search_budget, short.search_budget) == (800, 1)
    surrogate, suite = long.cost_model, new_learner("paper").suite  # type: ignore[attr-defined]
    costs = [
        sum(surrogate.estimate(agent.place(task), task.tables, task.topology).total_ms for task in suite)
        for agent in (long, short)
    ]
    assert costs[0] < costs[1]
    TrainingRun(new_learner("paper"), tmp_path / "paper", {}).run()
    assert load_agent(tmp_path / "paper").search_budget == 0
    for path, options, known in (
        ("search", {"query": 3}, "queries"),
        ("search", {"network": "neuroshard"}, "queries"),  # settled in training
        ("paper", {"queries": 3}, "none"),
    ):
        with pytest.raises(UnknownNameError, match=f"Known: {known}"):
            load_agent(tmp_path / path, **options)


def test_placements_that_are_not_found_cost_their_penalty_and_no_measurement(random_task: Callable[..., Task]) -> None:
    """Four equal tables, three devices with room for one: no placement is valid, but random loads are measured."""
    task = random_task(np.random.default_rng(0), 4, 3)
    tables = task.tables.select([0, 0, 0, 0])
    full = replace(task.topology, memory_cap_bytes=np.full(3, 3 * tables.memory_bytes[0] // 2))
    suite, model = TaskSuite("full", (Task("full", tables, full),)), make_cost_model("analytical")
    penalty = model.penalty_ms(tables, full)
    for preset, measured in (("dream-search", 2), ("paper", 0)):
        learner = DreamShardLearner(suite, model, preset=preset, iterations=2, measurements=2, cost_updates=5)
        learner.iterate()
        learner.iteration += 1
        assert learner.iterate().mean_cost_ms == pytest.approx(penalty)
        assert learner.true_cost_queries == measured
        with pytest.raises(NoPlacementFoundError):
            learner.agent().place(suite[0])


def placed(load: ShardLoad) -> tuple[Tables, Topology, Placement]:
    assert load.placement is not None
    return load.placement


def test_random_loads_fit_the_memory_of_real_devices_and_differ(small_suite: TaskSuite) -> None:
    rng = np.random.default_rng(0)
    loads = [placed(random_load(small_suite, rng)) for _ in range(60)]
    for tables, topology, placement in loads:
        check_placement(placement, tables, topology)
        assert (topology.memory_cap_bytes == topology.device.memory_bytes).all()
    assert {topology.num_devices for _, topology, _ in loads} == {1, 2, 3}
    sizes = {len(tables) for tables, _, _ in loads}
    assert min(sizes) <= 2
    assert max(sizes) >= 12
    task = small_suite[3]
    needed = int(np.sort(task.tables.memory_bytes)[-3])  # two tables fit no device, and are left out
    device = replace(task.topology.device, memory_bytes=needed)
    small = replace(task.topology, device=device, memory_cap_bytes=needed * 12)
    for _ in range(20):
        tables, topology, placement = placed(random_load(TaskSuite("tight", (replace(task, topology=small),)), rng))
        check_placement(placement, tables, topology)
        assert (tables.memory_bytes <= needed).all()


@PRESETS
def test_it_learns_from_given_measurements_and_asks_for_none(
    preset: str, suite_of_2048: TaskSuite, measurements: Path, tmp_path: Path
) -> None:
    options = {"iterations": 2, "cost_updates": 50, "data": str(measurements)}
    true_cost = CountedCostModel(AnalyticalCostModel())
    learner = make_learner("dreamshard", suite_of_2048, cost_model=true_cost, preset=preset, **options)
    TrainingRun(learner, tmp_path, options).run()
    assert learner.true_cost_queries == true_cost.queries == learner.planned_queries == 0
    assert recorded_training(str(tmp_path), "dlrm-20x4").data == ("small/custom", "pool/dlrm-2021", "pool/dlrm-2022")
    surrogate = learner.agent().cost_model
    held_out = load_measurements(measurements).first.part("validation")
    errors = [
        surrogate.estimate(held_out.devices[rows], held_out.tables.select(held_out.members[rows]), topology).total_ms
        / held_out.cost_ms[p]
        - 1
        for p, topology in enumerate(held_out.topologies[i] for i in held_out.topology)
        for rows in [slice(int(held_out.start[p]), int(held_out.start[p + 1]))]
    ]
    assert np.median(np.abs(errors)) < 0.5
    resumed = make_learner("dreamshard", suite_of_2048, preset=preset, **options)
    assert len(TrainingRun(resumed, tmp_path, options, resume=True).learner.weights()) == len(learner.weights())


def test_a_run_names_the_hardware_and_the_digest_of_its_measurements(
    suite_of_2048: TaskSuite, measurements: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(measurements, data)
    options = {"iterations": 1, "cost_updates": 5, "data": str(data)}
    TrainingRun(make_learner("dreamshard", suite_of_2048, **options), tmp_path / "run", options).run()
    trained = load_arrays(tmp_path / "run" / "agent.safetensors", "agent")[1]["trained"]
    assert trained["data_hardware"] == "analytical"
    sampler = PlacementSampler(Workload(2048), "a100-dgx", 3, 2**30, tables_per_device=6)
    collect(AnalyticalCostModel, data, sampler, count=61)
    with pytest.raises(InvalidOptionError, match="was started with data_sha256"):
        TrainingRun(make_learner("dreamshard", suite_of_2048, **options), tmp_path / "run", options, resume=True)


@pytest.mark.parametrize(
    ("devices", "profile", "says"),
    [(3, "a100-dgx", ""), (2, "a100-dgx", "2 x A100"), (3, "h100-dgx", "3 x H100")],
)
def test_measurements_of_other_devices_get_a_warning(
    suite_of_2048: TaskSuite, measurements: Path, devices: int, profile: str, says: str
) -> None:
    topology = hardware_profile(profile).topology(devices)
    tasks = [Task(task.name, task.tables, topology) for task in suite_of_2048]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_learner("dreamshard", TaskSuite("mine", tasks), data=str(measurements))
    found = [str(each.message) for each in caught if "measured on analytical" in str(each.message)]
    assert len(found) == bool(says)
    assert all("are of 3 x A100" in text and f"the tasks of 'mine' have {says}" in text for text in found)


def test_measurements_of_another_workload_are_refused(measurements: Path, planted_suite: Any) -> None:
    suite, _ = planted_suite(np.random.default_rng(0), 1, 4, 3)
    with pytest.raises(InvalidOptionError, match=r"batch_size=2048.*but the tasks of .*batch_size=65536"):
        make_learner("dreamshard", suite, data=str(measurements))
    with pytest.raises(DamagedFileError):
        make_learner("dreamshard", suite, data=str(measurements / "nowhere"))


@pytest.fixture(scope="module")
def measurements(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Estimates of the analytical model, as if they were measured."""
    folder = tmp_path_factory.mktemp("measurements")
    sampler = PlacementSampler(Workload(2048), "a100-dgx", 3, 2**30, tables_per_device=6)
    collect(AnalyticalCostModel, folder, sampler, count=60)
    return folder


@pytest.fixture(scope="module")
def suite_of_2048() -> TaskSuite:
    tables = load_pool("dlrm-2021").tables.with_training(weight_dtype="fp16", optimizer="sgd").at_batch_size(2048)
    sampler, rng = TaskSampler(tables, (8, 8), (3, 3)), np.random.default_rng(0)
    return TaskSuite("small", [sampler.sample(rng) for _ in range(3)])


def test_placing_needs_no_torch() -> None:
    script = """
import sys
sys.modules["torch"] = None
from shard_gym import load_suite
from shard_gym.agents import make_agent
assert make_agent("dreamshard", queries=100).place(load_suite("dlrm-20x4")[0]).shape == (20,)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", ["dlrm-20x4", "mixdim-4"])
def test_they_beat_every_heuristic_of_the_paper(name: str) -> None:
    suite = TaskSuite("few", load_suite(name).tasks[:3])
    heuristics = [evaluate(make_agent(heuristic), suite).mean_cost_ms for heuristic in PAPER_HEURISTICS]
    assert evaluate(make_agent("dreamshard", queries=2_000), suite).mean_cost_ms < 0.97 * min(heuristics)


def test_outside_of_what_the_checkpoints_saw_a_rule_answers_with_a_warning(
    random_task: Callable[..., Task],
) -> None:
    task = random_task(np.random.default_rng(0), 5, 2)
    tables, topology = task.tables, task.topology
    slower = replace(topology.links, intra_host_gb_per_s=1.0)
    renamed = replace(topology, device=replace(topology.device, name="TPU"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # its numbers are those of the hardware profile
        make_agent("dreamshard", queries=100).place(Task("renamed", tables, renamed))
    slow = replace(renamed.device, num_sms=1)
    for other, says in (
        (Task("tpu", tables, replace(topology, device=slow)), "it is on TPU"),
        (Task("slow", tables, replace(topology, links=slower)), "has other numbers or links than"),
        (Task("one", tables, hardware_profile("a100-dgx").topology(1)), "2 to 256 devices, and it has 1"),
        (Task("wide", tables.with_dims(1024), hardware_profile("a100-dgx").topology(2)), "and it has 1,024"),
    ):
        agent = make_agent("dreamshard")
        with pytest.warns(UserWarning, match=says):
            placement = agent.place(other)
        assert agent.answered_by == "moldable"
        assert np.array_equal(placement, make_agent("moldable").place(other))
    whole = hardware_profile("a100-dgx").topology(8, memory_cap_bytes=int(tables.memory_bytes.max() * 0.9))
    whole = replace(whole, links=slower)
    task = Task("split", tables, whole, splittable=True)  # the largest table fits no device
    with pytest.warns(UserWarning, match="moldable answers instead"):
        check_plan(agent.plan(task), tables, whole)
    assert agent.answered_by == "moldable"
    agent.queries = 100
    agent.place(Task("inside", tables, topology))
    assert agent.answered_by == "dreamshard"


def test_placements_do_not_depend_on_the_threads_of_numpy() -> None:
    task = load_suite("merlin-small-x8")[0]
    placements = []
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            placements.append(make_agent("dreamshard", queries=1_500).place(task))
    assert np.array_equal(*placements)
