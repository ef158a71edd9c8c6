"""The modules of a TorchRec model that hold tables: collections of both kinds, and refusals of all others by name.

What is planned is what the cost models cost: sums, or means, of rows of an `EmbeddingBagCollection` that is on its
device, and rows of an `EmbeddingCollection`, of sequence tables. A mean reads, writes and sends what a sum does; the
division of its outputs is in no cost.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from shard_gym.common.errors import InvalidTablesError, missing_torchrec, short_repr
from shard_gym.common.text import counted

if TYPE_CHECKING:
    from torch import nn

_NOT_MODELLED = {
    "use_virtual_table": "its rows are made when they are read (use_virtual_table)",
    "stash_weights": "its weights leave the device between steps (stash_weights)",
}


def collections_of(model: nn.Module) -> dict[str, Any]:
    """The `EmbeddingBagCollection`s and `EmbeddingCollection`s of a model, by their paths, in the order of modules.

    A warning names plain `nn.Embedding` and `nn.EmbeddingBag` modules: the default sharders of TorchRec leave them
    whole on every device, so they are a part of the dense model.

    Raises:
        InvalidTablesError: the model has no such collection, two tables have one name, or another module holds tables:
            processed features, managed collisions, or one that is sharded already.
        MissingExtraError: TorchRec is not installed.
    """
    bags, sharded = torchrec_module("modules.embedding_modules"), torchrec_module("distributed.types").ShardedModule
    processed = torchrec_module("modules.fp_embedding_modules").FeatureProcessedEmbeddingBagCollection
    from torch.nn import Embedding, EmbeddingBag

    found: dict[str, Any] = {}
    of_table: dict[str, str] = {}
    plain: list[str] = []
    for path, module in model.named_modules():
        if any(path.startswith(f"{each}." if each else "") for each in found):
            continue
        if isinstance(module, sharded):
            _refuse(path, module, "is sharded already; give the model as it was before it was sharded")
        if isinstance(module, processed):
            _refuse(path, module, "makes weights of its lookups and trains them")
        if isinstance(module, (bags.EmbeddingBagCollection, bags.EmbeddingCollection)):
            found[path] = module
            _require_modelled(path, module)
            for name in _names(module):
                if name in of_table:
                    raise InvalidTablesError(
                        f"Two tables are named {name!r}, in {of_table[name]!r} and {path!r}; give each its own."
                    )
                of_table[name] = path
        elif _has_configs(module):
            _refuse(path, module, "is another module than an EmbeddingBagCollection or an EmbeddingCollection")
        elif isinstance(module, (Embedding, EmbeddingBag)):
            plain.append(path)
    if not found:
        raise InvalidTablesError(
            f"There is no EmbeddingBagCollection and no EmbeddingCollection in the {type(model).__name__}."
        )
    if plain:
        named = ", ".join(map(repr, plain))
        warnings.warn(
            f"{counted(len(plain), 'plain embedding module')} of torch, {named}, will not be planned: TorchRec "
            "leaves each whole on every device, and so its memory belongs to the reserve for the dense model.",
            stacklevel=3,
        )
    return found


def _require_modelled(path: str, module: Any) -> None:
    for config in configs_of(module):
        for name, what in _NOT_MODELLED.items():
            if getattr(config, name, False):
                raise InvalidTablesError(
                    f"Table {config.name!r} in {path!r} cannot be planned, because {what}, which ShardGym does not "
                    "model. Leave its module to TorchRec's own planner."
                )


def is_pooled(collection: Any) -> bool:
    """Whether a collection is an `EmbeddingBagCollection`; otherwise it is an `EmbeddingCollection`."""
    return hasattr(collection, "embedding_bag_configs")


def configs_of(collection: Any) -> list[Any]:
    """The configs of the tables of a collection of either kind."""
    found: list[Any] = (collection.embedding_bag_configs if is_pooled(collection) else collection.embedding_configs)()
    return found


def _refuse(path: str, module: Any, what: str) -> None:
    raise InvalidTablesError(
        f"{type(module).__name__} {path!r} {what}; its tables are {short_repr(_names(module))}. ShardGym does not "
        "model it. Plan the rest of the model without it, and leave it to TorchRec's own planner."
    )


def _has_configs(module: Any) -> bool:
    """Whether it is of a class of TorchRec with tables; other classes may use the names for something else."""
    classes = [each for each in type(module).__mro__ if each.__module__.startswith("torchrec.")]
    return any(hasattr(each, name) for each in classes for name in ("embedding_bag_configs", "embedding_configs"))


def _names(module: Any) -> list[str]:
    """The names of the tables of a module."""
    for name in ("embedding_bag_configs", "embedding_configs"):
        inner = getattr(module, "_embedding_bag_collection", module)  # of one that processes features
        configs = getattr(inner, name, None) or getattr(inner, f"_{name}", None)  # sharded ones have no method
        if configs is not None:
            return [config.name for config in (configs() if callable(configs) else configs)]
    return []


def torchrec_module(name: str) -> Any:
    """The module `torchrec.NAME`, or a MissingExtraError."""
    from importlib import import_module

    try:
        return import_module(f"torchrec.{name}")
    except ImportError as error:
        raise missing_torchrec("A plan for TorchRec") from error
