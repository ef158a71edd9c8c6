"""The docstring of the measured environment, held against the code it describes."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import make_cost_model
from shard_gym.cost_models.measured.model import LAYOUTS, MeasuredCostModel
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.envs.real.env import MEASURING, EmbeddingPlacementRealEnv
from shard_gym.envs.registration import ENVIRONMENTS

DOC = inspect.cleandoc(EmbeddingPlacementRealEnv.__doc__ or "")
PARAMETERS = inspect.signature(EmbeddingPlacementRealEnv.__init__).parameters


def section(heading: str, text: str = DOC) -> str:
    """The text under `## heading`."""
    return re.split(r"^## ", text.split(f"## {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def test_the_headings_are_those_of_the_estimating_environment() -> None:
    other = inspect.cleandoc(EmbeddingPlacementEnv.__doc__ or "")
    headings = [re.findall(r"^## (.*)$", text, re.MULTILINE) for text in (DOC, other)]
    assert headings[0] == headings[1]


def test_the_arguments_are_those_of_init_with_their_defaults() -> None:
    documented = dict(re.findall(r"`(\w+)=([^`]+)`", section("Arguments").split("```")[2]))
    expected = {name: repr(p.default).replace("'", '"') for name, p in PARAMETERS.items() if name != "self"}
    assert documented == expected
    assert all(f'"{layout}"' in section("Arguments") for layout in LAYOUTS)


def test_the_measuring_arguments_have_the_defaults_of_the_model() -> None:
    """The vector environment hands them on only if they are given."""
    model = inspect.signature(MeasuredCostModel.__init__).parameters
    assert {name: PARAMETERS[name].default for name in MEASURING} == {name: model[name].default for name in MEASURING}


def test_the_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", section("Arguments"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["env"].reset(seed=0)[1]["task"].startswith("dlrm-20x4/train/")


def test_the_penalty_is_the_multiple_named(random_task: Any) -> None:
    task = random_task(np.random.default_rng(0), 4, 3)
    model = make_cost_model("analytical")
    bound = model.cost_bounds(model.table_loads(task.tables, task.topology), task.topology)[1]
    (factor,) = re.findall(r"charged (\d+) times an upper bound", " ".join(section("Rewards").split()))
    penalty = MeasuredCostModel("cpu").penalty_ms(task.tables, task.topology)
    assert penalty == pytest.approx(int(factor) * bound)


def test_the_version_history_ends_with_the_registered_version() -> None:
    versions = re.findall(r"^\* (v\d+):", section("Version History"), re.MULTILINE)
    assert f"EmbeddingPlacementReal-{versions[0]}" in ENVIRONMENTS
