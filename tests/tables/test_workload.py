"""Workloads of groups of tables: what each table has of its own, what all share, files, and what is refused."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import DamagedFileError, InvalidTablesError
from shard_gym.tables import Tables, Workload

BATCH = 1024
OWN = (Workload(BATCH, "fp16", "sgd"), Workload(BATCH, "fp32", "adam"), Workload(BATCH, "bf16", "rowwise_adagrad"))
GROUP = (1, 0, 2, 1)


def tables_of(workload: Workload) -> Tables:
    return Tables.from_zipf([1000, 200, 5000, 40], [16, 8, 64, 32], 3.0, 1.0, workload)


def test_each_table_has_the_bytes_that_it_has_alone() -> None:
    mixed = tables_of(Workload.mixed(OWN, GROUP))
    alone = [tables_of(OWN[group]).select([table]) for table, group in enumerate(GROUP)]
    for name in ("row_bytes", "memory_bytes", "lookups_per_batch"):
        assert getattr(mixed, name).tolist() == [getattr(each, name).item() for each in alone]
    assert (mixed.group.tolist(), mixed.workloads) == (list(GROUP), OWN)
    widths = np.array([4, 8, 12])
    found = mixed.workload.select(np.array([0, 0, 2])).row_bytes(widths)
    assert found.tolist() == [4 * 4 + 8 * 4, 8 * 4 + 8 * 8, 12 * 2 + 4]


def test_one_group_is_its_workload_itself() -> None:
    assert Workload.mixed(OWN[:1], [0, 0, 0, 0]) is OWN[0]
    tables = tables_of(OWN[0])
    assert (tables.workloads, tables.group.tolist(), tables.workload) == (OWN[:1], [0] * 4, OWN[0])
    assert tables.select([1]).workload is OWN[0]


def test_groups_stay_with_their_tables() -> None:
    tables = tables_of(Workload.mixed(OWN, GROUP))
    chosen = tables.select([3, 2, 2])
    assert (chosen.group.tolist(), chosen.workloads) == ([1, 2, 2], OWN)
    for changed in (
        tables.with_dims(8),
        tables.at_batch_size(BATCH // 2),
        replace(tables, pooled=False),
        pickle.loads(pickle.dumps(tables)),
    ):
        assert changed.group.tolist() == list(GROUP)
        assert [each.optimizer for each in changed.workloads] == [each.optimizer for each in OWN]
        with pytest.raises(ValueError, match="read-only"):
            changed.group[0] = 2
    assert tables.at_batch_size(BATCH // 2).workload.batch_size == BATCH // 2
    served = tables.with_training(training=False)
    assert not served.workload.training
    assert served.memory_bytes.tolist() == (tables.num_embeddings * tables.row_bytes).tolist()
    plain = tables.with_training(optimizer="sgd", weight_dtype="fp32")
    assert plain.memory_bytes.tolist() == tables_of(Workload(BATCH, "fp32", "sgd")).memory_bytes.tolist()


def test_workloads_of_groups_are_equal_by_what_they_say() -> None:
    mixed = Workload.mixed(OWN, GROUP)
    assert mixed == Workload.mixed(OWN, GROUP)
    assert hash(mixed) == hash(Workload.mixed(OWN, GROUP))
    assert mixed not in (Workload.mixed(OWN, (0, 0, 2, 1)), Workload.mixed(OWN[::-1], GROUP), OWN[0])
    assert "adam" in repr(mixed)
    assert "adam" in repr(tables_of(mixed))
    assert "fp32, adam" in tables_of(mixed)._repr_html_()


def test_what_groups_do_not_share_is_no_one_thing() -> None:
    mixed = Workload.mixed(OWN, GROUP)
    assert mixed.batch_size == BATCH
    with pytest.raises(InvalidTablesError, match="3 workloads, so there is no one optimizer"):
        assert mixed.optimizer
    with pytest.raises(InvalidTablesError, match="there is no one weight dtype"):
        assert mixed.weight_dtype


@pytest.mark.parametrize(
    ("workloads", "group", "says"),
    [
        ([], GROUP, "a Workload for each group"),
        ("sgd", GROUP, "a Workload for each group"),
        ([OWN[0], "sgd"], GROUP, "a Workload for each group"),
        ([OWN[0], replace(OWN[1], batch_size=8)], GROUP, "share one batch size, but two have 1024 and 8"),
        ([OWN[0], replace(OWN[1], training=False)], GROUP, "share one training, but two have True and False"),
        (OWN, (0, 1, 3, 0), "There is no group 3; the groups are 0 to 2"),
        (OWN, (0.5, 1, 1, 0), "must be a list of integers"),
        (OWN, GROUP[:3], "There are 4 tables, but the workload has the group of 3"),
    ],
)
def test_impossible_groups_are_refused(workloads: Any, group: Any, says: str) -> None:
    with pytest.raises(InvalidTablesError, match=says):
        tables_of(Workload.mixed(workloads, group))


def test_a_file_says_what_all_share_and_what_each_group_has() -> None:
    mixed = Workload.mixed([replace(each, training=False) for each in OWN], GROUP)
    record = json.loads(json.dumps(mixed.to_json()))
    assert record["groups"][1] == {"weight_dtype": "fp32", "optimizer": "adam"}
    assert {key: record[key] for key in ("batch_size", "training", "group")} == {
        "batch_size": BATCH,
        "training": False,
        "group": list(GROUP),
    }
    assert Workload.from_json(record, "It") == mixed
    assert replace(OWN[1], weighted=True).to_json() == {**OWN[1].to_json(), "weighted": True}
    assert Workload.from_json({**OWN[1].to_json(), "weighted": True}, "It") == replace(OWN[1], weighted=True)
    assert OWN[1].to_json() == {"batch_size": BATCH, "weight_dtype": "fp32", "optimizer": "adam"}
    for changes, says in (
        ({"optimizer": ["sgd"] * 3, "weight_dtype": ["fp32"] * 4}, "lists of different lengths: weight_dtype and opti"),
        ({"group": 7}, "It has group 7, but it must be list"),
        ({"optimizer": "sgd"}, "It has the unknown key 'optimizer'"),
        ({"groups": [5, 6]}, "A group of It must be an object, not 5"),
        ({"groups": [{"weight_dtype": "fp32"}]}, "A group of It lacks the key 'optimizer'"),
    ):
        with pytest.raises(DamagedFileError, match=says):
            Workload.from_json(record | changes, "It")


def test_people_may_give_a_list_with_a_name_for_each_table() -> None:
    names = [OWN[group] for group in GROUP]
    record = {"batch_size": BATCH, "optimizer": [each.optimizer for each in names]}
    found = Workload.from_json(record | {"weight_dtype": [each.weight_dtype for each in names]}, "It")
    assert found == Workload.mixed((OWN[1], OWN[0], OWN[2]), [0, 1, 2, 0])
    one_dtype = Workload.from_json(record | {"weight_dtype": "fp32"}, "It")
    assert {each.weight_dtype for each in one_dtype.workloads} == {"fp32"}
    assert Workload.from_json({**record, "weight_dtype": "fp32", "optimizer": ["sgd"] * 4}, "It") == Workload(
        BATCH, "fp32", "sgd"
    )


def test_weights_of_a_byte_are_trained_where_fbgemm_trains_them_and_served() -> None:
    trained = tables_of(Workload(BATCH, "int8", "rowwise_adagrad"))
    dims = trained.embedding_dim
    assert trained.row_bytes.tolist() == (dims + 8).tolist()
    assert trained.memory_bytes.tolist() == (trained.num_embeddings * (dims + 8 + 4)).tolist()
    served = trained.with_training(training=False)
    assert served.memory_bytes.tolist() == (trained.num_embeddings * (dims + 4)).tolist()
    half = trained.with_dims(dims // 2)  # every column shard has a scale and a bias
    assert (2 * half.memory_bytes - trained.memory_bytes).tolist() == (12 * trained.num_embeddings).tolist()
    assert tables_of(Workload(BATCH, "fp8", "adagrad")).row_bytes.tolist() == dims.tolist()
    with pytest.raises(
        InvalidTablesError, match="FBGEMM trains weights in fp8 with adagrad and rowwise_adagrad, not w"
    ):
        Workload(BATCH, "fp8", "adam")
    assert Workload(BATCH, "fp8", "adam", training=False).weight_bytes == 1
    both = tables_of(Workload.mixed([Workload(BATCH, "int8"), Workload(BATCH, "fp16")], [0, 1, 0, 1]))
    assert both.row_bytes.tolist() == [16 + 8, 8 * 2, 64 + 8, 32 * 2]


@pytest.mark.parametrize(
    ("optimizer", "of_row"),
    [
        ("sgd", 0),
        ("rowwise_adagrad", 4),
        ("adagrad", 4 * 8),
        ("adam", 8 * 8),
        ("lamb", 8 * 8),
        ("partial_rowwise_adam", 4 * 8 + 4),
    ],
)
def test_states_are_those_that_fbgemm_keeps(optimizer: str, of_row: int) -> None:
    tables = tables_of(Workload(BATCH, "fp16", optimizer)).with_dims(8)
    assert tables.memory_bytes.tolist() == (tables.num_embeddings * (8 * 2 + of_row)).tolist()
    assert (
        tables.with_training(training=False).memory_bytes.tolist()
        == (tables.num_embeddings * tables.row_bytes).tolist()
    )


def test_a_group_in_a_file_has_no_batch_size_of_its_own() -> None:
    record = Workload.mixed((Workload(64), Workload(64, "fp32")), [0, 1]).to_json()
    record["groups"][1]["batch_size"] = 2
    with pytest.raises(DamagedFileError, match="A group of it has batch_size, which all groups share"):
        Workload.from_json(record, "it")
