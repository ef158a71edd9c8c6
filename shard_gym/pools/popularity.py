"""The popularity of the rows of a pool's tables: a Zipf-Mandelbrot distribution for each table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shard_gym.errors import InvalidTablesError
from shard_gym.tables import MAX_ROWS


@dataclass(frozen=True, eq=False)
class RowPopularity:
    """The distributions of the lookups over the rows of T tables: p(k) ~ (k + q)^-s for rows k = 1..num_embeddings.

    FBGEMM's benchmark uses the same distribution but counts rows from 0 (fbgemm_gpu, src/tbe/eeg), so its q is larger
    by 1. Row k is the k-th most popular row; which row id that is is not specified.

    Attributes:
        q: (T,) float64, shift, at least 0; rows up to about q are equally popular.
        s: (T,) float64, exponent, at least 0; 0 is uniform.

    Raises:
        InvalidTablesError: the arrays differ in length or hold NaN or a negative number.
    """

    q: NDArray[np.float64]
    s: NDArray[np.float64]

    def __post_init__(self) -> None:
        for name in ("q", "s"):
            try:
                array = np.array(getattr(self, name), dtype=np.float64)
            except (TypeError, ValueError) as error:
                raise InvalidTablesError(f"The row popularity's {name} must be numbers.") from error
            valid = (array >= 0) & (array <= MAX_ROWS)  # False for NaN too
            if array.ndim != 1 or not valid.all():
                raise InvalidTablesError(
                    f"The row popularity's {name} must be one number from 0 to 2**40 for each table."
                )
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        if len(self.q) != len(self.s):
            raise InvalidTablesError(f"The row popularity has {len(self.q)} values of q but {len(self.s)} of s.")

    def __len__(self) -> int:
        return len(self.q)
