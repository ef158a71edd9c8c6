"""The environment of TorchRL; TorchRL is in no extra, so these run where it is installed."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("torchrl")

from torchrl.envs import ActionMask, TransformedEnv
from torchrl.envs.utils import check_env_specs

from shard_gym.envs.tensors import TensorPlacementEnv, TensorShardingEnv
from shard_gym.envs.tensors.tensordicts import TensorDictEnv


@pytest.mark.parametrize(
    ("kind", "suite", "observation"),
    [
        (TensorPlacementEnv, "generalize", "set"),
        (TensorPlacementEnv, "tier-4", "compact"),
        (TensorShardingEnv, "shard-generalize", "full"),
    ],
)
def test_the_specs_are_those_of_what_comes(kind: type[TensorPlacementEnv], suite: str, observation: str) -> None:
    check_env_specs(TensorDictEnv(kind(8, suite, observation=observation)))


def test_rollouts_of_legal_actions_end_complete_and_begin_anew() -> None:
    env = TransformedEnv(TensorDictEnv(TensorPlacementEnv(6, "dlrm-20x4", reward="dense")), ActionMask())
    env.set_seed(3)
    rollout = env.rollout(45, break_when_any_done=False)
    assert rollout.batch_size == (6, 45)
    done = rollout["next", "done"][..., 0]
    assert done.nonzero()[:, 1].unique().tolist() == [19, 39]
    costs = rollout["next", "cost_ms"][:, :, 0][done].reshape(6, 2)
    returns = rollout["next", "reward"][:, :40, 0].reshape(6, 2, 20).sum(dim=2)
    assert torch.allclose(returns, -costs.float(), rtol=1e-4)
    env.set_seed(3)
    assert torch.equal(env.rollout(3)["table_features"][:, 0], rollout["table_features"][:, 0])
