"""Neural cost models: the networks, their files, how they are fitted, and the cards with their errors.

Estimating needs NumPy alone, files need safetensors, and fitting needs torch. So `fit` and `training` are imported by
their own names only.
"""

from shard_gym.cost_models.neural.base import NeuralCostModel
from shard_gym.cost_models.neural.storage import NETWORKS, load_cost_model, save_cost_model

__all__ = ["NETWORKS", "NeuralCostModel", "load_cost_model", "save_cost_model"]
