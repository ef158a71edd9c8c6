"""Neural cost models: the networks, the data they learn from, fitting, and the card that says how good they are.

What estimates needs numpy alone; files need safetensors (models) and pyarrow (data), and fitting needs torch. So
`fit` and `training` are imported by their own names only.
"""

from shard_gym.cost_models.neural.base import NeuralCostModel
from shard_gym.cost_models.neural.storage import NETWORKS, load_cost_model, save_cost_model

__all__ = ["NETWORKS", "NeuralCostModel", "load_cost_model", "save_cost_model"]
