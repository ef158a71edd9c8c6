"""Drawn placement problems: `TaskSampler`, and a task with memory caps that depend on its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.checks import is_integer, is_positive
from shard_gym.common.errors import InvalidTaskError, short_repr, wrong_kind
from shard_gym.common.text import format_bytes
from shard_gym.hardware import HardwareProfile, hardware_profile
from shard_gym.plans.caps import most_state_bytes
from shard_gym.plans.placement import memory_used, pack_by_memory
from shard_gym.tables import MAX_DIM, Pool, Tables
from shard_gym.tasks.task import MIB, Task


@dataclass(frozen=True, eq=False)
class TaskSampler:
    """Samples new tasks from a pool of tables; every task has a known placement.

    Raises:
        InvalidTaskError: a range, a dim or the slack is invalid, or `pool` is neither Tables nor a Pool.
        InvalidOptionError: the profile is neither a HardwareProfile nor a name.
        UnknownNameError: no profile has that name.
    """

    pool: Tables | Pool  #: the tables to sample from, without replacement within a task unless it `repeats`
    num_tables: tuple[int, int]  #: smallest and largest T, both included; uniform
    num_devices: tuple[int, int]  #: smallest and largest D, both included; uniform, but at most T
    profile: HardwareProfile | str = "a100-dgx"  #: the hardware, a profile or its name
    embedding_dims: Sequence[int] = ()  #: dims from which each table's is sampled; empty keeps those of the pool
    #: Memory cap of a device, in multiples of the fullest device when the tables are packed by memory (rounded up to
    #: whole MiB, at most the device's memory), so that memory matters at every size.
    memory_slack: float = 1.5
    #: Smallest and largest HBM of a device, as a share of an even part of the tables; drawn evenly in its logarithm.
    #: The devices then have as much host memory as the tables need; by default all rows are in HBM.
    hbm_share: tuple[float, float] | None = None
    name: str = "sampled"  #: prefix of the tasks' names
    #: Whether a task may have a table of the pool several times, each time with a dim of its own: tasks may then have
    #: more tables than the pool.
    repeats: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.pool, (Tables, Pool)):
            raise InvalidTaskError(
                f"pool of a TaskSampler must be Tables or a Pool, such as load_pool('dlrm-2021'), "
                f"not {short_repr(self.pool)}."
            )
        if not isinstance(self.repeats, bool):
            raise InvalidTaskError(f"repeats of a TaskSampler must be True or False, not {short_repr(self.repeats)}.")
        self._check_range("num_tables", None if self.repeats else len(self.tables))
        self._check_range("num_devices", None)
        _hardware(self.profile)
        _check_dims(self.embedding_dims)
        if not is_positive(self.memory_slack) or self.memory_slack <= 1.0:
            raise InvalidTaskError(f"memory_slack must be a number above 1, not {short_repr(self.memory_slack)}.")
        if self.hbm_share is not None:
            shares = self.hbm_share if isinstance(self.hbm_share, (tuple, list)) else ()
            if len(shares) != 2 or not all(map(is_positive, shares)) or not shares[0] <= shares[1]:
                raise InvalidTaskError(
                    "hbm_share of a TaskSampler must be (smallest, largest) shares above 0, such as (0.05, 0.5), "
                    f"not {short_repr(self.hbm_share)}."
                )
            _hardware(self.profile).topology(1, host_memory_bytes=1)  # raises where the hardware has none

    def _check_range(self, field: str, most: int | None) -> None:
        given = getattr(self, field)
        pair = given if isinstance(given, (tuple, list)) and len(given) == 2 else ()
        if not pair or not all(map(is_integer, pair)):
            raise InvalidTaskError(
                f"{field} of a TaskSampler must be two integers, (smallest, largest), not {short_repr(given)}. "
                "For one size only give it twice, such as (8, 8)."
            )
        low, high = int(pair[0]), int(pair[1])
        if not 1 <= low <= high or (most is not None and high > most):
            raise InvalidTaskError(
                f"{field} of a TaskSampler must be (smallest, largest) with 1 <= smallest <= largest"
                f"{'' if most is None else f' <= {most}, the tables of the pool'}; got {(low, high)}."
            )

    @property
    def host_memory(self) -> bool:
        """Whether its tasks have host memory."""
        return self.hbm_share is not None

    @property
    def num_groups(self) -> int:
        """Workloads of its tables."""
        return len(self.tables.workloads)

    @property
    def tables(self) -> Tables:
        """The tables to sample from."""
        return self.pool.tables if isinstance(self.pool, Pool) else self.pool

    @property
    def max_tables(self) -> int:
        """The largest T."""
        return self.num_tables[1]

    @property
    def max_devices(self) -> int:
        """The largest D."""
        return self.num_devices[1]

    def sample(self, rng: np.random.Generator) -> Task:
        """A new task; its name ends with a random number, so that names differ."""
        count = int(rng.integers(self.num_tables[0], self.num_tables[1] + 1))
        devices = min(count, int(rng.integers(self.num_devices[0], self.num_devices[1] + 1)))
        chosen: NDArray[np.int64] = rng.choice(len(self.tables), size=count, replace=self.repeats)
        tables = self.tables.select(chosen)
        if len(self.embedding_dims):
            tables = tables.with_dims(rng.choice(np.asarray(self.embedding_dims, np.int64), size=count))
        share = None if self.hbm_share is None else float(np.exp(rng.uniform(*np.log(self.hbm_share))))
        name = f"{self.name}-{int(rng.integers(2**32)):08x}"
        return capped_task(name, tables, devices, self.profile, self.memory_slack, share)


def capped_task(
    name: str,
    tables: Tables,
    num_devices: int,
    profile: HardwareProfile | str,
    memory_slack: float,
    hbm_share: float | None = None,
) -> Task:
    """A task with a known placement and memory caps that depend on its tables (see `TaskSampler.memory_slack`).

    With `hbm_share`, the HBM has that share of an even part of the tables, and the hosts have the rest of the caps. The
    HBM holds the states of rows, too, of any placement of whole tables within the caps (`require_room_of_memories`).
    """
    hardware = _hardware(profile)
    known = pack_by_memory(tables, num_devices)
    packed = int(memory_used(known, tables, num_devices).max())
    if hbm_share is not None:
        cap = -(-int(memory_slack * packed) // MIB) * MIB
        part = int(hbm_share * int(tables.memory_bytes.sum()) / num_devices)
        part = max(part, most_state_bytes(tables, cap))  # so that no placement within the caps has too many
        hbm = min(-(-part // MIB) * MIB, hardware.device.memory_bytes)
        topology = hardware.topology(num_devices, memory_cap_bytes=max(cap, hbm))
        return Task(name, tables, replace(topology, host=hardware.host_memory(hbm)), known)
    if packed > hardware.device.memory_bytes:
        raise InvalidTaskError(
            f"No placement was found for task {name!r}: {len(tables)} tables with "
            f"{format_bytes(tables.memory_bytes.sum())} on {num_devices} x {hardware.device.name} with "
            f"{format_bytes(hardware.device.memory_bytes)} each. Add devices or sample fewer tables."
        )
    cap = min(-(-int(memory_slack * packed) // MIB) * MIB, hardware.device.memory_bytes)
    return Task(name, tables, hardware.topology(num_devices, memory_cap_bytes=cap), known)


def _hardware(profile: Any) -> HardwareProfile:
    if isinstance(profile, HardwareProfile):
        return profile
    if isinstance(profile, str):
        return hardware_profile(profile)
    raise wrong_kind("profile", profile, "a HardwareProfile or the name of one, such as 'a100-dgx'")


def _check_dims(dims: Any) -> None:
    given = dims.tolist() if isinstance(dims, np.ndarray) else dims
    listed = isinstance(given, Sequence) and not isinstance(given, str)
    if not listed or not all(is_integer(dim) and 4 <= dim <= MAX_DIM and dim % 4 == 0 for dim in given):
        raise InvalidTaskError(
            f"embedding_dims of a TaskSampler must be a list of multiples of 4 from 4 to {MAX_DIM}, such as (16, 32), "
            f"not {short_repr(dims)}."
        )
