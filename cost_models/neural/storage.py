"""The networks by name, and neural cost models as safetensors files. Reading them needs no torch and runs no code."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shard_gym.common.errors import InvalidCheckpointError, unknown_name
from shard_gym.common.io.arrays import load_arrays, require_arrays, save_arrays
from shard_gym.cost_models.neural.base import NeuralCostModel
from shard_gym.cost_models.neural.dreamshard import DreamShardCostModel
from shard_gym.cost_models.neural.neuroshard import NeuroShardCostModel
from shard_gym.cost_models.neural.pooled import PooledCostModel

KIND = "cost-model"

NETWORKS: dict[str, type[NeuralCostModel]] = {
    network.architecture: network for network in (DreamShardCostModel, NeuroShardCostModel, PooledCostModel)
}
"""Networks by architecture; add yours with `NETWORKS["name"] = YourCostModel`."""


def network_named(name: str, *others: str) -> type[NeuralCostModel]:
    """The network of that architecture, or UnknownNameError; its message lists `others` that the caller takes, too."""
    if name not in NETWORKS:
        raise unknown_name("network", name, [*NETWORKS, *others])
    return NETWORKS[name]


def save_cost_model(model: NeuralCostModel, path: str | Path) -> None:
    """Write `model` with its card to `path`, atomically; UnwritablePathError if the disk refuses. Needs safetensors."""
    about = {"architecture": model.architecture, "version": model.version, "card": model.card}
    save_arrays(Path(path), KIND, model.weights, about)


def load_cost_model(path: str | Path) -> NeuralCostModel:
    """The model that `save_cost_model` wrote to `path`.

    Raises:
        InvalidCheckpointError: there is no such file; it is damaged or no cost model; its architecture is unknown or of
            another version; or its arrays are not those of the architecture.
        MissingExtraError: safetensors is not installed.
    """
    path = Path(path)
    arrays, about = load_arrays(path, KIND)
    architecture, card = about.get("architecture"), about.get("card")
    if not isinstance(architecture, str) or architecture not in NETWORKS:
        raise InvalidCheckpointError(
            f"{path} holds a network {architecture!r}; known are {', '.join(sorted(NETWORKS))}."
        )
    network = NETWORKS[architecture]
    if about.get("version") != network.version:
        raise InvalidCheckpointError(
            f"{path} holds version {about.get('version')!r} of the network {architecture!r}; this version of shard-gym "
            f"reads version {network.version}. Train it again, or install the version that wrote it."
        )
    if not isinstance(card, dict):
        raise InvalidCheckpointError(f"{path} has no card: its 'card' is {card!r}.")
    require_arrays(path, arrays, network.weights_like(arrays))
    wrong = sorted(name for name, array in arrays.items() if array.dtype != np.float32)
    if wrong:
        raise InvalidCheckpointError(f"{wrong[0]!r} in {path} holds {arrays[wrong[0]].dtype}, not float32.")
    return network(arrays, card)
