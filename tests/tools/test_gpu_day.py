"""The day with a borrowed GPU: its experiments on a CPU, and what travels to the machine and back."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def call(out: Path, carried: Path, *slices: str, minutes: float = 3.0) -> str:
    """A call on a machine that has nothing but what is carried; what it printed."""
    work = out.with_name(f"{out.name}-machine")
    options = ["--out", out, "--carried", carried, "--work", work, "--minutes", minutes, "--device", "cpu"]
    command = [sys.executable, "-m", "tools.gpu_day", *slices, *map(str, options), "--rehearse"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# Experiments


def test_a_call_measures_and_the_next_one_measures_nothing_again(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("fbgemm_gpu")
    from tools.gpu_day.parcels import check
    from tools.gpu_day.points import ANCHOR, Point, plan, rows
    from tools.gpu_day.returning import install, keep

    first, carried = tmp_path / "first", tmp_path / "carried"
    call(first, carried, "experiments")
    table = parquet.read_table(first / "experiments-0.parquet").to_pylist()
    measured = [Point(each["experiment"], json.loads(each["parameters"])).key for each in table]
    planned = [point.key for point in rows(plan(rehearse=True))]
    assert [key for key in measured if json.loads(key)[0] != ANCHOR] == planned
    assert all(each["failure"] == "" and each["forward_ms"] >= 0 for each in table)
    for each in table:
        if "tables" in json.loads(each["parameters"]):
            assert each["backward_ms"] > 0
            assert 0 < each["distinct_rows"] <= each["lookups"]
            assert each["working_set_bytes"] > 8 * each["lookups"]
            assert np.median(each["backward_all_ms"]) == each["backward_ms"]

    assert {path.name for path in check(first)} == {"experiments-0.parquet", "log.txt"}
    keep(first, carried / "returned")
    printed = call(tmp_path / "second", carried, "experiments")
    assert f"{len(planned)} points are measured, 0 are left." in printed
    assert not list((tmp_path / "second").glob("*.parquet"))

    checkout = tmp_path / "checkout"
    checkout.mkdir()
    install(carried / "returned", checkout)
    (written,) = checkout.rglob("experiments.parquet")
    assert parquet.read_table(written)["call"].to_pylist() == [0] * len(table)


def test_the_plan_begins_with_what_nobody_has_published_and_measures_nothing_twice() -> None:
    from tools.gpu_day.points import BATCHES, plan, rows

    groups = plan()
    names = [group[0].experiment for group in groups]
    assert names[:80] == ["pooled"] * 40 + ["mixed"] * 40
    assert not {"pooled", "mixed"} & set(names[80:])
    assert len(set(names[80:120])) > 4  # the others are shuffled together
    keys = [point.key for point in rows(groups)]
    assert len(set(keys)) == len(keys)
    assert 900 < len(groups) < 1_100
    assert [[point.key for point in group] for group in plan()] == [[point.key for point in group] for group in groups]
    for point in rows(groups):
        given = point.parameters
        for _, wanted, _, lookups in given.get("tables", []):
            assert lookups >= 1
            if given["run"]:  # each batch finds rows of its own
                assert wanted >= BATCHES * given["batch"] * lookups / given["run"]


def test_every_row_occurs_as_often_as_its_run_length_says() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("fbgemm_gpu")
    from tools.gpu_day.measuring import Bench
    from tools.gpu_day.points import BATCHES, rows_for

    bench = Bench("cpu")
    batches = [bench._indices(64, rows_for(64, 8), 8, number) for number in range(BATCHES)]
    for indices in batches:
        assert torch.unique(indices, return_counts=True)[1].tolist() == [8] * 8
    assert len(torch.unique(torch.cat(batches))) == 8 * BATCHES
    assert int(torch.cat(batches).max()) < rows_for(64, 8)


# What travels


def test_a_folder_that_is_too_large_for_one_file_comes_back_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tools.gpu_day import parcels
    from tools.gpu_day.returning import keep

    folder, out, returned = tmp_path / "collect", tmp_path / "out", tmp_path / "returned"
    folder.mkdir()
    noise = np.random.default_rng(0).bytes(50_000)
    (folder / "noise.bin").write_bytes(noise)
    monkeypatch.setattr(parcels, "MAX_FILE_BYTES", 20_000)
    assert [path.name for path in parcels.pack(folder, out)] == [f"collect.tar.xz.{part}" for part in range(3)]
    assert parcels.seal(out) == []
    keep(out, returned)
    assert parcels.unpack(returned, "collect", tmp_path / "there")
    assert (tmp_path / "there" / "noise.bin").read_bytes() == noise

    # A later call returns less; no part of the earlier one stays.
    (folder / "noise.bin").write_bytes(noise[:100])
    parcels.pack(folder, out)
    parcels.seal(out)
    keep(out, returned)
    assert [path.name for path in returned.glob("collect*")] == ["collect.tar.xz"]
    assert not parcels.unpack(returned, "race", tmp_path / "there")


def test_experiments_of_two_calls_are_both_kept_and_none_twice(tmp_path: Path) -> None:
    from tools.gpu_day.parcels import seal
    from tools.gpu_day.returning import keep

    out, returned = tmp_path / "out", tmp_path / "returned"
    out.mkdir()
    for content in (b"first", b"second", b"first"):
        (out / "experiments-0.parquet").write_bytes(content)
        (out / "log.txt").write_bytes(content)
        seal(out)
        keep(out, returned)
    names = ["experiments-0.parquet", "experiments-1.parquet", "log-0.txt", "log-1.txt", "log-2.txt"]
    assert sorted(path.name for path in returned.iterdir()) == names
    assert (returned / "experiments-1.parquet").read_bytes() == b"second"


def test_damaged_and_missing_files_are_refused(tmp_path: Path) -> None:
    from tools.gpu_day import parcels

    folder, out = tmp_path / "fit", tmp_path / "out"
    folder.mkdir()
    (folder / "a").write_bytes(bytes(1000))
    (archive,) = parcels.pack(folder, out)
    parcels.seal(out)
    archive.write_bytes(archive.read_bytes()[:-10])
    with pytest.raises(parcels.ParcelError, match=r"fit\.tar\.xz is missing or damaged"):
        parcels.check(out)
    with pytest.raises(parcels.ParcelError, match="a part of it is missing"):
        parcels.unpack(out, "fit", tmp_path / "there")


def test_what_will_not_come_back_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.gpu_day import parcels

    monkeypatch.setattr(parcels, "MAX_FILE_BYTES", 20)
    for number in range(8):
        (tmp_path / str(number)).write_bytes(bytes(21 if number == 3 else 20))
    large, many = parcels.seal(tmp_path)
    assert "3 has 21 bytes" in large
    assert "has 9 files; at most 8" in many


def container(*entries: tuple[int, int, bytes]) -> bytes:
    """A container of device code: kind, architecture and code of each entry."""
    packed = b""
    for kind, architecture, code in entries:
        packed += struct.pack("<HHIQ", kind, 0, 64, len(code)) + bytes(12) + struct.pack("<I", architecture)
        packed += bytes(32) + code
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(packed)) + packed


def test_only_the_code_of_one_architecture_is_kept(tmp_path: Path) -> None:
    from tools.gpu_day.packing import keep_architecture

    def library(old: bytes, wanted: bytes, source: bytes) -> bytes:
        chance = struct.pack("<I", 0xBA55ED50) + b"no container at all"
        return b"host code" + chance + container((2, 80, old), (2, 90, wanted), (1, 90, source)) + b"more host code"

    path = tmp_path / "library.so"
    path.write_bytes(library(b"A" * 24, b"H" * 40, b"ptx!" * 4))
    keep_architecture(path, 90)
    assert path.read_bytes() == library(bytes(24), b"H" * 40, bytes(16))


@pytest.mark.parametrize("module", ["layout", "parcels", "slices", "packing"])
def test_what_runs_on_a_bare_machine_imports_the_standard_library_only(module: str) -> None:
    code = f"import sys, tools.gpu_day.{module}; print({{'numpy', 'torch', 'shard_gym'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    import os
    import time

    from tools.gpu_day.slices import Day

    with (tmp_path / "log.txt").open("w") as log:
        day = Day(tmp_path, tmp_path, "cpu", True, dict(os.environ), log, time.monotonic() + 60)
        code, printed = day.run([sys.executable, "-uc", "print('begun'); import time; time.sleep(60)"], 1.5)
    assert (code, printed) == (-15, "begun\n")
    assert "begun" in (tmp_path / "log.txt").read_text()


# Slices


def test_an_agent_is_trained_when_its_run_is_done(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    from shard_gym.io.arrays import save_arrays
    from tools.gpu_day.slices import FIT, Day, _trained

    day = Day(tmp_path, tmp_path, "cpu", rehearse=True, environment={}, log=sys.stdout)
    folder = tmp_path / FIT / "dream-search"
    folder.mkdir(parents=True)
    assert _trained(day) is None
    for done in (1, 2, 3):
        about = {"agent": "dreamshard", "trained": {"iteration": done, "iterations": 3}}
        save_arrays(folder / "agent.safetensors", "agent", {"weights": np.ones(2)}, about)
        assert _trained(day) == (folder if done == 3 else None)


@pytest.mark.parametrize("name", ["../elsewhere", "/tmp/elsewhere"])
def test_an_archive_writes_only_below_its_folder(tmp_path: Path, name: str) -> None:
    from tools.gpu_day import parcels

    with tarfile.open(tmp_path / "fit.tar.xz", "w:xz") as tar:
        tar.addfile(tarfile.TarInfo(name))
    with pytest.raises(parcels.ParcelError, match="no file below its folder"):
        parcels.unpack(tmp_path, "fit", tmp_path / "there")
    assert not (tmp_path / "elsewhere").exists()
