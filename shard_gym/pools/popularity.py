"""The law by which the rows of a pool's tables are requested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.errors import InvalidTablesError
from shard_gym.tables import MAX_ROWS


@dataclass(frozen=True, eq=False)
class RowPopularity:
    """How the rows of T tables are requested: p(k) proportional to (k + q)^-s for rows k = 1..num_embeddings.

    FBGEMM's benchmark uses the same law but counts rows from 0 (fbgemm_gpu, src/tbe/eeg), so its q is ours plus 1.
    Which row ids are the popular ones is not part of the law.

    Attributes:
        q: (T,) float64, shift, at least 0; the head of the law is flat up to about row q.
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
                raise InvalidTablesError(f"The request law's {name} must be numbers.") from error
            fits = (array >= 0) & (array <= MAX_ROWS)  # False for NaN too
            if array.ndim != 1 or not fits.all():
                raise InvalidTablesError(f"The request law's {name} must be one number of at least 0 for each table.")
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        if len(self.q) != len(self.s):
            raise InvalidTablesError(f"The request law has {len(self.q)} values of q but {len(self.s)} of s.")

    def __len__(self) -> int:
        return len(self.q)

    def select(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> RowPopularity:
        """The laws of the tables at `indices`, in that order."""
        chosen = np.asarray(indices, dtype=np.int64)
        return RowPopularity(self.q[chosen], self.s[chosen])
