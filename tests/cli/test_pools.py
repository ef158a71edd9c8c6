from __future__ import annotations

import pytest

from shard_gym.tables import load_pool
from shard_gym.tables.pools import pool_names, save_pool


@pytest.mark.parametrize("columns", [80, 120])
def test_every_pool_is_listed(run, columns: int) -> None:
    out = run.ok("pools", columns=columns).out
    assert max(map(len, out.splitlines())) <= columns
    for name in pool_names():
        pool = load_pool(name)
        assert name in out
        assert pool.sha256[:12] in out
        assert str(len(pool)) in out


def test_the_whole_card_is_printed(run, tmp_path) -> None:
    pool = load_pool("dlrm-2021")
    save_pool(pool, tmp_path / "copy.json")
    for name in ("dlrm-2021", tmp_path / "copy.json"):
        out = run.ok("pools", name, columns=10_000).out
        card = pool.card
        texts = (card.title, card.source, card.how_made, *card.published_facts, *card.assumptions, *card.how_close)
        for text in (pool.sha256, *texts):
            assert text in out


def test_a_card_says_how_tables_are_used_and_what_is_known_of_their_rows(run) -> None:
    out = run.ok("pools", "mlperf-dlrm-v3", columns=10_000).out
    assert "workload: batch size 80, fp16, served" in out
    assert "row popularity: in steps" in out
    out = run.ok("pools", "hstu-kuairand", columns=10_000).out
    assert "workload: batch size 128, fp16, rowwise_adagrad" in out
    assert "row popularity: p(k) ~ (k + q)^-s" in out


def test_an_unknown_pool_is_named(run) -> None:
    run.refused("There is no pool named 'dlrm-2020'.", "pools", "dlrm-2020")
