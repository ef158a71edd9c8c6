"""ShardGym: Gymnasium environments for embedding table placement, sharding and replanning.

`import shard_gym` registers the environments; `gymnasium.make("shard_gym:EmbeddingPlacement-v0")` needs no import.
"""

from shard_gym.common.moved import keep_old_names
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.envs.registration import register_environments
from shard_gym.envs.sharding.env import EmbeddingShardingEnv
from shard_gym.evaluation import Evaluation, TaskResult, evaluate
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.plans import ShardingPlan, check_plan
from shard_gym.plans.placement import check_placement
from shard_gym.replanning import DriftSuite, DriftTask, EmbeddingReplanningEnv
from shard_gym.tables import Tables, Workload, load_pool
from shard_gym.tasks import Task, TaskSampler, TaskSuite, load_suite, save_suite, suite_names

__version__ = "0.1.0"

keep_old_names()
register_environments()

__all__ = [
    "DriftSuite",
    "DriftTask",
    "EmbeddingPlacementEnv",
    "EmbeddingReplanningEnv",
    "EmbeddingShardingEnv",
    "Evaluation",
    "ShardingPlan",
    "Tables",
    "Task",
    "TaskResult",
    "TaskSampler",
    "TaskSuite",
    "Topology",
    "Workload",
    "__version__",
    "check_placement",
    "check_plan",
    "evaluate",
    "hardware_profile",
    "load_pool",
    "load_suite",
    "register_environments",
    "save_suite",
    "suite_names",
]
