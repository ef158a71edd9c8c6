"""RecShard (Sethi et al., ASPLOS 2022): tables on devices and their rows in two tiers, by an integer linear program.

For each table, the steps of its inverse cumulative distribution (ICDF) say how many of its rows get a share of its
lookups. The program chooses a device and a step for each table: the rows of the step are in HBM, the others in host
memory. A table whose step has the share p of its lookups costs its device

    lookups of a batch x bytes of a row x ( p / bandwidth of HBM + (1 - p) / bandwidth of the host )

where the lookups are coverage x pooling factor x batch size. The rows in HBM must fit it, all rows the device's memory,
and the costliest device shall cost least. No code of RecShard is public; the form follows the description in the paper.
There, the program has a variable for each table and device and one for each table and step, and their products. Here it
is linear, with a variable for each choice of table, device and step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.agents.base.assignment import constraint_rows
from shard_gym.common.arrays import FloatArray
from shard_gym.common.checks import checked_count, checked_positive, is_not_negative
from shard_gym.common.errors import InvalidOptionError, NoPlacementFoundError, missing_extra, short_repr
from shard_gym.common.system import silent_c_output
from shard_gym.hardware import Topology
from shard_gym.plans.placement import Placement, memory_used
from shard_gym.tables import Tables
from shard_gym.tables.tables import IN_HBM, IN_HOST
from shard_gym.tasks import Task


class RecShardAgent(Agent):
    """The integer linear program of RecShard, solved by HiGHS. It asks no cost model.

    It answers with a placement of whole tables; the rows in HBM are then those of the best split of each device, as for
    all agents. Without host memory all rows are in HBM. HiGHS stops at a time, so answers depend on the machine.

    Args:
        steps: of the ICDF of a table, as many shares of its lookups from 0 to 1.
        gap: HiGHS stops when no solution is better by more than this share.
        max_seconds: that HiGHS may take for a task.
    """

    name = "recshard"

    def __init__(self, steps: int = 100, gap: float = 0.01, max_seconds: float = 60.0) -> None:
        self.steps = checked_count("steps", steps, most=1000)
        if not is_not_negative(gap) or gap >= 1:
            raise InvalidOptionError(f"gap must be a number from 0 to below 1, not {short_repr(gap)}.")
        self.gap, self.max_seconds = float(gap), checked_positive("max_seconds", max_seconds)
        try:
            import scipy.optimize  # noqa: F401
        except ImportError as error:
            raise missing_extra("scipy", "exact", "The agent 'recshard'") from error

    @override
    def place(self, task: Task) -> Placement:
        topology = task.topology
        shares = np.linspace(0.0, 1.0, self.steps + 1) if topology.host is not None else np.ones(1)
        placement = self._solved(task, device_ms(task.tables, topology, shares), hbm_bytes(task.tables, shares))
        if (
            placement is None
            or (memory_used(placement, task.tables, task.num_devices) > topology.memory_cap_bytes).any()
        ):
            raise NoPlacementFoundError(
                f"HiGHS found no solution of RecShard's program for task {task.name!r} within {self.max_seconds:g} "
                "seconds: whole tables do not fit its devices, or it needs longer. Raise max_seconds, or give fewer "
                "steps."
            )
        return placement

    def _solved(self, task: Task, costs: FloatArray, in_hbm: FloatArray) -> Placement | None:
        """The placement of HiGHS, None if it found none, for (T, S) ms and bytes in HBM of each table at each step."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        topology, table_bytes = task.topology, task.tables.memory_bytes
        caps, num_devices, num_steps = topology.memory_cap_bytes, topology.num_devices, costs.shape[1]
        hbm = caps if topology.host is None else np.full(num_devices, topology.host.hbm_bytes)
        choices = costs.size * num_devices  # after them comes the cost of the costliest device
        table, device, step = np.unravel_index(np.arange(choices), (task.num_tables, num_devices, num_steps))

        def sums(of: NDArray[np.int64], rows: int, values: FloatArray, slowest: float = 0.0) -> csr_array:
            """A row for each device or table: its choices times `values`, and the last variable times `slowest`."""
            where = (np.append(of, np.arange(rows)), np.append(np.arange(choices), np.full(rows, choices)))
            return csr_array((np.append(values, np.full(rows, slowest)), where), shape=(rows, choices + 1))

        unit = max(float(costs.min(axis=1).sum()) / num_devices, float(np.finfo(np.float64).tiny))
        upper = np.append(table_bytes[table] <= caps[device], np.inf)
        is_kept = task.tables.are_in(IN_HBM)[table] & (step < num_steps - 1)
        is_kept |= task.tables.are_in(IN_HOST)[table] & (step > 0)
        upper[:-1][is_kept] = 0.0
        limits = task.constraints
        if limits is None and (caps == caps[0]).all():  # equal devices are numbered by the first of their tables
            rank = np.argsort(np.argsort(-costs[:, 0], kind="stable"))
            upper[:-1][device > rank[table]] = 0.0
        with silent_c_output():  # HiGHS has a line of debugging in it that no option turns off
            found = milp(
                np.append(np.zeros(choices), 1.0),
                integrality=np.append(np.ones(choices), 0.0),
                bounds=Bounds(0.0, upper),
                constraints=[
                    LinearConstraint(sums(table, task.num_tables, np.ones(choices)), 1.0, 1.0),
                    LinearConstraint(sums(device, num_devices, in_hbm[table, step] / hbm[device]), -np.inf, 1.0),
                    LinearConstraint(sums(device, num_devices, table_bytes[table] / caps[device]), -np.inf, 1.0),
                    LinearConstraint(sums(device, num_devices, costs[table, step] / unit, -1.0), -np.inf, 0.0),
                    *([] if limits is None else constraint_rows(limits, np.append(table * num_devices + device, -1))),
                ],
                options={"time_limit": self.max_seconds, "mip_rel_gap": self.gap},
            )
        if found.x is None:
            return None
        chosen = found.x[:-1].reshape(task.num_tables, num_devices, num_steps).sum(axis=2)
        return np.asarray(chosen.argmax(axis=1), np.int64)


def hbm_bytes(tables: Tables, shares: FloatArray) -> FloatArray:
    """(T, S) bytes of the most popular rows of each table that get the (S,) shares of its lookups; 1 is all rows."""
    num_embeddings = tables.num_embeddings.astype(np.float64)
    lookups, rows = tables.row_popularity.steps(num_embeddings)
    kept = np.empty((len(tables), len(shares)))  # shares of the rows
    for table, (share, count) in enumerate(zip(lookups, rows, strict=True)):
        reads, below = np.append(0.0, np.cumsum(share * count)), np.append(0.0, np.cumsum(count))
        kept[table] = np.interp(shares * reads[-1], reads, below) / below[-1]
    kept[:, shares == 1.0] = 1.0
    return np.asarray(tables.memory_bytes[:, None] * kept)


def device_ms(tables: Tables, topology: Topology, shares: FloatArray) -> FloatArray:
    """(T, S) ms that RecShard expects of each table with the (S,) shares of its lookups in HBM."""
    read_bytes = tables.lookups_per_batch * tables.embedding_dim * tables.workload.weight_bytes
    slowness = shares / topology.device.dram_gb_per_s
    if topology.host is not None:
        slowness = slowness + (1.0 - shares) / topology.host.read_gb_per_s
    return np.asarray(read_bytes[:, None] * slowness / 1e6)
