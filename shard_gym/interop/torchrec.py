"""TorchRec: a model's tables as `Tables`, and sharding plans as objects of TorchRec, in and out.

Plans go through the JSON of `torchrec_json.py`. Device d is rank d, on host d // devices_per_host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.checks import is_integer
from shard_gym.common.errors import InvalidPlanError, InvalidTablesError, short_repr
from shard_gym.hardware import Topology
from shard_gym.interop.torchrec_json import checked_json, from_torchrec_json, hbm_shares_of_json, torchrec_json
from shard_gym.interop.torchrec_modules import collections_of, configs_of, is_pooled, torchrec_module
from shard_gym.plans import ShardingPlan
from shard_gym.tables import RowPopularity, Tables, Workload
from shard_gym.tables.pools.lookup_counter import Batch, LookupCounter

WEIGHT_DTYPES: Mapping[str, str] = {
    **{"BF16": "bf16", "FP16": "fp16", "FP32": "fp32"},
    **{"INT8": "int8", "UINT8": "int8", "NFP8": "fp8"},
}
"""The weight dtypes by their names in TorchRec's `DataType`."""

DEFAULT_OPTIMIZER = "rowwise_adagrad"
"""Of models that do not say how their tables are trained."""

_NONE = "none in its backward"


def workload_of(collections: Iterable[Any], batch_size: int, optimizer: str | None) -> Workload:
    """The workload of the tables in some collections (`torchrec_modules.collections_of`).

    Tables of one weight dtype and one optimizer are a group, and so are those of them whose lookups have weights
    (`Workload.of_tables`).

    Args:
        collections: the collections; their tables have different names.
        batch_size: samples of a batch, on all devices together.
        optimizer: see `Workload`; None for those that the model trains its tables with in the backward
            (`apply_optimizer_in_backward`), and for `DEFAULT_OPTIMIZER` where it does not say.

    Raises:
        InvalidTablesError: a table has a dtype or an optimizer that is not known, another than `optimizer`, or none
            where others have one; or `batch_size` is no integer.
    """
    if not is_integer(batch_size):
        raise InvalidTablesError(f"batch_size must be an integer, not {short_repr(batch_size)}.")
    dtypes: dict[str, str] = {}
    trained: dict[str, str] = {}
    weighted: dict[str, bool] = {}
    for collection in collections:
        for config in configs_of(collection):
            name = config.name
            weighted[name] = is_pooled(collection) and bool(collection.is_weighted())
            dtypes[name] = _known(name, "weights in", config.data_type.value, WEIGHT_DTYPES)
            trained[name] = _optimizer(name, collection)
    _require_all_or_none(trained)
    for name, found in trained.items():
        if optimizer is not None and found and optimizer != found:
            raise InvalidTablesError(
                f"The optimizer is given as {optimizer}, but the model trains table {name!r} with {found} "
                "in its backward. Leave the optimizer out, or give that of the model."
            )
    own = [
        Workload(int(batch_size), dtypes[name], optimizer or found or DEFAULT_OPTIMIZER, weighted=weighted[name])
        for name, found in trained.items()
    ]
    return Workload.of_tables(own)


def _optimizer(name: str, collection: Any) -> str:
    """The name of the optimizer in the backward of a table, "" if there is none."""
    modules = getattr(collection, "embedding_bags" if is_pooled(collection) else "embeddings", {})
    weight = getattr(modules[name], "weight", None) if name in modules else None
    classes = getattr(weight, "_optimizer_classes", [])
    if len(classes) > 1:
        several = ", ".join(each.__name__ for each in classes)
        raise InvalidTablesError(f"Table {name!r} has several optimizers in its backward, {several}; give it one.")
    return _known(name, "the optimizer", classes[0], optimizer_classes()) if classes else ""


def optimizer_classes() -> dict[Any, str]:
    """The names of the optimizers that are known, by their classes in torch and in TorchRec."""
    from torch import optim
    from torchrec import optim as fused

    return {
        **{optim.Adam: "adam", fused.Adam: "adam", optim.SGD: "sgd", fused.SGD: "sgd"},
        **{optim.Adagrad: "adagrad", fused.Adagrad: "adagrad", fused.RowWiseAdagrad: "rowwise_adagrad"},
        **{fused.LAMB: "lamb", fused.PartialRowWiseAdam: "partial_rowwise_adam"},
    }


def _known(table: str, what: str, given: Any, known: Mapping[Any, str]) -> str:
    if given not in known:
        raise InvalidTablesError(
            f"Table {table!r} has {what} {getattr(given, '__name__', given)}, which ShardGym does not know; known are "
            f"{', '.join(sorted(set(known.values())))}."
        )
    return known[given]


def _require_all_or_none(trained: Mapping[str, str]) -> None:
    """Refuse a model of which the backward trains some tables alone; the error names the first of each kind."""
    first, *others = trained.items()
    other = next((each for each in others if bool(each[1]) != bool(first[1])), None)
    if other is not None:
        raise InvalidTablesError(
            f"Not all tables have an optimizer: that of {first[0]!r} is {first[1] or _NONE}, that of {other[0]!r} is "
            f"{other[1] or _NONE}. Give each table one (apply_optimizer_in_backward), or none and name it here."
        )


if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ShardingPlan as TorchRecPlan
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


def tables_of_lookups(
    model: nn.Module, lookups: KeyedJaggedTensor | Iterable[KeyedJaggedTensor | Batch], optimizer: str | None = None
) -> Tables:
    """The tables of a model, with the statistics of recorded batches (`LookupCounter` says how they are combined).

    Args:
        model: a module with `EmbeddingBagCollection`s or `EmbeddingCollection`s in it; their tables in the order of the
            modules. Those of the latter are sequence tables; where their sharder deduplicates ids (`use_index_dedup`),
            plan `shard_gym.planning.index_dedup.deduplicated(tables, num_devices)`.
        lookups: one or several batches of one size, each with the inputs of all features on all devices together; of a
            file they are `lookups_of_file(path).batches(batch_size)`. Features that no table reads are not looked at.
        optimizer: of all tables, such as "sgd"; None for those that the model trains them with in the backward
            (`apply_optimizer_in_backward`), and for rowwise Adagrad where it does not say.

    Raises:
        InvalidTablesError: the model has modules or tables that are not planned (`collections_of`), a table has a
            weight dtype or an optimizer that is not known (`workload_of`), or the batches do not fit the tables
            (`LookupCounter.add`).
        MissingExtraError: TorchRec is not installed.
    """
    collections = collections_of(model)
    configs = _configs(collections)
    counter = LookupCounter(
        [config.name for config in configs],
        [config.num_embeddings for config in configs],
        [config.feature_names for config in configs],
    )
    several = isinstance(lookups, Iterable) and not hasattr(lookups, "to_dict")
    for batch in lookups if several else [lookups]:
        counter.add(*(batch if isinstance(batch, tuple) else batch_of(batch)))
    return Tables(**counter.statistics(), **_sizes(collections, counter.batch_size, optimizer))


def tables_of_pooling_factors(
    model: nn.Module,
    pooling_factors: Mapping[str, float],
    batch_size: int,
    exponent: float = 1.05,
    optimizer: str | None = None,
) -> Tables:
    """The tables of a model, with lookups that follow Zipf's law (`Tables.from_zipf`).

    Args:
        model: see `tables_of_lookups`.
        pooling_factors: mean lookups of a sample, by feature.
        batch_size: samples of a batch, on all devices together.
        exponent: of Zipf's law, for all tables; 0 is uniform.
        optimizer: see `tables_of_lookups`.

    Raises:
        InvalidTablesError, MissingExtraError: see `tables_of_lookups`.
    """
    collections = collections_of(model)
    configs = _configs(collections)
    missing = [name for config in configs for name in config.feature_names if name not in pooling_factors]
    if missing:
        raise InvalidTablesError(f"pooling_factors has no feature {missing[0]!r}; give one for each feature.")
    return Tables.from_popularity(
        pooling_factor=[sum(pooling_factors[name] for name in config.feature_names) for config in configs],
        popularity=RowPopularity.zipf([exponent] * len(configs)),
        **_sizes(collections, batch_size, optimizer),
    )


def to_torchrec(
    plan: ShardingPlan, tables: Tables, topology: Topology, model: nn.Module, device_type: str | None = None
) -> TorchRecPlan:
    """The plan as the argument `plan` of TorchRec's `DistributedModelParallel`.

    TorchRec does not train its replicas in the backward: `replicas.replicas_note` says what does.

    Args:
        tables: the tables of the model, by name.
        topology: the devices; device d is rank d.
        device_type: "cuda" or "cpu"; None, the default, is that of the topology's devices.

    Raises:
        InvalidPlanError, MemoryExceededError: the plan is not valid (`check_plan`), or a table is not in the model.
        MissingExtraError: TorchRec is not installed.
    """
    return plan_from_torchrec_json(torchrec_json(plan, tables, topology, modules_of(model), device_type))


def from_torchrec(plan: TorchRecPlan, tables: Tables, topology: Topology) -> ShardingPlan:
    """A plan of TorchRec, such as one of its planner, as a checked plan of `tables` on `topology`.

    Raises:
        InvalidPlanError, MemoryExceededError: see `from_torchrec_json`.
    """
    return from_torchrec_json(json_of_torchrec(plan), tables, topology)


def hbm_shares_of_torchrec(plan: TorchRecPlan, tables: Tables) -> NDArray[np.float64]:
    """(T,) float64, the share of the rows of each table that a plan of TorchRec keeps in HBM.

    Raises:
        InvalidPlanError: see `hbm_shares_of_json`, which says what the compute kernels mean.
    """
    return hbm_shares_of_json(json_of_torchrec(plan), tables)


def json_of_torchrec(plan: TorchRecPlan) -> dict[str, Any]:
    """The JSON of a plan of TorchRec (`_serialize`), and in it the load factors of its caches, which that leaves out.

    Raises:
        InvalidPlanError: it is no plan of TorchRec.
    """
    if not isinstance(getattr(plan, "plan", None), dict):
        raise InvalidPlanError(
            f"from_torchrec takes a ShardingPlan of TorchRec, not {short_repr(plan)}; from_torchrec_json takes JSON."
        )
    content: dict[str, Any] = plan._serialize()
    for path, module in plan.plan.items():
        for name, entry in content["plan"][path].items():
            factor = getattr(module[name].cache_params, "load_factor", None)
            if factor is not None:
                entry["cache_params"] = {"load_factor": factor}
    return content


def modules_of(model: nn.Module) -> dict[str, str]:
    """The path of the collection of every table of a model, by the table's name; for `torchrec_json`.

    Raises:
        InvalidTablesError, MissingExtraError: see `collections_of`.
    """
    return {config.name: path for path, each in collections_of(model).items() for config in configs_of(each)}


def plan_from_torchrec_json(value: Any) -> TorchRecPlan:
    """TorchRec's plan from its JSON (`torchrec_json`, or TorchRec's own).

    Raises:
        InvalidPlanError: `value` is no such JSON.
        MissingExtraError: TorchRec is not installed.
    """
    types = torchrec_module("distributed.types")
    return types.ShardingPlan(
        {
            path: types.EmbeddingModuleShardingPlan(
                {name: _parameter_sharding(types, name, entry) for name, entry in module.items()}
            )
            for path, module in checked_json(value).items()
        }
    )


def _parameter_sharding(types: Any, name: str, entry: dict[str, Any]) -> Any:
    from torch.distributed._shard.metadata import ShardMetadata
    from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec

    try:
        shards = [
            ShardMetadata(shard["shard_offsets"], shard["shard_sizes"], shard["placement"])
            for shard in entry.get("shards", [])
        ]
        params = entry.get("cache_params")
        return types.ParameterSharding(
            sharding_type=entry["sharding_type"],
            compute_kernel=entry["compute_kernel"],
            ranks=entry["ranks"],
            sharding_spec=EnumerableShardingSpec(shards) if shards else None,
            cache_params=types.CacheParams(**params) if params else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidPlanError(f"The shards of table {name!r} in a plan in JSON are not valid: {error}") from error


def _configs(collections: Mapping[str, Any]) -> list[Any]:
    return [config for each in collections.values() for config in configs_of(each)]


def _sizes(collections: Mapping[str, Any], batch_size: int, optimizer: str | None) -> dict[str, Any]:
    configs = _configs(collections)
    return {
        "num_embeddings": [config.num_embeddings for config in configs],
        "embedding_dim": [config.embedding_dim for config in configs],
        "num_features": [len(config.feature_names) for config in configs],
        "names": [config.name for config in configs],
        "pooled": [is_pooled(each) for each in collections.values() for _ in configs_of(each)],
        "workload": workload_of(collections.values(), batch_size, optimizer),
    }


def batch_of(lookups: Any) -> Batch:
    """The samples and the rows of one `KeyedJaggedTensor`; raises InvalidTablesError if it is none, or has strides."""
    if not hasattr(lookups, "to_dict") or not hasattr(lookups, "stride"):
        raise InvalidTablesError(f"A recorded batch is a KeyedJaggedTensor of TorchRec, not {short_repr(lookups)}.")
    keys = lookups.keys()
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InvalidTablesError(f"The lookups have the feature {twice!r} twice; give each its own name.")
    if lookups.variable_stride_per_key():
        raise InvalidTablesError(
            "The features of the lookups have different numbers of samples (variable stride per key), which ShardGym "
            "does not model. Record the batch before samples that occur twice are left out."
        )
    return lookups.stride(), {key: each.values().cpu().numpy() for key, each in lookups.to_dict().items()}


def __getattr__(name: str) -> Any:
    """`ShardGymPlanner`, imported on first use: it is a class of TorchRec's, and stands above this room."""
    if name != "ShardGymPlanner":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    torchrec_module("distributed.planner")  # or the error that says how to install it
    planner: Any = import_module("shard_gym.planning.dropin.planner").ShardGymPlanner
    return planner
