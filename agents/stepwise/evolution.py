"""`Evolution`: CMA-ES, a search for the vector with the lowest noisy score; its state is a few arrays.

Hansen, The CMA Evolution Strategy: A Tutorial (arXiv:1604.00772), with its default rates, equations 46 to 58, and
positive weights alone. Packages that do this keep their state in objects that are pickled; runs here are saved as
arrays, and go on from them.
"""

from __future__ import annotations

import numpy as np

from shard_gym.common.arrays import FloatArray
from shard_gym.common.io.arrays import Arrays, require_arrays

LEAST_VARIANCE = 1e-12


class Evolution:
    """A normal distribution of vectors of n numbers, which moves to where scores are low.

    Args:
        mean: (n,) where it begins.
        sigma: its standard deviation at the beginning.
        population: vectors drawn at once.

    Attributes:
        mean: (n,) of the distribution.
        sigma: the scale of its standard deviations.
    """

    def __init__(self, mean: FloatArray, sigma: float, population: int) -> None:
        n, best = len(mean), population // 2
        weights = np.log(best + 0.5) - np.log(np.arange(1, best + 1))
        self._weights, self._population = weights / weights.sum(), population
        mass = 1.0 / float((self._weights**2).sum())
        self._mass, self._sigma_rate = mass, (mass + 2) / (n + mass + 5)
        self._damping = 1 + self._sigma_rate + 2 * max(0.0, np.sqrt((mass - 1) / (n + 1)) - 1)
        self._path_rate = (4 + mass / n) / (n + 4 + 2 * mass / n)
        self._rank_one = 2 / ((n + 1.3) ** 2 + mass)
        self._rank_best = min(1 - self._rank_one, 2 * (0.25 + mass + 1 / mass - 2) / ((n + 2) ** 2 + mass))
        self._length = np.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))  # of a standard normal vector
        self.mean, self.sigma = mean.astype(np.float64), float(sigma)
        self._covariance, self._path, self._sigma_path, self._steps = np.eye(n), np.zeros(n), np.zeros(n), 0

    def draw(self, rng: np.random.Generator, count: int | None = None) -> FloatArray:
        """(count, n) vectors of the distribution; a population of them if None."""
        axes, scales = self._axes()
        normal = rng.normal(size=(self._population if count is None else count, len(self.mean)))
        return np.asarray(self.mean + self.sigma * (normal * scales) @ axes.T)

    def _axes(self) -> tuple[FloatArray, FloatArray]:
        """(n, n) the axes of the covariance, in columns, and (n,) the standard deviations along them."""
        variances, axes = np.linalg.eigh(self._covariance)
        return axes, np.sqrt(np.maximum(variances, LEAST_VARIANCE))

    def tell(self, vectors: FloatArray, scores: FloatArray) -> None:
        """Move to the better half of a drawn population by its (population,) scores."""
        n, (axes, scales) = len(self.mean), self._axes()
        best = (vectors[np.argsort(scores, kind="stable")[: len(self._weights)]] - self.mean) / self.sigma
        step = self._weights @ best
        self.mean = self.mean + self.sigma * step
        self._steps += 1
        rate = self._sigma_rate
        white = axes @ ((axes.T @ step) / scales)
        self._sigma_path = (1 - rate) * self._sigma_path + np.sqrt(rate * (2 - rate) * self._mass) * white
        length = float(np.linalg.norm(self._sigma_path))
        short = length / np.sqrt(1 - (1 - rate) ** (2 * self._steps)) < (1.4 + 2 / (n + 1)) * self._length
        rate = self._path_rate
        self._path = (1 - rate) * self._path + short * np.sqrt(rate * (2 - rate) * self._mass) * step
        kept = 1 - self._rank_one - self._rank_best + (1 - short) * self._rank_one * rate * (2 - rate)
        self._covariance = kept * self._covariance + self._rank_one * np.outer(self._path, self._path)
        self._covariance += self._rank_best * (best.T * self._weights) @ best
        self.sigma *= float(np.exp(min(1.0, self._sigma_rate / self._damping * (length / self._length - 1))))

    def state(self) -> Arrays:
        """Copies of what decides how it goes on."""
        return {
            "mean": self.mean.copy(),
            "covariance": self._covariance.copy(),
            "path": self._path.copy(),
            "sigma_path": self._sigma_path.copy(),
            "sigma_and_steps": np.array([self.sigma, self._steps], np.float64),
        }

    def load_state(self, arrays: Arrays) -> None:
        """Go on from what `state` returned; InvalidCheckpointError if the arrays are others."""
        require_arrays("The state of the evolution", arrays, self.state())
        self.mean, self._covariance = arrays["mean"].copy(), arrays["covariance"].copy()
        self._path, self._sigma_path = arrays["path"].copy(), arrays["sigma_path"].copy()
        self.sigma, self._steps = float(arrays["sigma_and_steps"][0]), int(arrays["sigma_and_steps"][1])
