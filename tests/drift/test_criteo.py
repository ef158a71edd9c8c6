"""The importer of Criteo's day files, on small files in their format, against counting in plain Python."""

from __future__ import annotations

import gzip
import re
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym import Workload
from shard_gym.drift import criteo, criteo_file
from shard_gym.drift.criteo import Interval, read_intervals
from shard_gym.errors import DamagedFileError, InvalidOptionError, InvalidTablesError, ShardGymError
from shard_gym.lookup_statistics import BIN_UPPER_EDGES

BATCH = 64
SMALL = Workload(BATCH, "fp16", "sgd")
MAX_ROWS = 5_000
REPO = Path(__file__).resolve().parents[2]

Sample = list[str]


def day(count: int, seed: int = 0) -> list[Sample]:
    """Samples whose features have 1, 2, 4, ... values, read with a skew; C3 is always empty, C4 always the same."""
    rng = np.random.default_rng(seed)
    samples = []
    for _ in range(count):
        integers = [str(rng.integers(-2, 10 ** rng.integers(1, 9))) if rng.random() < 0.8 else "" for _ in range(13)]
        values = [int(2**feature * rng.random() ** 3) * 2_654_435_761 % 2**32 for feature in range(26)]
        hashes = [f"{value:08x}" if rng.random() < 0.9 else "" for value in values]
        hashes[2], hashes[3] = "", "ffffffff"
        samples.append([str(rng.integers(2)), *integers, *hashes])
    return samples


def text_of(samples: list[Sample]) -> bytes:
    return "".join("\t".join(sample) + "\n" for sample in samples).encode()


def zipped(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)  # the same bytes at any time


def write(path: Path, content: list[Sample] | bytes) -> Path:
    content = content if isinstance(content, bytes) else text_of(content)
    path.write_bytes(zipped(content) if path.suffix == ".gz" else content)
    return path


def intervals_of(*paths: Path, **options: Any) -> list[Interval]:
    return list(read_intervals(paths, **{"workload": SMALL, "max_rows": MAX_ROWS, **options}))


def check_against_counting(interval: Interval, samples: list[Sample], earlier: list[Sample]) -> None:
    """`samples` are those of the interval, and `earlier` all before them."""
    tables = interval.tables
    assert interval.num_samples == len(samples)
    assert interval.num_batches == len(samples) // BATCH
    for table in range(26):
        seen = {int(sample[14 + table], 16) % MAX_ROWS for sample in earlier + samples if sample[14 + table]}
        assert tables.num_embeddings[table] == max(len(seen), 1)
        reads, distinct, rows_in, reads_in = 0, 0, [0] * 17, [0] * 17
        for batch in range(interval.num_batches):
            read = [sample[14 + table] for sample in samples[batch * BATCH : (batch + 1) * BATCH]]
            counts = Counter(int(value, 16) % MAX_ROWS for value in read if value)
            reads, distinct = reads + counts.total(), distinct + len(counts)
            for count in counts.values():
                place = next(k for k, edge in enumerate(BIN_UPPER_EDGES) if count <= edge)
                rows_in[place] += 1
                reads_in[place] += count
        assert tables.pooling_factor[table] == pytest.approx(reads / interval.num_batches / BATCH, rel=1e-12)
        assert tables.distinct_rows[table] == pytest.approx(distinct / interval.num_batches, rel=1e-6)
        np.testing.assert_allclose(tables.reuse_histogram[table], np.array(rows_in) / max(distinct, 1), atol=5.1e-6)
        np.testing.assert_allclose(tables.access_histogram[table], np.array(reads_in) / max(reads, 1), atol=5.1e-6)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("block", [1_000, 2**18])
def test_the_tables_of_an_interval_are_counted(
    suffix: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(criteo_file, "BLOCK_BYTES", block)
    days = [day(1_000, seed=1), day(700, seed=2)]
    paths = [write(tmp_path / f"day_{number}{suffix}", samples) for number, samples in enumerate(days)]
    found = intervals_of(*paths, samples_per_interval=300)
    assert [interval.num_samples for interval in found] == [300, 300, 300, 100, 300, 300, 100]
    assert [interval.number for interval in found] == [0, 1, 2, 3, 0, 1, 2]
    assert [interval.day_file for interval in found] == [paths[0]] * 4 + [paths[1]] * 3
    samples, at = days[0] + days[1], 0
    for interval in found:
        check_against_counting(interval, samples[at : at + interval.num_samples], samples[:at])
        at += interval.num_samples
    rows = np.stack([interval.tables.num_embeddings for interval in found])
    assert (np.diff(rows, axis=0) >= 0).all()
    assert rows[-1, -1] > 1.5 * rows[0, -1]
    assert rows[:, 2:4].tolist() == [[1, 1]] * 7
    assert found[0].tables.names == tuple(f"C{number}" for number in range(1, 27))
    assert found[0].tables.workload == SMALL
    assert (found[0].tables.embedding_dim == 128).all()
    assert found[0].tables.pooling_factor[2:4].tolist() == [0.0, 1.0]


def test_each_hash_is_its_own_row_up_to_the_largest(tmp_path: Path) -> None:
    samples = day(BATCH)
    for number, sample in enumerate(samples):
        sample[14] = f"{number:08x}"
        sample[15] = f"{2**32 - 2 - number:08x}"
    path = write(tmp_path / "day_0", samples)
    (interval,) = intervals_of(path, samples_per_interval=BATCH, max_rows=2**28)
    assert interval.tables.num_embeddings[:2].tolist() == [BATCH, BATCH]
    (interval,) = intervals_of(path, samples_per_interval=BATCH, max_rows=1)
    assert interval.tables.num_embeddings.tolist() == [1] * 26
    read = np.concatenate(list(criteo_file.read_rows(path, 2**32 - 1)), axis=1)
    for sample, rows in zip(samples, read.T, strict=True):
        wanted = [int(value, 16) % (2**32 - 1) if value else criteo_file.EMPTY for value in sample[14:]]
        assert rows.tolist() == wanted


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_file_is_cut_into_equal_parts(suffix: str, tmp_path: Path) -> None:
    samples = day(1_001)
    path = write(tmp_path / f"day_3{suffix}", samples)
    found = intervals_of(path, intervals_per_file=7)
    assert [interval.num_samples for interval in found] == [143] * 7
    found = intervals_of(path, intervals_per_file=8)
    sizes = [interval.num_samples for interval in found]
    assert sum(sizes) == 1_001
    assert set(sizes) == {125, 126}
    check_against_counting(found[5], samples[sum(sizes[:5]) : sum(sizes[:6])], samples[: sum(sizes[:5])])


@pytest.mark.parametrize(
    ("lines", "size", "sizes"),
    [
        (400, 200, [200, 200]),
        (463, 200, [200, 263]),  # 63 are less than a batch
        (464, 200, [200, 200, 64]),
        (100, 200, [100]),
        (320, 128, [128, 128, 64]),
        (319, 128, [128, 191]),
        (150, 64, [64, 86]),
    ],
)
def test_no_line_is_left_out(lines: int, size: int, sizes: list[int], tmp_path: Path) -> None:
    samples = day(lines)
    found = intervals_of(write(tmp_path / "day_0", samples), samples_per_interval=size)
    assert [interval.num_samples for interval in found] == sizes
    check_against_counting(found[-1], samples[lines - sizes[-1] :], samples[: lines - sizes[-1]])


def test_an_interval_comes_before_the_rest_of_its_file_is_read(tmp_path: Path) -> None:
    samples = day(5_000)
    samples[4_321][20] = "x"
    path = write(tmp_path / "day_0", samples)
    found = read_intervals(path, samples_per_interval=1_000, workload=SMALL, max_rows=MAX_ROWS)
    check_against_counting(next(found), samples[:1_000], [])
    with pytest.raises(DamagedFileError, match=r"day_0, line 4322: its hash C7 is 'x'; it must be 8 hexadecimal"):
        list(found)
    content = zipped(text_of(samples[:2_000]) * 5)
    (tmp_path / "day_1.gz").write_bytes(content[:-1_000])
    found = read_intervals([tmp_path / "day_1.gz"], samples_per_interval=1_000, workload=SMALL)
    assert next(found).num_samples == 1_000
    with pytest.raises(DamagedFileError, match=r"day_1\.gz is truncated or damaged: .* beyond line \d+ .* again"):
        list(found)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    content = text_of(day(5_000))
    for times in (2, 8):
        path = write(tmp_path / f"day_{times}", content * times)
        tracemalloc.start()
        for _ in read_intervals(path, samples_per_interval=5_000, workload=SMALL, max_rows=1_000):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]


def changed(column: int, value: str) -> Callable[[Sample], Sample]:
    return lambda sample: [*sample[:column], value, *sample[column + 1 :]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda sample: sample[:-1], "it has 39 columns, and a sample has 40: a label, 13 integers and 26 hashes"),
        (lambda sample: [*sample, ""], "it has 41 columns"),
        (lambda sample: [""], "it has 1 columns"),
        (changed(0, "2"), "its label is '2'; it must be 0 or 1."),
        (changed(0, ""), "its label is ''; it must be 0 or 1."),
        (changed(0, "-1"), "its label is '-1'"),
        (changed(1, "1.5"), "its integer I1 is '1.5'; it must be digits after at most one minus, or empty."),
        (changed(13, "a1"), "its integer I13 is 'a1'"),
        (changed(5, "-"), "its integer I5 is '-'"),
        (changed(5, "--1"), "its integer I5 is '--1'"),
        (changed(14, "0123456"), "its hash C1 is '0123456'; it must be 8 hexadecimal digits in lower case, or empty."),
        (changed(20, "g1234567"), "its hash C7 is 'g1234567'"),
        (changed(20, "0123456A"), "its hash C7 is '0123456A'"),
        (changed(39, "01234567\r"), r"its hash C26 is '01234567\\r'"),
        (changed(39, "012 4567"), "its hash C26 is '012 4567'"),
        (changed(39, "é12345"), "its hash C26 is 'é12345'"),
        (changed(30, "0\x00234567"), r"its hash C17 is '0\\x00234567'"),
    ],
)
@pytest.mark.parametrize("options", [{"samples_per_interval": BATCH}, {"intervals_per_file": 2}])
def test_a_line_that_is_no_sample_is_named(
    change: Callable[[Sample], Sample], says: str, options: dict[str, int], tmp_path: Path
) -> None:
    samples = day(300)
    samples[210] = change(samples[210])
    samples[250] = ["later"]
    with pytest.raises(DamagedFileError) as raised:
        intervals_of(write(tmp_path / "day_0", samples), **options)
    assert str(raised.value).startswith(f"{tmp_path / 'day_0'}, line 211: ")
    assert says.replace(r"\\", "\\") in str(raised.value)
    assert str(raised.value).endswith("Download it again, or repair that line.")


def test_a_line_is_refused_exactly_if_its_fault_is_known() -> None:
    """Random bytes in random places."""
    rng = np.random.default_rng(5)
    content = text_of(day(40))
    lines = content.split(b"\n")[:-1]
    alphabet = b"0123456789abcdefgowzAFGO`@/:- \t\t\t\r\x00\x0b\x7f\x80\xc3\xff"
    refused = 0
    for _ in range(4_000):
        line = bytearray(lines[int(rng.integers(len(lines)))])
        for _ in range(int(rng.integers(1, 3))):
            at, byte = int(rng.integers(len(line))), alphabet[int(rng.integers(len(alphabet)))]
            match int(rng.integers(3)):
                case 0:
                    line[at] = byte
                case 1:
                    line.insert(at, byte)
                case _:
                    del line[at]
        fault = criteo_file.fault_of(bytes(line))
        block = lines[0] + b"\n" + bytes(line) + b"\n" + lines[1] + b"\n"
        assert (criteo_file.parse(block, 1_000) is None) == bool(fault), (bytes(line), fault)
        refused += bool(fault)
    assert 500 < refused < 3_900
    for byte in range(256):  # as each digit of a hash, and of an integer
        if byte not in b"\t\n":
            for line in (lines[0][:-1] + bytes([byte]), b"0\t" + bytes([byte]) + lines[0][lines[0].index(b"\t", 2) :]):
                assert (criteo_file.parse(line + b"\n", 1_000) is None) == bool(criteo_file.fault_of(line)), line


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", r"day_0 is empty\. Download it again\."),
        (text_of(day(100))[:-1], r"day_0, line 100: the file ends within it, after '.*', so it is truncated\. Downl"),
        (text_of(day(100))[:-50], r"day_0, line 100: the file ends within it"),
        (text_of(day(100)) + b"1" * 10_000, r"day_0, line 101: it has more than 4,096 bytes, .* Name a day file"),
        (bytes(10_000), r"day_0, line 1: it has more than 4,096 bytes"),
        (
            zipped(text_of(day(100)))[:-9],
            r"day_0 is truncated or damaged: it cannot be unpacked beyond line",
        ),
        (
            zipped(text_of(day(100)))[:5],
            r"day_0 is truncated or damaged: it cannot be unpacked beyond line 1 ",
        ),
        (
            zipped(text_of(day(100)))[:-8] + b"\x01" * 8,
            r"day_0 is truncated or damaged: .* \(CRC check failed",
        ),
        (zipped(b""), r"day_0 is empty"),
    ],
)
@pytest.mark.parametrize("options", [{"samples_per_interval": BATCH}, {"intervals_per_file": 1}])
def test_a_damaged_file_is_refused(content: bytes, says: str, options: dict[str, int], tmp_path: Path) -> None:
    (tmp_path / "day_0").write_bytes(content)
    with pytest.raises(DamagedFileError, match=says):
        intervals_of(tmp_path / "day_0", **options)


def test_files_are_looked_at_before_the_first_is_read(tmp_path: Path) -> None:
    first = write(tmp_path / "day_0", day(BATCH))
    with pytest.raises(DamagedFileError, match=r"day_1 cannot be read: No such file .* Name a day file"):
        read_intervals([first, tmp_path / "day_1"], samples_per_interval=BATCH, workload=SMALL)
    with pytest.raises(DamagedFileError, match="it is no regular file"):
        read_intervals([first, tmp_path], samples_per_interval=BATCH, workload=SMALL)
    with pytest.raises(DamagedFileError, match="cannot be read"):
        read_intervals([first, "day\0"], samples_per_interval=BATCH, workload=SMALL)


@pytest.mark.parametrize("now", [2_000, 3_010, 3_300])
def test_a_file_that_changes_while_it_is_read_is_refused(
    now: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = day(3_300)
    path, other = write(tmp_path / "day_0", samples[:3_000]), write(tmp_path / "other", samples[:now])
    read_rows = criteo.read_rows
    monkeypatch.setattr(criteo, "read_rows", lambda _, max_rows: read_rows(other, max_rows))
    with pytest.raises(DamagedFileError, match="day_0 changed while it was read: it had 3,000 lines"):
        intervals_of(path, intervals_per_file=3)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({}, InvalidOptionError, "Give either samples_per_interval or intervals_per_file"),
        ({"samples_per_interval": 64, "intervals_per_file": 2}, InvalidOptionError, "and not both"),
        ({"samples_per_interval": 63}, InvalidOptionError, "samples_per_interval is 63, fewer than one batch of 64 sa"),
        ({"samples_per_interval": 0}, InvalidOptionError, "samples_per_interval must be an integer of at least 1"),
        ({"samples_per_interval": 1e6}, InvalidOptionError, "samples_per_interval must be an integer"),
        ({"intervals_per_file": 0}, InvalidOptionError, "intervals_per_file must be an integer of at least 1, not 0"),
        ({"intervals_per_file": 5}, InvalidOptionError, "has 300 lines, so one of 5 intervals has 60, fewer than one"),
        ({"intervals_per_file": 10**12}, InvalidOptionError, "so one of 1,000,000,000,000 intervals has 0, fewer"),
        ({"samples_per_interval": 64, "max_rows": 0}, InvalidOptionError, "max_rows must be an integer from 1 to 4294"),
        ({"samples_per_interval": 64, "max_rows": 2**32}, InvalidOptionError, "max_rows must be"),
        ({"samples_per_interval": 64, "workload": 64}, InvalidOptionError, "workload must be a Workload, for example"),
        ({"samples_per_interval": 64, "embedding_dim": 6}, InvalidTablesError, "embedding_dim 6, which is not a mult"),
        ({"samples_per_interval": 64, "embedding_dim": [8] * 3}, InvalidTablesError, r"must have shape \(26,\)"),
        ({"samples_per_interval": 400, "workload": Workload(301)}, InvalidOptionError, "has 300 lines, fewer than one"),
    ],
)
def test_options_are_checked(options: dict[str, Any], error: type[ShardGymError], says: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=says):
        intervals_of(write(tmp_path / "day_0", day(300)), **options)


def test_the_days_are_in_order(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"day_{number}.gz", day(BATCH)) for number in (0, 1, 2, 10)]
    with pytest.raises(InvalidOptionError, match=r"day_2\.gz comes after .*day_10\.gz, but the days must be in order"):
        intervals_of(*sorted(paths), samples_per_interval=BATCH)
    with pytest.raises(InvalidOptionError, match="each once"):
        intervals_of(paths[0], paths[0], samples_per_interval=BATCH)
    for nothing in ([], None, 3, [None]):
        with pytest.raises(InvalidOptionError, match="paths must be a list of day files"):
            read_intervals(nothing, samples_per_interval=BATCH)  # type: ignore[arg-type]
    assert len(intervals_of(*paths, samples_per_interval=BATCH)) == 4
    dims = [4 * (number + 1) for number in range(26)]
    (one,) = read_intervals(str(paths[0]), samples_per_interval=BATCH, workload=SMALL, embedding_dim=dims)
    assert one.tables.embedding_dim.tolist() == dims


def test_the_example_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (REPO / "docs" / "suites.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(read_intervals.__kwdefaults__, "workload", SMALL)  # 24 batches of the default are large files
    for number in range(2):
        write(tmp_path / f"day_{number}", day(24 * BATCH, seed=number))
    exec(program, {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 48
    assert re.fullmatch(r"day_0-0: [\d,]+ rows, (\d\.\d{3}) ms, placed anew \1 ms", lines[0])
    assert re.fullmatch(r"day_1-23: [\d,]+ rows, \d\.\d{3} ms, placed anew \d\.\d{3} ms", lines[-1])
