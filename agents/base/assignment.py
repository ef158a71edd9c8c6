"""The constraints of a task in integer programs whose variables say which device a whole table is on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shard_gym.plans.constraints import Constraints

if TYPE_CHECKING:
    from scipy.optimize import LinearConstraint


def constraint_rows(limits: Constraints, of_variable: Any) -> list[LinearConstraint]:
    """Linear constraints of N variables of 0 or 1, each of which puts a table on a device.

    Args:
        limits: of T tables on D devices.
        of_variable: (N,) integers, table x D + device of each variable; -1 for one that is something else. Several
            variables may be of one table and device.
    """
    from scipy.optimize import LinearConstraint
    from scipy.sparse import csr_array

    of_variable, count = np.asarray(of_variable), limits.num_devices
    table, device = np.divmod(of_variable, count)
    placing = of_variable >= 0
    closed = placing & ~limits.devices[table, device]
    found = [LinearConstraint(csr_array(closed[None].astype(float)), 0, 0)]
    own = [((table == number) & placing).astype(float) for number in range(len(limits))]
    on = [(device == number).astype(float) for number in range(count)]
    pairs = [(members[0], other) for members in limits.together for other in members[1:]]
    for rows, low, high in (
        ([(own[first] - own[other]) * there for first, other in pairs for there in on], 0, 0),
        ([np.sum([own[each] for each in members], axis=0) * there for members in limits.apart for there in on], 0, 1),
    ):
        if rows:
            found.append(LinearConstraint(csr_array(np.stack(rows)), low, high))
    return found
