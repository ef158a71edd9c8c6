from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest


def _row_probabilities(num_embeddings: int, q: float, s: float) -> np.ndarray:
    weights = (np.arange(1, num_embeddings + 1) + q) ** -s
    return np.asarray(weights / weights.sum())


@pytest.fixture(scope="session")
def row_probabilities() -> Callable[[int, float, float], np.ndarray]:
    """The definition of a row popularity: (num_embeddings,) probabilities of the rows 1 to num_embeddings."""
    return _row_probabilities
