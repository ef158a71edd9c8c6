"""Fresh tasks: NAME@SEED draws new tasks as those of a suite."""

from __future__ import annotations

from itertools import combinations

import gymnasium
import numpy as np
import pytest

from shard_gym import evaluate, load_suite
from shard_gym.agents import make_agent
from shard_gym.common.errors import InvalidOptionError, InvalidTaskError, ShardGymError, UnknownNameError
from shard_gym.cost_models import make_cost_model
from shard_gym.replanning import drawing
from shard_gym.tables import load_pool
from shard_gym.tasks import Task, TaskSuite, suite_info, suite_names
from shard_gym.tasks.suites import placing
from shard_gym.tasks.suites.best_known import best_known, write_best_known
from shard_gym.tasks.suites.bounds import lower_bounds
from shard_gym.tasks.suites.drawing import halves

SHA256 = {
    "mixdim-4@101": "7bddc2222f113d9ba238d5ef28d16da899ed50f0f88a7a55370f047344460374",
    "shard-8@102": "c191e9ab4a04b4869220181e63688d022e4366ff054176068886f091ef268627",
}


def content(task: Task) -> tuple[object, ...]:
    return task.tables.names, tuple(task.tables.embedding_dim), tuple(task.topology.memory_cap_bytes)


@pytest.mark.parametrize("name", ["mixdim-8", "generalize", "tier-generalize", "shard-4", "cpu-20x2", "sequence-16"])
def test_tasks_are_new_and_of_the_same_distribution(name: str) -> None:
    for split in ("train", "test"):
        base, one, two = (load_suite(each, split) for each in (name, f"{name}@7", f"{name}@8"))
        for first, second in combinations((base, one, two), 2):
            assert not set(map(content, first)) & set(map(content, second))
        assert len(one) == 50
        assert one[0].name == f"{name}@7/{split}/0"
        assert (one.max_tables, one.max_devices) == (base.max_tables, base.max_devices)
        pool = load_pool(suite_info(name).pool).tables
        own = {pool.names[number] for number in halves(suite_info(name).pool, len(pool))[split]}
        assert {table for task in one for table in task.tables.names} <= own
        sizes = suite_info(name).num_tables
        assert all(sizes[0] <= task.num_tables <= sizes[1] for task in one)
        assert {task.tables.workload for task in one} == {task.tables.workload for task in base}
        assert {task.problem for task in one} == {task.problem for task in base}
        assert {task.topology.device.name for task in one} == {task.topology.device.name for task in base}
        dims = [np.concatenate([task.tables.embedding_dim for task in suite]).mean() for suite in (base, one)]
        assert dims[1] == pytest.approx(dims[0], rel=0.2)


def test_the_tasks_are_the_same_everywhere() -> None:
    """The hash is that of November 2026; another one makes the published costs of fresh tasks worthless."""
    assert suite_info("mixdim-4@101").sha256 == SHA256["mixdim-4@101"]
    assert suite_info("shard-8@102").sha256 == SHA256["shard-8@102"]
    info = suite_info("mixdim-4@7")
    assert info.sha256 != suite_info("mixdim-4@8").sha256
    assert info.description.startswith("50 fresh tasks, drawn with seed 7. NeuroShard's setting")
    assert (info.tasks, info.problem) == ({"train": 50, "test": 50}, "placement")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("mixdim-8@", InvalidOptionError, "The seed of the suite 'mixdim-8@' must be a whole number after the @"),
        ("mixdim-8@07", InvalidOptionError, "such as mixdim-8@7"),
        ("mixdim-8@-1", InvalidOptionError, "a whole number after the @, of at most 9 digits"),
        ("mixdim-8@7@8", InvalidOptionError, "must be a whole number after the @"),
        ("mixdim-8@1234567890", InvalidOptionError, "at most 9 digits"),
        ("mixdim-8@\u0667", InvalidOptionError, "must be a whole number after the @"),
        ("mixdm-8@7", UnknownNameError, "Did you mean 'mixdim-8'"),
        ("@7", UnknownNameError, "There is no suite named ''"),
        ("mlperf-x8@7", InvalidOptionError, "is one task with all tables of its model"),
    ],
)
def test_names_that_draw_nothing_are_refused(name: str, error: type[ShardGymError], message: str) -> None:
    for load in (load_suite, suite_info):
        with pytest.raises(error, match=message):
            load(name)


@pytest.fixture
def few_tasks(monkeypatch: pytest.MonkeyPatch) -> str:
    """Fresh suites of few tasks; with a seed of these tests alone, as suites that were drawn are kept."""
    monkeypatch.setattr(placing, "TASKS_PER_SPLIT", 10)  # the tenth is one that has to be split, if any is
    monkeypatch.setattr(drawing, "TASKS_PER_SPLIT", {"train": 1, "test": 3})
    return "987654321"


def test_every_suite_has_fresh_tasks_or_says_why_not(few_tasks: str) -> None:
    for name in set(suite_names()) - set(suite_names("replanning")):
        if suite_info(name).tasks.get("train"):
            assert len(load_suite(f"{name}@{few_tasks}")) == 10
        else:
            with pytest.raises(InvalidOptionError, match="there are no others like it"):
                load_suite(f"{name}@{few_tasks}")


def test_tables_of_fresh_tasks_drift_in_new_ways(few_tasks: str) -> None:
    name, base = f"drift-strong-600@{few_tasks}", load_suite("drift-strong-600")
    fresh = load_suite(name)
    assert len(fresh) == 6
    assert (fresh[0].pause_s, fresh[0].level) == (600.0, base[0].level)
    assert fresh[0].name == f"{name}/test/0"
    assert not {task.seed for task in base} & {task.seed for task in fresh}
    assert {task.task.name.split("/")[0] for task in fresh} == {f"mixdim-8@{few_tasks}", f"shard-8@{few_tasks}"}


def test_nothing_is_known_of_fresh_tasks_and_nothing_is_written() -> None:
    suite, model = load_suite("mixdim-4@7"), make_cost_model("analytical")
    assert best_known(suite, model) == lower_bounds(suite, model) == {}
    with pytest.raises(InvalidTaskError, match="Only named suites have files"):
        write_best_known([suite], {}, model, "")


def test_agents_and_environments_take_the_name() -> None:
    first = TaskSuite("two", load_suite("mixdim-4@7").tasks[:2], "test")
    assert evaluate(make_agent("lookup-greedy"), first).failures == 0
    env = gymnasium.make("shard_gym:EmbeddingPlacement-v0", suite="mixdim-4@7")
    known = gymnasium.make("shard_gym:EmbeddingPlacement-v0", suite="mixdim-4")
    assert env.observation_space == known.observation_space
    env.reset(seed=0)
