"""The constants of the analytical cost model, fitted by tools/fit_analytical.py."""

from __future__ import annotations

from typing import NamedTuple

from shard_gym.common.checks import is_not_negative, is_positive
from shard_gym.common.errors import InvalidOptionError, short_repr


class Constants(NamedTuple):
    """The constants of the model; `FITTED` are those of tools/fit_analytical.py."""

    cycles_per_row: float  # of a full thread group, for 128 columns of a row in the forward pass
    cycles_per_bag: float  # of a full thread group: the chain from the offset over the index to the first row
    overlap_loss: float  # share of the two lesser limits that is not hidden behind the slowest
    cycles_per_gradient: float  # of a full thread group, for 128 columns of a gradient in the backward pass
    cycles_per_update: float  # of a full thread group, for 128 columns of a row that is read, updated and written
    sort_efficiency: float  # share of the DRAM bandwidth that the sort reaches
    random_update_efficiency: float  # share of it that random reads and writes of rows reach
    forward_launches: float  # fixed cost of the forward operator, in launches of a kernel
    backward_launches: float  # fixed cost of the backward operator, in launches of a kernel


FITTED = Constants(
    cycles_per_row=26.1,
    cycles_per_bag=32.5,
    overlap_loss=0.141,
    cycles_per_gradient=26.7,
    cycles_per_update=103.0,
    sort_efficiency=0.570,
    random_update_efficiency=0.534,
    forward_launches=5.67,
    backward_launches=22.2,
)


def checked_constants(constants: Constants) -> Constants:
    """`constants` if they are possible; InvalidOptionError otherwise."""
    for name, value in constants._asdict().items():
        efficiency = name.endswith("efficiency")
        if not (is_positive if efficiency else is_not_negative)(value):
            wanted = "a positive number" if efficiency else "a number of at least 0"
            raise InvalidOptionError(f"The constant {name} must be {wanted}, not {short_repr(value)}.")
    return constants
