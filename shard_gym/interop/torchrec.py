"""TorchRec: a model's tables as `Tables`, and sharding plans as objects of TorchRec, in and out.

Plans go through the JSON of `torchrec_json.py`. Device d is rank d, on host d // devices_per_host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_gym.errors import InvalidPlanError, InvalidTablesError, missing_torchrec, short_repr
from shard_gym.interop.torchrec_json import checked_json, from_torchrec_json, torchrec_json
from shard_gym.interop.torchrec_workload import workload_of
from shard_gym.lookup_statistics import NUM_BINS, counted_statistics
from shard_gym.row_popularity import RowPopularity
from shard_gym.sharding import ShardingPlan
from shard_gym.tables import Tables
from shard_gym.topology import Topology

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ShardingPlan as TorchRecPlan
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


def tables_of_lookups(model: nn.Module, lookups: KeyedJaggedTensor, optimizer: str | None = None) -> Tables:
    """The tables of a model, with the statistics of one recorded batch.

    Args:
        model: a module with `EmbeddingBagCollection`s in it, sharded or not; their tables in the order of the modules.
        lookups: the inputs of all features in one batch of all devices together.
        optimizer: of the tables, "adam", "rowwise_adagrad" or "sgd"; None for the one that the model trains them with
            in the backward (`apply_optimizer_in_backward`), and for rowwise Adagrad where it does not say.

    Raises:
        InvalidTablesError: the model has no such collection, two tables have one name, they have several weight dtypes
            or optimizers or one that is not known, a feature is missing, or an index is beyond its table.
        MissingExtraError: TorchRec is not installed.
    """
    configs = _configs(model)
    recorded = lookups.to_dict()
    statistics = []
    for config in configs:
        for feature in config.feature_names:
            if feature not in recorded:
                raise InvalidTablesError(
                    f"The lookups have no feature {feature!r}, which table {config.name!r} reads; they have "
                    f"{short_repr(sorted(recorded))}."
                )
        rows = np.concatenate([recorded[feature].values().cpu().numpy() for feature in config.feature_names])
        if len(rows) and not 0 <= rows.min() <= rows.max() < config.num_embeddings:
            wrong = rows.min() if rows.min() < 0 else rows.max()
            raise InvalidTablesError(
                f"Table {config.name!r} has {config.num_embeddings} rows, but row {wrong} is read."
            )
        statistics.append((len(rows) / lookups.stride(), *counted_statistics(rows)))
    pooling, distinct, reuse, access = (np.array(column) for column in zip(*statistics, strict=True))
    return Tables(
        pooling_factor=pooling,
        distinct_rows=distinct,
        reuse_histogram=reuse.reshape(-1, NUM_BINS),
        access_histogram=access.reshape(-1, NUM_BINS),
        **_sizes(model, lookups.stride(), optimizer),
    )


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
    configs = _configs(model)
    missing = [name for config in configs for name in config.feature_names if name not in pooling_factors]
    if missing:
        raise InvalidTablesError(f"pooling_factors has no feature {missing[0]!r}; give one for each feature.")
    return Tables.from_popularity(
        pooling_factor=[sum(pooling_factors[name] for name in config.feature_names) for config in configs],
        popularity=RowPopularity.zipf([exponent] * len(configs)),
        **_sizes(model, batch_size, optimizer),
    )


def to_torchrec(
    plan: ShardingPlan, tables: Tables, topology: Topology, model: nn.Module, device_type: str = "cuda"
) -> TorchRecPlan:
    """The plan as the argument `plan` of TorchRec's `DistributedModelParallel`.

    Args:
        tables: the tables of the model, by name.
        topology: the devices; device d is rank d.
        device_type: "cuda" or "cpu".

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
    if not isinstance(getattr(plan, "plan", None), dict):
        raise InvalidPlanError(
            f"from_torchrec takes a ShardingPlan of TorchRec, not {short_repr(plan)}; from_torchrec_json takes JSON."
        )
    return from_torchrec_json(plan._serialize(), tables, topology)


def modules_of(model: nn.Module) -> dict[str, str]:
    """The path of the `EmbeddingBagCollection` of every table of a model, by the table's name; for `torchrec_json`.

    Raises:
        InvalidTablesError: the model has no such collection, or two tables have one name.
        MissingExtraError: TorchRec is not installed.
    """
    found: dict[str, str] = {}
    for path, module in _collections(model):
        for config in module.embedding_bag_configs():
            if config.name in found:
                raise InvalidTablesError(
                    f"Two tables are named {config.name!r}, in {found[config.name]!r} and {path!r}; give each its own."
                )
            found[config.name] = path
    if not found:
        raise InvalidTablesError(f"There is no EmbeddingBagCollection in the {type(model).__name__}.")
    return found


def plan_from_torchrec_json(value: Any) -> TorchRecPlan:
    """TorchRec's plan from its JSON (`torchrec_json`, or TorchRec's own).

    Raises:
        InvalidPlanError: `value` is no such JSON.
        MissingExtraError: TorchRec is not installed.
    """
    types = _torchrec("distributed.types")
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
        return types.ParameterSharding(
            sharding_type=entry["sharding_type"],
            compute_kernel=entry["compute_kernel"],
            ranks=entry["ranks"],
            sharding_spec=EnumerableShardingSpec(shards) if shards else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidPlanError(f"The shards of table {name!r} in a plan in JSON are not valid: {error}") from error


def _collections(model: nn.Module) -> Iterator[tuple[str, Any]]:
    _torchrec("modules.embedding_modules")
    for path, module in model.named_modules():
        if hasattr(module, "embedding_bag_configs"):
            yield path, module


def _configs(model: nn.Module) -> list[Any]:
    modules_of(model)  # names differ
    return [config for _, module in _collections(model) for config in module.embedding_bag_configs()]


def _sizes(model: nn.Module, batch_size: int, optimizer: str | None) -> dict[str, Any]:
    configs = _configs(model)
    return {
        "num_embeddings": [config.num_embeddings for config in configs],
        "embedding_dim": [config.embedding_dim for config in configs],
        "num_features": [len(config.feature_names) for config in configs],
        "names": [config.name for config in configs],
        "workload": workload_of((module for _, module in _collections(model)), batch_size, optimizer),
    }


def _torchrec(module: str) -> Any:
    from importlib import import_module

    try:
        return import_module(f"torchrec.{module}")
    except ImportError as error:
        raise missing_torchrec("A plan for TorchRec") from error
