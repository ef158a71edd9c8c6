"""`Episodes`: what their arguments decide. Steps and ends: test_state.py, tests/contract/test_vector_parity.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import CostEstimate, CostModel
from shard_gym.cost_models.counted import CountedEstimates
from shard_gym.envs.core.episodes import Episodes
from shard_gym.envs.placement.episodes import PlacementConfig
from shard_gym.tasks import TaskSuite


@pytest.fixture(scope="module")
def make(random_task: Any) -> Callable[..., Episodes]:
    """Makes four episodes of tasks of four sizes."""
    rng, sizes = np.random.default_rng(2), ((1, 2), (4, 3), (6, 2), (5, 4))
    tasks = [random_task(rng, *size, devices_per_host=2, name=f"task {i}") for i, size in enumerate(sizes)]

    def episodes(*, begun: bool = True, reward: Any = "dense") -> Episodes:
        made = PlacementConfig(TaskSuite("own", tasks), reward=reward, max_tables=7, max_devices=5).episodes(4)
        if begun:
            made.begin(np.arange(4), tasks)
        return made

    return episodes


def test_a_reward_of_any_kind_gives_float64_and_nothing_where_an_episode_was_over(make: Any) -> None:
    for value in (0.5, np.float32(0.5), np.full(4, 0.5, np.float16), np.ones(4, np.int64)):
        episodes = make(reward=lambda transition, value=value: value)
        rewards, _ = episodes.step(np.array([0, 4, 1, 3]))
        assert rewards.dtype == np.float64
        each = float(np.mean(value))
        assert rewards.tolist() == [each] * 4
        assert episodes.step(np.zeros(4, np.int64))[0].tolist() == [0.0, 0.0, each, each]


class Said(CostEstimate):
    """A cost with two further numbers."""

    @property
    def details(self) -> dict[str, float]:
        return {"late": 2, "spread": 0.5}


class Timed(CostModel):
    """Says 3 ms of every placement, and how sure it is."""

    name, version, detail_names = "timed", 1, ("spread", "late")

    def estimate(self, placement: Any, tables: Any, topology: Any) -> CostEstimate:
        return Said(np.full((topology.num_devices, 4), 0.75), 3.0)

    def penalty_ms(self, tables: Any, topology: Any) -> float:
        return 9.0


@pytest.mark.parametrize("model", [Timed(), CountedEstimates(Timed())], ids=["bare", "counted"])
def test_infos_have_the_details_of_a_final_cost_when_a_placement_is_complete(make: Any, model: CostModel) -> None:
    episodes = make(begun=False)
    assert not any(key.startswith("measurement") for key in episodes.infos())
    episodes.final_cost = model
    tasks = list(episodes.source)
    episodes.begin(np.arange(4), tasks)
    nothing = episodes.infos()
    assert list(nothing)[-2:] == ["measurement_spread", "measurement_late"]
    assert nothing["measurement_spread"].tolist() == [0.0] * 4
    episodes.step(np.zeros(4, np.int64))  # the first task has a single table
    twin, infos = episodes.copy(), episodes.infos()
    assert infos["measurement_spread"].tolist() == [0.5, 0.0, 0.0, 0.0]
    assert infos["measurement_late"].tolist() == [2.0, 0.0, 0.0, 0.0]
    assert infos["cost_ms"][0] == 3.0
    episodes.begin(np.array([0]), tasks[:1])
    assert episodes.infos()["measurement_spread"].tolist() == [0.0] * 4
    assert twin.infos()["measurement_spread"].tolist() == [0.5, 0.0, 0.0, 0.0]
    assert {key: array.dtype for key, array in infos.items()} == {key: array.dtype for key, array in nothing.items()}
