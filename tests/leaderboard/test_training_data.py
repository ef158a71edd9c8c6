from __future__ import annotations

import pytest

from shard_gym.agents.dreamshard.pretrained import PRETRAINED
from shard_gym.common.errors import InvalidOptionError, UnknownNameError
from shard_gym.leaderboard.training_data import check_training_data, overlap, recorded_training
from shard_gym.tasks import suite_info, suite_names
from shard_gym.tasks.suites.info import TRACKS


@pytest.mark.parametrize("data", ["dlrm-50x4/train", "pool/dlrm-2021/train", "generalize/test", "other: my own logs"])
def test_training_halves_and_other_pools_share_no_test_table(data: str) -> None:
    assert overlap(data, "dlrm-20x4") == 0


@pytest.mark.parametrize("data", ["dlrm-50x4/test", "pool/dlrm-2021/test", "pool/dlrm-2021"])
def test_test_tables_are_found_in_other_suites_and_pools(data: str) -> None:
    assert overlap(data, "dlrm-20x4") > 0


def test_suites_of_every_track_overlap_themselves_and_not_their_training_split() -> None:
    """Of one dim, of mixed dims and of whole models; tests/tasks/suites looks at the tables of all."""
    first = [suite_names(track)[0] for track in TRACKS]
    for name in (*first, "mixdim-8", "generalize", "mlperf-x8", "shard-merlin-small-x16"):
        assert overlap(f"{name}/test", name) > 0
        if "train" in suite_info(name).tasks:
            assert overlap(f"{name}/train", name) == 0


@pytest.mark.parametrize("data", ["", "other: ", "other:x", "pool/", "dlrm-20x4", "../../etc/passwd", "dlrm-20x4/dev"])
def test_other_forms_are_refused(data: str) -> None:
    with pytest.raises((InvalidOptionError, UnknownNameError)):
        overlap(data, "dlrm-20x4")
    assert len(check_training_data([data], "dlrm-20x4")) == 1


def test_the_training_of_agents_is_recorded() -> None:
    of_2080ti, of_a100 = recorded_training("dreamshard", "dlrm-200x8"), recorded_training("dreamshard", "mixdim-4")
    assert of_2080ti is not None
    drawn = ("pool/dlrm-2021/train", "pool/dlrm-2022/train")
    assert of_2080ti.data == drawn
    assert of_a100 == recorded_training(str(PRETRAINED["a100-dgx"].path), "mixdim-4")
    assert recorded_training("dreamshard", "cpu-20x2") is None
    checkpoint = of_a100
    assert checkpoint is not None
    assert (checkpoint.agent, checkpoint.data) == ("dreamshard", drawn)
    assert of_2080ti.queries > 0
    assert not [each for suite in suite_names("simulated") for each in check_training_data(list(drawn), suite)]
    assert recorded_training("random", "mixdim-4") is None
    with pytest.raises(UnknownNameError, match="no agent named 'rondom'"):
        recorded_training("rondom", "mixdim-4")
