"""What placements of a suite cost, many at a time, and the hash of the cost model that says so."""

from __future__ import annotations

import hashlib
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models import AdditiveCostModel, make_cost_model
from shard_gym.cost_models.base import FloatArray
from shard_gym.leaderboard.store import MEASURED, SIMULATED
from shard_gym.suites import load_suite
from shard_gym.tasks import TaskSuite
from shard_gym.topology import Cluster

SCORED_BY = {SIMULATED: "analytical", MEASURED: "measured"}
"""The cost model of each track: one, so that all entries of a board are scored alike."""

MOST_AT_ONCE = 2**22
"""Numbers in one array of loads: 32 MiB."""


class Scorer:
    """Costs of placements of the test tasks of one suite.

    Args:
        suite: the tasks.
        track: decides the penalty and the hash; costs are those of the simulated track.
    """

    def __init__(self, suite: TaskSuite, track: str = SIMULATED) -> None:
        self.suite = suite
        self.track = track
        self.model: AdditiveCostModel = make_cost_model(SCORED_BY[SIMULATED])
        self._prepared: dict[int, tuple[FloatArray, Cluster]] = {}

    def costs(self, number: int, placements: NDArray[np.int64]) -> FloatArray:
        """(P,) ms, of (P, T) checked placements of the task at index `number`."""
        loads, cluster = self._task(number)
        devices = self.suite[number].num_devices
        step = max(1, MOST_AT_ONCE // (devices * loads.shape[1]))
        parts = [placements[begin : begin + step] for begin in range(0, len(placements), step)]
        return np.concatenate([self._costs(loads, cluster, devices, part) for part in parts] or [np.empty(0)])

    def _costs(self, loads: FloatArray, cluster: Cluster, devices: int, placements: NDArray[np.int64]) -> FloatArray:
        """As `AdditiveCostModel.estimate`, which adds in the same order, for all at once."""
        count, split = len(placements), self.model.num_sum_loads
        held = np.zeros((count * devices, loads.shape[1]))
        flat = (np.arange(count)[:, None] * devices + placements).ravel()
        repeated = np.tile(loads, (count, 1))
        np.add.at(held[:, :split], flat, repeated[:, :split])
        np.maximum.at(held[:, split:], flat, repeated[:, split:])
        return np.asarray(self.model.costs(held.reshape(count, devices, -1), cluster)[1]).reshape(count)

    def lower_bound(self, number: int) -> float:
        """Ms that no placement of the task undercuts."""
        return float(self.model.cost_bounds(self._task(number)[0], self.suite[number].topology)[0])

    def _task(self, number: int) -> tuple[FloatArray, Cluster]:
        if number not in self._prepared:
            task = self.suite[number]
            self._prepared[number] = self.model.table_loads(task.tables, task.topology), task.topology.cluster()
        return self._prepared[number]

    @cached_property
    def penalties(self) -> FloatArray:
        """(N,) ms, what each task costs that was not placed."""
        margin = 1.0
        if self.track == MEASURED:
            from shard_gym.cost_models.measured.model import PENALTY_MARGIN

            margin = PENALTY_MARGIN
        return np.array([margin * self.model.penalty_ms(task.tables, task.topology) for task in self.suite])

    @cached_property
    def cost_model_sha256(self) -> str:
        """64 hexadecimal digits that change with the scoring model's version and with what it says.

        A fingerprint follows the version that people write down. This also hashes the penalty of every task and the
        cost of its known placement, to nine digits, so a formula that changed without a new version is noticed.
        """
        said = [f"{SCORED_BY[self.track]}-v{self._version()}", self.suite.sha256]
        for number, task in enumerate(self.suite):
            known = task.known_placement
            cost = self.costs(number, known[None])[0] if known is not None else 0.0
            said.append(f"{task.name} {self.penalties[number]:.8e} {cost:.8e}")
        return hashlib.sha256("\n".join(said).encode()).hexdigest()

    def _version(self) -> int:
        if self.track == SIMULATED:
            return self.model.version
        from shard_gym.cost_models.measured.model import MeasuredCostModel

        return MeasuredCostModel.version


@lru_cache(maxsize=128)
def scorer_of(suite: str, track: str) -> Scorer:
    """The judge of the test tasks of the suite of that name; see `load_suite` for errors."""
    return Scorer(load_suite(suite), track)


def hashes(suite: str, track: str = SIMULATED) -> dict[str, str]:
    """The two SHA-256 sums that an entry names: of the suite, and of the cost model on it."""
    judge = scorer_of(suite, track)
    return {"suite": judge.suite.sha256, "cost_model": judge.cost_model_sha256}
