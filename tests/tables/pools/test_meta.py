import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import DamagedFileError, InvalidOptionError, MissingExtraError
from shard_gym.tables import BIN_UPPER_EDGES
from shard_gym.tables.pools import import_meta

torch = pytest.importorskip("torch")

BATCH = 512


def batch_of(*tables: tuple[int, float]) -> tuple[Any, Any, Any]:
    """(indices, offsets, lengths) as torch tensors for tables of (rows, mean pooling), drawn with a skew."""
    rng = np.random.default_rng(11)
    lengths = np.stack([rng.poisson(pooling, BATCH) for _, pooling in tables])
    indices = np.concatenate(
        [
            np.floor(rows * rng.random(count) ** 3).astype(np.int64)
            for (rows, _), count in zip(tables, lengths.sum(axis=1), strict=True)
        ]
    )
    offsets = np.concatenate([[0], np.cumsum(lengths.ravel())])
    return torch.from_numpy(indices), torch.from_numpy(offsets), torch.from_numpy(lengths)


def packed(path: Path) -> Path:
    target = path.with_name(path.name + ".gz")
    target.write_bytes(gzip.compress(path.read_bytes(), compresslevel=1))
    return target


@pytest.fixture
def lookups() -> tuple[Any, Any, Any]:
    # Dense, sparse (more rows than lookups), small, unused, read less than once per sample, and very hot.
    return batch_of((5_000, 20.0), (2**31, 3.0), (7, 2.0), (100, 0.0), (900, 0.3), (2, 200.0))


@pytest.fixture
def path(lookups: tuple[Any, Any, Any], tmp_path: Path) -> Path:
    torch.save(lookups, tmp_path / "lookups.pt")
    return tmp_path / "lookups.pt"


def check_against_brute_force(pool: Any, lookups: tuple[Any, Any, Any]) -> None:
    indices, offsets, lengths = (tensor.numpy() for tensor in lookups)
    tables = pool.tables
    assert len(tables) == len(lengths)
    for t in range(len(lengths)):
        read = indices[offsets[t * BATCH] : offsets[(t + 1) * BATCH]]
        counts: dict[int, int] = {}
        for row in read.tolist():
            counts[row] = counts.get(row, 0) + 1
        reuse, access = np.zeros(17), np.zeros(17)
        for count in counts.values():
            place = next(k for k, edge in enumerate(BIN_UPPER_EDGES) if count <= edge)
            reuse[place] += 1
            access[place] += count
        assert tables.num_embeddings[t] == max([100, *(row + 1 for row in counts)])
        assert tables.pooling_factor[t] == lengths[t].mean()
        assert tables.distinct_rows[t] == len(counts)
        np.testing.assert_allclose(tables.reuse_histogram[t], reuse / max(len(counts), 1), atol=5.1e-6)
        np.testing.assert_allclose(tables.access_histogram[t], access / max(len(read), 1), atol=5.1e-6)


def test_plain_file_is_measured(path: Path, lookups: tuple[Any, Any, Any]) -> None:
    pool = import_meta(path, "mine")
    check_against_brute_force(pool, lookups)
    assert pool.name == "mine"
    assert pool.popularity is None
    assert not pool.dims_known
    assert (pool.tables.embedding_dim == 16).all()
    assert pool.tables.workload.batch_size == BATCH
    assert str(path.parent) not in "".join([pool.card.title, pool.card.source])


def test_packed_file_gives_the_same_and_leaves_nothing_behind(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "scratch"
    other.mkdir()
    before = sorted(tmp_path.iterdir())
    for tmp_dir in (None, other):
        pool = import_meta(packed(path), "mine", tmp_dir=tmp_dir)
        for column in ("num_embeddings", "pooling_factor", "distinct_rows", "reuse_histogram", "access_histogram"):
            np.testing.assert_array_equal(
                getattr(pool.tables, column), getattr(import_meta(path, "mine").tables, column)
            )
        assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "lookups.pt.gz"])
        assert not list(other.iterdir())


def test_int32_and_lists_and_the_old_torch_format_are_read(lookups: tuple[Any, Any, Any], tmp_path: Path) -> None:
    indices, offsets, lengths = lookups
    narrow = [indices.clamp(max=2**31 - 1).int(), offsets.int(), lengths.int()]
    torch.save(narrow, tmp_path / "narrow.pt")
    torch.save(lookups, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    check_against_brute_force(import_meta(tmp_path / "narrow.pt", "mine"), lookups)
    check_against_brute_force(import_meta(tmp_path / "old.pt", "mine"), lookups)


def test_progress_is_reported(path: Path, lookups: tuple[Any, Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shard_gym.tables.pools.meta_file._CHUNK_BYTES", 1000)
    calls: list[tuple[int, int]] = []
    import_meta(path, "mine", progress=lambda done, total: calls.append((done, total)))
    assert calls == [(k, 6) for k in range(1, 7)]
    calls.clear()
    gz = packed(path)
    check_against_brute_force(import_meta(gz, "mine", progress=lambda *call: calls.append(call)), lookups)
    assert calls[-6:] == [(k, 6) for k in range(1, 7)]
    assert len(calls) > 80
    assert all(0 < done <= total == gz.stat().st_size for done, total in calls[:-6])


@pytest.mark.parametrize("share", [0.1, 0.99])
def test_truncated_files_are_named_and_nothing_stays(path: Path, tmp_path: Path, share: float) -> None:
    gz = packed(path)
    for whole in (path, gz):
        data = whole.read_bytes()
        whole.write_bytes(data[: int(share * len(data))])
        with pytest.raises(DamagedFileError, match="truncated"):
            import_meta(whole, "mine")
    data = bytearray(packed(path).read_bytes())
    data[len(data) // 2] ^= 0xFF
    gz.write_bytes(data)
    with pytest.raises(DamagedFileError, match=r"lookups\.pt\.gz is truncated or damaged"):
        import_meta(gz, "mine")
    assert sorted(tmp_path.iterdir()) == [path, gz]


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


class Trap:
    """An object that would run code when unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, ("raise SystemExit('unpickled')",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"odd\.pt cannot be read"),
        (POINTER, r"git-LFS pointer.*git lfs pull"),
        *((content, r"odd\.pt is damaged, or no lookup file") for content in (b"", b"\x80\x02N.", Trap())),
    ],
)
def test_other_files_are_named_and_no_code_in_them_is_run(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "odd.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(DamagedFileError, match=message):
        import_meta(path, "mine")


def put(tensor: Any, where: Any, value: int) -> Any:
    """A copy with another value at one place."""
    copy = tensor.clone()
    copy[where] = value
    return copy


CONTRADICT = "its lengths and its offsets contradict each other"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda i, o, n: {"indices": i}, "holds a dict instead of the tuple"),
        (
            lambda i, o, n: (i.double(), o, n),
            "indices must be a tensor of int32 or int64, not a Tensor of torch.fl",
        ),
        (lambda i, o, n: (i, o, n.ravel()), "indices must have shape"),
        (lambda i, o, n: (i, o[:-1], n), "offsets must have shape"),
        (lambda i, o, n: (i[:-1], o, n), "offsets must run from 0 to"),
        (lambda i, o, n: (i[:0], o[:1], n[:0]), r"lengths \(tables, samples\)"),
        (lambda i, o, n: (i, o, put(n, (0, 0), n[0, 0] + 1)), f"Table 0 of .*: {CONTRADICT}"),
        (lambda i, o, n: (i, put(o, BATCH, o[BATCH] + len(i)), n), f"Table 0 of .*: {CONTRADICT}"),
        (lambda i, o, n: (i, o, put(n, (1, 0), -1)), f"Table 1 of .*: {CONTRADICT}"),
        (lambda i, o, n: (put(i, 5, -1), o, n), "Table 0 of .*: its indices run from -1 to"),
        (lambda i, o, n: (put(i, 5, 2**62), o, n), "Table 0 of .*: its indices run from 0 to 4611686018427387904"),
    ],
)
def test_other_content_is_refused_with_the_reason(
    change: Any, reason: str, lookups: tuple[Any, Any, Any], tmp_path: Path
) -> None:
    torch.save(change(*lookups), tmp_path / "wrong.pt")
    gz = packed(tmp_path / "wrong.pt")
    for path in (tmp_path / "wrong.pt", gz):
        with pytest.raises(DamagedFileError, match=reason) as caught:
            import_meta(path, "mine")
        assert str(path) in str(caught.value)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "wrong.pt", gz]


def test_a_folder_that_cannot_be_written_is_an_option_error(path: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="tmp_dir"):
        import_meta(packed(path), "mine", tmp_dir=tmp_path / "nowhere")


def test_torch_is_asked_for_when_it_is_missing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"shard-gym\[torch\]"):
        import_meta(path, "mine")
