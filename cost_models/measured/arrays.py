"""The operations on arrays with which lookups are drawn: NumPy's, or torch's for lookups that are drawn on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Array = Any
"""A 1-D array of int64: of NumPy, or a tensor. Both overflow without a word, and their >> keeps the sign."""


class Arrays(Protocol):
    """What NumPy's arrays and tensors call or do differently.

    Attributes:
        chunk: numbers that are worth one call.
        epochs: epochs that are worth one call.
    """

    chunk: int
    epochs: int

    def arange(self, start: int, stop: int) -> Array:
        """The numbers start .. stop - 1."""
        ...

    def moved(self, numbers: NDArray[Any]) -> Array:
        """`numbers`, whose 64 bits become an int64 each; they may be changed in place."""
        ...

    def concatenate(self, parts: Sequence[Array]) -> Array:
        """The parts after each other; int64."""
        ...

    def repeat(self, numbers: Array, times: Array, total: int) -> Array:
        """Each number so many times, `total` in all."""
        ...

    def flatnonzero(self, mask: Array) -> Array:
        """Where `mask` is true."""
        ...

    def sorted(self, numbers: Array) -> Array:
        """`numbers` in ascending order; they may be sorted in place."""
        ...

    def narrow(self, numbers: Array, limit: int) -> Array:
        """`numbers`, which are below `limit`, in a type that is quickest to take from."""
        ...


class NumpyArrays:
    """Arrays of NumPy; see `Arrays`. A chunk stays in a CPU's cache."""

    chunk = 2**15
    epochs = 1

    def arange(self, start: int, stop: int) -> Array:
        """See `Arrays`."""
        return np.arange(start, stop)

    def moved(self, numbers: NDArray[Any]) -> Array:
        """See `Arrays`."""
        return numbers.view(np.int64)

    def concatenate(self, parts: Sequence[Array]) -> Array:
        """See `Arrays`."""
        return np.concatenate([np.empty(0, np.int64), *parts], dtype=np.int64)

    def repeat(self, numbers: Array, times: Array, total: int) -> Array:
        """See `Arrays`."""
        return np.repeat(numbers, times)

    def flatnonzero(self, mask: Array) -> Array:
        """See `Arrays`."""
        return np.flatnonzero(mask)

    def sorted(self, numbers: Array) -> Array:
        """See `Arrays`."""
        numbers.sort()
        return numbers

    def narrow(self, numbers: Array, limit: int) -> Array:
        """See `Arrays`."""
        return numbers.astype(np.int32) if limit <= 2**31 else numbers


NUMPY = NumpyArrays()


class TorchArrays:
    """Tensors on a device; see `Arrays`. Calls are expensive there, and numbers are not."""

    chunk = 2**62
    epochs = 4

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def arange(self, start: int, stop: int) -> Array:
        """See `Arrays`."""
        import torch

        return torch.arange(start, stop, device=self._device)

    def moved(self, numbers: NDArray[Any]) -> Array:
        """See `Arrays`."""
        import torch

        tensor = torch.from_numpy(numbers.view(np.int64))
        if self._device.type == "cuda" and len(numbers):  # from pinned memory the copy is quicker, and nobody waits
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)

    def concatenate(self, parts: Sequence[Array]) -> Array:
        """See `Arrays`."""
        import torch

        return torch.cat([self.arange(0, 0), *parts])

    def repeat(self, numbers: Array, times: Array, total: int) -> Array:
        """See `Arrays`."""
        return numbers.repeat_interleave(times, output_size=total)

    def flatnonzero(self, mask: Array) -> Array:
        """See `Arrays`."""
        return mask.nonzero().flatten()

    def sorted(self, numbers: Array) -> Array:
        """See `Arrays`."""
        return numbers.sort().values

    def narrow(self, numbers: Array, limit: int) -> Array:
        """See `Arrays`."""
        return numbers
