"""Measuring draw after draw into a folder, for as long as there is time; what is there is never measured again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shard_gym.cost_models.data.folder import begin_costs, only_one
from shard_gym.cost_models.data.sampling import Draws
from shard_gym.cost_models.data.schedule import Measurer, Turn, turns
from shard_gym.cost_models.data.writer import Book, Tally
from shard_gym.errors import InvalidOptionError, wrong_kind

PART = 24
"""Measurements that are written at once; a program that is killed loses fewer than these."""


def collect(
    measurer: Measurer,
    folder: str | Path,
    draws: Draws,
    *,
    budget_s: float | None = None,
    count: int | None = None,
    repeat_every: int | None = 10,
    part: int = PART,
    on_tally: Callable[[Tally], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Tally:
    """Measure draws that `folder` does not have yet, until the time is up or all are there, and add them to it.

    Every `part` measurements are written at once; so is what is there when the time is up, or at Ctrl-C. A draw that
    fails with an error of ours is noted as skipped, with the reason, and not tried again.

    Args:
        measurer: what measures.
        folder: see `neural.collection`; made if it is missing, and gone on with if it is not.
        draws: what the numbers mean.
        budget_s: seconds after which no further measurement begins; None for no limit.
        count: draws that the folder shall have in all; None for no limit.
        repeat_every: k: every k-th draw is measured a second time, not right after the first; None for never.
        part: measurements that are written at once.
        on_tally: called after every measurement.
        clock: seconds, rising.

    Raises:
        InvalidOptionError: a number means nothing, there is neither a budget nor a count, or the folder holds
            something else, or another program adds to it.
        RunsFailedError: `book.MOST_FAILURES` draws in a row failed; these are not noted.
        DamagedFileError: the folder is damaged.
        UnwritablePathError: the disk refuses.
        MissingExtraError: pyarrow is not installed.
    """
    _check(budget_s, count, repeat_every, part)
    draws.prepare()
    begin = clock()
    with only_one(folder):
        source, hardware = measurer.fingerprint, measurer.hardware
        begin_costs(folder, source=source, hardware=hardware, workload=draws.workload, drawn=draws.to_json())
        book = Book(Path(folder), draws, source, part)
        _fill(book, measurer, turns(count, repeat_every), budget_s, on_tally, lambda: clock() - begin)
    return book.tally(clock() - begin)


def _fill(
    book: Book,
    measurer: Measurer,
    every: Iterator[Turn],
    budget_s: float | None,
    on_tally: Callable[[Tally], None] | None,
    passed: Callable[[], float],
) -> None:
    """Measure what `book` does not have, until the time is up."""

    def wanted() -> Iterator[Turn]:
        for turn in every:
            if book.has(turn):
                continue
            if budget_s is not None and passed() >= budget_s:
                return
            yield turn

    try:
        for outcome in measurer.measure(wanted()):
            book.add(outcome)
            if on_tally:
                on_tally(book.tally(passed()))
    finally:
        book.write()


def _check(budget_s: Any, count: Any, repeat_every: Any, part: Any) -> None:
    if budget_s is None and count is None:
        raise InvalidOptionError("A collection needs an end: give a budget, a count, or both.")
    if budget_s is not None and not 0 < budget_s < float("inf"):
        raise wrong_kind("budget_s", budget_s, "a positive number of seconds")
    for name, value in (("count", count), ("repeat_every", repeat_every), ("part", part)):
        if value is not None and (type(value) is not int or value < 1):
            raise wrong_kind(name, value, "an integer of at least 1")
