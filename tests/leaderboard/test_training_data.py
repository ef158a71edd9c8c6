from __future__ import annotations

import pytest

from shard_gym.errors import InvalidOptionError, UnknownNameError
from shard_gym.leaderboard.training_data import objections, overlap
from shard_gym.suites import suite_info, suite_names


@pytest.mark.parametrize("data", ["dlrm-50x4/train", "mixdim-8/train", "pool/dlrm-2021/train", "other: my own logs"])
def test_training_halves_share_no_test_table(data: str) -> None:
    assert overlap(data, "dlrm-20x4") == 0


@pytest.mark.parametrize("data", ["dlrm-50x4/test", "pool/dlrm-2021/test", "pool/dlrm-2021"])
def test_test_tables_are_found_wherever_they_come_from(data: str) -> None:
    assert overlap(data, "dlrm-20x4") > 0


def test_another_pool_shares_nothing() -> None:
    assert overlap("generalize/test", "dlrm-20x4") == 0


def test_every_suite_overlaps_itself_and_not_its_training_split() -> None:
    for name in suite_names():
        assert overlap(f"{name}/test", name) > 0
        if "train" in suite_info(name).tasks:
            assert overlap(f"{name}/train", name) == 0


@pytest.mark.parametrize("data", ["", "other: ", "other:x", "pool/", "dlrm-20x4", "../../etc/passwd", "dlrm-20x4/dev"])
def test_what_is_no_name_is_refused(data: str) -> None:
    with pytest.raises((InvalidOptionError, UnknownNameError)):
        overlap(data, "dlrm-20x4")
    assert len(objections([data], "dlrm-20x4")) == 1
