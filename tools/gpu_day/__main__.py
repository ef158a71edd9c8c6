"""Does slices of the day on the machine with the GPU, and leaves what comes back in a folder.

    python -m tools.gpu_day SLICE ... --out FOLDER --minutes 9

    check        what works here: doctor, and the tests that need a GPU
    experiments  small measurements of FBGEMM's operator, see points.py
    collect      random placements for cost models and DreamShard
    fit          networks, calibration and report, and DreamShard; needs no GPU
    race         heuristics, local search and DreamShard against each other
    artefacts    everything of all calls in one folder

Each takes an equal part of the time that is left. What earlier calls returned is read from .gpu-day/returned, packages
that are missing from .gpu-day/wheels; docs/gpu-day.md says how they get there. `--device cpu --rehearse` tries the same
at a small size on any machine.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from tools.gpu_day.layout import CARRIED, FBGEMM, RETURNED, WHEELS, WORK, environment
from tools.gpu_day.parcels import ParcelError, seal, unpack
from tools.gpu_day.slices import SLICES, STATE, Day

NEEDED = (
    *("numpy", "gymnasium", "farama_notifications", "tyro", "typeguard", "docstring_parser", "rich"),
    *("torch", "fbgemm_gpu", "safetensors", "pyarrow", "filelock", "scipy", "tensorboard", "pytest", "hypothesis"),
)
"""Modules that the slices import."""

PACKING_S = 20.0
"""Left at the end for packing what comes back."""


def prepare(carried: Path, site: Path) -> list[str]:
    """Install into `site` what is missing here and was carried; the modules that are missing even then."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    site.mkdir(parents=True, exist_ok=True)
    if wheels := sorted((carried / WHEELS).glob("*.whl")) if missing else []:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
        subprocess.run([*install, "--upgrade", "--target", str(site), *map(str, wheels)], check=True)
    if "fbgemm_gpu" in missing and (carried / FBGEMM).exists() and not (site / "fbgemm_gpu").exists():
        subprocess.run(["tar", "xf", str(carried / FBGEMM), "-C", str(site)], check=True)
    sys.path.insert(0, str(site))
    return [name for name in missing if find_spec(name) is None]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_day", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("slices", nargs="+", choices=SLICES, metavar="SLICE", help=", ".join(SLICES))
    parser.add_argument("--out", type=Path, required=True, help="folder of what comes back, at most 8 files of 16 MB")
    parser.add_argument("--minutes", type=float, default=9.0, help="of the whole call")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rehearse", action="store_true", help="measure little, at a small size")
    parser.add_argument("--carried", type=Path, default=CARRIED, help="folder of wheels and earlier results")
    parser.add_argument("--work", type=Path, default=WORK, help="folder to work in")
    chosen = parser.parse_args()
    begin = time.monotonic()
    end = begin + 60.0 * chosen.minutes - PACKING_S
    chosen.out.mkdir(parents=True, exist_ok=True)
    out, work = chosen.out.resolve(), chosen.work.resolve()
    state, site, returned = work / "state", work / "site", chosen.carried / RETURNED
    with (out / "log.txt").open("w", encoding="utf-8") as log:
        missing = prepare(chosen.carried, site)
        day = Day(state, out, chosen.device, chosen.rehearse, environment(site), log)
        day.say(f"Python {sys.version.split()[0]}, prepared in {time.monotonic() - begin:.0f} s")
        if missing:
            day.say(f"Missing here: {', '.join(missing)}. Pack their wheels: python -m tools.gpu_day.packing NAME ...")
        shutil.rmtree(state, ignore_errors=True)
        try:
            found = [name for name in STATE if unpack(returned, name, state / name)]
        except ParcelError as error:
            day.say(str(error))
            return 1
        (state / "experiments").mkdir(parents=True)
        for path in sorted(returned.glob("experiments-*.parquet")):
            shutil.copy(path, state / "experiments")
            found.append(path.name)
        day.say(f"From earlier calls: {', '.join(found) or 'nothing'}")
        works = True
        for number, name in enumerate(chosen.slices):
            now = time.monotonic()
            day.deadline = now + max(end - now, 0.0) / (len(chosen.slices) - number)
            day.say(f"\n=== {name}, {day.left_s:.0f} s")
            works = works and day.left_s > 0 and SLICES[name](day)
            if not works:
                break
        day.say(f"\nDone after {time.monotonic() - begin:.0f} s.")
    faults = seal(out)
    for fault in faults:
        print(fault)
    return int(bool(faults) or not works)


if __name__ == "__main__":
    sys.exit(main())
