"""Adam's memory as arrays, so that a run resumes without unpickling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shard_gym.io.arrays import Arrays, require_arrays, under

if TYPE_CHECKING:
    import torch


def optimizer_arrays(optimizer: torch.optim.Optimizer, prefix: str = "optimizer.") -> Arrays:
    """The moments and counters of all parameters that have made a step, by position; copies."""
    return {
        f"{prefix}{position}.{name}": value.detach().cpu().numpy().copy()
        for position, moments in optimizer.state_dict()["state"].items()
        for name, value in moments.items()
    }


def load_optimizer_arrays(optimizer: torch.optim.Optimizer, arrays: Arrays, prefix: str = "optimizer.") -> None:
    """Put back what `optimizer_arrays` returned; learning rates and the like stay as the optimizer was made.

    Raises:
        InvalidCheckpointError: they are not of an Adam with these parameters.
    """
    import torch

    found = under(prefix, arrays)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moved = {int(name.partition(".")[0]) for name in found if name.partition(".")[0].isdecimal()}
    expected: Arrays = {}
    for position, parameter in enumerate(parameters):
        if position in moved:
            moment = np.broadcast_to(np.float32(0), tuple(parameter.shape))
            expected |= {f"{position}.step": np.zeros(()), f"{position}.exp_avg": moment}
            expected[f"{position}.exp_avg_sq"] = moment
    require_arrays("The optimizer's memory", found, expected)
    state = {
        position: {name: torch.from_numpy(array.copy()) for name, array in under(f"{position}.", found).items()}
        for position in sorted(moved)
    }
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
