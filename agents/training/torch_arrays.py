"""Modules and optimizers of torch as arrays by name, so that files need no pickle. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from shard_gym.common.errors import InvalidCheckpointError
from shard_gym.common.io.arrays import Arrays, require_arrays, under

OPTIMIZER = "optimizer."  # prefix of the arrays of an optimizer, where a learner has one


def network_size(about: Mapping[str, Any], name: str, most: int) -> int:
    """The size `name` in the metadata of a file; InvalidCheckpointError if it is no integer from 1 to `most`."""
    size = about.get(name)
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= most:
        raise InvalidCheckpointError(f"{name} of the network must be an integer from 1 to {most}, not {size!r}.")
    return size


def module_arrays(module: torch.nn.Module) -> Arrays:
    """Copies of all weights of `module`, by name."""
    return {name: value.detach().cpu().numpy().copy() for name, value in module.state_dict().items()}


def load_module_arrays(module: torch.nn.Module, arrays: Arrays, called: str) -> None:
    """Set the weights of `module`, `called` so in the InvalidCheckpointError, to what `module_arrays` returned."""
    expected = {
        name: np.broadcast_to(torch.zeros((), dtype=value.dtype).numpy(), value.shape)
        for name, value in module.state_dict().items()
    }
    require_arrays(called, arrays, expected)
    weights = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    module.load_state_dict(weights, assign=next(module.parameters()).is_meta)


def optimizer_arrays(optimizer: torch.optim.Optimizer, prefix: str = OPTIMIZER) -> Arrays:
    """Copies of Adam's averages and step counts, by the position of the parameter; none for one without a step."""
    return {
        f"{prefix}{position}.{name}": value.detach().cpu().numpy().copy()
        for position, averages in optimizer.state_dict()["state"].items()
        for name, value in averages.items()
    }


def load_optimizer_arrays(optimizer: torch.optim.Optimizer, arrays: Arrays, prefix: str = OPTIMIZER) -> None:
    """Set averages and step counts to what `optimizer_arrays` returned, or raise InvalidCheckpointError; rates stay."""
    found = under(prefix, arrays)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    stepped = {int(name.partition(".")[0]) for name in found if name.partition(".")[0].isdecimal()}
    expected: Arrays = {}
    for position, parameter in enumerate(parameters):
        if position in stepped:
            average = np.broadcast_to(np.float32(0), tuple(parameter.shape))
            expected |= {f"{position}.step": np.zeros((), np.float32), f"{position}.exp_avg": average}
            expected[f"{position}.exp_avg_sq"] = average
    require_arrays("The optimizer's state", found, expected)
    for name, array in found.items():
        if not name.endswith(".exp_avg") and (array < 0).any():
            raise InvalidCheckpointError(f"{name!r} in the optimizer's state is negative.")
    state = {
        position: {name: torch.from_numpy(array.copy()) for name, array in under(f"{position}.", found).items()}
        for position in sorted(stepped)
    }
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def training_arrays(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Arrays:
    """Copies of the weights of `module`, and of the state of its optimizer."""
    return {**module_arrays(module), **optimizer_arrays(optimizer)}


def load_training_arrays(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer, arrays: Arrays, called: str
) -> None:
    """Set both to what `training_arrays` returned; InvalidCheckpointError for arrays of others."""
    weights = {name: array for name, array in arrays.items() if not name.startswith(OPTIMIZER)}
    load_module_arrays(module, weights, called)
    load_optimizer_arrays(optimizer, arrays)
