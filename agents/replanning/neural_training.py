"""Training of the network of `NeuralForecast` by gradients, on the samples that the ridge forecast is fitted to.

Needs torch; import it where it is used.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from shard_gym.agents.replanning.forecasters import Samples
from shard_gym.agents.replanning.neural_forecast import HIDDEN, NUM_INPUTS, NUM_OUTPUTS, SCALE, network_inputs
from shard_gym.envs.replanning.observation import NUM_WINDOWS
from shard_gym.system import one_thread

EPOCHS = 8
BATCH = 4096
LEARNING_RATE = 3e-3
"""Adam's; it falls to zero, linearly."""

WEIGHT_DECAY = 1e-2


def fitted_network(samples: Samples, weights: Sequence[Sequence[float]], seed: int) -> list[float]:
    """(`NUM_WEIGHTS`,) weights of the network with the least mean square error of the forecast.

    It begins with outputs of zero: the forecast of `weights` alone. Equal seeds give equal weights on one machine.

    Args:
        samples: to learn from.
        weights: (2, W) of the forecast that it changes; see `fitted_weights`.
        seed: of the first weights and of the order of the samples.
    """
    with one_thread():
        generator = torch.Generator().manual_seed(seed)
        inputs, saved = _tensor(network_inputs(*samples[:-1])), _tensor(samples.saved)
        left = _tensor(samples.targets) - saved @ _tensor(np.asarray(weights)).T
        first = torch.randn(NUM_INPUTS, HIDDEN, generator=generator) / NUM_INPUTS**0.5
        parts = [first, torch.zeros(HIDDEN), torch.zeros(HIDDEN, NUM_OUTPUTS), torch.zeros(NUM_OUTPUTS)]
        parts = [each.requires_grad_() for each in parts]
        steps = EPOCHS * -(-len(saved) // BATCH)
        optimizer = torch.optim.AdamW(parts, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
        for _ in range(EPOCHS):
            order = torch.randperm(len(saved), generator=generator)
            for some in (order[begin : begin + BATCH] for begin in range(0, len(order), BATCH)):
                hidden = torch.tanh(inputs[some] @ parts[0] + parts[1])
                change = (hidden @ parts[2] + parts[3]).reshape(-1, 2, NUM_WINDOWS + 1)
                found = (change[..., :-1] @ saved[some, :, None])[..., 0] + change[..., -1] / SCALE
                loss = ((found - left[some]) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
        flat = torch.cat([each.detach().flatten() for each in parts]).double().numpy()
    return np.round(flat, 4).tolist()  # type: ignore[no-any-return]


def _tensor(array: NDArray[np.floating]) -> torch.Tensor:
    return torch.as_tensor(array, dtype=torch.float32)
