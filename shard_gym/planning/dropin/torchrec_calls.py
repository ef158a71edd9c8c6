"""The calls of TorchRec's planner and enumerator; importing this module imports TorchRec."""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import copy, deepcopy
from typing import Any

from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.types import Enumerator, PlannerError, StorageReservation

from shard_gym.planning.dropin.options import KERNELS

CHUNK = 500  # options that are estimated at once, after which the time is looked at


class OutOfTimeError(Exception):
    """The time limit is over."""


class Deadline:
    """A time limit in seconds; None for none."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def left_s(self) -> float | None:
        """Seconds left; None without a limit.

        Raises:
            OutOfTimeError: there are none.
        """
        if self._end is None:
            return None
        left = self._end - time.monotonic()
        if left <= 0:
            raise OutOfTimeError
        return left


class PlainEnumerator(EmbeddingEnumerator):  # type: ignore[misc]
    """TorchRec's enumerator, which finds options and leaves their estimates to who needs them.

    TorchRec's own estimates storage and perf of each shard of each option, and copies all; of 1,000 tables on 64 ranks
    that takes 20 times as long as finding them.

    Args:
        in_memory: whether kernels that keep rows outside the device's memory are left out where a table has others.
        options: of `EmbeddingEnumerator`.
    """

    def __init__(self, in_memory: bool, **options: Any) -> None:
        super().__init__(**options)
        self._in_memory, self._found = in_memory, list[Any]()

    def enumerate(self, module: Any, sharders: Any) -> list[Any]:
        """All options of a module, without estimates; once."""
        super().enumerate(module, sharders)
        return self._found

    def populate_estimates(self, sharding_options: list[Any]) -> None:
        """Take the options out of TorchRec's list, which it would copy."""
        self._found = list(sharding_options)
        sharding_options.clear()

    def _filter_compute_kernels(self, *arguments: Any) -> list[str]:
        found: list[str] = super()._filter_compute_kernels(*arguments)
        return [kernel for kernel in found if self._in_memory and kernel in KERNELS] or found

    def estimate(self, options: Sequence[Any], *, perf: bool, deadline: Deadline | None = None) -> None:
        """Storage, and perf if asked for, of options; raises OutOfTimeError."""
        estimators = [each for each in self._estimators if perf or isinstance(each, EmbeddingStorageEstimator)]
        for first in range(0, len(options), CHUNK):
            if deadline is not None:
                _ = deadline.left_s
            some = options[first : first + CHUNK]
            different = [_with_different_shards(option) for option in some]
            for estimator in estimators:
                estimator.estimate(different, sharder_data_map=self._sharder_data_map)
            for option, estimated in zip(some, different, strict=True):
                of_size = {tuple(shard.size): shard for shard in estimated.shards}
                for shard in option.shards:
                    same = of_size[tuple(shard.size)]
                    shard.storage, shard.perf = copy(same.storage), copy(same.perf)


def _with_different_shards(option: Any) -> Any:
    """A copy of an option with one shard of each size: what a shard stores and takes follows from its size."""
    made = copy(option)
    made.shards = [copy(shard) for shard in {tuple(shard.size): shard for shard in option.shards}.values()]
    return made


class _Found(Enumerator):  # type: ignore[misc]
    """An enumerator of options that are found already."""

    def __init__(self, options: list[Any], enumerator: Any) -> None:
        self._options, self._enumerator = options, enumerator

    def enumerate(self, module: Any, sharders: Any) -> list[Any]:
        return self._options

    def populate_estimates(self, sharding_options: list[Any]) -> None:
        estimate = getattr(self._enumerator, "estimate", None)
        if estimate is None:
            self._enumerator.populate_estimates(sharding_options)
        else:
            estimate(sharding_options, perf=True)


class Reserved(StorageReservation):  # type: ignore[misc]
    """A reservation that is made already."""

    _percentage = 0.0

    def __init__(self, reserved: Any) -> None:
        self._reserved = reserved

    def reserve(self, *_: Any, **__: Any) -> Any:
        """The topology that is left, for TorchRec to change."""
        return deepcopy(self._reserved)

    @property
    def last_reserved_topology(self) -> Any:
        """The same."""
        return self._reserved


class TorchRecPlanner:
    """TorchRec's planner as the user made it, or with TorchRec's defaults.

    Args:
        options: the arguments of `EmbeddingShardingPlanner` but for its enumerator, limit of time and stats.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options

    def planned(
        self, module: Any, sharders: Any, found: list[Any], enumerator: Any, deadline: Deadline | None = None
    ) -> list[Any]:
        """Its plan of the tables with these options, which have estimates; each has shards with ranks.

        The limit is looked at before each proposal, which may take seconds of thousands of shards.

        Raises:
            PlannerError: it finds none.
            OutOfTimeError: the time is over, and it found none so far.
        """
        left = None if deadline is None else deadline.left_s
        planner = EmbeddingShardingPlanner(
            enumerator=_Found(found, enumerator),
            stats=[],
            debug=False,
            timeout_seconds=None if left is None else max(1, int(left)),
            **self._options,
        )
        try:
            planner.plan(module, sharders)
        except PlannerError:
            if deadline is not None:
                _ = deadline.left_s
            raise
        plan: list[Any] = planner._best_plan
        return plan
