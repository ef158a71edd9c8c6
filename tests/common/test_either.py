"""Operations on arrays and on tensors: the same numbers of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from shard_gym.common import either

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(2, 3, 4, 5))
LIMITS = np.array([0.5, 1.0])
BEGIN = np.array([0, 0, 2, 2, 4])
END = np.array([2, 2, 4, 4, 5])


@pytest.mark.parametrize(
    "operation",
    [
        lambda x, y, ints: either.larger(x, y),
        lambda x, y, ints: either.larger(x, 0.25),
        lambda x, y, ints: either.smaller(x, y[..., :1]),
        lambda x, y, ints: either.smaller(x, 0.25),
        lambda x, y, ints: either.where(x > y, x, 0.0),
        lambda x, y, ints: either.where(x > y, either.zeros(x.shape, x), y),
        lambda x, y, ints: either.largest(x, -2),
        lambda x, y, ints: either.largest(x, -1, keepdims=True),
        lambda x, y, ints: either.any_of(x > 1.0, -1),
        lambda x, y, ints: either.turned(x),
        lambda x, y, ints: either.turned_copy(x),
        lambda x, y, ints: either.outer(LIMITS, x),
        lambda x, y, ints: either.constant(LIMITS, x),
        lambda x, y, ints: either.whole(x * x),
        lambda x, y, ints: either.joined([x, y[..., :2]]),
        lambda x, y, ints: either.sums_between(x, *ints),
    ],
)
def test_numpy_and_torch_agree(operation: Callable[..., Any]) -> None:
    plain = operation(X.copy(), Y, (BEGIN, END))
    tensor = operation(torch.tensor(X), torch.tensor(Y), (torch.tensor(BEGIN), torch.tensor(END)))
    assert isinstance(plain, np.ndarray)
    assert isinstance(tensor, torch.Tensor)
    assert str(tensor.dtype).removeprefix("torch.") == str(plain.dtype)
    np.testing.assert_allclose(tensor.numpy(), plain, rtol=1e-14)


def test_what_is_given_back_is_new_or_a_view_as_it_says() -> None:
    for x in (X.copy(), torch.tensor(X)):
        before = float(x[0, 0, 0])
        either.turned_copy(x)[0, 0, 0] = 7.0
        assert float(x[0, 0, 0]) == before
        either.turned(x)[0, 0, 0] = 7.0
        assert float(x[0, 0, 0]) == 7.0


def test_of_tensors_no_number_is_asked() -> None:
    """`meta` tensors have none."""
    assert either.some(torch.zeros(3, device="meta"))
    assert not either.some(np.zeros(3))
    assert either.some(np.ones(3))
