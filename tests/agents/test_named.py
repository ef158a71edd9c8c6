from __future__ import annotations

from pathlib import Path

import pytest

from shard_gym import evaluate, load_suite
from shard_gym.agents.named import agent_named
from shard_gym.common.errors import InvalidOptionError, UnknownNameError
from shard_gym.cost_models import AnalyticalCostModel

MINE = """
from dataclasses import dataclass

import numpy as np
from helper import DEVICE  # stands beside this file
from shard_gym.agents import Agent


class Packer:
    name = "my-packer"

    def __init__(self, seed, slack=1):
        self.seed, self.slack = seed, slack

    def place(self, task):
        rng = np.random.default_rng(self.seed)
        return rng.permutation(task.num_tables) % task.num_devices


def make(cost_model):
    return Packer(cost_model.version)


def in_turn(task):
    return [table % task.num_devices for table in range(task.num_tables)]


def keep(observations):
    return np.zeros(len(observations["must_plan"]), int)


packer = Packer(7)
number = 3
none = None


class Rows(dict):
    pass


class Unfinished(Agent):
    pass


class Taskless:
    def place(self):
        return []
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "helper.py").write_text("DEVICE = 0\n")
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path / "mine.py"


@pytest.mark.parametrize("what", ["Packer", "make", "in_turn", "packer"])
def test_classes_makers_functions_and_agents_are_evaluated(
    mine: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.chdir(mine.parent)
    assert evaluate(agent_named(f"mine.py:{what}", cost_model=AnalyticalCostModel()), "dlrm-20x4").mean_cost_ms > 0


def test_seed_and_options_reach_a_class(mine: Path) -> None:
    agent = agent_named(f"{mine}:Packer", seed=5, slack=2)
    assert (agent._place.__self__.seed, agent._place.__self__.slack) == (5, 2)
    with pytest.raises(InvalidOptionError, match=r"cannot be made with the options .*speed"):
        agent_named(f"{mine}:Packer", speed=2)
    for what in ("in_turn", "packer"):
        with pytest.raises(InvalidOptionError, match=f"{what} takes no options, and speed was given"):
            agent_named(f"{mine}:{what}", speed=2)


def test_a_module_is_imported_from_the_current_folder(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mine.parent)
    monkeypatch.syspath_prepend("")
    assert agent_named("mine:packer").place(load_suite("dlrm-20x4")[0]).shape == (20,)


def test_a_function_of_observations_plays_episodes(mine: Path) -> None:
    agent = agent_named(f"{mine}:keep")
    assert agent.act({"must_plan": [[1]]}).tolist() == [0]
    assert (agent.name, agent.problems) == ("keep", ("replanning",))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("{mine}:Nothing", "There is nothing named 'Nothing' in"),
        ("{mine}:number", "is no agent: it has no place"),
        ("{mine.parent}/none.py:Packer", "There is no file"),
        ("no_such_module:Packer", "There is no module 'no_such_module'. Name FILE.py:NAME"),
        (":f", "There is no module ''"),
        (".foo:bar", "There is no module '.foo'"),
        ("{mine}:", "There is nothing named '' in"),
        ("{mine}:none", "is no agent: it has no place"),
        ("builtins:dict", "is no agent: it does not tell its arguments"),
        ("{mine}:Rows", "is no agent: it does not tell its arguments"),
        ("{mine}:Unfinished", "is no agent: it lacks place"),
        ("{mine}:Taskless", "is no agent: its function place does not take a task alone"),
    ],
)
def test_what_is_no_agent_is_refused(mine: Path, name: str, says: str) -> None:
    with pytest.raises(InvalidOptionError, match=says):
        agent_named(name.format(mine=mine))
    with pytest.raises(UnknownNameError):
        agent_named("no-agent")


PLANNER = """
from shard_gym.plans import ShardingPlan, column_wise, table_wise


class Planner:
    def plan(self, task):
        tables, devices = task.tables, task.num_devices
        return ShardingPlan(tuple(
            column_wise(tables, table, [table % devices, (table + 1) % devices])
            if tables.embedding_dim[table] >= 64 else table_wise(tables, table, table % devices)
            for table in range(len(tables))
        ))
"""


def test_an_agent_may_have_a_plan_alone(tmp_path: Path) -> None:
    """Its own plan is asked for, here and by `evaluate`, and a task whose tables may not be split is refused."""
    (tmp_path / "planner.py").write_text(PLANNER)
    agent = agent_named(f"{tmp_path / 'planner.py'}:Planner")
    task = load_suite("shard-mlperf-x8")[0]
    assert agent.splits
    assert agent.plan(task).split_tables
    (result,) = evaluate(agent, "shard-mlperf-x8").tasks
    assert result.valid
    with pytest.raises(InvalidOptionError, match=r"has plan\(task\) alone"):
        agent.place(load_suite("dlrm-20x4")[0])
    with pytest.raises(InvalidOptionError, match=r"object with place\(task\), or a function"):
        evaluate(type("Only", (), {"plan": agent.plan})(), "dlrm-20x4")
