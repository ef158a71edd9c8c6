from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shard_gym.tables import load_pool
from shard_gym.tables.pools import import_meta

BATCH, TABLES = 64, 3


@pytest.fixture
def lookups(tmp_path: Path) -> Path:
    """A file of Meta's form: three tables, 64 samples."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 5, size=(TABLES, BATCH))
    offsets = np.concatenate([[0], np.cumsum(lengths.ravel())])
    indices = rng.integers(0, 200, size=offsets[-1])
    path = tmp_path / "fbgemm_t3_bs64.pt"
    torch.save(tuple(map(torch.from_numpy, (indices, offsets, lengths))), path)
    return path


def test_a_pool_is_written_and_loads_again(run, lookups: Path, tmp_path: Path) -> None:
    out = tmp_path / "pool.json"
    text = run.ok("import-pool", lookups, "--name", "mine", "--out", out, columns=500).out
    pool = load_pool(out)
    assert pool.sha256 == import_meta(lookups, "mine").sha256
    assert text == f"{TABLES} tables written to {out}, SHA-256 {pool.sha256}.\n"
    assert (pool.name, len(pool), pool.tables.workload.batch_size) == ("mine", TABLES, BATCH)


@pytest.mark.parametrize(("out", "says"), [("pool.json", "no.pt cannot be read"), ("pool", "ends in .json")])
def test_a_file_that_is_not_there_and_a_name_that_is_no_json_are_refused(
    run, tmp_path: Path, out: str, says: str
) -> None:
    run.refused(says, "import-pool", tmp_path / "no.pt", "--name", "mine", "--out", tmp_path / out)
