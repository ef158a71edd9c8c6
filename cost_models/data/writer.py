"""What is in a folder of measurements and what is about to be: parts are written whole, and nothing twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shard_gym.cost_models.data.dataset import CostRecorder
from shard_gym.cost_models.data.folder import Skipped, append_costs, append_skipped, load_collected, load_costs
from shard_gym.cost_models.data.parquet import Notes
from shard_gym.cost_models.data.sampling import Draws
from shard_gym.cost_models.data.schedule import Outcome, Turn
from shard_gym.cost_models.data.splits import SPLITS, SplitCosts
from shard_gym.errors import RunsFailedError
from shard_gym.text import counted

MOST_FAILURES = 20
"""Failures in a row after which nothing more is tried, for then something other than the draws is wrong."""


@dataclass(frozen=True)
class Tally:
    """How a collection stands.

    Attributes:
        measured: measurements in the folder.
        repeats: those of them that measured a draw again.
        skipped: draws that could not be measured.
        new: measurements that this run added.
        reasons: of what was skipped, how often each.
        seconds: that this run took.
    """

    measured: int
    repeats: int
    skipped: int
    new: int
    reasons: dict[str, int]
    seconds: float


class Book:
    """Measurements in a folder that `begin_costs` began.

    Args:
        folder: the folder.
        draws: what the numbers mean.
        source: fingerprint of what measures.
        part: measurements that are written at once.

    Raises:
        DamagedFileError: the folder is damaged.
        MissingExtraError: pyarrow is not installed.
    """

    def __init__(self, folder: Path, draws: Draws, source: str, part: int) -> None:
        self._folder, self._draws, self._source, self._part = folder, draws, source, part
        known = load_collected(folder)
        if known.notes is not None:
            load_costs(folder)  # nothing may be added to what cannot be read
        measured = (
            [] if known.notes is None else zip(known.notes.number.tolist(), known.notes.repeat.tolist(), strict=True)
        )
        self._measured = {Turn(*each) for each in measured}
        self._repeats = sum(turn.repeat for turn in self._measured)
        self._before = len(self._measured)
        self._reasons = {Turn(each.number, each.repeat): each.reason for each in known.skipped}
        self._fresh: list[Outcome] = []
        self._failed: list[Outcome] = []
        self._streak: list[Outcome] = []

    def has(self, turn: Turn) -> bool:
        """Whether `turn` need not be taken; what could not be measured once is not measured again either."""
        return turn in self._measured or turn in self._reasons or Turn(turn.number, 0) in self._reasons

    def add(self, outcome: Outcome) -> None:
        """Take in an outcome; a full part is written.

        Raises:
            RunsFailedError: this was the last of `MOST_FAILURES` failures in a row; they are not noted.
            UnwritablePathError: the disk refuses.
        """
        if outcome.estimate is None:
            self._streak.append(outcome)
            self._reasons[outcome.turn] = outcome.reason
            if len(self._streak) >= MOST_FAILURES:
                self._give_up()
            return
        self._measured.add(outcome.turn)
        self._repeats += outcome.turn.repeat
        self._fresh.append(outcome)
        self._failed += self._streak
        self._streak = []
        if len(self._fresh) >= self._part:
            self.write_part()

    def _give_up(self) -> None:
        reason = self._streak[-1].reason
        for outcome in self._streak:
            del self._reasons[outcome.turn]
        self._streak = []
        raise RunsFailedError(
            f"{counted(MOST_FAILURES, 'measurement')} in a row failed, so nothing more is tried and these are not "
            f"noted. The last reason: {reason}"
        )

    def write(self) -> None:
        """Write whatever is not in the folder yet."""
        self._failed += self._streak
        self._streak = []
        self.write_part()

    def write_part(self) -> None:
        """Write what was measured, and the failures before it."""
        # First forgotten, then written: whatever happens on the way, nothing is written twice.
        fresh, self._fresh = self._fresh, []
        failed, self._failed = self._failed, []
        if fresh:
            append_costs(self._folder, self._costs(fresh), _notes(fresh))
        if failed:
            append_skipped(self._folder, [Skipped(*outcome.turn, outcome.reason) for outcome in failed])

    def _costs(self, outcomes: Sequence[Outcome]) -> SplitCosts:
        recorder, splits = CostRecorder(self._source), []
        for outcome in outcomes:
            drawn = self._draws.draw(outcome.turn.number)
            assert outcome.estimate is not None
            recorder.add(drawn.tables, drawn.topology, drawn.placement, outcome.estimate)
            splits.append(SPLITS.index(drawn.split))
        return SplitCosts.recorded(recorder, splits)

    def tally(self, seconds: float) -> Tally:
        """How it stands."""
        return Tally(
            measured=len(self._measured),
            repeats=self._repeats,
            skipped=len(self._reasons),
            new=len(self._measured) - self._before,
            reasons=dict(Counter(self._reasons.values()).most_common()),
            seconds=seconds,
        )


def _notes(outcomes: Sequence[Outcome]) -> Notes:
    return Notes(
        number=np.array([outcome.turn.number for outcome in outcomes], np.int64),
        repeat=np.array([outcome.turn.repeat for outcome in outcomes], np.int64),
        spread=np.array([outcome.spread for outcome in outcomes], np.float64),
    )
