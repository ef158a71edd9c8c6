"""The arithmetic of labels and axes behind the pictures."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="needs the extra viz")

from shard_gym.envs.placement.page import format_like, horizon_of, spread


def test_spread_leaves_labels_with_room_alone_and_parts_the_others() -> None:
    widths = np.full(4, 1.0)
    roomy = np.array([1.0, 3.0, 5.0, 7.0])
    assert spread(roomy, widths, 0.0, 8.0, 0.1).tolist() == roomy.tolist()
    rng = np.random.default_rng(0)
    for _ in range(200):
        wanted, widths = np.sort(rng.uniform(0, 8, 4)), rng.uniform(0.1, 1.8, 4)
        centers = spread(wanted, widths, 0.0, 8.0, 0.1)
        left, right = centers - widths / 2, centers + widths / 2
        assert (left[1:] - right[:-1] >= 0.1 - 1e-9).all()
        assert left[0] >= -1e-9
        assert right[-1] <= 8 + 1e-9


def test_the_time_axis_ends_at_a_round_number_close_above_the_total() -> None:
    for total in np.geomspace(1e-5, 1e6, 500):
        assert 1.0 < horizon_of(total) / total < 1.4
    assert len({horizon_of(total) for total in np.linspace(3.1, 9.8, 200)}) <= 5
    assert horizon_of(0.0) == 1.0


@pytest.mark.parametrize(
    ("value", "scale", "written"),
    [(0.7721, 8.0, "0.77"), (8.0, 8.0, "8.00"), (123.456, 150.0, "123.5"), (0.01234, 0.05, "0.0123"),
     (12345.6, 2e4, "12,346"), (0.0, 1e-9, "0"), (1.5e9, 2e9, "1.5e+09")],
)  # fmt: skip
def test_numbers_of_one_scale_have_equal_decimals(value: float, scale: float, written: str) -> None:
    assert format_like(value, scale) == written
