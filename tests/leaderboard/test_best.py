from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from shard_gym.cost_models import make_cost_model
from shard_gym.leaderboard.best import HELPED, better_placements, update_best_known
from shard_gym.leaderboard.verify import verify_all
from shard_gym.suites import best_known as keeping
from shard_gym.suites import load_suite

SUITE = "dlrm-20x4"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch) -> Path:
    """A copy of what is known, which may be changed."""
    folder = tmp_path / "best_known"
    folder.mkdir()
    shutil.copy(keeping.BEST_KNOWN / f"{SUITE}.json", folder)
    monkeypatch.setattr(keeping, "BEST_KNOWN", folder)
    return folder / f"{SUITE}.json"


def worsen(path: Path, tasks: list[str]) -> None:
    """Forget the best placements of some tasks: what ships with them takes their place."""
    suite, model = load_suite(SUITE), make_cost_model("analytical")
    record = json.loads(path.read_text())
    for name in tasks:
        task = suite.task(name)
        known = task.known_placement
        assert known is not None
        cost = 1e3 * model.estimate(known, task.tables, task.topology).total_ms
        record["splits"]["test"][name] = {"cost_ms": cost, "placement": known.tolist()}
    path.write_text(json.dumps(record))


def test_nothing_is_better_than_what_long_searches_found(made: Path) -> None:
    assert better_placements(verify_all(made)[0]) == {}


def test_better_placements_are_found_and_kept(made: Path, kept: Path) -> None:
    before = kept.read_bytes()
    names = [f"{SUITE}/test/3", f"{SUITE}/test/40"]
    worsen(kept, names)
    entries, _ = verify_all(made)
    found = better_placements(entries)
    assert list(found) == [SUITE]
    assert [each.task for each in found[SUITE]] == names
    lowest = min(each.costs_ms[:, 3].min() for each in entries if each.place.track == "simulated")
    assert found[SUITE][0].cost_ms == lowest
    assert update_best_known(SUITE, found[SUITE]) == kept
    best = keeping.best_known(load_suite(SUITE), make_cost_model("analytical"))
    assert best[names[0]].cost_ms == pytest.approx(lowest, rel=1e-12)
    assert np.array_equal(best[names[0]].placement, found[SUITE][0].placement)
    # All other tasks stay as they were, and so does what was written of the effort.
    record, old = json.loads(kept.read_text()), json.loads(before)
    others = {name: entry for name, entry in old["splits"]["test"].items() if name not in names}
    assert others.items() <= record["splits"]["test"].items()
    assert record["how"].startswith(f"{old['how']}; {HELPED}simulated/{SUITE}/")
    assert better_placements(entries) == {}


def test_those_who_helped_earlier_stay_named(made: Path, kept: Path) -> None:
    entries, _ = verify_all(made)
    for name in (f"{SUITE}/test/3", f"{SUITE}/test/4", f"{SUITE}/test/5"):
        worsen(kept, [name])
        update_best_known(SUITE, better_placements(entries)[SUITE])
    helped = json.loads(kept.read_text())["how"].split(HELPED)
    assert len(helped) == 2
    assert helped[1].split(", ") == sorted(set(helped[1].split(", ")))


def test_a_suite_that_nobody_searched_begins_with_an_entry(made: Path, kept: Path) -> None:
    kept.unlink()
    entries, _ = verify_all(made)
    found = better_placements(entries)[SUITE]
    assert len(found) == 50
    assert found[0].known_ms is None
    update_best_known(SUITE, found)
    assert json.loads(kept.read_text())["how"].startswith(HELPED)
