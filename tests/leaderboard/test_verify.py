from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.cost_models import make_cost_model
from shard_gym.cost_models.analytical import model as analytical
from shard_gym.evaluation.evaluations import penalty_ms
from shard_gym.leaderboard import verify_all
from shard_gym.leaderboard.scorer import load_scorer
from shard_gym.tasks import load_suite
from shard_gym.tasks.suites import placing

PAGE = Path(__file__).parents[2] / "docs" / "leaderboards.md"


def test_a_declared_failure_is_accepted_and_charged(root: Path, random_entry, verified) -> None:
    before = verified(root, "random")
    task = load_suite("dlrm-20x4")[3]
    penalty = penalty_ms(task, make_cost_model("analytical"))
    random_entry.rows(lambda rows: rows[3].update(placement=None))
    costs = before.costs_ms.copy()
    costs[0, 3] = penalty
    random_entry.toml("failures = 0", "failures = 1")
    random_entry.text(lambda text: re.sub("mean_cost_ms = .*", f"mean_cost_ms = {float(costs.mean())!r}", text))
    after = verified(root, "random")
    assert after.answers[0][3] is None
    assert after.costs_ms[0, 3] == penalty > before.costs_ms[0, 3]


def test_an_invalid_entry_hides_no_other(root: Path, random_entry) -> None:
    expected = ["measured/dlrm-20x4/measured-greedy", "simulated/dlrm-20x4/random", "simulated/dlrm-20x4/size-greedy"]
    assert [each.folder.id for each in verify_all(root)[0]] == expected
    random_entry.rows(lambda rows: rows.pop(3))
    entries, findings = verify_all(root)
    assert [each.folder.slug for each in entries] == ["measured-greedy", "size-greedy"]
    assert {finding.file for finding in findings} == {"simulated/dlrm-20x4/random/placements.json"}


def test_an_entry_by_hand_from_the_page_is_accepted(tmp_path: Path) -> None:
    page = PAGE.read_text()
    folder = tmp_path / "simulated" / "mlperf-x8" / "by-hand"
    folder.mkdir(parents=True)
    for file, kind in (("entry.toml", "toml"), ("placements.json", "json")):
        (block,) = re.findall(f"```{kind}\n(.*?)```", page, re.DOTALL)
        (folder / file).write_text(block)
    entries, findings = verify_all(tmp_path)
    assert [str(finding) for finding in findings] == []
    assert [each.entry.name for each in entries] == ["Round robin"]


def test_a_changed_suite_file_is_found(random_entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("dlrm-20x4.json", "index.json"):
        shutil.copy(placing.DATA / name, tmp_path / name)
    path = tmp_path / "dlrm-20x4.json"
    path.write_text(path.read_text().replace('"num_devices":4', '"num_devices":5', 1))
    monkeypatch.setattr(placing, "DATA", tmp_path)
    for cache in (placing.load, placing.info, load_scorer):
        cache.cache_clear()
    (finding,) = random_entry.findings()
    assert finding.startswith("simulated/dlrm-20x4/random: Its suite 'dlrm-20x4' cannot be loaded: ")
    assert "dlrm-20x4.json has SHA-256 " in finding


def test_a_cost_model_that_changed_without_a_new_version_is_found(random_entry, monkeypatch) -> None:
    assert random_entry.findings() == []
    load_scorer.cache_clear()
    slower = analytical.FITTED._replace(cycles_per_row=analytical.FITTED.cycles_per_row * 1.01)
    monkeypatch.setattr(analytical, "FITTED", slower)
    monkeypatch.setattr(analytical.AnalyticalCostModel, "constants", slower)
    (finding,) = random_entry.findings()
    load_scorer.cache_clear()
    assert "entry.toml: cost_model.sha256 is" in finding


@pytest.mark.parametrize("suite", ["dlrm-20x4", "mlperf-x8", "generalize"])
def test_many_placements_at_once_cost_the_same_as_one_alone(suite: str) -> None:
    scorer = load_scorer(suite)
    for number in (0, len(scorer.suite) - 1):
        task = scorer.suite[number]
        placements = np.array([make_agent("random", seed=seed).place(task) for seed in range(7)])
        alone = [scorer.model.estimate(placement, task.tables, task.topology).total_ms for placement in placements]
        assert scorer.costs(number, placements).tolist() == alone
        assert scorer.lower_bound(number) <= min(alone)


def test_cost_model_hashes_differ_by_suite() -> None:
    assert load_scorer("dlrm-20x4").cost_model_sha256 != load_scorer("dlrm-40x4").cost_model_sha256
