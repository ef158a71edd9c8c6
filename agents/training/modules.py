"""Parts of networks that several agents share. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shard_gym.agents.training.torch_arrays import load_training_arrays, module_arrays, training_arrays
from shard_gym.common.errors import TrainingDivergedError
from shard_gym.common.io.arrays import Arrays

NOWHERE = -1e9  # the score of a device that cannot be chosen; -inf would make NaN of the entropy
Module = TypeVar("Module", bound=nn.Module)


def new_module(make: Callable[[], Module], rng: np.random.Generator) -> Module:
    """An untrained module from `make`; the state of torch's global generator does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        return make()


def tensors_beside(module: nn.Module) -> Callable[[NDArray[Any]], Tensor]:
    """What makes a tensor of an array, on the device of `module`; on the CPU both share their memory."""
    device = next(module.parameters()).device
    return lambda array: torch.from_numpy(array).to(device)


def finite(scores: Tensor) -> Tensor:
    """`scores`, if all of them are finite; raises TrainingDivergedError if one is NaN or infinite."""
    if not bool(torch.isfinite(scores).all()):
        raise TrainingDivergedError(
            "A score of the network is NaN or infinite: its training diverged. Train it with a smaller learning rate."
        )
    return scores


def chosen_and_entropy(logs: Tensor, actions: Tensor, least: float = -50.0) -> tuple[Tensor, Tensor]:
    """The (...) log probabilities of (...) `actions`, and the (...) entropies in nats, of (..., D) log probabilities.

    Log probabilities below `least` count as it in the entropy, so those of devices that cannot be chosen add 0.
    """
    return logs.gather(-1, actions[..., None])[..., 0], -(logs.exp() * logs.clamp(min=least)).sum(dim=-1)


class ModuleTraining(Generic[Module]):
    """A module in training with Adam; with `all_weights`, averages also move those that the loss does not depend on."""

    def __init__(
        self, module: Module, learning_rate: float, max_gradient_norm: float, *, all_weights: bool = False
    ) -> None:
        self.module = module
        self._optimizer = torch.optim.Adam(module.parameters(), lr=learning_rate)
        self._max_gradient_norm, self._all_weights = max_gradient_norm, all_weights

    def move_to(self, device: str) -> None:
        """Train on `device`; before the first step."""
        self.module.to(device)
        self._optimizer = torch.optim.Adam(self.module.parameters(), lr=self._optimizer.param_groups[0]["lr"])

    def set_learning_rate(self, rate: float) -> None:
        """Set the rate of the next steps."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def step(self, loss: Tensor) -> None:
        """A step down the gradient of `loss`."""
        for weight in self.module.parameters():
            weight.grad = torch.zeros_like(weight) if self._all_weights else None
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), self._max_gradient_norm)
        self._optimizer.step()

    def weights(self) -> Arrays:
        """Copies of the weights."""
        return module_arrays(self.module)

    def state(self) -> Arrays:
        """Copies of the weights and of Adam's averages."""
        return training_arrays(self.module, self._optimizer)

    def load_state(self, arrays: Arrays, called: str) -> None:
        """Go on from what `state` returned; InvalidCheckpointError if it is of another module than that `called` so."""
        load_training_arrays(self.module, self._optimizer, arrays, called)
