"""The planner that takes the place of TorchRec's: `from shard_gym.interop.torchrec import ShardGymPlanner`."""
