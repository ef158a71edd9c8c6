"""What a pull request of entries may change: it adds entries and makes the tables anew, and nothing else."""

from __future__ import annotations

from pathlib import Path

from shard_gym.common.io.files import read_bytes
from shard_gym.common.io.markdown import without_blocks
from shard_gym.leaderboard.markdown import PAGES, README
from shard_gym.leaderboard.store import RACES, ROOT_FILES, Finding, require_root
from shard_gym.tasks.suites.info import MEASURED

ADDED_ONLY = "Pull requests of entries add entries; maintainers change and remove those that exist."


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
