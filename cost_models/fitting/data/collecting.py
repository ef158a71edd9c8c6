"""Measuring sampled placements into a folder until the time is up; what the folder has is not measured again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shard_gym.common.checks import checked_count, checked_positive
from shard_gym.common.errors import InvalidOptionError, RunsFailedError, ShardGymError, UnwritablePathError
from shard_gym.common.io.lock import exclusive_access
from shard_gym.common.io.parquet import require_arrow
from shard_gym.common.text import counted
from shard_gym.cost_models.base import CostEstimate, CostModel
from shard_gym.cost_models.fitting.data.dataset import CostRecorder
from shard_gym.cost_models.fitting.data.folder import (
    FailedMeasurement,
    MeasurementIndex,
    append_failed,
    append_part,
    begin_folder,
    read_parts,
)
from shard_gym.cost_models.fitting.data.parquet import MeasurementInfo
from shard_gym.cost_models.fitting.data.sampling import SampledPlacement, Sampler
from shard_gym.cost_models.fitting.data.splits import SPLITS, SplitCosts

PART_SIZE = 24  # measurements that are written together; a program that is killed loses fewer than these
REPEAT_DELAY = 30  # a placement is measured again after so many others, so in another part and at another time
MAX_FAILURES = 20  # failures in a row after which a collection stops, because the cause is not the placements


class MeasurementId(NamedTuple):
    """What to measure: the number of a sampled placement, and how often it was measured before (0 or 1)."""

    number: int
    repeat: int


@dataclass(frozen=True)
class CollectionProgress:
    """State of a collection."""

    measured: int  # measurements in the folder, or about to be written
    repeats: int  # those of them that measured a placement again
    failed: int  # measurements that failed
    new: int  # measurements that this run added
    reasons: dict[str, int]  # why measurements failed, with the count of each reason
    seconds: float  # duration of this run so far


def collect(
    make_model: Callable[[], CostModel],
    folder: str | Path,
    sampler: Sampler,
    *,
    budget_s: float | None = None,
    count: int | None = None,
    repeat_every: int | None = 10,
    part_size: int = PART_SIZE,
    on_progress: Callable[[CollectionProgress], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> CollectionProgress:
    """Measure placements that `folder` does not have yet and add them to it, until the time is up or all are there.

    Every `part_size` measurements are written together, the rest at the end and at Ctrl-C. A placement whose
    measurement fails with an error of this project is noted with the reason and not tried again.

    Args:
        make_model: makes the cost model. If it has a method `measure_again`, that measures what is measured a second
            time; a model whose `estimate` caches must have it.
        folder: see `data.folder`; made if it is missing.
        sampler: gives the placements.
        budget_s: seconds after which no further measurement begins; None for no limit.
        count: placements that the folder shall have in total; None for no limit.
        repeat_every: k: every k-th placement is measured a second time, later; None for never.
        part_size: measurements that are written together.
        on_progress: called after every measurement, and after the disk refused some.
        clock: monotonic time in seconds.

    Raises:
        InvalidOptionError: an option is out of range, there is neither a budget nor a count, the folder holds other
            measurements, or another program adds to it.
        RunsFailedError: `MAX_FAILURES` measurements in a row failed; these are not noted.
        DamagedFileError, UnwritablePathError: the folder is damaged, or the disk refuses.
        MissingExtraError: pyarrow or filelock is not installed.
    """
    if budget_s is None and count is None:
        raise InvalidOptionError("A collection needs an end: give a budget, a count, or both.")
    if budget_s is not None:
        checked_positive("budget_s", budget_s)
    for name, value in (("count", count), ("repeat_every", repeat_every), ("part_size", part_size)):
        if value is not None:
            checked_count(name, value)
    require_arrow()  # before anything is measured
    sampler.sample(0)  # loads the tables, which is not part of the time
    model = make_model()
    begin = clock()
    try:
        with exclusive_access(folder):
            writer = _Writer(Path(folder), sampler, model, part_size)
            try:
                try:
                    for id in measurement_schedule(count, repeat_every):
                        if writer.has(id):
                            continue
                        if budget_s is not None and clock() - begin >= budget_s:
                            break
                        writer.measure(id)
                        if on_progress:
                            on_progress(writer.progress(clock() - begin))
                finally:
                    writer.write()
            except UnwritablePathError:
                if on_progress:
                    on_progress(writer.progress(clock() - begin))  # without what the disk refused
                raise
    finally:
        getattr(model, "close", lambda: None)()
    return writer.progress(clock() - begin)


def measurement_schedule(count: int | None, repeat_every: int | None) -> Iterator[MeasurementId]:
    """Placements by number, and every `repeat_every`-th a second time, `REPEAT_DELAY` placements later.

    The order does not depend on `count`, except for the repeats that remain at the end.
    """

    def repeats(number: int) -> bool:
        return repeat_every is not None and number >= 0 and number % repeat_every == repeat_every - 1

    number = 0
    while count is None or number < count:
        yield MeasurementId(number, 0)
        if repeats(number - REPEAT_DELAY):
            yield MeasurementId(number - REPEAT_DELAY, 1)
        number += 1
    for late in range(max(0, number - REPEAT_DELAY), number - 1):  # not the last one: nothing was measured after it
        if repeats(late):
            yield MeasurementId(late, 1)


class _Writer:
    """Measures, adds the results to a folder part by part, and knows what the folder has."""

    def __init__(self, folder: Path, sampler: Sampler, model: CostModel, part_size: int) -> None:
        self._folder, self._sampler, self._part_size = folder, sampler, part_size
        self._model = model  # it measures first and again, because two would share a GPU's memory
        self._source = model.fingerprint
        hardware = str(getattr(model, "hardware", model.name))
        index = begin_folder(folder, MeasurementIndex(self._source, hardware, sampler.workload, sampler.to_json()))
        self._measured: set[MeasurementId] = set()
        if index.parts:
            info = read_parts(folder, index)[1]  # fails if a part is damaged, so nothing is added to it
            self._measured = {MeasurementId(*id) for id in zip(info.number.tolist(), info.repeat.tolist(), strict=True)}
        self._count_before = len(self._measured)
        self._reasons = {MeasurementId(each.number, each.repeat): each.reason for each in index.failed}
        self._unwritten: list[tuple[MeasurementId, SampledPlacement, CostEstimate]] = []
        self._failed: list[FailedMeasurement] = []
        self._failures_in_a_row = 0

    def has(self, id: MeasurementId) -> bool:
        """Whether `id` is done; a placement whose first measurement failed is not measured again either."""
        return id in self._measured or id in self._reasons or MeasurementId(id.number, 0) in self._reasons

    def measure(self, id: MeasurementId) -> None:
        """Measure a placement, and write a full part; the last of `MAX_FAILURES` in a row is a RunsFailedError."""
        sampled = self._sampler.sample(id.number)
        try:
            estimate = self._estimate(sampled, again=bool(id.repeat))
        except ShardGymError as error:
            self._fail(id, str(error))
            return
        self._failures_in_a_row = 0
        self._measured.add(id)
        self._unwritten.append((id, sampled, estimate))
        if len(self._unwritten) >= self._part_size:
            self.write()

    def _estimate(self, sampled: SampledPlacement, *, again: bool) -> CostEstimate:
        answer = sampled.placement if sampled.plan is None else sampled.plan
        measure: Any = self._model.estimate
        if again:
            measure = getattr(self._model, "measure_again", measure)
        found: CostEstimate = measure(answer, sampled.tables, sampled.topology)
        return found

    def _fail(self, id: MeasurementId, reason: str) -> None:
        self._failed.append(FailedMeasurement(*id, reason))
        self._reasons[id] = reason
        self._failures_in_a_row += 1
        if self._failures_in_a_row < MAX_FAILURES:
            return
        for failed in self._failed[-MAX_FAILURES:]:
            del self._reasons[MeasurementId(failed.number, failed.repeat)]
        del self._failed[-MAX_FAILURES:]
        raise RunsFailedError(
            f"{counted(MAX_FAILURES, 'measurement')} in a row failed, so the collection stops and these are not noted. "
            f"The last reason: {reason}"
        )

    def write(self) -> None:
        """Write the results that are not in the folder yet; what the disk refuses does not count as done."""
        # The lists are emptied first, so that an interrupted write is never repeated.
        results, self._unwritten = self._unwritten, []
        failed, self._failed = self._failed, []
        try:
            if results:
                self._write_results(results)
            results = []
            if failed:
                append_failed(self._folder, failed)
        except UnwritablePathError:
            self._measured -= {id for id, _, _ in results}
            for each in failed:
                del self._reasons[MeasurementId(each.number, each.repeat)]
            raise

    def _write_results(self, results: Sequence[tuple[MeasurementId, SampledPlacement, CostEstimate]]) -> None:
        recorder = CostRecorder(self._source)
        for _, sampled, estimate in results:
            if sampled.plan is None:
                recorder.add(sampled.tables, sampled.topology, sampled.placement, estimate)
            else:
                recorder.add_plan(sampled.tables, sampled.topology, sampled.plan, estimate)
        splits = [SPLITS.index(sampled.split) for _, sampled, _ in results]
        info = MeasurementInfo(
            number=np.array([id.number for id, _, _ in results], np.int64),
            repeat=np.array([id.repeat for id, _, _ in results], np.int64),
            spread=np.array([getattr(estimate, "spread", np.nan) for _, _, estimate in results], np.float64),
            clock_ghz=np.array([getattr(estimate, "clock_ghz", np.nan) for _, _, estimate in results], np.float64),
            late=np.array([getattr(estimate, "late", 0) for _, _, estimate in results], np.int64),
        )
        append_part(self._folder, SplitCosts.recorded(recorder, splits), info)

    def progress(self, seconds: float) -> CollectionProgress:
        return CollectionProgress(
            measured=len(self._measured),
            repeats=sum(id.repeat for id in self._measured),
            failed=len(self._reasons),
            new=len(self._measured) - self._count_before,
            reasons=dict(Counter(self._reasons.values()).most_common()),
            seconds=seconds,
        )
