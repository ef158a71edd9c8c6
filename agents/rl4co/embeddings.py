"""What policies of RL4CO see of an `RL4CoEnv`."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from typing_extensions import override

from shard_gym.agents.rl4co.env import RL4CoEnv

OF_DEVICES = ("device_memory", "device_shares", "device_width", "device_costs", "device_curves", "device_hbm")
"""Keys of observations with a number, or several, of each device."""

OF_EPISODES = (
    *("progress", "parts_waiting", "hbm_gib", "current_table", "current_table_shares", "current_table_costs"),
    *("current_table_curve", "variant_shares", "variant_costs", "variant_curves"),
)
"""Those of the part that comes next, and of the episode."""


def embeddings(env: RL4CoEnv, embed_dim: int = 128) -> dict[str, nn.Module]:
    """What RL4CO's `AttentionModelPolicy` sees of an environment: arguments of it, by their names.

    They hold for tasks of all sizes. A device has no number, only what it holds.
    """
    seen = env.reset(env.generator(2))
    return {
        "init_embedding": _Nodes(seen, env.num_kinds, embed_dim),
        "context_embedding": _CurrentTable(seen, embed_dim),
        "dynamic_embedding": _Devices(seen, embed_dim),
    }


class _Nodes(nn.Module):
    """Actions have a vector for their kind; tables that of their features."""

    def __init__(self, seen: TensorDict, kinds: int, embed_dim: int) -> None:
        super().__init__()
        self.kinds = nn.Embedding(kinds, embed_dim)
        self.tables = nn.Linear(seen["table_features"].shape[-1] + 1, embed_dim)

    @override
    def forward(self, td: TensorDict) -> Tensor:
        tables = torch.cat([td["table_features"], td["table_mask"][..., None].float()], dim=-1)
        return torch.cat([self.kinds(td["action_kind"]), self.tables(tables)], dim=1)


class _CurrentTable(nn.Module):
    """The node of the current table, and what else an observation tells of it and of the progress."""

    def __init__(self, seen: TensorDict, embed_dim: int) -> None:
        super().__init__()
        self.keys = [key for key in OF_EPISODES if key in seen]
        self.project = nn.Linear(embed_dim + sum(seen[key][0].numel() for key in self.keys), embed_dim)

    @override
    def forward(self, embeddings: Tensor, td: TensorDict) -> Tensor:
        step = (td["action_kind"].shape[1] + td["state", "step_count"]).clamp(max=embeddings.shape[1] - 1)
        table = embeddings[torch.arange(len(step), device=step.device), step]
        seen = torch.cat([table, *(td[key].float().flatten(1) for key in self.keys)], dim=-1)
        return torch.as_tensor(self.project(seen))


class _Devices(nn.Module):
    """What the devices hold so far."""

    def __init__(self, seen: TensorDict, embed_dim: int) -> None:
        super().__init__()
        self.keys = [key for key in OF_DEVICES if key in seen]
        self.project = nn.Linear(self._of_devices(seen).shape[-1], 3 * embed_dim, bias=False)

    @override
    def forward(self, td: TensorDict) -> tuple[Tensor, ...]:
        own = self.project(self._of_devices(td))
        rest = own.new_zeros(len(own), td["action_mask"].shape[1] - own.shape[1], own.shape[2])
        return torch.cat([own, rest], dim=1).chunk(3, dim=-1)

    def _of_devices(self, seen: TensorDict) -> Tensor:
        """(N, D, F), amounts as if a share of one were an even one."""
        devices = seen["device_mask"].sum(dim=1)[:, None, None]
        some = [seen[key] * devices if key == "device_shares" else seen[key] for key in self.keys]
        return torch.cat([each[..., None] if each.ndim == 2 else each for each in some], dim=-1).float()
