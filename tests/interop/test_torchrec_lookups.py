"""Recorded batches of a TorchRec model are counted together, from objects and from files, or refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchrec")

import torch
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shard_gym.common.errors import InvalidTablesError
from shard_gym.interop.torchrec import tables_of_lookups
from shard_gym.tables.pools.recorded_lookups import lookups_of_file

ROWS, BATCH = {"user": 50, "item": 9}, 8


def model() -> EmbeddingBagCollection:
    configs = [
        EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=16, feature_names=[f"f_{name}"])
        for name, rows in ROWS.items()
    ]
    return EmbeddingBagCollection(device=torch.device("meta"), tables=configs)


def lookups(seed: int = 0, batch: int = BATCH) -> KeyedJaggedTensor:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 5, (len(ROWS), batch))
    values = [rng.integers(0, rows, each.sum()) for rows, each in zip(ROWS.values(), lengths, strict=True)]
    keys = [f"f_{name}" for name in ROWS]
    return KeyedJaggedTensor(keys, torch.from_numpy(np.concatenate(values)), lengths=torch.from_numpy(lengths.ravel()))


def test_several_batches_at_once_have_the_mean_of_their_statistics() -> None:
    batches = [lookups(seed) for seed in range(3)]
    tables = tables_of_lookups(model(), batches)
    for table, name in enumerate(ROWS):
        counts = [Counter(batch.to_dict()[f"f_{name}"].values().tolist()) for batch in batches]
        reads = [number for count in counts for number in count.values()]  # rows are counted in each batch anew
        assert tables.pooling_factor[table] == pytest.approx(sum(reads) / (3 * BATCH))
        assert tables.distinct_rows[table] == pytest.approx(len(reads) / 3)
        assert tables.reuse_histogram[table, :2] == pytest.approx(
            [reads.count(1) / len(reads), reads.count(2) / len(reads)]
        )
        assert tables.access_histogram[table, 1] == pytest.approx(2 * reads.count(2) / sum(reads))
    assert tables.workload.batch_size == BATCH
    once = tables_of_lookups(model(), iter(batches[:1]))
    np.testing.assert_array_equal(once.reuse_histogram, tables_of_lookups(model(), batches[0]).reuse_histogram)


def test_a_file_of_lookups_gives_a_model_the_same_tables(tmp_path: Path) -> None:
    arrays = {}
    for key, each in lookups().to_dict().items():
        arrays |= {f"{key}.values": each.values().numpy(), f"{key}.lengths": each.lengths().numpy()}
    np.savez(tmp_path / "log.npz", **arrays)
    found = tables_of_lookups(model(), lookups_of_file(tmp_path / "log.npz").batches(BATCH))
    wanted = tables_of_lookups(model(), lookups())
    for name in ("pooling_factor", "distinct_rows", "reuse_histogram", "access_histogram"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (lambda: [], "There is no batch of lookups to count"),
        (lambda: [lookups(), lookups(batch=4)], "Batch 1 of the lookups has 4 samples, those before it 8"),
        (lambda: {"f_user": torch.zeros(8)}, "is a KeyedJaggedTensor of TorchRec, not 'f_user'"),
        (lambda: 7, "is a KeyedJaggedTensor of TorchRec, not 7"),
        (lambda: jagged(["f_user", "f_user"]), "have the feature 'f_user' twice"),
        (lambda: jagged(["f_user"], dtype=torch.float32), "The ids of feature 'f_user' are float32"),
        (lambda: jagged(["f_user"], value=-1), "Table 'user' has 50 rows, but row -1 is read"),
        (lambda: jagged(["f_user"], value=2**40), "Table 'user' has 50 rows, but row 1099511627776 is read"),
        (lambda: jagged(["f_user"], stride_per_key_per_rank=[[2]]), "different numbers of samples"),
    ],
)
def test_batches_that_cannot_be_counted_are_refused(batches: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidTablesError, match=message):
        tables_of_lookups(model(), batches())


def jagged(keys: list[str], dtype: Any = torch.int64, value: int = 1, **more: Any) -> KeyedJaggedTensor:
    """Two samples with one lookup of each key."""
    count = 2 * len(keys)
    return KeyedJaggedTensor(
        keys, torch.full((count,), value, dtype=dtype), lengths=torch.ones(count, dtype=torch.int64), **more
    )
