"""`TensorDictEnv`: episodes as tensors for TorchRL. Needs torchrl, which is in no extra."""

from __future__ import annotations

from typing import Any

import torch

from shard_gym.common.errors import MissingExtraError, wrong_kind
from shard_gym.envs.tensors.placement import TensorPlacementEnv

try:
    from tensordict import TensorDict, TensorDictBase
    from torchrl.data import Binary, Categorical, Composite, Unbounded
    from torchrl.envs import EnvBase
except ImportError as error:
    raise MissingExtraError("TensorDictEnv needs TorchRL, which is not installed: pip install torchrl.") from error


class TensorDictEnv(EnvBase):  # type: ignore[misc]
    """A `TensorPlacementEnv` or a `TensorShardingEnv` as an environment of TorchRL with batch size [N].

    Its observations have the keys of that one. The key `action_mask` says which actions are legal, as
    `MaskedCategorical` and the transform `ActionMask` read it. Beside the reward there is `cost_ms`, (N, 1) float64.
    Episodes that are over wait until TorchRL resets them.

    Args:
        env: the episodes.
    """

    batch_locked = True

    def __init__(self, env: TensorPlacementEnv) -> None:
        if not isinstance(env, TensorPlacementEnv):
            raise wrong_kind("env", env, "a TensorPlacementEnv or a TensorShardingEnv")
        self.env = env
        size, device = self.env.batch_size, self.env.device
        super().__init__(device=device, batch_size=size)
        one = (*size, 1)
        keys: dict[str, Any] = {}
        for name, value in self.env.observations().items():
            kind = Binary if value.dtype == torch.bool else Unbounded
            keys[name] = kind(shape=value.shape, dtype=value.dtype, device=device)
        keys["cost_ms"] = Unbounded(shape=one, dtype=torch.float64, device=device)
        self.observation_spec = Composite(keys, shape=size, device=device)
        self.action_spec = Categorical(self.env.num_actions, shape=size, dtype=torch.int64, device=device)
        self.reward_spec = Unbounded(shape=one, dtype=torch.float32, device=device)
        self.done_spec = Composite(
            {name: Binary(shape=one, dtype=torch.bool, device=device) for name in ("done", "terminated")},
            shape=size,
            device=device,
        )

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        observations = self.env.reset(None if mask is None else mask.reshape(self.batch_size))
        return self._told(observations, self.env.status != 0)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        observations, rewards, over = self.env.step(tensordict["action"])
        return self._told(observations, over).set("reward", rewards.float()[:, None])

    def _told(self, observations: dict[str, torch.Tensor], over: torch.Tensor) -> TensorDictBase:
        keys = {"cost_ms": self.env.cost_ms[:, None], "done": over[:, None], "terminated": over[:, None].clone()}
        return TensorDict({**observations, **keys}, batch_size=self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self.env.reset(seed=seed)
