"""Before the day: make the folder of wheels and libraries that the machine with the GPU lacks.

    python -m tools.gpu_day.packing

A GPU build of FBGEMM has machine code for every architecture, 465 MB packed. `slim` keeps that of one and zeroes the
rest, which packs to nothing, and drops libraries that no operator of this project uses: 47 MB.
"""

from __future__ import annotations

import argparse
import json
import mmap
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tools.gpu_day.layout import CARRIED, FBGEMM, LIMIT_BYTES, ROOT, WHEELS

MISSING = ("gymnasium==1.4.0", "farama-notifications", "tyro", "typeguard", "docstring-parser")
"""What a machine with torch usually has not got; with `--no-deps`, so each is named."""

LEFT_OUT = ("leaderboards", "docs/results")
"""Folders of the checkout that no slice reads."""

PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")

UNUSED_LIBRARIES = ("inference", "training_backward_gwd", "training_backward_vbe")
"""Ends of the names of FBGEMM's libraries that training of tables in GPU memory with one batch size does not call."""

FAT_BINARY = struct.pack("<I", 0xBA55ED50)
"""First word of a container of device code in a CUDA library; `cuobjdump --dump-elf` reads the same."""

MACHINE_CODE = 2
"""Kind of an entry of such a container; 1 is PTX, which would be compiled for minutes at the first launch."""


def keep_architecture(library: Path, sm: int) -> None:
    """Zero all device code in `library` but the machine code of architecture `sm`, such as 90; the size stays."""
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as blob:
        at = blob.find(FAT_BINARY)
        while at >= 0:
            at = blob.find(FAT_BINARY, _clear_others(blob, at, sm))


def _clear_others(blob: mmap.mmap, start: int, sm: int) -> int:
    """Zero the other entries of the container at `start`; where to look for the next container."""
    version, header, size = struct.unpack_from("<HHQ", blob, start + 4)
    end: int = start + header + size
    if (version, header) != (1, 16) or end > len(blob):
        return start + 4  # the word occurred by chance
    entry = start + header
    while entry + 64 <= end:
        kind, _, entry_header, length = struct.unpack_from("<HHIQ", blob, entry)
        (architecture,) = struct.unpack_from("<I", blob, entry + 28)
        first = entry + entry_header
        if kind not in (1, MACHINE_CODE) or entry_header < 64 or first + length > end + 8:
            break
        if (kind, architecture) != (MACHINE_CODE, sm):
            blob[first : first + length] = bytes(length)
        entry = first + length
    return end


def slim(wheel: Path, out: Path, sm: int) -> None:
    """Write the package in `wheel`, a GPU build of FBGEMM, to `out` (.tar.xz) with the code of one architecture."""
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(scratch)
        package = Path(scratch) / "fbgemm_gpu"
        for library in package.glob("*.so"):
            if library.stem.endswith(UNUSED_LIBRARIES):
                library.unlink()
            else:
                keep_architecture(library, sm)
        # In the variant "docs" the package logs a library that is missing; in others it raises.
        target = package / "docs" / "target.default.json.py"
        target.write_text(json.dumps({**json.loads(target.read_text()), "variant": "docs"}))
        out.parent.mkdir(parents=True, exist_ok=True)
        unfinished = out.with_name(f".{out.name}")
        with unfinished.open("wb") as file:
            tar = subprocess.Popen(["tar", "cf", "-", "-C", scratch, "."], stdout=subprocess.PIPE)
            subprocess.run(["xz", "-T0", "-9e", "-c"], stdin=tar.stdout, stdout=file, check=True)
        unfinished.replace(out)


def download(requirements: Sequence[str], folder: Path, python: str) -> None:
    """Fetch the wheels of `requirements`, without what they need, for that Python on Linux."""
    folder.mkdir(parents=True, exist_ok=True)
    platforms = [text for platform in PLATFORMS for text in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", python, "--implementation", "cp", *platforms, "--dest", str(folder)]
    subprocess.run([*command, *requirements], check=True)


def tree_bytes() -> dict[str, int]:
    """Bytes of the files of the checkout that git knows or would add, by folder at the top."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    sizes: dict[str, int] = {}
    for name in dict.fromkeys(listed.split("\0")):
        path = ROOT / name
        if name and path.is_file() and not path.is_symlink():
            top = next((each for each in LEFT_OUT if name.startswith(f"{each}/")), name.partition("/")[0])
            sizes[top] = sizes.get(top, 0) + path.stat().st_size
    return sizes


def print_sizes(carried: Path) -> int:
    """Print what would travel now, and how much is left of the limit; 0 if it fits and 1 if not."""
    tree, extra = tree_bytes(), sum(path.stat().st_size for path in carried.rglob("*") if path.is_file())
    used = sum(tree.values()) + extra
    print(f"The checkout has {sum(tree.values()) / 1e6:.1f} MB, {carried.name} has {extra / 1e6:.1f} MB.")
    for name in LEFT_OUT:
        if name in tree:
            print(f"{name} is {tree[name] / 1e6:.1f} MB of it and not needed: remove it on a branch for the day.")
    print(f"Of {LIMIT_BYTES / 1e6:.1f} MB that may travel, {(LIMIT_BYTES - used) / 1e6:.1f} MB are left.")
    return int(used > LIMIT_BYTES)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_day.packing", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("also", nargs="*", metavar="NAME", help="further packages, such as those that `check` misses")
    parser.add_argument("--python", default="3.12", help="version of Python of the machine")
    parser.add_argument("--fbgemm", default="1.6.0", help="its version; 1.6 goes with torch 2.11, 1.8 with torch 2.13")
    parser.add_argument("--sm", type=int, default=90, help="architecture of the GPU; H100 and H200 have 90")
    parser.add_argument("--carried", type=Path, default=CARRIED, help="folder to make")
    parser.add_argument("--sizes", action="store_true", help="only print how much travels")
    chosen = parser.parse_args()
    if not chosen.sizes:
        download([*MISSING, *chosen.also], chosen.carried / WHEELS, chosen.python)
        if not (chosen.carried / FBGEMM).exists():
            with tempfile.TemporaryDirectory() as scratch:
                download([f"fbgemm-gpu=={chosen.fbgemm}"], Path(scratch), chosen.python)
                (wheel,) = Path(scratch).glob("*.whl")
                slim(wheel, chosen.carried / FBGEMM, chosen.sm)
    return print_sizes(chosen.carried)


if __name__ == "__main__":
    sys.exit(main())
