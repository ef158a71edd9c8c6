import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import DamagedFileError, InvalidTablesError
from shard_gym.common.io.files import INDEX, read_json
from shard_gym.tables import Pool, RowPopularity, RowSteps, Tables, Workload, load_pool
from shard_gym.tables.pools import PoolCard, pool, pool_names, save_pool

CARD = PoolCard("two tables", "made up (no licence)", "by hand", ("a fact",), (), ("exact",))


def small_pool(*, dims_known: bool = True, names: tuple[str, ...] = ("user", "Ünïcode item")) -> Pool:
    histogram = np.zeros((2, 17))
    histogram[0, :2] = 0.25, 0.75
    tables = Tables(
        num_embeddings=np.array([1000, 2**33]),
        embedding_dim=np.array([16, 64]),
        pooling_factor=np.array([1.5, 0.0]),
        distinct_rows=np.array([7.123456789012345, 0.0]),
        reuse_histogram=histogram,
        access_histogram=histogram[:, ::-1],
        workload=Workload(8, "fp32", "rowwise_adagrad"),
        num_features=np.array([2, 1]),
        names=names,
    )
    return Pool("small", tables, CARD, RowPopularity(np.array([0.1, 3.0]), np.array([1.05, 0.0])), dims_known)


def saved(tmp_path: Path, **changes: Any) -> Path:
    """The file of the small pool with some keys changed; a value of `...` removes the key."""
    path = tmp_path / "small.json"
    save_pool(small_pool(), path)
    record = {**json.loads(path.read_bytes()), **changes}
    path.write_text(json.dumps({key: value for key, value in record.items() if value is not ...}))
    return path


@pytest.mark.parametrize("name", pool_names())
def test_shipped_pools_load_and_are_written_canonically(name: str, tmp_path: Path) -> None:
    loaded = load_pool(name)
    assert loaded.name == name
    assert loaded.tables.popularity is not None
    assert len(loaded.tables.popularity) == len(loaded)
    assert loaded.card.source
    assert loaded.card.published_facts
    assert loaded.card.assumptions
    assert loaded.card.how_close
    save_pool(loaded, tmp_path / "copy.json")
    shipped = (pool.DATA / f"{name}.json").read_bytes()
    assert (tmp_path / "copy.json").read_bytes() == shipped
    assert loaded.sha256 == read_json(pool.DATA / INDEX)[name]
    assert {path.stem for path in pool.DATA.glob("*.json")} == {*pool_names(), "index"}


@pytest.mark.parametrize("bare", [False, True])
def test_saving_and_loading_changes_no_number(tmp_path: Path, bare: bool) -> None:
    """Default names and an unknown popularity are stored as null."""
    made = small_pool(names=()) if bare else small_pool()
    if bare:
        made = replace(made, tables=replace(made.tables, popularity=None), popularity=None)
    path = tmp_path / "small.json"
    save_pool(made, path)
    record, read = json.loads(path.read_bytes()), load_pool(path)
    assert (record["names"] is None, record["law"] is None) == (bare, bare)
    for column in (*pool._COLUMNS, "embedding_dim"):
        assert getattr(read.tables, column).tolist() == getattr(made.tables, column).tolist()
    for law in ("q", "s"):
        assert np.array_equal(getattr(read.popularity, law, None), getattr(made.popularity, law, None))
    assert (read.name, read.card, read.tables.names) == (made.name, made.card, made.tables.names)
    assert read.tables.workload == made.tables.workload
    assert read.sha256 == made.sha256


def test_a_pool_without_dims_takes_those_asked_for(tmp_path: Path) -> None:
    save_pool(small_pool(dims_known=False), tmp_path / "small.json")
    path = str(tmp_path / "small.json")
    assert load_pool(path).tables.embedding_dim.tolist() == [16, 16]
    assert load_pool(path, embedding_dim=128).tables.embedding_dim.tolist() == [128, 128]
    assert load_pool(path).sha256 == load_pool(path, embedding_dim=128).sha256
    with pytest.raises(InvalidTablesError, match=r"is 10. FBGEMM trains 4 columns at a time.*Give it dim 12"):
        load_pool(path, embedding_dim=10)
    save_pool(small_pool(), tmp_path / "with-dims.json")
    assert load_pool(tmp_path / "with-dims.json", embedding_dim=128).tables.embedding_dim.tolist() == [16, 64]


def test_a_pool_of_dims_to_be_padded_says_to_what(tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    save_pool(small_pool(), path)
    path.write_bytes(path.read_bytes().replace(b'"embedding_dim":[16,64]', b'"embedding_dim":[16,1]'))
    with pytest.raises(DamagedFileError, match=r"small.json .* table 1 .* is 1. FBGEMM .*Give it dim 4 "):
        load_pool(path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"schema": "shard-gym-pool/2"}, "has schema 'shard-gym-pool/2'.*reads 'shard-gym-pool/1'"),
        ({"colour": "red"}, r"has the unknown key 'colour'"),
        ({"law": ...}, r"lacks the key 'law'"),
        ({"name": ""}, "has no name"),
        ({"card": {"title": "x"}}, "The card of .* lacks the key 'source'"),
        ({"card": {**vars(CARD), "assumptions": [1]}}, "assumptions of the card of .* must be a list of texts"),
        ({"num_embeddings": [1000, 10**400]}, "valid tables"),
        ({"access_histogram": [[0.5] + [0] * 16, [0] * 17]}, "sums to 0.5000 instead of 1"),
        ({"workload": {"batch_size": 0, "weight_dtype": "fp16", "optimizer": "sgd"}}, "batch_size"),
        ({"law": {"q": [1, 2]}}, r"lacks the key 's'"),
        ({"law": {"q": [1], "s": [1]}}, "2 tables but row popularities of 1"),
        ({"law": {"q": [1, 2], "s": [1]}}, "2 values of q but 1 of s"),
    ],
)
def test_a_file_that_is_not_a_pool_is_refused_with_the_reason(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = saved(tmp_path, **changes)
    with pytest.raises(DamagedFileError, match=reason) as caught:
        load_pool(path)
    assert "small.json" in str(caught.value)


def test_a_pool_keeps_the_popularity_of_its_tables(tmp_path: Path) -> None:
    """A law that only the tables have, and steps of recorded lookups."""
    plain = small_pool()
    law = plain.popularity
    assert law is not None
    save_pool(Pool("small", plain.tables, CARD), tmp_path / "law.json")
    assert load_pool(tmp_path / "law.json").popularity.q.tolist() == law.q.tolist()  # type: ignore[union-attr]
    steps = RowSteps(np.array([[10.0, 990.0], [1.0, 2.0**33 - 1]]), np.array([[0.7, 0.3], [1 / 3, 2 / 3]]))
    save_pool(Pool("small", replace(plain.tables, popularity=steps), CARD), tmp_path / "steps.json")
    loaded = load_pool(tmp_path / "steps.json")
    assert loaded.popularity is None
    assert isinstance(loaded.tables.popularity, RowSteps)
    assert loaded.tables.popularity.shares.tolist() == steps.shares.tolist()
    record = json.loads((tmp_path / "steps.json").read_bytes())
    (tmp_path / "steps.json").write_text(json.dumps({**record, "law": {"q": [0, 0], "s": [1, 1]}}))
    with pytest.raises(DamagedFileError, match="both a law and steps"):
        load_pool(tmp_path / "steps.json")
