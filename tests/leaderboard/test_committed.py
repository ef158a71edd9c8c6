"""The leaderboards of this repository: every entry is valid, and the generated tables are up to date.

tests/tools/test_entries.py checks that all are there.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from shard_gym.io.markdown import has_block
from shard_gym.leaderboard.markdown import PAGES

ROOT = Path(__file__).parents[2] / "leaderboards"


WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {others}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
from shard_gym.cli import main
sys.exit(main(["leaderboard", "render", "--check", "--root", {root!r}]))
"""


def test_all_is_valid_and_up_to_date_and_the_extra_leaderboard_is_enough() -> None:
    """The CI workflow of entries installs nothing else."""
    others = {"torch", "scipy", "stable_baselines3", "sb3_contrib", "fbgemm_gpu"}
    program = WITHOUT.format(others=others, root=str(ROOT))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(has_block(ROOT / page, block) for page, block in PAGES)
