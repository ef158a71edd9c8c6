"""Presets: the options of a learned agent as dataclasses by name, and the options to place with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from shard_gym.common.checks import checked_count, checked_learning_rate
from shard_gym.common.errors import InvalidCheckpointError, unknown_name
from shard_gym.common.io.parsing import require_fields
from shard_gym.cost_models.neural import NETWORKS, NeuralCostModel
from shard_gym.cost_models.neural.storage import network_named

COST = "cost."  # prefix of the weights of a cost network in the file of an agent
TYPES = "sharding_types"  # key of the sharding types that were learned, in the metadata of an agent

WEIGHT_DECAY = 0.5
"""Weight decay of cost networks that a search works under, for tasks with more devices than in training.

`dream-search` trained on dlrm-50x4 (seed 0) has a mean error of 19% on its own placements for the first ten tasks of
dlrm-40x8. Without decay it is 93% over the suite (November 2026)."""


@dataclass(frozen=True, kw_only=True)
class CostNetworkOptions:
    """Options of every preset that trains a cost network on measured costs.

    Attributes:
        iterations: how often costs are measured and the network is trained on all measurements so far.
        measurements: true costs evaluated in each iteration.
        network: architecture of the cost network.
        cost_updates: batches that it is trained on in each iteration.
        cost_batch: measurements in each batch.
        learning_rate: of Adam, at the start.
        placing: names of the options that may change when the trained agent is loaded.
        weight_decay: of the network in training, see `WEIGHT_DECAY`.

    Raises:
        UnknownNameError: there is no such network.
        InvalidOptionError: an option has an impossible value.
    """

    placing: ClassVar[tuple[str, ...]] = ()
    weight_decay: ClassVar[float] = 0.0

    iterations: int
    measurements: int
    network: str
    cost_updates: int
    cost_batch: int = 64
    learning_rate: float

    def __post_init__(self) -> None:
        for name in ("iterations", "measurements", "cost_updates", "cost_batch"):
            checked_count(name, getattr(self, name))
        checked_learning_rate(self.learning_rate)
        network_named(self.network)

    @property
    def architecture(self) -> type[NeuralCostModel]:
        """The class of the cost network."""
        return NETWORKS[self.network]


def preset_options(presets: Mapping[str, type[Any]], preset: str, **changes: Any) -> Any:
    """The dataclass of `preset` with `changes`.

    Raises:
        UnknownNameError: there is no such preset, or the preset has no such option.
        InvalidOptionError: an option has an impossible value.
    """
    if not isinstance(preset, str) or preset not in presets:
        raise unknown_name("preset", preset, presets)
    known = [field.name for field in fields(presets[preset])]
    for name in changes:
        if name not in known:
            raise unknown_name(f"option of preset {preset!r}", name, known)
    return presets[preset](**changes)


def saved_options(presets: Mapping[str, type[Any]], about: Mapping[str, Any]) -> Any:
    """The options in the metadata of a training run; InvalidCheckpointError if there are none, or impossible ones."""
    try:
        found = {key: about.get(key) for key in ("preset", "options")}
        require_fields(found, {"preset": str, "options": dict}, "Its metadata")
        return preset_options(presets, about["preset"], **about["options"])
    except (TypeError, ValueError) as error:
        raise InvalidCheckpointError(f"The file does not say how the agent was trained: {error}") from error


def options_to_place(presets: Mapping[str, type[Any]], about: Mapping[str, Any], changes: Mapping[str, Any]) -> Any:
    """`saved_options` with `changes` of those in `CostNetworkOptions.placing`; others raise UnknownNameError."""
    options = saved_options(presets, about)
    known = options.placing
    for name in changes:
        if name not in known:
            purpose = f"option to place with preset {about['preset']!r}"
            raise unknown_name(purpose, name, known, "" if known else "none")
    return replace(options, **changes)
