"""At home: keep what a call returned for the next one, and put everything into the checkout at the end.

    python -m tools.gpu_day.returning keep FOLDER   # after every call
    python -m tools.gpu_day.returning install       # on the branch that gets the results

`install` writes docs/results/measurements/MACHINE/: the data set of `shard-gym collect`, the models fitted to it, the
trained agent, the race, and the experiments of all calls in one file. It prints the commands that are left to do.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from itertools import count
from pathlib import Path

from tools.gpu_day.layout import CARRIED, RETURNED, ROOT, shard_gym
from tools.gpu_day.parcels import SUMS, ParcelError, check, files_of, unpack
from tools.gpu_day.slices import COLLECT, FIT, RACE

MEASUREMENTS = Path("docs/results/measurements")
EXPERIMENTS = "experiments.parquet"


def keep(folder: Path, returned: Path) -> None:
    """Copy the files of a call to what travels next time; archives replace those of the same name.

    Raises:
        ParcelError: a file is missing or damaged.
    """
    if (folder / SUMS).exists():
        files = list(check(folder))
    else:
        print(f"{folder} has no {SUMS}, so the call was ended from outside; what it wrote until then is kept.")
        files = files_of(folder)
    returned.mkdir(parents=True, exist_ok=True)
    for path in files:
        name = path.name
        if name == "log.txt":
            name = _free_name(returned, "log", ".txt")
        elif name.startswith("experiments-"):
            contents = {each.read_bytes(): each.name for each in returned.glob("experiments-*.parquet")}
            name = contents.get(path.read_bytes()) or _free_name(returned, "experiments", ".parquet")
        elif ".tar.xz" in name:
            for old in returned.glob(f"{name.partition('.tar.xz')[0]}.tar.xz*"):
                if old.name not in {each.name for each in files}:
                    old.unlink()
        shutil.copyfile(path, returned / name)
        print(f"Kept: {returned / name}, {path.stat().st_size:,} bytes")


def _free_name(folder: Path, beginning: str, end: str) -> str:
    """A name for another file of a kind: log-0.txt, log-1.txt, ..."""
    return next(name for number in count() if not (folder / (name := f"{beginning}-{number}{end}")).exists())


def install(returned: Path, root: Path) -> list[str]:
    """Put all results into the checkout `root`; the commands that are left to do.

    Raises:
        ParcelError: an archive is damaged, or there are no results.
    """
    from shard_gym.cost_models.data.folder import read_index
    from shard_gym.io.files import read_json

    with tempfile.TemporaryDirectory() as scratch:
        state = Path(scratch)
        found = {name for name in (COLLECT, FIT, RACE) if unpack(returned, name, state / name)}
        experiments = sorted(returned.glob("experiments-*.parquet"))
        if COLLECT in found:
            machine = read_index(state / COLLECT).hardware
        elif experiments:
            machine = _machine_of(experiments[0])
        else:
            raise ParcelError(f"{returned} has neither a collection nor experiments; keep what the calls returned.")
        target = root / MEASUREMENTS / machine
        target.mkdir(parents=True, exist_ok=True)
        if COLLECT in found:
            shutil.copytree(state / COLLECT, target, dirs_exist_ok=True)
        for part in ("models", "dream-search"):
            if (state / FIT / part).is_dir():
                shutil.copytree(state / FIT / part, target / part, dirs_exist_ok=True, ignore=_logs)
        if RACE in found:
            suite = read_json(state / RACE / "race.json")["suite"]
            shutil.copytree(state / RACE, target / f"race-{suite}", dirs_exist_ok=True)
        if experiments:
            _join(experiments, target / EXPERIMENTS)
    return _next_steps(root, target.relative_to(root))


def _logs(_: str, names: list[str]) -> set[str]:
    """What of a training run is not kept: its log and the state that a resumed run reads."""
    return {name for name in names if name in ("log", "training.safetensors")}


def _machine_of(experiments: Path) -> str:
    import pyarrow.parquet as parquet

    fingerprint: bytes = parquet.read_schema(experiments).metadata[b"machine"]
    return fingerprint.decode().partition("_")[0]


def _join(files: list[Path], target: Path) -> None:
    """Write the rows of all `files` to `target`, with a column `call` that says which one they are from."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    tables = []
    for number, path in enumerate(files):
        table = parquet.read_table(path, use_threads=False, pre_buffer=False)
        tables.append(table.append_column("call", arrow.array([number] * len(table), arrow.int64())))
    parquet.write_table(arrow.concat_tables(tables), target, compression="zstd")


def _next_steps(root: Path, target: Path) -> list[str]:
    """Command lines, to be given in the folder `root`; `target` is within it."""
    if not (root / target / "index.json").exists():
        return [f"git add {target}"]
    models = sorted((root / target / "models").glob("*.safetensors"))
    given = ["--models", *(target / "models" / path.name for path in models)] if models else []
    report = shard_gym("report-cost-model", target, *given, "--out", "docs/results")
    return [" ".join(["shard-gym", *report[3:]]), f"git add {target} docs/results"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_day.returning", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--carried", type=Path, default=CARRIED, help="folder that travels with the checkout")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="where `install` writes")
    parser.add_argument("what", choices=("keep", "install"))
    parser.add_argument("folder", type=Path, nargs="?", help="for keep: the files of a call")
    chosen = parser.parse_args()
    returned = chosen.carried / RETURNED
    try:
        if chosen.what == "keep":
            if chosen.folder is None:
                parser.error("keep needs the folder with the files of a call.")
            keep(chosen.folder, returned)
        else:
            print("Installed. Left to do:", *install(returned, chosen.checkout.resolve()), sep="\n  ")
    except ParcelError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
