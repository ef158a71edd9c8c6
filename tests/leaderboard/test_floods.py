"""Files of entries that are small and would take minutes or gigabytes: they are refused at once."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import pytest

from shard_gym.leaderboard.entry import parse
from shard_gym.leaderboard.store import LIMITS

ROWS, TOML = "placements.json", "entry.toml"
MIB = 2**20
FLOODS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "empty rows": (ROWS, lambda: b'{"schema":1,"rows":[' + b"{}," * (2 * MIB // 3 - 20) + b"{}]}"),
    "empty lists": (ROWS, lambda: b'{"schema":1,"rows":[' + b"[]," * (2 * MIB // 3 - 20) + b"[]]}"),
    "numbers for rows": (ROWS, lambda: b'{"schema":1,"rows":[' + b"1," * (MIB - 20) + b"1]}"),
    "keys": (ROWS, lambda: b'{"schema":1,' + b",".join(b'"%x":1' % i for i in range(MIB // 5)) + b"}"),
    "dots": (TOML, lambda: b"a" + b".a" * 16_000 + b" = 1\n"),
    "quoted dots": (TOML, lambda: b'"a"' + b'."a"' * 8_000 + b" = 1\n"),
    "a table of dots": (TOML, lambda: b"[a" + b".a" * 16_000 + b"]\n"),
    "dots on many lines": (TOML, lambda: b"".join(b"k%d" % i + b".a" * 100 + b" = 1\n" for i in range(150))),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_is_refused_at_once(flood: str) -> None:
    """Each took 13 seconds or more, and up to 2.5 GB, when its values were made before they were counted."""
    name, content = FLOODS[flood]
    data = content()
    assert len(data) <= LIMITS[name] + MIB
    began = time.process_time()
    record, findings = parse(data, f"simulated/dlrm-20x4/random/{name}")
    seconds = time.process_time() - began
    tracemalloc.start()  # it makes the program several times slower
    parse(data, f"simulated/dlrm-20x4/random/{name}")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert record is None
    assert len(findings) <= 201
    assert (seconds < 2, peak < 300 * MIB) == (True, True), (seconds, peak)
