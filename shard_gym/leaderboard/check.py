"""What `shard-gym leaderboard verify` checks: entries, races, files of times, and what a pull request may change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from shard_gym.common.io.files import read_bytes
from shard_gym.common.io.markdown import without_blocks
from shard_gym.common.jobs import run_jobs
from shard_gym.leaderboard.entry import VerifiedEntry
from shard_gym.leaderboard.fresh import read_fresh
from shard_gym.leaderboard.measured_track import read_races
from shard_gym.leaderboard.replay import read_replays
from shard_gym.leaderboard.store import (
    PAGES,
    RACES,
    README,
    ROOT_FILES,
    EntryFolder,
    Finding,
    entry_folder,
    find_entries,
    find_races,
    race_folder,
    require_root,
)
from shard_gym.leaderboard.verify import Run, check_entries_differ, verify_all, verify_entry, verify_folders
from shard_gym.tasks.suites.info import MEASURED

ADDED_ONLY = "Pull requests of entries add entries; maintainers change and remove those that exist."


def check_all(
    root: Path,
    run: Run = run_jobs,
    on_done: Callable[[int, int], None] = lambda done, count: None,
    before: Path | None = None,
    old_times: bool = True,
) -> tuple[list[VerifiedEntry], list[Finding]]:
    """Every valid entry under `root`, and everything that is wrong there: with entries, races and the files of times.

    Args:
        root: the folder of the leaderboards.
        run: see `verify_folders`.
        on_done: called with the number of entries that are done, and of all.
        before: the folder without the new entries, which may be near copies; without it no entry is new.
        old_times: whether `replayed.json` is checked; not where its times are about to be replaced.

    Raises:
        InvalidOptionError: there is no such folder.
        MissingExtraError: there is a race, and pyarrow is not installed.
    """
    verified, findings = verify_all(root, run=run, on_done=on_done, before=before)
    stale = read_replays(root, verified)[1] if old_times else []
    stale += read_fresh(root, verified)[1]
    return verified, [*findings, *read_races(root, verified)[1], *stale]


def check_some(root: Path, ids: Sequence[str], run: Run = run_jobs) -> tuple[list[VerifiedEntry], list[Finding]]:
    """The valid ones of some entries and races, and everything that is wrong with these.

    Args:
        root: the folder of the leaderboards.
        ids: TRACK/SUITE/ENTRY, or measured/SUITE/races/NAME.
        run: see `verify_folders`.

    Raises:
        InvalidOptionError: there is no such folder, or an id has another form.
        MissingExtraError: there is a race, and pyarrow is not installed.
    """
    races = [race for race in (race_folder(root, each) for each in ids) if race]
    folders = [entry_folder(root, each) for each in ids if race_folder(root, each) is None]
    outcomes = verify_folders(folders, run=run)
    findings = [finding for _, wrong in outcomes for finding in wrong]
    entries = [entry for entry, _ in outcomes if entry]
    findings += _differences(root, entries)
    return entries, findings + (verify_races(root, races) if races else [])


def _differences(root: Path, entries: Sequence[VerifiedEntry]) -> list[Finding]:
    """The findings about entries that are too like others of their suites."""
    ids, boards = {each.folder.id for each in entries}, {each.folder.board for each in entries}
    rest = [each for each in find_entries(root)[0] if each.board in boards and each.id not in ids]
    others = [each for each, _ in (verify_entry(one, recompute=False) for one in rest) if each is not None]
    found = check_entries_differ([*others, *entries], new=ids)
    return [each for each in found if each.file.rpartition("/")[0] in ids]


def verify_races(root: Path, folders: Sequence[EntryFolder]) -> list[Finding]:
    """What is wrong with these races and with their entries.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    findings: list[Finding] = []
    entries: list[VerifiedEntry] = []
    suites = {folder.suite for folder in folders}
    for entry in find_entries(root)[0]:
        if entry.track == MEASURED and entry.suite in suites:
            verified, wrong = verify_entry(entry)
            entries += [verified] if verified else []
            findings += wrong
    wrong = read_races(root, entries)[1]
    missing = {folder.id for folder in folders} - {folder.id for folder in find_races(root)[0]}
    findings += [Finding(each, "There is no such race.") for each in sorted(missing)]
    return findings + [each for each in wrong if any(each.file.startswith(f"{folder.id}/") for folder in folders)]


def check_changes(root: Path, before: Path) -> list[Finding]:
    """A finding for each file that differs from before and that a pull request of entries may not change.

    Args:
        root: the folder of the leaderboards with the new entries.
        before: the folder without them.

    Raises:
        InvalidOptionError: there is no such folder.
        DamagedFileError: a file cannot be read.
    """
    require_root(root)
    require_root(before)
    findings = []
    for path in sorted(before.rglob("*")):
        name = path.relative_to(before).as_posix()
        if path.is_dir() or name == README:
            continue
        now = root / name
        if now.is_symlink() or not now.is_file():
            findings.append(Finding(name, f"It was removed. {ADDED_ONLY}"))
        elif read_bytes(now) != read_bytes(path):
            findings.append(Finding(name, f"It was changed. {ADDED_ONLY}"))
    measured = [path for path in (root / MEASURED).glob(f"*/{RACES}/**/*") if not path.is_dir()]
    for path in [*measured, *(root / name for name in ROOT_FILES)]:
        name = path.relative_to(root).as_posix()
        if name != README and path.exists() and not (before / name).exists():
            findings.append(Finding(name, "It was added. Only maintainers measure races and replay agents. Remove it."))
    for page, block in PAGES:
        old, new = before / page, root / page
        if not old.is_file():
            continue
        if new.is_symlink() or not new.is_file():
            findings.append(Finding(page, "It was removed. Restore it."))
        elif without_blocks(old, block) != without_blocks(new, block):
            reason = "It was changed outside the generated tables. Restore it, and then: shard-gym leaderboard render."
            findings.append(Finding(page, reason))
    return findings
