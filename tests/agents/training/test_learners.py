"""Every learned agent: it resumes bit for bit, loads as it was trained, and leaves the process as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shard_gym.agents import load_agent, make_agent
from shard_gym.agents.registry.agents import imported_for
from shard_gym.agents.sb3.learner import PPO_ARGUMENTS
from shard_gym.agents.training import LEARNERS, Learner, Report, TrainingRun, Validation, make_learner
from shard_gym.agents.training.torch_arrays import load_optimizer_arrays, network_size, optimizer_arrays
from shard_gym.common.errors import InvalidCheckpointError, InvalidCostError, InvalidOptionError, UnknownNameError
from shard_gym.cost_models import AnalyticalCostModel, AnalyticalShardingModel, CountedCostModel
from shard_gym.plans import check_plan
from shard_gym.plans.placement import check_placement
from shard_gym.tables import Workload
from shard_gym.tasks import Task, TaskSuite

STABLE_BASELINES = {"num_envs": 2, "width": 8, "replay": 12}  # DQN's buffer is full after two iterations
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "dream-search": ("dreamshard", {"measurements": 2, "cost_updates": 3, "queries": 50}),
    "paper": (
        "dreamshard",
        {"preset": "paper", "measurements": 2, "cost_updates": 3, "policy_updates": 2, "episodes": 2},
    ),
    "neuroshard search": ("neuroshard", {"measurements": 2, "cost_updates": 3, "queries": 50}),
    "neuroshard paper": ("neuroshard", {"preset": "paper", "measurements": 3, "cost_updates": 3, "cost_batch": 4}),
    "rnn": ("rnn", {"episodes": 3, "hidden": 8}),
    "surco": ("surco", {"measurements": 2, "cost_updates": 3, "samples": 2, "steps": 2}),
    "autoshard": ("autoshard", {"episodes": 3, "cost_updates": 2}),
    "autoshard-paper": ("autoshard", {"preset": "paper", "episodes": 3, "cost_updates": 2, "masks": True}),
    "attention": (
        "attention",
        {"updates": 2, "tasks": 2, "rollouts": 3, "hidden": 8, "layers": 1, "records": 2, "cost_updates": 3},
    ),
    "stepwise": ("stepwise", {"tasks": 1, "population": 4, "generations": 2}),
    **{name: (name, STABLE_BASELINES) for name in ("ppo", "maskable-ppo", "a2c", "dqn")},
    "maskable-ppo splits": ("maskable-ppo", {**STABLE_BASELINES, "observation": "splits"}),
}
EVERY = pytest.mark.parametrize("case", OPTIONS)


@pytest.fixture(scope="module")
def few(random_task: Callable[..., Task]) -> TaskSuite:
    """Tasks of 3 and 4 tables on 2 and 3 devices, with memory caps that matter."""
    rng = np.random.default_rng(5)
    sizes = [(3, 2), (4, 3)]
    return TaskSuite("few", tuple(random_task(rng, t, d, slack=1.6, name=f"few/{i}") for i, (t, d) in enumerate(sizes)))


@pytest.fixture(autouse=True)
def _few_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """PPO learns twice from each rollout, which is enough to see what it keeps and where."""
    monkeypatch.setitem(PPO_ARGUMENTS, "n_epochs", 2)


def learner(case: str, suite: TaskSuite, seed: int = 7) -> Learner:
    name, options = OPTIONS[case]
    return make_learner(name, suite, seed=seed, iterations=3, **options)


def test_no_learner_is_left_out() -> None:
    placing = {name for name, entry in LEARNERS.items() if "replanning" not in entry.learner().problems}
    assert {name for name, _ in OPTIONS.values()} == placing - {"walk"}  # those of replanning: replanning/test_ppo.py


@EVERY
def test_a_run_that_was_killed_ends_as_one_that_was_not(
    case: str,
    few: TaskSuite,
    random_task: Callable[..., Task],
    tmp_path: Path,
    same: Callable[[Any, Any], bool],
    killed: Callable[..., None],
) -> None:
    """One is validated after every iteration, and the other never: that changes nothing either."""
    whole = learner(case, few)
    validation = Validation(whole, [make_agent("random")], 2)
    agent = TrainingRun(whole, tmp_path / "whole", {}, validation=validation).run()
    assert [point.iteration for point in validation.curve.points] == [1, 2, 3]
    for part in range(2):
        killed(TrainingRun(learner(case, few), tmp_path / "killed", {}, resume=part > 0), 1, 2)
        np.random.seed(part)  # the global generators must not matter
        torch.manual_seed(part)
    resumed = learner(case, few)
    TrainingRun(resumed, tmp_path / "killed", {}, resume=True).run()
    assert same(whole.state(), resumed.state())
    assert same(whole.weights(), resumed.weights())
    assert whole.true_cost_queries == resumed.true_cost_queries
    assert 0 < whole.true_cost_queries <= (whole.planned_queries or np.inf)
    true_cost = CountedCostModel(AnalyticalShardingModel())
    loaded = load_agent(tmp_path / "killed", cost_model=true_cost)
    assert loaded.name == whole.name
    for tables, devices in ((1, 1), (7, 2), (12, 3)):  # other sizes than in training
        task = random_task(np.random.default_rng(tables), tables, devices)
        placement = check_placement(loaded.place(task), task.tables, task.topology)
        assert np.array_equal(placement, agent.place(task))
        if loaded.splits:
            check_plan(loaded.plan(task), task.tables, task.topology)
    assert (true_cost.queries == 0) == (OPTIONS[case][1].get("num_envs") is None)  # only SB3 observes costs


@EVERY
def test_all_tensors_of_training_are_on_its_device(
    case: str,
    few: TaskSuite,
    random_task: Callable[..., Task],
    tmp_path: Path,
    pretended_device: str,
) -> None:
    """On a device that refuses tensors of the CPU. The agent is on the CPU, and so is what resumes the run."""
    trained = learner(case, few)
    if case == "stepwise":  # it has no tensors
        with pytest.raises(InvalidOptionError, match="stepwise is trained on CPUs only"):
            trained.move_to(pretended_device)
        return
    # Else SB3's optimizer keeps the weights of before the move. On a GPU it never does; LSTMs cannot be swapped.
    torch.__future__.set_swap_module_params_on_conversion(OPTIONS[case][1].keys() >= STABLE_BASELINES.keys())
    trained.move_to(pretended_device)
    before = trained.weights()

    def stop(learner: Learner, _: Report) -> None:
        if learner.iteration == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TrainingRun(trained, tmp_path, {}).run(stop)
    assert any(not np.array_equal(array, before[name]) for name, array in trained.weights().items())
    on_cpu = learner(case, few)
    TrainingRun(on_cpu, tmp_path, {}, resume=True)
    task = random_task(np.random.default_rng(7), 7, 2)
    placements = [each.agent().place(task) for each in (trained, on_cpu)]
    assert np.array_equal(*placements)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("case", [case for case in OPTIONS if case != "stepwise"])
def test_training_on_a_gpu_leaves_an_agent_for_the_cpu(case: str, few: TaskSuite, tmp_path: Path) -> None:
    trained = learner(case, few)
    trained.move_to("cuda")
    agent = TrainingRun(trained, tmp_path, {}).run()
    on_cpu = learner(case, few)
    TrainingRun(on_cpu, tmp_path, {}, resume=True)
    assert np.array_equal(on_cpu.agent().place(few[0]), agent.place(few[0]))


@pytest.mark.parametrize(
    "case", ["dream-search", "paper", "neuroshard search", "neuroshard paper", "surco", "attention"]
)
def test_cost_networks_learn_from_tables_of_several_workloads(
    case: str, few: TaskSuite, random_task: Callable[..., Task], tmp_path: Path
) -> None:
    """A loaded agent answers as the trained one; one that was trained on one workload refuses such tables."""
    batch = few[0].tables.workload.batch_size
    own = [Workload(batch, "fp16", "sgd"), Workload(batch, "fp32", "adam"), Workload(batch, "fp32", weighted=True)]

    def mixed(task: Task) -> Task:
        tables = replace(task.tables, workload=Workload.mixed(own, np.arange(task.num_tables) % 3))
        return replace(task, tables=tables, topology=task.topology.with_caps(np.full(task.num_devices, 2**40)))

    several = learner(case, TaskSuite("several", tuple(map(mixed, few))))
    agent = TrainingRun(several, tmp_path / "several", {}).run()
    loaded = load_agent(tmp_path / "several")
    assert several.weights()["cost.groups.weight"].any()
    task = mixed(random_task(np.random.default_rng(3), 7, 2))
    assert np.array_equal(check_placement(loaded.place(task), task.tables, task.topology), agent.place(task))
    one = learner(case, few)
    one.iterate()
    assert "cost.groups.weight" not in one.weights()
    with pytest.raises(InvalidOptionError, match="does not support lookups with weights"):
        one.agent().place(task)


def test_only_devices_that_are_there_are_trained_on(few: TaskSuite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidOptionError, match="must be cpu or cuda, not 'tpu'"):
        make_learner("rnn", few, device="tpu")
    for build, says in ((None, "no GPU: it is built without CUDA. Train"), ("12.9", "no GPU: no GPU is visible")):
        monkeypatch.setattr(torch.version, "cuda", build)
        with pytest.raises(InvalidOptionError, match=says):
            make_learner("rnn", few, device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(InvalidOptionError, match="walk is trained on CPUs only"):
        make_learner("walk", few, device="cuda")


@EVERY
def test_an_iteration_changes_the_weights_and_leaves_the_process_alone(case: str, few: TaskSuite) -> None:
    trained, other = learner(case, few), learner(case, few, seed=8)
    first, threads = {**trained.state(), **trained.weights()}, torch.get_num_threads()
    assert any(not np.array_equal(first[name], array) for name, array in other.weights().items())
    kept = {name: array.copy() for name, array in first.items()}
    np.random.seed(0)
    torch.manual_seed(0)
    report = trained.iterate()
    drawn = np.random.random(), float(torch.rand(()))
    np.random.seed(0)
    torch.manual_seed(0)
    assert drawn == (np.random.random(), float(torch.rand(())))
    assert torch.get_num_threads() == threads
    assert trained.true_cost_queries > 0
    assert np.isfinite([report.mean_cost_ms, *report.numbers.values()]).all()
    assert all(np.array_equal(first[name], kept[name]) for name in first)  # copies
    assert any(not np.array_equal(first[name], array) for name, array in trained.weights().items())


@EVERY
def test_arrays_and_descriptions_that_do_not_fit_are_rejected(case: str, few: TaskSuite) -> None:
    made = learner(case, few)
    load = imported_for(made.name, LEARNERS[made.name].learner().loader)
    about, model = {"agent": made.name, **made.about()}, AnalyticalCostModel()
    load(made.weights(), about, model, 0)
    for arrays, take in (
        (made.weights(), lambda arrays: load(arrays, about, model, 0)),
        (made.state(), made.load_state),
    ):
        name, last = next(iter(arrays)), max(arrays)
        for damaged in (
            {key: array for key, array in arrays.items() if key != name},
            {**arrays, name: arrays[name][..., None]},
            {**arrays, f"{last}.more": arrays[last]},
        ):
            with pytest.raises(InvalidCheckpointError):
                take(damaged)
    sizes = {"hidden": 2**40, "width": 0, "max_devices": None}
    for key, wrong in [("preset", "none"), ("options", {"wings": 2}), ("options", None), *sizes.items()]:
        if key in about:
            says = "has options None, but it must be dict" if (key, wrong) == ("options", None) else "."
            with pytest.raises(InvalidCheckpointError, match=says):
                load(made.weights(), {**about, key: wrong}, model, 0)


@pytest.mark.parametrize(
    ("case", "wrong"),
    [
        ("dream-search", np.nan),
        ("rnn", np.inf),
        ("surco", -5.0),
        ("autoshard", np.nan),
        ("attention", np.inf),
        ("stepwise", np.nan),
    ],
)
def test_costs_that_no_placement_has_are_refused(case: str, wrong: float, few: TaskSuite) -> None:
    class Wrong(AnalyticalCostModel):
        name = "wrong"

        def iteration_cost(self, phases: Any, shared: Any, cluster: Any) -> Any:
            return super().iteration_cost(phases, shared, cluster) * 0.0 + wrong

    name, options = OPTIONS[case]
    trained = make_learner(name, few, cost_model=Wrong(), iterations=1, **options)
    with pytest.raises(InvalidCostError, match="says that a placement costs"):
        trained.iterate()


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("rnn", {"episodes": 1}, "episodes must be an integer of at least 2, not 1"),
        ("rnn", {"hidden": True}, "hidden must be an integer from 1 to 4096, not True"),
        ("rnn", {"learning_rate": 1e300}, r"learning_rate must be at most 1e\+09, not 1e\+300"),
        ("ppo", {"width": 99999999999}, "width must be an integer from 1 to 4096, not 99999999999"),
        ("surco", {"samples": 3}, "samples must be even"),
        ("surco", {"steps": 100_000, "samples": 4096}, "steps times samples must be at most 10000000"),
        ("attention", {"also": "mixdim-4, mixdim-8,mixdim-4"}, "The suite 'mixdim-4' is named twice"),
        ("attention", {"also": "dlrm-20x4"}, "that tells machines apart"),
        ("attention", {"hidden": 12}, "hidden must be a multiple of 8, not 12"),
        ("attention", {"rollouts": 1}, "rollouts must be an integer of at least 2"),
        ("attention", {"records": 769}, "records must be an integer from 1 to 768"),
        ("stepwise", {"population": 3}, "population must be an integer of at least 4, not 3"),
        ("stepwise", {"also": "mixdim-4,mixdim-4"}, "The suite 'mixdim-4' is named twice"),
        ("dqn", {"num_envs": 1}, "num_envs must be an integer from 2 to 65536"),
        ("dreamshard", {"preset": "paper", "episodes": 1}, "episodes"),
        ("dreamshard", {"preset": "papper"}, "preset named 'papper'.*paper"),
        ("dreamshard", {"episodes": 3}, "option of preset 'dream-search' named 'episodes'"),
    ],
)
def test_options_that_make_no_sense_are_refused(name: str, options: dict[str, Any], says: str, few: TaskSuite) -> None:
    with pytest.raises((InvalidOptionError, UnknownNameError), match=says):
        make_learner(name, few, **options)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("autoshard", "learns placement, and 'shard-4' is a suite of sharding"),
        ("surco", "learns placement, and 'shard-4' is a suite of sharding"),
        ("maskable-ppo", "may be split"),
    ],
)
def test_what_places_whole_tables_is_not_trained_where_tables_may_be_split(name: str, reason: str) -> None:
    with pytest.raises(InvalidOptionError, match=reason):
        make_learner(name, "shard-4")


def adam(rate: float = 0.1) -> tuple[Any, list[Any]]:
    parameters = [
        torch.nn.Parameter(torch.ones(2, 3)),
        torch.nn.Parameter(torch.ones(4)),
        torch.nn.Parameter(torch.ones(1)),
    ]
    return torch.optim.Adam([{"params": parameters[:1]}, {"params": parameters[1:]}], lr=rate), parameters


def steps(optimizer: Any, parameters: list[Any], count: int, first: int = 0) -> None:
    """Steps with gradients of their own; the last parameter never gets one."""
    for number in range(first, first + count):
        for parameter in parameters[:2]:
            parameter.grad = torch.from_numpy(np.random.default_rng(number).normal(size=parameter.shape)).float()
        optimizer.step()


def test_the_arrays_are_copies_both_ways_and_leave_the_learning_rate() -> None:
    optimizer, parameters = adam()
    steps(optimizer, parameters, 1)
    faster, _ = adam(0.5)
    load_optimizer_arrays(faster, optimizer_arrays(optimizer))
    assert [group["lr"] for group in faster.param_groups] == [0.5, 0.5]
    arrays = optimizer_arrays(optimizer)
    before = {name: array.copy() for name, array in arrays.items()}
    load_optimizer_arrays(optimizer, arrays)
    steps(optimizer, parameters, 1, first=1)
    assert all(np.array_equal(arrays[name], before[name]) for name in before)
    assert not np.array_equal(optimizer_arrays(optimizer)["optimizer.0.exp_avg"], before["optimizer.0.exp_avg"])


def test_one_that_made_no_step_has_no_arrays_and_takes_none() -> None:
    optimizer, parameters = adam()
    assert optimizer_arrays(optimizer) == {}
    steps(optimizer, parameters, 2)
    load_optimizer_arrays(optimizer, {"network.weight": np.ones(3)})
    assert optimizer_arrays(optimizer) == {}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"optimizer.0.step": None}, "lacks the array '0.step'"),
        (
            {"optimizer.0.exp_avg": np.zeros(6, np.float32)},
            r"The optimizer's state holds '0.exp_avg' with shape \(6,\)",
        ),
        ({"optimizer.3.step": np.zeros(())}, "'3.step' that does not belong there"),
        ({"optimizer.0.velocity": np.zeros(())}, "'0.velocity' that does not belong there"),
    ],
)
def test_arrays_of_another_optimizer_are_refused(changes: dict[str, Any], says: str) -> None:
    optimizer, parameters = adam()
    steps(optimizer, parameters, 1)
    arrays = {name: each for name, each in {**optimizer_arrays(optimizer), **changes}.items() if each is not None}
    with pytest.raises(InvalidCheckpointError, match=says):
        load_optimizer_arrays(optimizer, arrays)


@pytest.mark.parametrize("width", [None, 8.0, True, 10**9])
def test_a_size_that_makes_no_sense_is_refused(width: Any) -> None:
    assert network_size({"width": 8}, "width", 8) == 8
    with pytest.raises(InvalidCheckpointError, match="width of the network must be an integer from 1 to 8"):
        network_size({"width": width}, "width", 8)
