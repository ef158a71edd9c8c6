"""From the data of the leaderboards to the files of the page; equal data give equal bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shard_gym.cost_models import make_cost_model
from shard_gym.errors import InvalidOptionError, UnwritablePathError
from shard_gym.io.files import write_atomically
from shard_gym.leaderboard.site.data import EntryData, ProfileLine, SiteData, SuiteData, check_site_data, suite_key
from shard_gym.leaderboard.site.explorer import SCORE_DIGITS, Explorer, shortened
from shard_gym.suites import load_suite
from shard_gym.tasks import TaskSuite

STATIC = Path(__file__).parent / "static"
"""The files that are the same for all data."""

DATA = "data"
"""The folder of a site that holds its data, and nothing else."""

LoadSuite = Callable[[str], TaskSuite]

_ENTRY_FACTS = (
    "id",
    "name",
    "authors",
    "link",
    "licence",
    "agent",
    "hardware",
    "seeds",
    "failures",
    "planning_replayed",
    "training_queries",
    "training_data",
    "shard_gym",
)
_ENTRY_NUMBERS = ("mean_cost_ms", "gap", "improvement_over_next", "planning_ms", "planning_queries")


def write_site(data: SiteData, out: Path, load: LoadSuite = load_suite) -> list[Path]:
    """Write the page into the folder `out` and return the paths of its files, sorted.

    Each file is written atomically. What an earlier page left in the folder `data` there, such as the numbers of an
    entry that is gone, is removed afterwards; nothing else in `out` is touched.

    Args:
        data: what to show.
        out: made if it is missing.
        load: gives the test tasks of a suite by its name.

    Raises:
        InvalidOptionError: the data make no page (see `check_site_data` and `site_files`).
        InvalidPlacementError: a placement is not valid.
        UnwritablePathError: the folder cannot be written to.
    """
    files = site_files(data, load)
    for name, content in files.items():
        write_atomically(out / name, content)
    for path in sorted((out / DATA).rglob("*.js")):
        if path.relative_to(out).as_posix() not in files:
            try:
                path.unlink()
            except OSError as error:
                raise UnwritablePathError(f"{path} is out of date and cannot be removed: {error.strerror}.") from error
    return [out / name for name in files]


def site_files(data: SiteData, load: LoadSuite = load_suite) -> dict[str, bytes]:
    """The content of each file of the page by its path in it, sorted; nothing is written.

    Raises:
        InvalidOptionError: see `check_site_data`; or the tasks of a suite are not those that `load` gives.
        InvalidPlacementError: a placement is not valid.
        UnknownNameError: there is no such suite, or no such cost model.
    """
    check_site_data(data)
    files = {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in STATIC.rglob("*") if path.is_file()}
    files[f"{DATA}/index.js"] = _script("index", _index(data, load))
    for suite in data["suites"]:
        for name, value in _suite_values(suite, load(suite["name"])):
            key = f"{suite_key(suite)}/{name}"
            files[f"{DATA}/{key}.js"] = _script(key, value)
    return dict(sorted(files.items()))


def _script(key: str, value: Any) -> bytes:
    """A script that keeps `value` under `key`. A page opened from a disk may load scripts, but may not fetch JSON.

    All text is ASCII, with anything else escaped, and `value` is a literal: it is never run as more than that.
    """
    literal = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return f"(window.ShardGymData ??= {{}})[{json.dumps(key)}] = {literal};\n".encode("ascii")


def _index(data: SiteData, load: LoadSuite) -> dict[str, Any]:
    """What the first page needs of all suites."""
    contestants = {entry["id"]: None for suite in data["suites"] for entry in suite["entries"]}
    return {
        "contestants": sorted(contestants),
        "suites": [_suite_line(suite, load(suite["name"])) for suite in data["suites"]],
        "profiles": [{**each, "lines": [_profile_line(line) for line in each["lines"]]} for each in data["profiles"]],
    }


def _profile_line(line: ProfileLine) -> dict[str, Any]:
    """The line with all numbers shortened; what is left out is None."""
    return {
        **line,
        "shares": [shortened(share) for share in line["shares"]],
        "iqm": shortened(line.get("iqm"), SCORE_DIGITS),
        "iqm_interval": [shortened(end, SCORE_DIGITS) for end in line.get("iqm_interval", ())],
    }


def _suite_line(suite: SuiteData, tasks: TaskSuite) -> dict[str, Any]:
    named, known = [task["name"] for task in suite["tasks"]], [task.name for task in tasks]
    if named != known:
        raise InvalidOptionError(
            f"The data of suite {suite['name']!r} list {len(named)} tasks, which are not its {len(known)} test tasks "
            "in their order. List every task once, under the suite's own name for it."
        )
    tables, devices = [task.num_tables for task in tasks], [task.num_devices for task in tasks]
    facts = {field: suite[field] for field in ("name", "track", "hardware", "description", "cost_model")}
    return {
        "key": suite_key(suite),
        **facts,
        "tasks": len(tasks),
        "tables": [min(tables), max(tables)],
        "devices": [min(devices), max(devices)],
        "entries": len(suite["entries"]),
        "best_effort": suite["best"]["effort"] if suite["best"] else None,
    }


def _suite_values(suite: SuiteData, tasks: TaskSuite) -> Iterator[tuple[str, Any]]:
    """The files of a suite: the table, the tasks, and each entry's placements taken apart.

    One file for each entry, so that a new one adds a file and changes no other, and a reader loads the two compared.
    """
    model = make_cost_model(suite["cost_model"])
    explorers = [Explorer(task, model) for task in tasks]
    yield "ranking", [_entry_line(entry) for entry in suite["entries"]]
    yield "tasks", [explorer.sheet(known) for explorer, known in zip(explorers, suite["tasks"], strict=True)]
    if suite["best"]:
        costs = [task["best_known_ms"] for task in suite["tasks"]]
        yield "best", _details(explorers, costs, suite["best"]["placements"])
    for entry in suite["entries"]:
        yield f"entries/{entry['id']}", _details(explorers, entry["task_costs_ms"], entry["placements"])


def _details(
    explorers: Sequence[Explorer], costs: Sequence[float | None], placements: Sequence[list[int] | None]
) -> dict[str, Any]:
    """What a panel shows of each task: the cost that counts, and the placement taken apart."""
    sheets = [explorer.take_apart(placed) for explorer, placed in zip(explorers, placements, strict=True)]
    return {"task_costs_ms": [shortened(cost) for cost in costs], "placements": sheets}


def _entry_line(entry: EntryData) -> dict[str, Any]:
    values: Mapping[str, Any] = entry
    return {
        **{field: values[field] for field in _ENTRY_FACTS},
        **{field: shortened(values[field], SCORE_DIGITS) for field in _ENTRY_NUMBERS},
        "interval_ms": [shortened(end, SCORE_DIGITS) for end in entry["interval_ms"]],
    }
