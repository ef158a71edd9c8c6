"""`RL4CoEnv`: episodes as tensors for RL4CO. Needs the extra `rl4co`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from shard_gym.common.arrays import IntArray
from shard_gym.common.errors import InvalidOptionError, missing_extra, wrong_kind
from shard_gym.envs.core.episode_state import RUNNING
from shard_gym.envs.core.split_rules import NONE
from shard_gym.envs.tensors import TensorPlacementEnv, TensorShardingEnv

try:
    from rl4co.data.dataset import FastTdDataset
    from rl4co.envs import RL4COEnvBase
    from tensordict import TensorDict
    from torchrl.data import Binary, Categorical, Composite, Unbounded
except ImportError as error:
    raise missing_extra("rl4co", "rl4co", "RL4CoEnv") from error

WITH_TABLES = ("set", "full")
"""Observations with all tables."""


class TaskNumbers:
    """The generator of an `RL4CoEnv`: numbers of its tasks, drawn with equal probability, or all of them in turn."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, batch_size: Any) -> TensorDict:
        """As many as `batch_size`, a number or a list of one, from the global generator of torch, as RL4CO draws."""
        [size] = [batch_size] if isinstance(batch_size, int) else batch_size
        return TensorDict({"task": torch.randint(self.count, (size,))}, batch_size=[size])

    def every(self) -> TensorDict:
        """Each task once."""
        return TensorDict({"task": torch.arange(self.count)}, batch_size=[self.count])


class RL4CoEnv(RL4COEnvBase):  # type: ignore[misc]
    """A `TensorPlacementEnv` or a `TensorShardingEnv` as an environment of RL4CO, in batches of any size.

    An instance is the number of a task. Its nodes are the A actions, devices first, and then the T tables: tables are
    never legal actions, but an encoder sees them. `embeddings` says what policies see of the nodes. The reward of an
    episode is the sum of its rewards in `episodes`; one that ends without a plan has the penalty of its task.

    Args:
        episodes: the tasks, what is observed ("set" or "full"), the reward, and the device.
        options: of RL4CO's base class.

    Attributes:
        generator: `TaskNumbers`.
        num_kinds: of actions, see the key `action_kind`: 0 is a device, 1 halves a table, others are ways to spread it.

    Raises:
        InvalidOptionError: the observation has not all tables.
    """

    name = "embedding_placement"

    def __init__(self, episodes: TensorPlacementEnv, **options: Any) -> None:
        if not isinstance(episodes, TensorPlacementEnv):
            raise wrong_kind("episodes", episodes, "a TensorPlacementEnv or TensorShardingEnv")
        if episodes.observation not in WITH_TABLES:
            raise InvalidOptionError(
                f"Policies of RL4CO see all tables: take an observation of {', '.join(WITH_TABLES)}; "
                f"got {episodes.observation!r}."
            )
        super().__init__(device=episodes.device, **{"check_solution": False, "dataset_cls": FastTdDataset, **options})
        self.episodes = episodes
        self.generator = TaskNumbers(len(episodes.tasks))
        self._kinds = torch.as_tensor(_kinds(episodes), device=episodes.device)
        self.num_kinds = 2 + (episodes.rules.num_variants if isinstance(episodes, TensorShardingEnv) else 0)
        nodes = (episodes.num_actions + episodes.max_tables,)
        self.observation_spec = Composite({"action_mask": Binary(shape=nodes, dtype=torch.bool)}, shape=())
        self.action_spec = Categorical(nodes[0], shape=(), dtype=torch.int64)
        self.reward_spec, self.done_spec = Unbounded(shape=(1,)), Binary(shape=(1,), dtype=torch.bool)

    def _reset(self, td: TensorDict | None = None, batch_size: Any = None) -> TensorDict:
        assert td is not None  # RL4CO generates it
        task = td["task"].to(self.episodes.device)
        self.episodes.begin(task)
        return self._told(torch.zeros(len(task), dtype=torch.float64, device=task.device))

    def _step(self, td: TensorDict) -> TensorDict:
        self.episodes.load(dict(td["state"].items()))
        _, rewards, _ = self.episodes.step(td["action"])
        return self._told(td["return"] + rewards)

    def _told(self, returns: torch.Tensor) -> TensorDict:
        episodes, over = self.episodes, self.episodes.status != RUNNING
        size, seen = episodes.batch_size, episodes.observations()
        of_tables = torch.zeros(*size, episodes.max_tables, dtype=torch.bool, device=over.device)
        mask = torch.cat([seen.pop("action_mask"), of_tables], dim=1)
        keys: dict[str, Any] = {**seen, "action_mask": mask, "action_kind": self._kinds.expand(*size, -1)}
        keys |= {"state": TensorDict(episodes.state(), batch_size=size), "task": episodes.task, "done": over}
        keys |= {"return": returns, "reward": returns.float()}
        return TensorDict(keys, batch_size=size, device=over.device)

    def _get_reward(self, td: TensorDict, actions: torch.Tensor) -> torch.Tensor:
        rewards: torch.Tensor = td["return"].float()
        return rewards

    def get_num_starts(self, td: TensorDict) -> int:
        """D: the episodes of a task that POMO compares begin with each of the devices."""
        return self.episodes.max_devices

    def select_start_nodes(self, td: TensorDict, num_starts: int) -> torch.Tensor:
        """(S N,) int64, the first action of each start, for all episodes of one after the other: legal ones in turn,
        one of each kind before a second one, as devices that hold nothing may be alike.
        """
        mask: torch.Tensor = td["action_mask"]
        kinds = torch.nn.functional.one_hot(td["action_kind"], self.num_kinds)
        legal = mask[:, : kinds.shape[1], None] * kinds
        turns = ((legal.cumsum(dim=1) - 1) * legal).sum(dim=2)  # how many of its kind come before
        turns = torch.where(mask[:, : kinds.shape[1]], turns, mask.shape[1])
        legal_first = turns.argsort(dim=1, stable=True)
        turn = torch.arange(num_starts, device=mask.device)[:, None] % mask.sum(dim=1)
        return legal_first.gather(1, turn.T).T.reshape(-1)


def _kinds(episodes: TensorPlacementEnv) -> IntArray:
    """(A,) int64, the kind of each action."""
    kinds = np.zeros(episodes.num_actions, np.int64)
    if isinstance(episodes, TensorShardingEnv):
        variants, _ = episodes.rules.variants_and_hosts
        kinds[episodes.max_devices :] = 2 + variants[episodes.max_devices :]
        if episodes.rules.halve != NONE:
            kinds[episodes.rules.halve] = 1
    return kinds
