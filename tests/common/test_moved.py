"""Modules under their old names."""

from __future__ import annotations

import importlib

import pytest

import shard_gym
from shard_gym.common.moved import MOVED, keep_old_names


@pytest.mark.parametrize("old", [*MOVED, "drift.tasks", "envs.replanning.env", "io.files", "suites.best_known"])
def test_an_old_name_is_that_of_the_same_module(old: str) -> None:
    new = MOVED.get(old) or f"{MOVED[old.rpartition('.')[0]]}.{old.rpartition('.')[2]}"
    module = importlib.import_module(f"shard_gym.{old}")
    assert module is importlib.import_module(f"shard_gym.{new}")
    assert module.__name__ == f"shard_gym.{new}"
    assert module.__spec__ is not None
    assert module.__spec__.name == f"shard_gym.{new}"


def test_old_names_hide_nothing_that_the_package_has() -> None:
    had = {name: getattr(shard_gym, name) for name in shard_gym.__all__}
    for old in MOVED:
        importlib.import_module(f"shard_gym.{old}")
    assert {name: getattr(shard_gym, name) for name in shard_gym.__all__} == had


def test_names_that_never_were_are_no_modules() -> None:
    keep_old_names()
    for name in ("shard_gym.nothing", "shard_gym.drift.nothing", "shard_gym.topologies"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)


def test_classes_under_old_names_are_the_same() -> None:
    from shard_gym.sharding.plan import ShardingPlan
    from shard_gym.topology import Topology

    assert Topology is shard_gym.Topology
    assert ShardingPlan is shard_gym.ShardingPlan
