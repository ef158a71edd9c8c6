"""TorchRec's groups of devices are those of a plan: the ranks that `DMPCollection` gives its shards.

It runs on GPUs alone, so what is called here are its two steps that know of ranks, without any process.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("torchrec")

import torch
from torchrec.distributed import model_parallel
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shard_gym.hardware import hardware_profile
from shard_gym.interop.torchrec import tables_of_lookups, to_torchrec
from shard_gym.plans import ShardingPlan, check_plan, column_wise, row_wise, table_wise
from shard_gym.plans.plan import CONTIGUOUS, STRIDED, Groups
from shard_gym.tasks import Task
from shard_gym.tasks.groups import device_numbers, task_of_plan

ROWS = {"a": 40, "b": 32, "c": 16}
DEVICES = 8


def model_of() -> torch.nn.Module:
    configs = [
        EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=16, feature_names=[f"f_{name}"])
        for name, rows in ROWS.items()
    ]
    return torch.nn.Sequential(EmbeddingBagCollection(tables=configs))


@pytest.mark.parametrize("layout", [STRIDED, CONTIGUOUS])
@pytest.mark.parametrize("count", [2, 4])
def test_torchrec_gives_each_group_the_ranks_of_the_plan(layout: str, count: int) -> None:
    model, topology, groups = model_of(), hardware_profile("a100-dgx").topology(DEVICES), Groups(count, layout)
    lookups = KeyedJaggedTensor(
        [f"f_{name}" for name in ROWS], torch.zeros(24, dtype=torch.int64), lengths=torch.ones(24, dtype=torch.int64)
    )
    tables = tables_of_lookups(model, lookups)
    own = task_of_plan(ShardingPlan((), groups), Task("t", tables, topology, splittable=True, sync_every=10))
    shardings = (
        table_wise(own.tables, 0, 1),
        column_wise(own.tables, 1, [1, 0], [8, 8]),
        row_wise(own.tables, 2, own.topology),
    )
    plan = check_plan(ShardingPlan(shardings, groups), own.tables, own.topology)
    exported = to_torchrec(plan, own.tables, own.topology, model, "cuda")
    numbers, size = device_numbers(groups, DEVICES), own.num_devices
    contiguous = layout == CONTIGUOUS
    collection: Any = SimpleNamespace(_device=torch.device("cuda"))
    with mock.patch.object(model_parallel, "DeviceMesh") as mesh:
        model_parallel.DMPCollection._create_process_groups(collection, 0, DEVICES, size, contiguous)
    np.testing.assert_array_equal(mesh.call_args.kwargs["mesh"], numbers)
    for group, ranks in enumerate(numbers):
        remapped = copy.deepcopy(exported)
        with mock.patch.object(model_parallel, "get_local_size", return_value=DEVICES):
            model_parallel.DMPCollection._remap_sharding_plan(
                collection, remapped, int(ranks[0]), count, size, contiguous
            )
        (module,) = remapped.plan.values()
        for number, (name, sharding) in enumerate(zip(ROWS, plan.tables, strict=True)):
            wanted = [int(ranks[device]) for device in sharding.devices]
            placed = [shard.placement.rank() for shard in module[name].sharding_spec.shards]
            assert sorted(module[name].ranks) == sorted(wanted), (group, number)
            assert placed == [int(ranks[device]) for device in sharding.devices], (group, number)
