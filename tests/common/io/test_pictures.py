"""Pictures that commands write, and the checks before the work for them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shard_gym.common.errors import InvalidOptionError, MissingExtraError, UnwritablePathError
from shard_gym.common.io.pictures import matplotlib_missing, require_picture, save_picture

BEGINNINGS = {".pdf": b"%PDF", ".svg": b"<?xml", ".PNG": b"\x89PNG"}


@pytest.mark.parametrize("suffix", BEGINNINGS)
def test_the_suffix_names_the_format(tmp_path: Path, suffix: str) -> None:
    figure_module = pytest.importorskip("matplotlib.figure")
    path = tmp_path / "new" / f"picture{suffix}"
    save_picture(figure_module.Figure(figsize=(1, 1)), path)
    assert path.read_bytes().startswith(BEGINNINGS[suffix])
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["p.xyz", ".png", "p.png.txt"])
def test_any_other_suffix_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"its name must end in one of \.pdf, \.png, \.svg"):
        require_picture(tmp_path / name)


def test_a_folder_is_no_place_for_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "p.png").mkdir()
    with pytest.raises(UnwritablePathError, match="it is a folder"):
        require_picture(tmp_path / "p.png")
    require_picture(tmp_path / "q.png")
    assert not (tmp_path / "q.png").exists()


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert isinstance(matplotlib_missing(), MissingExtraError)
    with pytest.raises(MissingExtraError, match=r"shard-gym\[viz\]"):
        require_picture(tmp_path / "p.png")
