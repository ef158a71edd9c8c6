"""The leaderboards of this repository: entries of every track are valid and make tables, and agents answer as they say.

`make check-leaderboards` reads all entries, and tests/tools/test_entries.py checks that all are there.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shard_gym.agents import PAPER_HEURISTICS, agent_names, make_agent
from shard_gym.agents.dreamshard.pretrained import PRETRAINED, QUERIES
from shard_gym.common.io.arrays import load_arrays
from shard_gym.common.io.markdown import has_block
from shard_gym.common.io.parsing import parse_toml
from shard_gym.common.system import instruction_set
from shard_gym.evaluation import evaluate
from shard_gym.leaderboard import EntryFolder, find_entries, verify_entry
from shard_gym.leaderboard.entry import can_replay
from shard_gym.leaderboard.race import TOLERANCE
from shard_gym.leaderboard.replay import MARGIN, read_replays, replay
from shard_gym.leaderboard.store import FRESH, PAGES, REPLAYED
from shard_gym.tasks import TaskSuite, load_suite

ROOT = Path(__file__).parents[2] / "leaderboards"
NO_SEARCH = (*PAPER_HEURISTICS, "lane-greedy", "cost-greedy")


WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {others}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
from shard_gym.cli import main
write = ["leaderboard", "render", "--root", {root!r}]
sys.exit(main(write) or main([*write, "--check"]))
"""
BOARDS = ("simulated/mlperf-x8", "sharding/shard-mlperf-x8", "measured/cpu-40x4")


def test_entries_of_every_track_are_valid_and_make_tables_with_the_extra_leaderboard_alone(tmp_path: Path) -> None:
    """The CI workflow of entries installs nothing else."""
    replanning = min((each for each in find_entries(ROOT)[0] if each.rules.looks_ahead), key=lambda each: each.id)
    kept = [*BOARDS, replanning.id]
    for board in kept:
        shutil.copytree(ROOT / board, tmp_path / board)
    shutil.copy(ROOT / "README.md", tmp_path)
    for name in (REPLAYED, FRESH):
        record = json.loads((ROOT / name).read_text())
        record["entries"] = {each: value for each, value in record["entries"].items() if each.startswith(tuple(kept))}
        (tmp_path / name).write_text(json.dumps(record))
    others = {"torch", "scipy", "stable_baselines3", "sb3_contrib", "fbgemm_gpu"}
    program = WITHOUT.format(others=others, root=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    text = (tmp_path / "README.md").read_text()
    assert all(f"<summary>{board.split('/')[1]}" in text for board in kept)
    assert all(has_block(ROOT / page, block) for page, block in PAGES)


# A suite with one task makes it cheap to run the agents that search, too.
@pytest.mark.parametrize(
    ("suite", "agents"),
    [
        ("mixdim-8", NO_SEARCH),
        ("mlperf-x8", tuple(agent_names("placement"))),
    ],
)
def test_the_entries_are_what_the_agents_place_now(suite: str, agents: tuple[str, ...]) -> None:
    """On every fifth task."""
    some = TaskSuite(suite, load_suite(suite).tasks[::5])
    for name in agents:
        evaluation = evaluate(make_agent(name, cost_model="analytical", seed=0), some)
        verified, findings = verify_entry(EntryFolder(ROOT, "simulated", suite, name))
        assert verified is not None, findings
        # How a surrogate rounds depends on the CPU, and so may the last moves of a search under it.
        accuracy = TOLERANCE if instruction_set() == verified.entry.hardware.instructions else MARGIN
        assert evaluation.costs_ms == pytest.approx(verified.costs_ms[0, ::5], rel=accuracy), name


def test_entries_of_the_agent_that_ships_are_those_of_its_checkpoints() -> None:
    """As many costs as one of them learned from, and evaluations as it makes by default."""
    learned = {load_arrays(each.path, "agent")[1]["trained"]["true_cost_queries"] for each in PRETRAINED.values()}
    entries = [each.path / "entry.toml" for each in find_entries(ROOT)[0] if each.slug == "dreamshard"]
    assert len(entries) > 20
    for path in entries:
        entry = parse_toml(path.read_bytes(), str(path))
        told = entry["training"]["queries"], entry["planning"]["search_budget"]
        assert told[0] in learned, path
        assert told[1] == QUERIES, path


def test_agents_of_replanning_act_as_their_entries_say() -> None:
    """In one task of each agent; entries were replayed on all, and the costs that they claim are those of actions."""
    folders = [each for each in find_entries(ROOT)[0] if each.rules.looks_ahead]
    assert len(folders) >= 2
    entries = [verify_entry(folder, recompute=False)[0] for folder in folders]
    replays = read_replays(ROOT, [each for each in entries if each])[0]
    for entry in entries:
        assert entry is not None
        assert can_replay(entry)
        assert replays[entry.folder.id].tasks == entry.costs_ms.shape[1]
    of_agents = {each.entry.agent.name: each for each in entries if each}
    for each in of_agents.values():
        assert replay(each, 1)[1] == []
