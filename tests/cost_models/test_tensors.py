"""The analytical models on tensors: one definition, and the costs of NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from shard_gym.cost_models import AnalyticalCostModel, AnalyticalShardingModel, InferenceCostModel
from shard_gym.cost_models.analytical.grouped import GroupedShardingModel
from shard_gym.cost_models.base import AdditiveCostModel
from shard_gym.tables import Workload
from shard_gym.tasks import Task, TaskSuite, load_suite

CASES = [
    ("EmbeddingPlacement-v0", "generalize", AnalyticalCostModel()),
    ("EmbeddingPlacement-v0", "tier-4", AnalyticalCostModel()),
    ("EmbeddingPlacement-v0", "tier-4", AnalyticalCostModel(host_policy="lru")),
    ("EmbeddingPlacement-v0", "dlrm-20x4", AnalyticalCostModel(index_exchange="exposed")),
    ("EmbeddingSharding-v0", "shard-4", AnalyticalShardingModel()),
    ("EmbeddingSharding-v0", "tier-generalize", AnalyticalShardingModel("fp16", host_policy="lru")),
    ("EmbeddingSharding-v0", "sequence-16", AnalyticalShardingModel("mx4", index_exchange="exposed")),
    ("EmbeddingSharding-v0", "inference-8", InferenceCostModel()),
]


def under_way(env_id: str, suite: str | TaskSuite, model: AdditiveCostModel) -> tuple[np.ndarray, Any]:
    """(32, D, K) loads of episodes of several tasks at different steps, and their cluster."""
    tasks = load_suite(suite) if isinstance(suite, str) else suite
    envs: Any = gymnasium.make_vec(env_id, num_envs=32, suite=tasks, cost_model=model, observation="features")
    envs.reset(seed=0)
    rng = np.random.default_rng(1)
    for _ in range(20):
        masks = envs.action_masks()
        envs.step(np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=1))
    return envs.episodes.state.device_loads.copy(), envs.episodes.problem.cluster


def require_equal(model: AdditiveCostModel, loads: np.ndarray, cluster: Any) -> None:
    phases, costs = model.costs(loads, cluster)
    assert (costs > 0).any()
    given = torch.tensor(loads)
    seen = model.costs(given, cluster.tensors())
    assert np.array_equal(given.numpy(), loads)
    for tensor, plain in zip(seen, (phases, costs), strict=True):
        assert isinstance(tensor, torch.Tensor)
        assert tensor.dtype == torch.float64
        np.testing.assert_allclose(tensor.numpy(), plain, rtol=1e-12)
    one = type(cluster)(**{name: each[3] for name, each in vars(cluster).items()})  # without a leading shape
    np.testing.assert_allclose(model.costs(torch.tensor(loads[3]), one.tensors())[1].numpy(), costs[3], rtol=1e-12)


@pytest.mark.parametrize(("env_id", "suite", "model"), CASES)
def test_costs_of_tensors_are_those_of_arrays(env_id: str, suite: str, model: AdditiveCostModel) -> None:
    loads, cluster = under_way(env_id, suite, model)
    require_equal(model, loads, cluster)
    added = model.add(torch.tensor(loads[:, 0]), torch.tensor(loads[:, 1]))
    assert np.array_equal(added.numpy(), model.add(loads[:, 0], loads[:, 1]))


def test_tables_of_several_workloads_and_groups_of_devices(random_task: Any) -> None:
    model, rng = AnalyticalShardingModel(), np.random.default_rng(2)
    tasks = []
    for number, devices in enumerate((2, 4, 4)):
        task = random_task(rng, 8, devices, devices_per_host=2)
        own = [replace(task.tables.workload, optimizer=each) for each in ("sgd", "adam", "rowwise_adagrad")]
        tables = replace(task.tables, workload=Workload.mixed(own, rng.integers(3, size=8)))
        caps = np.full(devices, 2 * int(tables.memory_bytes.sum()))
        topology = replace(task.topology, memory_cap_bytes=caps)
        tasks.append(Task(f"mixed-{number}", tables, topology, splittable=True))
    loads, cluster = under_way("EmbeddingSharding-v0", TaskSuite("mixed", tuple(tasks)), model)
    assert loads.shape[-1] > model.num_loads
    require_equal(model, loads, cluster)
    grouped = GroupedShardingModel(model)
    own = loads[..., : model.num_loads]
    require_equal(grouped, np.concatenate([own, rng.random((*own.shape[:-1], 1))], axis=-1), cluster)


def test_no_number_of_a_tensor_is_asked() -> None:
    """`meta` tensors have shapes alone: what is computed depends on no number, so that a graph can hold it."""
    for env_id, suite, model in CASES:
        loads, cluster = under_way(env_id, suite, model)
        meta = cluster.tensors("meta")
        phases, costs = model.costs(torch.empty(loads.shape, dtype=torch.float64, device="meta"), meta)
        assert (phases.shape, costs.shape) == ((*loads.shape[:-1], 4), (len(loads),))
