"""Weights in files: what goes in comes out, and nothing else is taken for them."""

from __future__ import annotations

import json
import os
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save

from shard_gym.common.errors import InvalidCheckpointError, MissingExtraError
from shard_gym.common.io import arrays as storage
from shard_gym.common.io.arrays import SCHEMA, load_arrays, require_arrays, save_arrays

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b.c": np.array(3.0)}
ABOUT = {"agent": "rnn", "sizes": [1, 2], "nested": {"ä": None}}
DTYPES = [np.float32, np.float64, np.float16, np.int64, np.int32, np.uint8, np.bool_]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "w.safetensors"


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


@settings(max_examples=40)
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_every_shape_and_dtype_comes_back_bit_by_bit(
    tmp_path_factory: pytest.TempPathFactory, data: Any, dtype: Any
) -> None:
    finite = {"allow_nan": False, "allow_infinity": False} if np.dtype(dtype).kind == "f" else {}
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    array = data.draw(hnp.arrays(dtype, shape, elements=finite or None))
    path = tmp_path_factory.getbasetemp() / "w.safetensors"
    for given_array in (array, array.T, array[..., ::-1] if array.ndim else array):
        save_arrays(path, "agent", {"x": given_array}, {})
        assert same_bits(load_arrays(path, "agent")[0]["x"], given_array)


class Bomb:
    """Unpickling it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def header(**changes: Any) -> dict[str, str]:
    return {"shard_gym": json.dumps({"schema": SCHEMA, "kind": "agent", "about": {}, "sha256": "0" * 64} | changes)}


def signed(arrays: dict[str, np.ndarray]) -> bytes:
    """A file with a checksum that is right."""
    metadata = {"schema": SCHEMA, "kind": "agent", "about": {}}
    return save(arrays, header(sha256=storage._digest(metadata, arrays)))


WHOLE = signed(ARRAYS)
REFUSED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "damaged, or no safetensors file"),
    "a header of 2**60 bytes": ((2**60).to_bytes(8, "little") + WHOLE[8:], "damaged, or no safetensors file"),
    "cut in the arrays": (WHOLE[:-1], "damaged, or no safetensors file"),
    "foreign, no header": (save(ARRAYS), "not written by ShardGym"),
    "a header that is no JSON": (save(ARRAYS, {"shard_gym": "{"}), "is damaged: .* not readable JSON"),
    "a newer schema": (save(ARRAYS, header(schema="shard-gym-weights/3")), "update shard-gym"),
    "a header that is a list": (save(ARRAYS, {"shard_gym": "[]"}), "is damaged: its header is no object"),
    "about is a list": (save(ARRAYS, header(about=[])), "has about .*, but it must be dict"),
    "an unknown key": (save(ARRAYS, header(more=1)), "has the unknown key 'more'"),
    "no checksum": (save(ARRAYS, {"shard_gym": json.dumps({"schema": SCHEMA, "kind": "agent", "about": {}})}), "lacks"),
    "another checksum": (save(ARRAYS, header()), "is damaged: its content is not what its SHA-256 says"),
    "another weight": (WHOLE.replace(np.float32(5).tobytes(), np.float32(4).tobytes()), "not what its SHA-256 says"),
    "another dtype": (WHOLE.replace(b'"F32"', b'"I32"'), "not what its SHA-256 says"),
    "another kind": (WHOLE, "holds 'agent', not 'training'"),
    "infinity": (signed({"w": np.array([np.inf], np.float16)}), "'w' in .* holds NaN or infinity"),
    "NaN": (signed({"w": np.array([1.0, np.nan])}), "'w' in .* holds NaN or infinity. Train it again."),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_file_of_ours_is_refused_by_its_path(path: Path, what: str) -> None:
    content, says = REFUSED[what]
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(InvalidCheckpointError, match=says) as caught:
        load_arrays(path, "training" if what == "another kind" else "agent")
    assert str(path) in str(caught.value)


def test_no_flipped_bit_passes(path: Path) -> None:
    save_arrays(path, "agent", ARRAYS, {**ABOUT, "by_number": {10: "a"}, "tuple": (1,)})
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(200):
        content = bytearray(whole)
        content[int(rng.integers(len(whole)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
        try:
            arrays, about = load_arrays(path, "agent")
        except InvalidCheckpointError:
            continue
        # A blank of the header became another blank. Keys and tuples are signed as they are read back.
        assert about == {**ABOUT, "by_number": {"10": "a"}, "tuple": [1]}
        assert all(same_bits(arrays[name], ARRAYS[name]) for name in ARRAYS)


def test_where_there_is_no_file_that_may_be_read_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    for missing in (path, Path("/")):
        with pytest.raises(InvalidCheckpointError, match=f"There is no file {missing};"):
            load_arrays(missing, "agent")
    monkeypatch.setattr(Path, "is_file", denied)
    with pytest.raises(InvalidCheckpointError, match=rf"{path}.*Permission denied"):
        load_arrays(path, "agent")


@pytest.mark.parametrize("form", ["pickle", "zip", "torch.save"])
def test_pickles_are_refused_and_not_opened(tmp_path: Path, form: str) -> None:
    path, trap = tmp_path / "agent.pt", tmp_path / "trap"
    if form == "pickle":
        path.write_bytes(pickle.dumps(Bomb(trap)))
    elif form == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data.pkl", pickle.dumps(Bomb(trap)))
    else:
        torch.save(Bomb(trap), path)
    with pytest.raises(InvalidCheckpointError, match=r"Pickle files \(.pt, .pkl, .zip\) are not read"):
        load_arrays(path, "agent")
    assert not trap.exists()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"a": None}, "The file lacks the array 'a'."),
        ({"z": np.zeros(1)}, "The file holds an array 'z' that does not belong there."),
        ({"a": np.zeros((3, 2), np.float32)}, r"holds 'a' with shape \(3, 2\), but \(2, 3\) is needed"),
        ({"b.c": np.array(3)}, r"The file holds 'b.c' with int64, but float64 is needed"),
    ],
)
def test_arrays_that_do_not_fit_are_named(changes: dict[str, Any], says: str) -> None:
    require_arrays("The file", dict(ARRAYS), ARRAYS)
    given_arrays = {name: array for name, array in {**ARRAYS, **changes}.items() if array is not None}
    with pytest.raises(InvalidCheckpointError, match=says):
        require_arrays("The file", given_arrays, ARRAYS)


def test_without_the_package_the_extra_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_arrays(path, "agent", ARRAYS, {})
    for module in ("safetensors", "safetensors.numpy"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"Reading weights needs .*shard-gym\[torch\]"):
        load_arrays(path, "agent")
    with pytest.raises(MissingExtraError, match=r"Writing weights needs .*shard-gym\[torch\]"):
        save_arrays(path, "agent", ARRAYS, {})
