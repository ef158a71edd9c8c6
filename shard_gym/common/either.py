"""Arrays of NumPy or tensors of torch: the operations whose names differ, so that arithmetic is written once.

An operation returns what it is given. Torch is not imported by who gives arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = Any  # a NumPy array or a torch tensor


def is_array(values: Array) -> bool:
    """Whether it is of NumPy."""
    return isinstance(values, (np.ndarray, np.generic))


def some(mask: Array) -> bool:
    """Whether anything of an array is not 0, so that nothing needs to be computed where it is.

    True of a tensor, as its numbers may be on a device, and what is computed may not depend on them; a bool is itself.
    """
    if isinstance(mask, bool):
        return mask
    return bool(mask.any()) if is_array(mask) else True


def larger(one: Array, other: Array) -> Array:
    """The larger of an array and another, or a number, element by element."""
    if isinstance(one, (np.ndarray, np.generic)):
        return np.maximum(one, other)
    return one.clamp(min=other) if isinstance(other, (int, float)) else one.maximum(other)


def smaller(one: Array, other: Array) -> Array:
    """The smaller of an array and another, or a number, element by element."""
    if isinstance(one, (np.ndarray, np.generic)):
        return np.minimum(one, other)
    return one.clamp(max=other) if isinstance(other, (int, float)) else one.minimum(other)


def where(mask: Array, one: Array, other: Array) -> Array:
    """`one` where a mask is True, else `other`; one of them may be a number."""
    if isinstance(mask, (np.ndarray, np.generic)):
        return np.where(mask, one, other)
    import torch

    return torch.where(mask, one, other)


def largest(values: Array, axis: int, keepdims: bool = False) -> Array:
    """The maximum over one axis."""
    if isinstance(values, np.ndarray):
        return values.max(axis=axis, keepdims=keepdims)
    return values.amax(dim=axis, keepdim=keepdims)


def any_of(mask: Array, axis: int) -> Array:
    """Whether any is not 0 along an axis, which stays with size 1."""
    return mask.any(axis=axis, keepdims=True) if isinstance(mask, np.ndarray) else mask.any(dim=axis, keepdim=True)


def zeros(shape: Sequence[int], like: Array) -> Array:
    """Zeros of float64, or of the dtype and the device of a tensor."""
    return np.zeros(shape) if is_array(like) else like.new_zeros(shape)


def constant(numbers: np.ndarray, like: Array) -> Array:
    """An array of a module, which nobody changes: beside arrays itself, beside a tensor one of its dtype and device.

    Its tensors are kept, so that no step sends it to a device again.
    """
    if is_array(like):
        return numbers
    key = id(numbers), like.dtype, like.device
    if key not in _CONSTANTS:
        _CONSTANTS[key] = numbers, like.new_tensor(numbers.tolist())
    return _CONSTANTS[key][1]


_CONSTANTS: dict[Any, tuple[np.ndarray, Array]] = {}
"""The arrays, so that no other has their id, and their tensors."""


def turned(values: Array) -> Array:
    """A view with the axes in reverse order."""
    return values.T if is_array(values) else values.permute([values.ndim - 1 - axis for axis in range(values.ndim)])


def turned_copy(values: Array) -> Array:
    """A contiguous copy with the axes in reverse order."""
    return values.T.copy() if isinstance(values, np.ndarray) else turned(values).clone(memory_format=_contiguous())


def _contiguous() -> Any:
    import torch

    return torch.contiguous_format


def whole(values: Array) -> Array:
    """Numbers that are not negative, without what is behind the point, as int64."""
    return values.astype(np.int64) if is_array(values) else values.long()


def outer(numbers: np.ndarray, values: Array) -> Array:
    """(n, ...) products of n numbers and an array."""
    return constant(numbers, values).reshape(-1, *(1,) * values.ndim) * values


def joined(arrays: Sequence[Array]) -> Array:
    """Arrays of equal leading shape side by side on the last axis."""
    if isinstance(arrays[0], np.ndarray):
        return np.concatenate(list(arrays), axis=-1)
    import torch

    return torch.cat(list(arrays), dim=-1)


def sums_between(values: Array, begin: Array, end: Array) -> Array:
    """(..., D) sums of the (..., D) `values` from `begin` to before `end`, both (..., D) integers."""
    up_to = joined([values[..., :1] * 0.0, values.cumsum(-1)])  # the sum of those before each
    if isinstance(values, np.ndarray):
        if begin.ndim == 1:  # the same for all; several times as fast
            return up_to.take(end, -1) - up_to.take(begin, -1)
        begin, end = np.broadcast_to(begin, values.shape), np.broadcast_to(end, values.shape)
        return np.take_along_axis(up_to, end, -1) - np.take_along_axis(up_to, begin, -1)
    return up_to.gather(-1, end.expand_as(values)) - up_to.gather(-1, begin.expand_as(values))
