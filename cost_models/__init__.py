"""Cost models: tables and a placement in, the ms of each phase on each device out.

This folder is imported as `shard_gym.cost_models`; `shard_gym/cost_models` is a symbolic link to it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shard_gym.cost_models.analytical import AnalyticalCostModel
from shard_gym.cost_models.base import PHASES, AdditiveCostModel, CostEstimate, CostModel, PlainCosts
from shard_gym.cost_models.counted import CountedCostModel
from shard_gym.errors import unknown_name, wrong_kind
from shard_gym.io.arrays import SUFFIX

COST_MODELS: dict[str, Callable[[], AdditiveCostModel]] = {"analytical": AnalyticalCostModel}
"""The one table of cost models by name; add yours with `COST_MODELS["name"] = factory`."""


def make_cost_model(model: str | Path | AdditiveCostModel) -> AdditiveCostModel:
    """The cost model named `model`, the trained one in the file `model`, or `model` itself when it is one already.

    Args:
        model: one of `COST_MODELS`; the path of a file of a neural cost model (a text that ends in .safetensors, or a
            Path), for which the package safetensors is needed, but not torch; or a cost model.

    Raises:
        UnknownNameError: there is no model of that name; the message lists those there are.
        InvalidOptionError: `model` is none of these.
        InvalidCheckpointError: there is no such file, or it holds no cost model that this version can read.
        MissingExtraError: safetensors is not installed.
    """
    if isinstance(model, AdditiveCostModel):
        return model
    if isinstance(model, Path) or (isinstance(model, str) and model.endswith(SUFFIX)):
        from shard_gym.cost_models.neural.storage import load_cost_model

        return load_cost_model(model)
    if not isinstance(model, str):
        wanted = f"the name of one, {sorted(COST_MODELS)}, the path of a file *{SUFFIX}, or an AdditiveCostModel"
        raise wrong_kind("cost_model", model, wanted)
    if model not in COST_MODELS:
        raise unknown_name("cost model", model, COST_MODELS, f"{', '.join(sorted(COST_MODELS))}; or a file *{SUFFIX}")
    return COST_MODELS[model]()


__all__ = [
    "COST_MODELS",
    "PHASES",
    "AdditiveCostModel",
    "AnalyticalCostModel",
    "CostEstimate",
    "CostModel",
    "CountedCostModel",
    "PlainCosts",
    "make_cost_model",
]
