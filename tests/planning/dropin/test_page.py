"""The page of the drop-in planner says what becomes of everything that TorchRec's planner takes."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrec")

from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders

from shard_gym.interop.torchrec import ShardGymPlanner

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "drop-in-planner.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.+?) \| (honoured|approximated|delegated|refused) \|", PAGE, re.MULTILINE)
BECOMES = {name.split("`")[1] if "`" in name else name: what for name, what in ROWS}


def arguments(planner: Any) -> list[str]:
    return [name for name in inspect.signature(planner.__init__).parameters if name != "self"]


def test_every_argument_and_every_field_of_constraints_has_one_row() -> None:
    names = [name.split("`")[1] if "`" in name else name for name, _ in ROWS]
    assert len(set(names)) == len(names)
    theirs = arguments(EmbeddingShardingPlanner)
    assert set(theirs) <= set(BECOMES)
    assert {field.name for field in fields(ParameterConstraints)} <= set(BECOMES)
    assert arguments(ShardGymPlanner)[: len(theirs)] == theirs  # in their order, as scripts may give them by position


def test_every_argument_of_shardgym_has_a_row() -> None:
    own = arguments(ShardGymPlanner)[len(arguments(EmbeddingShardingPlanner)) :]
    (table,) = re.findall(r"## Arguments\n(.*?)\n\n`planner", PAGE, re.DOTALL)
    rows = [name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert sorted(rows) == sorted(own)


def test_every_collection_that_torchrec_shards_by_default_has_a_row() -> None:
    for sharder in get_default_sharders():
        name = sharder.module_type.__name__
        assert name in BECOMES or (name.startswith("Quant") and "quantized collections" in BECOMES), name


def test_what_is_warned_about_is_neither_honoured_nor_approximated() -> None:
    warned = ("proposer", "partitioner", "performance_model", "plan_loader")
    for name in warned:
        with pytest.warns(UserWarning, match=f"`{name}` is"):
            ShardGymPlanner(topology=_topology(), **{name: object()})  # type: ignore[arg-type]
        assert BECOMES[name] in ("delegated", "refused")


def _topology() -> Any:
    from torchrec.distributed.planner import Topology

    return Topology(2, "cpu")
