"""Every module of a TorchRec model that holds tables is planned, or refused by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torchrec")

import torch
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shard_gym.errors import InvalidTablesError
from shard_gym.interop.torchrec import modules_of, tables_of_lookups, tables_of_pooling_factors


def lookups() -> KeyedJaggedTensor:
    """Two samples that read a row of `user` each."""
    return KeyedJaggedTensor(["f_user"], torch.tensor([1, 2]), lengths=torch.tensor([1, 1]))


def sequences() -> EmbeddingCollection:
    config = EmbeddingConfig(name="words", num_embeddings=10, embedding_dim=8, feature_names=["f_words"])
    return EmbeddingCollection(device=torch.device("meta"), tables=[config])


def bags(
    kind: Any = EmbeddingBagCollection, name: str = "odd", changes: dict[str, Any] | None = None, **more: Any
) -> Any:
    config = EmbeddingBagConfig(
        name=name, num_embeddings=10, embedding_dim=8, feature_names=[f"f_{name}"], **(changes or {})
    )
    return kind(tables=[config], device=torch.device("meta"), **more)


def position_weighted() -> Any:
    positions = PositionWeightedModuleCollection({"f_odd": 4}, torch.device("meta"))
    return FeatureProcessedEmbeddingBagCollection(bags(is_weighted=True), positions)


def managed() -> Any:
    inner = bags()
    policy = DistanceLFU_EvictionPolicy()
    rows = MCHManagedCollisionModule(10, torch.device("cpu"), policy, 1000, output_global_offset=0)
    return ManagedCollisionEmbeddingBagCollection(
        inner, ManagedCollisionCollection({"odd": rows}, inner.embedding_bag_configs())
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (sequences, r"EmbeddingCollection 'other' is a module of sequence tables.*\['words'\]"),
        (lambda: bags(is_weighted=True), r"EmbeddingBagCollection 'other' has weights for its lookups.*\['odd'\]"),
        (position_weighted, r"EmbeddingBagCollection 'other\..*' has weights for its lookups.*\['odd'\]"),
        (managed, r"ManagedCollisionCollection 'other\..*' is another module.*\['odd'\]"),
        (
            lambda: bags(FusedEmbeddingBagCollection, optimizer_type=torch.optim.SGD, optimizer_kwargs={"lr": 0.1}),
            r"FusedEmbeddingBagCollection 'other' is another module.*\['odd'\]",
        ),
        (
            lambda: bags(changes={"use_virtual_table": True}),
            "Table 'odd' in 'other' cannot be planned.*use_virtual_table",
        ),
        (lambda: bags(changes={"stash_weights": True}), "Table 'odd' in 'other' cannot be planned.*stash_weights"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_modules_whose_tables_are_not_modelled_are_refused_by_name(
    make: Callable[[], Any], message: str, first: bool
) -> None:
    """Also where an `EmbeddingBagCollection` beside them would be planned."""
    parts = {"bags": bags(name="user"), "other": make()}
    model = torch.nn.ModuleDict(parts if first else dict(reversed(parts.items())))
    for call in (
        lambda: modules_of(model),
        lambda: tables_of_lookups(model, lookups()),
        lambda: tables_of_pooling_factors(model, {"f_user": 1.0}, 16),
    ):
        with pytest.raises(InvalidTablesError, match=message):
            call()


def test_plain_embeddings_are_named_in_a_warning_and_are_no_tables() -> None:
    plain = torch.nn.ModuleDict({"words": torch.nn.Embedding(9, 4), "sum": torch.nn.EmbeddingBag(9, 4)})
    model = torch.nn.ModuleDict({"bags": bags(name="user"), "dense": plain})
    with pytest.warns(
        UserWarning, match=r"2 plain embedding modules of torch, 'dense\.words', 'dense\.sum', will"
    ) as caught:
        tables = tables_of_lookups(model, lookups())
    assert tables.names == ("user",)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # those inside a collection are its tables
        modules_of(model["bags"])
    with pytest.raises(InvalidTablesError, match="no EmbeddingBagCollection in the ModuleDict"):
        modules_of(plain)


def test_means_are_planned_as_sums() -> None:
    summed, mean = (bags(name="user", changes={"pooling": kind}) for kind in (PoolingType.SUM, PoolingType.MEAN))
    assert repr(tables_of_lookups(mean, lookups())) == repr(tables_of_lookups(summed, lookups()))


def test_attributes_of_other_classes_are_no_tables() -> None:
    """A model may keep its configurations under the names that TorchRec has for methods."""
    model = torch.nn.ModuleDict({"bags": bags(name="user")})
    model.embedding_bag_configs, model.embedding_configs = model["bags"].embedding_bag_configs(), []
    assert modules_of(model) == {"user": "bags"}
