"""The rows of an entry as a grid of seeds and tasks: every pair exactly once, every placement checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shard_gym.errors import InvalidPlacementError, short_repr
from shard_gym.leaderboard.findings import Finding
from shard_gym.leaderboard.schema import MIN_ITERATIONS, PlacementRow, Row, TimingRow
from shard_gym.placement import Placement, check_placement
from shard_gym.tasks import Task, TaskSuite

Cell = tuple[int, int]
"""A seed's position and a task's."""


@dataclass(frozen=True, eq=False)
class Grid:
    """All placements of an entry.

    Attributes:
        seeds: of the agent, S of them.
        placements: S lists of N checked placements; None where the agent found none.
    """

    seeds: tuple[int, ...]
    placements: list[list[Placement | None]]

    @property
    def failures(self) -> int:
        """How many there are not."""
        return sum(each is None for row in self.placements for each in row)

    def repeated(self) -> tuple[int, int] | None:
        """Two seeds whose placements are the same on every task but for the names of the devices; None if no two are.

        Devices of a suite are alike, so a copy with other device numbers is still a copy.
        """
        seen: dict[bytes, int] = {}
        for seed, row in zip(self.seeds, self.placements, strict=True):
            said = _said(row)
            if said in seen:
                return seen[said], seed
            seen[said] = seed
        return None

    def signature(self) -> bytes:
        """Equal for two grids with the same placements but for the names of the devices."""
        return b"||".join(map(_said, self.placements))


def _said(row: Sequence[Placement | None]) -> bytes:
    return b"|".join(b"-" if each is None else _first_come(each).tobytes() for each in row)


def _first_come(placement: Placement) -> Placement:
    """`placement` with the devices numbered in the order in which they appear."""
    _, first, inverse = np.unique(placement, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def arrange(
    rows: Sequence[Row], suite: TaskSuite, seeds: Sequence[int], file: str
) -> tuple[dict[Cell, Row], list[Finding]]:
    """The rows by seed and task, and every pair that is missing, doubled or not asked for."""
    tasks = {task.name: number for number, task in enumerate(suite)}
    positions = {seed: position for position, seed in enumerate(seeds)}
    cells: dict[Cell, Row] = {}
    findings = []
    for row in rows:
        named = _safe(row.task)
        if row.task not in tasks:
            findings.append(Finding(file, f"Suite {suite.name!r} has no such test task.", named, row.seed))
        elif row.seed not in positions:
            findings.append(Finding(file, f"The seed is none of {list(seeds)}.", named, row.seed))
        elif (cell := (positions[row.seed], tasks[row.task])) in cells:
            findings.append(Finding(file, "The task stands twice for this seed.", named, row.seed))
        else:
            cells[cell] = row
    findings += [
        Finding(file, "The task is missing for this seed; a task without a placement is null.", task.name, seed)
        for task, number in ((task, tasks[task.name]) for task in suite)
        for seed, position in positions.items()
        if (position, number) not in cells
    ]
    return cells, findings


def _safe(name: str) -> str:
    """A task's name that nobody has checked, for a message on one line."""
    return name if re.fullmatch(r"[A-Za-z0-9/._-]{1,120}", name) else short_repr(name)


def check_rows(
    cells: dict[Cell, PlacementRow], suite: TaskSuite, seeds: Sequence[int], file: str
) -> tuple[Grid, list[Finding]]:
    """The grid, and every placement that is not valid; memory is recomputed from the tables."""
    grid: list[list[Placement | None]] = [[None] * len(suite) for _ in seeds]
    findings = []
    for (position, number), row in cells.items():
        if row.placement is None:
            continue
        task = suite[number]
        try:
            grid[position][number] = check_placement(np.array(row.placement, np.int64), task.tables, task.topology)
        except InvalidPlacementError as error:
            findings.append(Finding(file, str(error), task.name, row.seed))
    return Grid(tuple(seeds), grid), findings


LEAST_MS = 1e-3
"""Of a forward or a backward on any device: a kernel launch takes longer."""


def timed_cost(row: TimingRow) -> float:
    """Ms of a measured placement, as the measuring cost model takes it: the sum of the slowest devices' medians.

    A collective starts when the last device is ready, so each phase takes as long as its slowest device
    (`cost_models.measured.model`).
    """
    return float(np.median(np.array(row.phases_ms), axis=0).max(axis=0).sum())


def check_timing(row: TimingRow, task: Task, placement: Placement | None, penalty_ms: float) -> str:
    """What is wrong with the timings of one placement; empty if nothing is."""
    if row.phases_ms is None or placement is None:
        unlike = (row.phases_ms is None) == (placement is not None)
        return "Timings stand where a placement is, and null where none is; these two differ." if unlike else ""
    if len(row.phases_ms) < MIN_ITERATIONS:
        return f"It was timed {len(row.phases_ms)} times; at least {MIN_ITERATIONS} iterations are asked for."
    widths = {len(iteration) for iteration in row.phases_ms}
    if widths != {task.num_devices}:
        return f"Every iteration has times of {task.num_devices} devices; these have {sorted(widths)}."
    ms = np.array(row.phases_ms)
    used = np.unique(placement)
    quickest = float(np.median(ms, axis=0)[used][:, [0, 3]].min())
    if quickest < LEAST_MS:
        return (
            f"A device with tables took {quickest} ms for its forward or backward; a kernel alone takes {LEAST_MS} ms."
        )
    if timed_cost(row) >= penalty_ms:
        return f"It took {timed_cost(row)} ms, more than the penalty of {penalty_ms} ms for not placing the task."
    if (ms == ms[0]).all():
        return "Every iteration took exactly as long as the first; these are no raw timings."
    return ""
