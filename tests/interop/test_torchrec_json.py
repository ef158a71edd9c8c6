"""Plans of TorchRec that ShardGym would misread are refused, as JSON and as TorchRec's objects."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

from shard_gym.errors import InvalidPlanError
from shard_gym.hardware import hardware_profile
from shard_gym.interop.torchrec import from_torchrec, plan_from_torchrec_json
from shard_gym.interop.torchrec_json import from_torchrec_json, torchrec_json
from shard_gym.sharding import plan_of_placement
from shard_gym.tables import Tables
from shard_gym.topology import Topology


def written(four_tables: Tables) -> tuple[dict[str, Any], Tables, Topology]:
    """A plan in JSON, with its tables and topology."""
    tables, topology = (
        replace(four_tables, names=("user", "item", "tag", "city")),
        hardware_profile("a100-dgx").topology(2),
    )
    value = torchrec_json(plan_of_placement([1, 0, 0, 1], tables), tables, topology, "m")
    assert from_torchrec_json(value, tables, topology) == plan_of_placement([1, 0, 0, 1], tables)
    return value, tables, topology


def both_ways(value: dict[str, Any], tables: Tables, topology: Topology, message: str) -> None:
    """A plan is refused as JSON, and as an object of TorchRec."""
    with pytest.raises(InvalidPlanError, match=message):
        from_torchrec_json(value, tables, topology)
    if find_spec("torchrec") is None:
        return
    with pytest.raises(InvalidPlanError, match=message):
        from_torchrec(plan_from_torchrec_json(value), tables, topology)


@pytest.mark.parametrize("kernel", ["key_value", "quant_uvm", "no such"])
def test_kernels_that_are_not_known_are_refused_by_name(kernel: str, four_tables: Tables) -> None:
    value, tables, topology = written(four_tables)
    value["plan"]["m"]["item"]["compute_kernel"] = kernel
    both_ways(value, tables, topology, f"Table 'item' has the compute kernel '{kernel}'")


def test_tables_of_a_plan_that_are_none_of_the_tables_are_refused_by_name(four_tables: Tables) -> None:
    value, tables, topology = written(four_tables)
    value["plan"]["another"] = {"extra": value["plan"]["m"]["user"]}
    both_ways(value, tables, topology, "The plan has a table 'extra', but the tables are")
    value["plan"]["another"] = {"user": value["plan"]["m"]["user"]}
    both_ways(value, tables, topology, "The plan has a table 'user' twice, one in 'another'")


@pytest.mark.parametrize("ranks", [[99], [0], [0, 1], []])
def test_ranks_that_differ_from_those_of_the_shards_are_refused(ranks: list[int], four_tables: Tables) -> None:
    value, tables, topology = written(four_tables)
    value["plan"]["m"]["user"]["ranks"] = ranks  # its shard is on rank 1
    both_ways(value, tables, topology, r"Table 'user' has ranks \[.*\], but its shards are on ranks \[1\]")


def test_ranks_beyond_the_devices_are_refused(four_tables: Tables) -> None:
    value, tables, topology = written(four_tables)
    entry = value["plan"]["m"]["user"]
    entry["ranks"] = [99]
    entry["shards"][0]["placement"] = "rank:99/cuda:3"
    both_ways(value, tables, topology, "99")
