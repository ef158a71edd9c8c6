"""The analytical cost model: FBGEMM's operators and the collectives, from published and measured facts."""

from shard_gym.cost_models.analytical.constants import FITTED
from shard_gym.cost_models.analytical.inference import InferenceCostModel
from shard_gym.cost_models.analytical.model import AnalyticalCostModel
from shard_gym.cost_models.analytical.sharding import AnalyticalShardingModel

__all__ = ["FITTED", "AnalyticalCostModel", "AnalyticalShardingModel", "InferenceCostModel"]
