"""Training of SurCo: measure placements, and train a cost network on them."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from shard_gym.agents.surco.agent import SurCoAgent
from shard_gym.agents.surco.options import PRESETS, ZeroOptions
from shard_gym.agents.training.cost_network import WEIGHT_DECAY, CostNetworkTraining, PlacementCostLearner
from shard_gym.cost_models import CostModel
from shard_gym.cost_models.data.dataset import CostRecorder
from shard_gym.tasks import TaskSuite

WEIGHTS = 0  # purpose of a random generator


class SurCoLearner(PlacementCostLearner):
    """SurCo in training (see `ZeroOptions`).

    The first iteration measures random loads, the later ones the agent's own placements, as `dream-search` does.

    The other arguments, and the errors, are those of `PresetLearner`.

    Args:
        preset: "zero".
    """

    MEASURE, TRAIN = 1, 2
    presets = PRESETS

    options: ZeroOptions

    def __init__(
        self,
        suite: TaskSuite,
        cost_model: CostModel,
        seed: int,
        *,
        name: str = "surco",
        preset: str = "zero",
        **changes: Any,
    ) -> None:
        super().__init__(suite, cost_model, seed, name, preset, changes)
        recorder = CostRecorder(self.cost_model.fingerprint)
        self._network = CostNetworkTraining(self.options.architecture, recorder, self.rng(WEIGHTS), WEIGHT_DECAY)

    @override
    def agent(self) -> SurCoAgent:
        return SurCoAgent(self.name, self._network.model(), self.options)
