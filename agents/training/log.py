"""The numbers of a run for TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from shard_gym.errors import missing_extra


class TrainingLog:
    """Events of one part of a run, from its start or from where it was resumed.

    TensorBoard reads the files of a folder in the order of their names. Here they are named by the iteration they go on
    from, not by time and process as usual: parts that follow each other within a second stay in order, and a part that
    ended before its first iteration is written over. Iterations that are done again replace the old ones, because each
    file begins by declaring all later steps void.

    Args:
        folder: made if it is missing.
        iteration: how many iterations are done.

    Raises:
        MissingExtraError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path, iteration: int) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2  # type: ignore[import-untyped]
            from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]
        except ImportError as error:
            raise missing_extra("tensorboard", "torch", "Training") from error
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"events.out.tfevents.{iteration:010d}").open("wb")
        self._records = RecordWriter(self._file)
        started = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write(iteration + 1, file_version="brain.Event:2")
        self._write(iteration + 1, session_log=started)

    def __enter__(self) -> TrainingLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, iteration: int, numbers: Mapping[str, float]) -> None:
        """What an iteration said of itself."""
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._write(iteration, summary=self._summary(value=values))

    def _write(self, step: int, **content: object) -> None:
        self._records.write(self._event(wall_time=time.time(), step=step, **content).SerializeToString())
        self._file.flush()
