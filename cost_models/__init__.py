"""Cost models: from tables and a placement to the ms of each phase on each device.

This folder is imported as `shard_gym.cost_models`; `shard_gym/cost_models` is a symbolic link to it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, overload

from shard_gym.common.errors import InvalidOptionError, unknown_name, wrong_kind
from shard_gym.common.io.arrays import SUFFIX
from shard_gym.common.io.files import is_file_in
from shard_gym.cost_models.analytical import AnalyticalCostModel, AnalyticalShardingModel, InferenceCostModel
from shard_gym.cost_models.analytical.index_exchange import HIDDEN, checked_index_exchange
from shard_gym.cost_models.base import PHASES, AdditiveCostModel, CostEstimate, CostModel, PlainCosts
from shard_gym.cost_models.base.counted import CountedCostModel, CountedEstimates, counted
from shard_gym.plans.needs import SPLITS, require_supported

MODEL_FILE = f"cost-model{SUFFIX}"
"""Name of the file of the fitted cost model in a folder that `shard-gym calibrate` made."""


def _measured() -> CostModel:
    """A `MeasuredCostModel` with its defaults, imported on first use."""
    from shard_gym.cost_models.measured.model import MeasuredCostModel

    return MeasuredCostModel()


COST_MODELS: dict[str, Callable[[], CostModel]] = {
    "analytical": AnalyticalCostModel,
    "analytical-exposed-indices": lambda: AnalyticalCostModel(index_exchange="exposed"),
    "analytical-inference": InferenceCostModel,
    "analytical-lru": lambda: AnalyticalCostModel(host_policy="lru"),
    "measured": _measured,
}
"""The registry of cost models; add one with `COST_MODELS["name"] = factory`."""


@overload
def make_cost_model(
    model: str | Path | CostModel = ..., *, additive: Literal[False] = ..., splits: bool = ...
) -> CostModel: ...


@overload
def make_cost_model(
    model: str | Path | CostModel = ..., *, additive: Literal[True], splits: bool = ...
) -> AdditiveCostModel: ...


def make_cost_model(
    model: str | Path | CostModel = "analytical", *, additive: bool = False, splits: bool = False
) -> CostModel:
    """The cost model of that name, in that file, or `model` itself if it is a cost model.

    Args:
        model: a name in `COST_MODELS`; the path of a neural cost model (a Path, or a text that ends in .safetensors),
            which needs the package safetensors, but not torch; a folder that `shard-gym calibrate` made; or a cost
            model.
        additive: whether it must be fast enough to step an environment (an `AdditiveCostModel`).
        splits: whether it must cost split tables; an analytical one is an `AnalyticalShardingModel` then.

    Raises:
        UnknownNameError: no model has that name; the message lists the known names.
        InvalidOptionError: `model` is none of these, or not what it must be.
        InvalidCheckpointError: there is no such file, or it holds no cost model that this version can read.
        MissingExtraError: safetensors is not installed.
    """
    made = _made(model)
    if splits and SPLITS not in made.supports:
        if type(made) is AnalyticalCostModel:
            own = {"host_policy": made.host_policy.name, "index_exchange": made.index_exchange}
            return AnalyticalShardingModel(constants=made.constants, **own)
        require_supported(f"The cost model {made.name!r}", {SPLITS}, made.supports, costs=True)
    if additive and not isinstance(made, AdditiveCostModel):
        raise InvalidOptionError(
            f"The cost model {made.name!r} is not additive, so it cannot estimate every step. Use it as the true cost: "
            "of EmbeddingPlacementReal-v0, of evaluate, or of training. Here name another, such as 'analytical'."
        )
    return made


def _made(model: str | Path | CostModel) -> CostModel:
    if isinstance(model, CostModel):
        try:
            hash(model)
        except TypeError as error:
            raise wrong_kind("cost_model", model, "hashable; a dataclass needs eq=False or frozen=True") from error
        return model
    is_name = isinstance(model, str) and model in COST_MODELS
    if isinstance(model, (str, Path)) and not is_name and is_file_in(model, MODEL_FILE):
        model = Path(model) / MODEL_FILE
    if isinstance(model, Path) or (isinstance(model, str) and model.endswith(SUFFIX)):
        from shard_gym.cost_models.neural.storage import load_cost_model

        return load_cost_model(model)
    if not isinstance(model, str):
        wanted = f"one of the names {sorted(COST_MODELS)}, the path of a file *{SUFFIX}, or a CostModel"
        raise wrong_kind("cost_model", model, wanted)
    if model not in COST_MODELS:
        listing = f"{', '.join(sorted(COST_MODELS))}; a file *{SUFFIX}; or a folder that shard-gym calibrate made"
        raise unknown_name("cost model", model, COST_MODELS, listing)
    return COST_MODELS[model]()


def make_sharding_cost_model(model: str | Path | CostModel = "analytical") -> AdditiveCostModel:
    """`make_cost_model(model, additive=True, splits=True)`, by its older name."""
    return make_cost_model(model, additive=True, splits=True)


def with_index_exchange(model: CostModel, index_exchange: str | None) -> CostModel:
    """An analytical cost model with this `index_exchange`; any model as it is with None, or with what it has.

    Models that are not analytical have "hidden".

    Raises:
        UnknownNameError: there is no such index exchange.
        InvalidOptionError: the model is no analytical one.
    """
    if index_exchange is None or checked_index_exchange(index_exchange) == getattr(model, "index_exchange", HIDDEN):
        return model
    if type(model) is AnalyticalCostModel:
        return AnalyticalCostModel(model.constants, model.host_policy.name, index_exchange)
    if type(model) in (AnalyticalShardingModel, InferenceCostModel):
        assert isinstance(model, AnalyticalShardingModel)
        dtype, policy = model.communication_dtype, model.host_policy.name
        return type(model)(dtype, model.constants, policy, index_exchange)
    raise InvalidOptionError(
        f"The cost model {model.name!r} does not know the exchange of the indices, so it cannot be {index_exchange}. "
        "Name an analytical one, or leave it hidden."
    )


def with_communication_dtype(model: CostModel, communication_dtype: str | None) -> CostModel:
    """An analytical cost model with outputs of that dtype on the links; any model as it is with None, or with what it
    has.

    One of whole tables becomes one of plans, an `AnalyticalShardingModel`, unless the dtype is FP32, which models that
    are not analytical have, too.

    Raises:
        UnknownNameError: there is no such dtype.
        InvalidOptionError: the model is no analytical one.
    """
    if communication_dtype is None or communication_dtype == getattr(model, "communication_dtype", "fp32"):
        return model
    kind = AnalyticalShardingModel if type(model) is AnalyticalCostModel else type(model)
    if kind in (AnalyticalShardingModel, InferenceCostModel):
        assert isinstance(model, AnalyticalCostModel)
        return kind(communication_dtype, model.constants, model.host_policy.name, model.index_exchange)
    raise InvalidOptionError(
        f"`communication_dtype` is {communication_dtype!r}, but the cost model {model.name!r} knows FP32 alone; name "
        "an analytical one, or leave `communication_dtype` out."
    )


def additive_estimate(model: CostModel) -> AdditiveCostModel:
    """`model` if it is additive, else the analytical one: for observations, which need estimates of every step."""
    return model if isinstance(model, AdditiveCostModel) else AnalyticalCostModel()


__all__ = [
    "COST_MODELS",
    "PHASES",
    "AdditiveCostModel",
    "AnalyticalCostModel",
    "AnalyticalShardingModel",
    "CostEstimate",
    "CostModel",
    "CountedCostModel",
    "CountedEstimates",
    "InferenceCostModel",
    "PlainCosts",
    "additive_estimate",
    "counted",
    "make_cost_model",
    "make_sharding_cost_model",
    "with_communication_dtype",
    "with_index_exchange",
]
