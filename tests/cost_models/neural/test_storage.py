"""Model files: the same estimates back, without torch; anything else is refused by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import InvalidCheckpointError, InvalidOptionError, UnknownNameError
from shard_gym.common.io.arrays import load_arrays, save_arrays
from shard_gym.cost_models import make_cost_model
from shard_gym.cost_models.neural import NETWORKS, load_cost_model, save_cost_model
from shard_gym.cost_models.neural.storage import KIND


@pytest.fixture
def path(untrained: Any, tmp_path: Path) -> Path:
    model = untrained("pooled")
    model.card = {"fit": {"seed": 3}}
    save_cost_model(model, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("architecture", NETWORKS)
def test_a_model_is_the_same_after_reading(architecture: str, untrained: Any, drawn: Any, tmp_path: Path) -> None:
    model, (tables, topology, placement) = untrained(architecture), drawn(4)
    model.card = {"errors": {"cost": 0.25}, "widths": [1, 2]}
    save_cost_model(model, tmp_path / "new" / "model.safetensors")
    twin = make_cost_model(str(tmp_path / "new" / "model.safetensors"))
    assert type(twin) is type(model)
    assert make_cost_model(twin) is twin
    assert twin.fingerprint == model.fingerprint
    assert twin.card == model.card
    one, other = (each.estimate(placement, tables, topology) for each in (model, twin))
    assert np.array_equal(one.phases_ms, other.phases_ms)
    assert one.total_ms == other.total_ms


def test_reading_and_estimating_need_no_torch(path: Path) -> None:
    script = f"""
import sys
sys.modules["torch"] = sys.modules["pyarrow"] = None  # importing them fails
from shard_gym.cost_models import make_cost_model
from shard_gym.tasks.suites import load_suite
task = load_suite("dlrm-20x4", "test")[0]
model = make_cost_model({str(path)!r})
print(model.estimate(task.known_placement, task.tables, task.topology).total_ms > 0)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == "True", result.stderr


def test_what_is_no_cost_model_is_refused(path: Path, tmp_path: Path) -> None:
    assert make_cost_model(path).fingerprint == load_cost_model(path).fingerprint
    wrong: Any
    for wrong, error, says in (
        (tmp_path / "nowhere.safetensors", InvalidCheckpointError, "no file"),
        (tmp_path, InvalidCheckpointError, "no file"),
        (str(path.with_suffix(".pt")), UnknownNameError, r"a file \*\.safetensors"),
        (3, InvalidOptionError, "the path of a file"),
    ):
        with pytest.raises(error, match=says):
            make_cost_model(wrong)


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"architecture": "transformer"}, "'transformer'; known are dreamshard, .*pooled"),
        ({"architecture": ["pooled"]}, "known are"),
        ({"architecture": "neuroshard", "version": 1}, "with shape|array"),
        ({"version": 1}, "version 1 of the network 'pooled'.* reads version 2"),
        ({"version": None}, "version None"),
        ({"card": "good"}, "no card"),
        ({"kind": "agent"}, "holds 'agent', not 'cost-model'. .* come from shard-gym fit-cost-model"),
        ({"array": lambda array: array.T}, r"table\.0\.weight"),
        ({"array": lambda array: array.astype(np.float64)}, r"table\.0\.weight"),
        ({"array": lambda array: array * np.nan}, r"table\.0\.weight"),
    ],
)
def test_models_of_others_are_refused(path: Path, about: dict[str, Any], message: str) -> None:
    arrays, said = load_arrays(path, KIND)
    said |= about
    if change := said.pop("array", None):
        arrays["table.0.weight"] = change(arrays["table.0.weight"])
    save_arrays(path, said.pop("kind", KIND), arrays, said)
    with pytest.raises(InvalidCheckpointError, match=message):
        load_cost_model(path)
