from __future__ import annotations

import json
from pathlib import Path

import pytest

from shard_gym.cli import suites as command
from shard_gym.common.io.files import INDEX
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.tables.pools import pool_names
from shard_gym.tasks import load_suite, suite_info, suite_names
from shard_gym.tasks.suites import best_known, placing


@pytest.mark.parametrize(("columns", "options"), [(50, ("--verbose",)), (80, ()), (80, ("--verbose",)), (120, ())])
def test_every_suite_is_listed_with_its_facts(run, columns: int, options: tuple[str, ...]) -> None:
    out = run.ok("suites", *options, columns=columns).out
    lines = [line for line in out.splitlines() if line.strip()]
    assert "…" not in out
    if columns < 80:
        assert all(f"\n{name} " in out for name in suite_names())
        return
    assert max(map(len, lines)) <= columns
    rows = {line.split()[0]: line.split() for line in lines}
    assert {"placement", "sharding", "replanning"} <= rows.keys()
    problem = ""
    for row in rows:  # each suite is below the heading of its problem
        problem = row if row in ("placement", "sharding", "replanning") else problem
        assert row not in suite_names() or suite_info(row).problem == problem
    for name in suite_names():
        info = suite_info(name)
        tasks = f"{info.tasks.get('train', 0)}/{info.tasks['test']}"
        assert rows[name][1] == tasks
        assert rows[name][-3:] == [info.pool, "on", info.hardware]
        assert (f"v{info.version} {info.sha256[:12]}" in out) == bool(options)


def test_verify_reports_a_damaged_file_and_goes_on(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / INDEX).write_bytes((placing.DATA / INDEX).read_bytes())
    for name in ("dlrm-20x4", "dlrm-40x4"):
        data = (placing.DATA / f"{name}.json").read_bytes()
        (tmp_path / f"{name}.json").write_bytes(data.replace(b"DreamShard", b"Dreamshard", name == "dlrm-20x4"))
    monkeypatch.setattr(placing, "DATA", tmp_path)
    monkeypatch.setattr(command, "suite_names", lambda: ["dlrm-20x4", "dlrm-40x4"])
    for cache in (placing.load, placing.info):
        cache.cache_clear()
    code, out, _ = run("suites", "--verify", columns=200)
    assert code == 1
    assert "the suite 'dlrm-20x4' was published" in " ".join(out.split())
    assert "suite  dlrm-40x4" in out
    assert "1 of" in out
    assert "are damaged" in out


def test_verify_costs_the_best_known_placements(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = load_suite("dlrm-20x4")
    monkeypatch.setattr(best_known, "BEST_KNOWN", tmp_path)
    monkeypatch.setattr(command, "suite_names", lambda: [suite.name, "spot-600"])
    known = {task.name: task.known_placement for task in suite}
    path = best_known.write_best_known([suite], known, AnalyticalCostModel(), "By memory alone.")
    out = run.ok("suites", "--verify", columns=200).out
    assert "100 tasks, 50 best known answers" in out
    assert f"All {len(pool_names()) + 2} are as they were published." in out
    record = json.loads(path.read_text())
    record["splits"]["test"]["dlrm-20x4/test/7"]["cost_ms"] *= 0.999
    path.write_text(json.dumps(record))
    code, out, _ = run("suites", "--verify", columns=200)
    assert code == 1
    assert "The placement of task 'dlrm-20x4/test/7' in" in out
