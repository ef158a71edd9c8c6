"""The class docstring is the documentation page; it is held against the code it describes."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import make_cost_model
from shard_gym.envs.core.reward import REWARDS
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.envs.placement.observation import OBSERVATIONS
from shard_gym.envs.registration import ENVIRONMENTS

DOC = inspect.cleandoc(EmbeddingPlacementEnv.__doc__ or "")


def section(heading: str) -> str:
    """The text under `## heading`."""
    return re.split(r"^## ", DOC.split(f"## {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def documented_arrays() -> dict[str, tuple[bool, str, str]]:
    """Starred or not, shape and dtype of each array, by key."""
    rows = re.findall(r"^\| `(\w+)`( \*)? \| \(([^)]*)\) \| (\w+) \|", section("Observation Space"), re.MULTILINE)
    assert rows
    return {key: (bool(star), shape, dtype) for key, star, shape, dtype in rows}


def test_the_headings_are_those_of_gymnasiums_own_pages_in_their_order() -> None:
    headings = re.findall(r"^## (.*)$", DOC, re.MULTILINE)
    assert headings == [
        "Description",
        "Action Space",
        "Observation Space",
        "Starting State",
        "Rewards",
        "Episode End",
        "Information",
        "Arguments",
        "References",
        "Version History",
    ]


@pytest.mark.parametrize(("max_tables", "max_devices"), [(20, 4), (31, 7)])
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_the_spaces_are_those_documented(max_tables: int, max_devices: int, observation: str) -> None:
    env = EmbeddingPlacementEnv("dlrm-20x4", max_tables=max_tables, max_devices=max_devices, observation=observation)
    assert section("Action Space").startswith("\n`Discrete(max_devices)`")
    assert repr(env.action_space) == f"Discrete({max_devices})"
    documented = {
        key: ((int(eval(shape.rstrip(","), {"T": max_tables, "D": max_devices})),), dtype)
        for key, (starred, shape, dtype) in documented_arrays().items()
        if observation == "full" or not starred
    }
    assert documented == {key: (part.shape, str(part.dtype)) for key, part in env.observation_space.items()}
    obs, _ = env.reset(seed=0)
    assert documented == {key: (value.shape, str(value.dtype)) for key, value in obs.items()}


def test_the_arguments_are_those_of_init_with_their_defaults() -> None:
    documented = dict(re.findall(r"`(\w+)=([^`]+)`", section("Arguments").split("```")[2]))
    parameters = inspect.signature(EmbeddingPlacementEnv.__init__).parameters
    expected = {name: repr(p.default).replace("'", '"') for name, p in parameters.items() if name != "self"}
    assert documented == expected


def test_the_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", section("Arguments"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["env"].reset(seed=0)[1]["task"].startswith("dlrm-50x4/train/")


def test_the_rewards_and_observations_are_those_there_are() -> None:
    assert set(re.findall(r'^- `"(\w+)"`', section("Rewards"), re.MULTILINE)) == set(REWARDS)
    named = set(re.findall(r'observation="(\w+)"', DOC))
    assert named == set(OBSERVATIONS)


def test_the_information_is_what_steps_return(random_task: Any, env_of: Any) -> None:
    text = section("Information")
    env = env_of(random_task(np.random.default_rng(0), 2, 2), max_devices=3)
    env.reset(seed=0)
    env.step(0)
    complete = env.step(1)[4]
    env.reset(seed=0)
    failed = env.step(2)[4]
    for key in {*complete, *failed, *failed["failure"]}:
        assert f"`{key}`" in text, key
    for reason in ("illegal_action", "dead_end"):
        assert f'"{reason}"' in text


def test_the_penalty_is_the_multiple_named(random_task: Any) -> None:
    task = random_task(np.random.default_rng(0), 4, 3)
    model = make_cost_model("analytical")
    loads = model.table_loads(task.tables, task.topology)
    bound = model.cost_bounds(loads, task.topology)[1]
    factor = float(re.search(r"([\d.]+) times an upper bound", section("Rewards")).group(1))  # type: ignore[union-attr]
    assert model.penalty_ms(task.tables, task.topology) == pytest.approx(factor * bound)


def test_the_version_history_ends_with_the_registered_version() -> None:
    versions = re.findall(r"^\* (v\d+):", section("Version History"), re.MULTILINE)
    assert f"EmbeddingPlacement-{versions[0]}" in ENVIRONMENTS
