"""Cost models: tables and a placement in, the ms of each phase on each device out.

This folder is imported as `shard_gym.cost_models`; `shard_gym/cost_models` is a symbolic link to it.
"""

from __future__ import annotations

from collections.abc import Callable

from shard_gym.cost_models.analytical import AnalyticalCostModel
from shard_gym.cost_models.base import (
    PHASES,
    AdditiveCostModel,
    CostEstimate,
    CostModel,
    PlainCosts,
)
from shard_gym.cost_models.counted import CountedCostModel
from shard_gym.errors import unknown_name, wrong_kind

COST_MODELS: dict[str, Callable[[], AdditiveCostModel]] = {"analytical": AnalyticalCostModel}
"""The one table of cost models by name; add yours with `COST_MODELS["name"] = factory`."""


def make_cost_model(model: str | AdditiveCostModel) -> AdditiveCostModel:
    """The cost model named `model`, or `model` itself when it is one already.

    Raises:
        UnknownNameError: there is no model of that name; the message lists those there are.
        InvalidOptionError: `model` is neither a name nor a model an environment can step with.
    """
    if isinstance(model, AdditiveCostModel):
        return model
    if not isinstance(model, str):
        raise wrong_kind("cost_model", model, f"the name of one, {sorted(COST_MODELS)}, or an AdditiveCostModel")
    if model not in COST_MODELS:
        raise unknown_name("cost model", model, COST_MODELS)
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
