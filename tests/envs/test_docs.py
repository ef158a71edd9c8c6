"""The class docstrings are the documentation pages; they are held against the code they describe."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode

from shard_gym.cost_models import AnalyticalShardingModel, make_cost_model
from shard_gym.cost_models.base import bounds_of_plans
from shard_gym.cost_models.measured import MeasuredCostModel
from shard_gym.cost_models.measured.model import LAYOUTS
from shard_gym.envs.core.reward import REWARDS
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.envs.placement.observation import OBSERVATIONS
from shard_gym.envs.real.env import EmbeddingPlacementRealEnv
from shard_gym.envs.real.measuring import MEASURING
from shard_gym.envs.real.sharding import EmbeddingShardingRealEnv
from shard_gym.envs.registration import ENVIRONMENTS
from shard_gym.envs.sharding.env import EmbeddingShardingEnv
from shard_gym.replanning import EmbeddingReplanningEnv
from shard_gym.replanning.drift import levels
from shard_gym.replanning.drift.levels import DriftLevel
from shard_gym.replanning.env.episodes import REDIRECT_PENALTY
from shard_gym.replanning.env.episodes import REWARDS as DRIFTING_REWARDS
from shard_gym.replanning.env.windows import WINDOWS
from shard_gym.tables.tables import FEATURE_BOUNDS
from shard_gym.tasks import load_suite, suite_names

ABSENT = {"full": ("+",), "compact": ("*", "+"), "features": ("*", "-"), "set": ("-",)}
"""The marks of the arrays that an observation lacks; it lacks those marked ! if no task has host memory."""

REAL = (EmbeddingPlacementRealEnv, EmbeddingShardingRealEnv)
EACH = pytest.mark.parametrize(
    "env_class", [EmbeddingPlacementEnv, EmbeddingShardingEnv, EmbeddingReplanningEnv, *REAL]
)
REPLANNING = (Path(__file__).parents[2] / "docs" / "environments" / "replanning.md").read_text(encoding="utf-8")


def section(heading: str, env_class: Any = EmbeddingPlacementEnv) -> str:
    """The text under `## heading`."""
    text = inspect.cleandoc(env_class.__doc__ or "").split(f"## {heading}\n", 1)[1]
    return re.split(r"^## ", text, maxsplit=1, flags=re.MULTILINE)[0]


def documented_arrays(env_class: Any = EmbeddingPlacementEnv) -> dict[str, tuple[str, str, str]]:
    """Mark, shape and dtype of each array, by key."""
    text = section("Observation Space", env_class)
    rows = re.findall(r"^\| `(\w+)`( [*+!-])? \| \(([^)]*)\) \| (\w+) \|", text, re.MULTILINE)
    assert rows
    return {key: (mark.strip(), shape, dtype) for key, mark, shape, dtype in rows}


def documented_ranges(env_class: Any) -> dict[str, tuple[str, str]]:
    """The least and the largest value of the arrays of a space, by key."""
    rows = re.findall(r"^\| (\S+) to ([^|]+) \| (.+) \|$", section("Observation Space", env_class), re.MULTILINE)
    return {key: (low, high) for low, high, keys in rows for key in re.findall(r"`(\w+)`", keys)}


@EACH
def test_the_headings_are_those_of_gymnasiums_own_pages_in_their_order(env_class: Any) -> None:
    assert re.findall(r"^## (.*)$", inspect.cleandoc(env_class.__doc__), re.MULTILINE) == [
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


@EACH
def test_the_arguments_are_those_of_init_with_their_defaults(env_class: Any) -> None:
    documented = dict(re.findall(r"`(\w+)=([^`]+)`", section("Arguments", env_class).split("```")[2]))
    parameters = inspect.signature(env_class.__init__).parameters
    expected = {name: repr(p.default).replace("'", '"') for name, p in parameters.items() if name != "self"}
    assert documented == expected


@EACH
def test_vector_environments_take_and_show_the_same_arguments(env_class: Any) -> None:
    vector_class = load_env_creator(ENVIRONMENTS[f"{env_class.__name__.removesuffix('Env')}-v0"]["vector_entry_point"])
    arguments = {name: p.default for name, p in inspect.signature(vector_class).parameters.items()}
    own = {"num_envs": 1, "autoreset_mode": AutoresetMode.NEXT_STEP, "copy": True, "max_episode_steps": None}
    assert arguments == own | {name: p.default for name, p in inspect.signature(env_class).parameters.items()}
    for make in (env_class, vector_class):
        with pytest.raises(TypeError, match=rf"{make.__name__} got .* argument 'suit'. Did you mean 'suite'"):
            make(suit="dlrm-20x4")


@EACH
def test_the_example_runs(env_class: Any) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", section("Arguments", env_class), re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    assert type(names["env"].unwrapped) is env_class
    names["env"].reset(seed=0)


@EACH
def test_the_version_history_ends_with_the_registered_version(env_class: Any) -> None:
    versions = re.findall(r"^\* (v\d+):", section("Version History", env_class), re.MULTILINE)
    assert f"{env_class.__name__.removesuffix('Env')}-{versions[0]}" in ENVIRONMENTS


@pytest.mark.parametrize("env_class", [EmbeddingPlacementEnv, EmbeddingPlacementRealEnv])
def test_the_penalty_is_the_multiple_named(random_task: Any, env_class: Any) -> None:
    task, model = random_task(np.random.default_rng(0), 4, 3), make_cost_model("analytical")
    charging = model if env_class is EmbeddingPlacementEnv else MeasuredCostModel("cpu")
    bound = model.bounds(model.loads(task.tables, task.topology), task.topology)[1]
    (factor,) = re.findall(r"([\d.]+) times an upper bound", " ".join(section("Rewards", env_class).split()))
    assert charging.penalty_ms(task.tables, task.topology) == pytest.approx(float(factor) * bound)


def test_the_penalty_of_measured_plans_is_the_multiple_named(random_task: Any) -> None:
    task = random_task(np.random.default_rng(0), 4, 3)
    bound = bounds_of_plans(AnalyticalShardingModel(), task.tables, task.topology)[1]
    text = " ".join(section("Rewards", EmbeddingShardingRealEnv).split())
    (factor,) = re.findall(r"([\d.]+) times an upper bound on the estimated cost of all plans", text)
    charged = MeasuredCostModel("cpu").penalty_ms(task.tables, task.topology, splits=True)
    assert charged == pytest.approx(float(factor) * bound)


def test_the_measuring_arguments_have_the_defaults_of_the_model() -> None:
    """The vector environment hands them on only if they are given."""
    placing, sharding, model = (inspect.signature(each.__init__).parameters for each in (*REAL, MeasuredCostModel))
    for real in (placing, sharding):
        assert {name: real[name].default for name in MEASURING} == {name: model[name].default for name in MEASURING}
    assert all(f'"{layout}"' in section("Arguments", EmbeddingPlacementRealEnv) for layout in LAYOUTS)


def test_the_rewards_observations_and_infos_are_those_there_are() -> None:
    for env_class, rewards in ((EmbeddingPlacementEnv, REWARDS), (EmbeddingReplanningEnv, DRIFTING_REWARDS)):
        assert re.findall(r'^- `"(\w+)"`', section("Rewards", env_class), re.MULTILINE) == list(rewards)
    assert f"the reward is less by {REDIRECT_PENALTY}" in section("Action Space", EmbeddingReplanningEnv)
    named = set(re.findall(r'observation="(\w+)"', EmbeddingPlacementEnv.__doc__ or ""))
    assert named == set(OBSERVATIONS)
    for env_class in REAL:
        keys = documented_infos(env_class)
        assert list(keys) == [f"measurement_{name}" for name in MeasuredCostModel.detail_names]
        assert set(keys.values()) == {("", "float64")}


def documented_infos(env_class: Any) -> dict[str, tuple[str, str]]:
    """Shape (empty for a number) and type of each key."""
    pattern = r"^- ((?:`\w+`, )*`\w+`): (?:\(([^)]*)\) )?(\w+)"
    rows = re.findall(pattern, section("Information", env_class), re.MULTILINE)
    assert rows
    return {key: (shape, kind) for keys, shape, kind in rows for key in re.findall(r"\w+", keys)}


TIERED = [(EmbeddingPlacementEnv, "full"), (EmbeddingShardingEnv, "compact"), (EmbeddingShardingEnv, "features")]
SIZED = [
    *((EmbeddingPlacementEnv, {"suite": "dlrm-20x4", "max_tables": 31, "observation": each}) for each in OBSERVATIONS),
    *((EmbeddingShardingEnv, {"max_tables": 61, "observation": each}) for each in OBSERVATIONS),
    *((kind, {"suite": "tier-4", "max_tables": 61, "observation": each}) for kind, each in TIERED),
    *((EmbeddingReplanningEnv, {"max_parts": 1000, "headroom": each}) for each in (False, True)),
]


@pytest.mark.parametrize(("env_class", "arguments"), SIZED)
def test_the_spaces_and_infos_are_those_documented(env_class: Any, arguments: dict[str, Any]) -> None:
    env = env_class(**arguments, max_devices=9)
    actions, rules = int(env.action_space.n), getattr(env, "rules", None)
    sizes = {**arguments, "T": arguments.get("max_tables"), "D": 9, "max_devices": 9, "W": len(WINDOWS)}
    sizes |= {"A": actions, "Z": actions - 1, "V": rules and rules.num_variants, "U": 8, "max_shards": 8, "H": 3}

    def shape_of(text: str) -> tuple[int, ...]:
        shape = eval(text, {}, sizes) if text else ()
        return shape if isinstance(shape, tuple) else (shape,)

    obs, info = env.reset(seed=0)
    absent = ABSENT.get(str(arguments.get("observation")), ())
    if arguments.get("suite") != "tier-4":
        absent = (*absent, "!")
    arrays = {
        key: (shape_of(shape), dtype)
        for key, (mark, shape, dtype) in documented_arrays(env_class).items()
        if mark not in absent
    }
    assert arrays == {key: (part.shape, str(part.dtype)) for key, part in env.observation_space.items()}
    assert arrays == {key: (value.shape, str(value.dtype)) for key, value in obs.items()}
    ranges = documented_ranges(env_class)
    boxes = {key: part for key, part in env.observation_space.items() if isinstance(part, spaces.Box)}
    for key, box in boxes.items():
        if key in ("current_table", "table_features"):
            low, high = (np.resize(each, box.shape) for each in FEATURE_BOUNDS)
            assert (box.low == np.minimum(low, 0)).all()
            assert (box.high == np.maximum(high, 0)).all()
        else:
            low, high = (eval(each, {}, sizes) for each in ranges[key])
            assert ((box.low == low) & (box.high == high)).all()
    infos = documented_infos(env_class)
    if env_class is EmbeddingShardingEnv:
        infos = {**documented_infos(EmbeddingPlacementEnv), "action_mask": ("A,", "int8"), **infos}
    assert {key: (shape_of(shape), kind) for key, (shape, kind) in infos.items()} == {
        key: (value.shape, str(value.dtype)) if isinstance(value, np.ndarray) else ((), type(value).__name__)
        for key, value in info.items()
    }


@pytest.mark.parametrize(
    ("env_class", "actions", "headroom"),
    [
        (EmbeddingPlacementEnv, "max_devices", None),
        (EmbeddingReplanningEnv, "5", False),
        (EmbeddingReplanningEnv, "9", True),
    ],
)
def test_the_actions_are_those_documented(env_class: Any, actions: str, headroom: bool | None) -> None:
    assert f"`Discrete({actions})`" in section("Action Space", env_class)
    env = env_class(max_devices=9, **({} if headroom is None else {"headroom": headroom}))
    assert env.action_space.n == (9 if actions == "max_devices" else int(actions))


def test_the_parts_of_a_failure_are_documented(random_task: Any, env_of: Any) -> None:
    env = env_of(random_task(np.random.default_rng(0), 2, 2), max_devices=3)
    env.reset(seed=0)
    env.step(2)
    for part in (*env.failure(), "illegal_action", "dead_end"):
        assert part in section("Information")


def test_the_suites_of_drifting_tasks_are_those_documented(markdown_rows: Any) -> None:
    rows = markdown_rows(REPLANNING, "## The suites")
    assert sorted(rows) == sorted(f"`{name}`" for name in suite_names("replanning"))
    for name, (_, *numbers) in rows.items():
        train, test = (load_suite(name.strip("`"), split) for split in ("train", "test"))
        assert [int(number) for number in numbers] == [train[0].pause_s, len(train), len(test)]


def test_the_processes_of_drift_have_the_parameters_documented() -> None:
    rows = re.findall(r"^\| [^|]+ \| `(\w+)` \| (.*) \|$", REPLANNING, re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(field.name for field in fields(DriftLevel))
    for name, cells in rows:
        for cell, level in zip(
            cells.split(" | "), (levels.MEDIUM, levels.STRONG, levels.GROWING, levels.SPOT), strict=True
        ):
            value = getattr(level, name)
            shown = f"{value[0]:g} to {value[1]:g}" if isinstance(value, tuple) else f"{value:g}"
            assert cell in (shown, "-" if isinstance(value, tuple) else shown), name
