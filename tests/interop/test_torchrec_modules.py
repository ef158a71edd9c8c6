"""Every module of a TorchRec model that holds tables is planned, or refused by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torchrec")

import torch
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
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
from torchrec.optim import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shard_gym.common.errors import InvalidTablesError
from shard_gym.hardware import hardware_profile
from shard_gym.interop.torchrec import (
    from_torchrec,
    modules_of,
    tables_of_lookups,
    tables_of_pooling_factors,
    to_torchrec,
)
from shard_gym.plans import ShardingPlan, row_wise, table_wise


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
        (position_weighted, r"FeatureProcessedEmbeddingBagCollection 'other' makes weights of its lookups.*\['odd'\]"),
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
    with pytest.raises(InvalidTablesError, match="no EmbeddingBagCollection and no EmbeddingCollection in the Module"):
        modules_of(plain)


def test_both_kinds_of_collections_are_planned_and_their_plan_loads() -> None:
    """Of the words of a sample every row is an output; TorchRec trains the model with the plan."""
    model = torch.nn.ModuleDict({"bags": bags(name="user"), "words": sequences()})
    batch = KeyedJaggedTensor(["f_user", "f_words"], torch.tensor([1, 2, 5, 5, 7]), lengths=torch.tensor([1, 1, 2, 1]))
    tables = tables_of_lookups(model, batch)
    assert (tables.names, tables.pooled.tolist()) == (("user", "words"), [True, False])
    assert tables.outputs_per_batch.tolist() == [2, 3]
    assert modules_of(model) == {"user": "bags", "words": "words"}
    topology = hardware_profile("a100-dgx").topology(2)
    plan = ShardingPlan((table_wise(tables, 0, 1), row_wise(tables, 1, topology)))
    there = to_torchrec(plan, tables, topology, model)
    assert from_torchrec(there, tables, topology) == plan
    assert there.plan["words"]["words"].sharding_type == "row_wise"


def test_the_optimizer_of_sequence_tables_is_found() -> None:
    module = sequences()
    apply_optimizer_in_backward(RowWiseAdagrad, module.parameters(), {"lr": 0.1})
    found = tables_of_pooling_factors(torch.nn.ModuleDict({"words": module}), {"f_words": 3.0}, 16)
    assert found.workload.optimizer == "rowwise_adagrad"
    assert found.outputs_per_batch.tolist() == [48]
    with pytest.raises(InvalidTablesError, match="trains table 'words' with rowwise_adagrad"):
        tables_of_pooling_factors(torch.nn.ModuleDict({"words": module}), {"f_words": 3.0}, 16, optimizer="adam")


def test_means_are_planned_as_sums() -> None:
    summed, mean = (bags(name="user", changes={"pooling": kind}) for kind in (PoolingType.SUM, PoolingType.MEAN))
    assert repr(tables_of_lookups(mean, lookups())) == repr(tables_of_lookups(summed, lookups()))


def test_attributes_of_other_classes_are_no_tables() -> None:
    """A model may keep its configurations under the names that TorchRec has for methods."""
    model = torch.nn.ModuleDict({"bags": bags(name="user")})
    model.embedding_bag_configs, model.embedding_configs = model["bags"].embedding_bag_configs(), []
    assert modules_of(model) == {"user": "bags"}


@pytest.mark.parametrize(("dim", "padded"), [(1, 4), (10, 12), (130, 132)])
def test_dims_that_torchrec_refuses_are_refused_with_those_to_pad_to(dim: int, padded: int) -> None:
    collection = EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[EmbeddingBagConfig(name="user", num_embeddings=10, embedding_dim=dim, feature_names=["f_user"])],
    )
    says = rf"table 0 \(user\) is {dim}\. FBGEMM trains 4 columns at a time.*Give it dim {padded} here and in the model"
    with pytest.raises(InvalidTablesError, match=says):
        tables_of_lookups(collection, lookups())
    with pytest.raises(InvalidTablesError, match=says):
        tables_of_pooling_factors(collection, {"f_user": 1.0}, batch_size=2)
