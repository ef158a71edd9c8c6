"""The costs of fresh tasks beside an entry, and who falls there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shard_gym.leaderboard import find_entries, load_leaderboards, verify_all
from shard_gym.leaderboard.entry import FreshEntry, FreshTasks
from shard_gym.leaderboard.fresh import SEEDS, FreshGap, Gaps, fresh_gap, fresh_table, read_fresh, write_fresh
from shard_gym.leaderboard.markdown import _fresh, render
from shard_gym.leaderboard.scorer import load_scorer
from shard_gym.tasks import suite_info
from shard_gym.tasks.suites.best_known import best_known_costs
from shard_gym.tasks.suites.fresh import fresh_name

SUITE, ENTRY = "dlrm-20x4", "simulated/dlrm-20x4/random"


def drawn(rng: np.random.Generator, harder: float = 1.0) -> Gaps:
    """Gaps of an agent that is as good on fresh tasks, which are so many times as hard."""
    return Gaps(rng.exponential(0.02, 50), harder * rng.exponential(0.02, 100))


def falls(agent: Gaps, controls: list[Gaps]) -> bool:
    gap = fresh_gap(agent, controls)
    return gap is not None and gap.falls


def test_who_fits_the_test_tasks_falls_and_who_does_not_stays() -> None:
    rng = np.random.default_rng(3)
    honest, controls = drawn(rng), [drawn(rng) for _ in range(3)]
    alone = fresh_gap(honest, [])
    assert alone is not None
    assert not alone.falls
    assert (alone.test, alone.failures) == (honest.test.mean(), 0)
    assert alone.mean == honest.fresh.mean()
    assert alone.rise == pytest.approx(honest.fresh.mean() / honest.test.mean())
    fitted = fresh_gap(Gaps(honest.test / 3.0, honest.fresh), controls)
    assert fitted is not None
    assert fitted.falls
    assert fitted.rise_interval[0] < fitted.rise < fitted.rise_interval[1]
    assert not falls(Gaps(honest.test, honest.fresh / 3.0), controls)
    assert falls(Gaps(np.zeros(50), honest.fresh), controls)


def test_tasks_without_an_answer_count_nowhere() -> None:
    rng = np.random.default_rng(5)
    agent, control, broken = drawn(rng), drawn(rng), drawn(rng)
    whole = fresh_gap(agent, [control])
    assert whole is not None
    agent.fresh[:3] = control.test[:5] = np.nan
    broken.fresh[:51] = np.nan
    gap = fresh_gap(agent, [control, broken])
    assert gap is not None
    assert (gap.failures, gap.mean) == (3, agent.fresh[3:].mean())
    assert gap.rise == pytest.approx(gap.mean / gap.test / (control.fresh.mean() / control.test[5:].mean()))
    assert gap.rise_interval == pytest.approx(whole.rise_interval, rel=0.3)
    assert fresh_gap(broken, [control]) is None


def test_tasks_that_are_harder_for_all_make_nobody_fall() -> None:
    rng = np.random.default_rng(4)
    agent, controls = drawn(rng, 2.0), [drawn(rng, 2.0) for _ in range(3)]
    assert falls(agent, [])
    assert not falls(agent, controls)


def test_an_honest_agent_rarely_falls() -> None:
    """Of 60 that are as good on fresh tasks, 2.5% fall by chance."""
    rng = np.random.default_rng(0)
    assert sum(falls(drawn(rng), [drawn(rng)]) for _ in range(60)) <= 4


@pytest.fixture
def fresh(root: Path, verified) -> Path:
    """Costs of fresh tasks of the random agent: a third above the best known ones, as nowhere in the test tasks."""
    entry = verified(root, "random")
    infos = [suite_info(fresh_name(SUITE, seed)) for seed in SEEDS]
    tasks = FreshTasks(seeds=list(SEEDS), sha256=[each.sha256 for each in infos], best_ms=[3.0] * 100)
    scorer = load_scorer(SUITE)
    best = best_known_costs(scorer.suite, scorer.model)
    row = FreshEntry(answers=entry.sha256, test_ms=[1.01 * cost for cost in best.values()], fresh_ms=[4.0] * 100)
    return write_fresh(root, fresh_table({SUITE: tasks}, {ENTRY: row}))


def findings_of(root: Path) -> list[str]:
    return [str(finding) for finding in read_fresh(root, verify_all(root)[0])[1]]


def test_the_leaderboard_has_the_column(root: Path, fresh: Path) -> None:
    assert findings_of(root) == []
    gaps = {each.verified.folder.slug: each.fresh for each in load_leaderboards(root)[0].entries}
    assert gaps["size-greedy"] is None
    assert gaps["random"] is not None
    assert gaps["random"].mean == pytest.approx(1 / 3)
    assert gaps["random"].rise == 1.0  # it is its own control
    (root / "README.md").write_text("<!-- generated: leaderboards -->\n<!-- end -->\n")
    page = render(root)[root / "README.md"].decode()
    assert "| fresh tasks |" in page
    assert "| +33.33% (+1.00%) |" in page
    fresh.unlink()
    assert "fresh tasks |" not in render(root)[root / "README.md"].decode()


def test_a_learned_agent_that_falls_is_marked(root: Path, fresh: Path) -> None:
    ranked = load_leaderboards(root)[0].entries[0]
    gap = FreshGap(0.02, 0.01, 2, 1.5, (1.2, 1.9))
    cells = {}
    for learns in (False, True):
        agent = ranked.verified.entry.agent.model_copy(update={"learns": learns})
        entry = ranked.verified.entry.model_copy(update={"agent": agent})
        cells[learns] = _fresh(replace(ranked, verified=replace(ranked.verified, entry=entry), fresh=gap))
    assert cells == {
        False: "+2.00% (+1.00%), 2 failed",
        True: "+2.00% (+1.00%), 2 failed, **falls**: 1.20 to 1.90 times",
    }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"schema": 1', '"schema": 2', "It has schema 2"),
        ("dlrm-20x4/random", "dlrm-20x4/gone", "It has costs of 'simulated/dlrm-20x4/gone', which does not exist"),
        ("dlrm-20x4/random", "dlrm-20x4/size-greedy", "but they were taken with other answers. Make it again with"),
        ('"fresh_ms": [4.0', '"fresh_ms": [2.0', "and some are below the best known ones"),
        ('"fresh_ms": [4.0', '"fresh_ms": [NaN', "It is not readable JSON"),
        ('"fresh_ms": [4.0', '"fresh_ms": [-4.0', "fresh_ms.0 is refused"),
        ('"fresh_ms": [4.0, ', '"fresh_ms": [', "but not as many as there are best known ones"),
        ('"seeds": [101', '"seeds": [103', "The fresh tasks of 'dlrm-20x4' have other seeds than 101 and 102"),
        ('"dlrm-20x4":', '"nope":', "The fresh tasks of 'nope' are of no suite that has any"),
        ('"dlrm-20x4":', '"merlin-tiny-x8":', "The fresh tasks of 'merlin-tiny-x8' are of no suite that has any"),
        ('"sha256": ["', '"sha256": ["f', "sha256.0 is refused"),
    ],
)
def test_costs_that_cannot_be_of_an_entry_are_found(root: Path, fresh: Path, old: str, new: str, message: str) -> None:
    text = fresh.read_text()
    assert old in text
    fresh.write_text(text.replace(old, new))
    assert message in "\n".join(findings_of(root))


def test_costs_of_the_test_tasks_of_an_agent_without_training_are_its_own(root: Path, fresh: Path, verified) -> None:
    table = read_fresh(root, [verified(root, "random")])[0]
    row, entry = table.entries[ENTRY], verified(root, "size-greedy")
    for costs, wrong in ((entry.costs_ms[0], False), (1.01 * entry.costs_ms[0], True)):
        own = row.model_copy(update={"answers": entry.sha256, "test_ms": costs.tolist()})
        write_fresh(root, fresh_table(table.suites, {ENTRY.replace("random", "size-greedy"): own}))
        assert ("but those of the test tasks are not its own" in "".join(findings_of(root))) == wrong


def test_fresh_tasks_have_no_leaderboard(root: Path) -> None:
    for name in ("dlrm-20x4@7", "dlrm-20x4@x"):
        (root / "simulated" / name / "mine").mkdir(parents=True)
    folders, findings = find_entries(root)
    assert all("@" not in folder.suite for folder in folders)
    assert [finding.file for finding in findings] == ["simulated/dlrm-20x4@7", "simulated/dlrm-20x4@x"]
    assert "everybody can draw others" in str(findings[0])
