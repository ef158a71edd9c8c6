"""The operations on arrays with which lookups are drawn: NumPy's, or torch's for lookups that are drawn on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

if TYPE_CHECKING:
    import torch

Array = Any  # a 1-D array of int64: of NumPy, or a tensor. Both overflow without a word, and their >> keeps the sign


class Arrays:
    """What NumPy's arrays and tensors call or do differently; NumPy's.

    Attributes:
        chunk: numbers that are worth one call; they stay in a CPU's cache.
        epochs: epochs that are worth one call.
    """

    chunk = 2**15
    epochs = 1

    def arange(self, start: int, stop: int) -> Array:
        """The numbers start .. stop - 1."""
        return np.arange(start, stop)

    def moved(self, numbers: NDArray[Any]) -> Array:
        """`numbers`, whose 64 bits become an int64 each; they may be changed in place."""
        return numbers.view(np.int64)

    def concatenate(self, parts: Sequence[Array]) -> Array:
        """The parts after each other; int64."""
        return np.concatenate([np.empty(0, np.int64), *parts], dtype=np.int64)

    def repeat(self, numbers: Array, times: Array, total: int) -> Array:
        """Each number so many times, `total` in all."""
        return np.repeat(numbers, times)

    def flatnonzero(self, mask: Array) -> Array:
        """Where `mask` is true."""
        return np.flatnonzero(mask)

    def sorted(self, numbers: Array) -> Array:
        """`numbers` in ascending order; they may be sorted in place."""
        numbers.sort()
        return numbers

    def count_below(self, numbers: Array, limits: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many of the ascending `numbers` are below each of the `limits`."""
        found: NDArray[np.int64] = np.searchsorted(numbers, limits)
        return found

    def narrow(self, numbers: Array, limit: int) -> Array:
        """`numbers`, which are below `limit`, in a type that is quickest to take from."""
        return numbers.astype(np.int32) if limit <= 2**31 else numbers


NUMPY = Arrays()


class TorchArrays(Arrays):
    """Tensors on a device. Calls are expensive there, and numbers are not."""

    chunk = 2**62
    epochs = 4

    def __init__(self, device: torch.device) -> None:
        import torch

        self._torch, self._device = torch, device

    @override
    def arange(self, start: int, stop: int) -> Array:
        return self._torch.arange(start, stop, device=self._device)

    @override
    def moved(self, numbers: NDArray[Any]) -> Array:
        tensor = self._torch.from_numpy(numbers.view(np.int64))
        if self._device.type == "cuda" and len(numbers):  # from pinned memory the copy is quicker, and nobody waits
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)

    @override
    def concatenate(self, parts: Sequence[Array]) -> Array:
        return self._torch.cat([self.arange(0, 0), *parts])

    @override
    def repeat(self, numbers: Array, times: Array, total: int) -> Array:
        return numbers.repeat_interleave(times, output_size=total)

    @override
    def flatnonzero(self, mask: Array) -> Array:
        return mask.nonzero().flatten()

    @override
    def sorted(self, numbers: Array) -> Array:
        return numbers.sort().values

    @override
    def count_below(self, numbers: Array, limits: NDArray[np.int64]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self._torch.searchsorted(numbers, self.moved(limits)).cpu().numpy()
        return found

    @override
    def narrow(self, numbers: Array, limit: int) -> Array:
        return numbers
