"""Networks that learned tables of several workloads tell their groups apart; the others refuse such tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.system import one_thread
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.base import COMPUTE
from shard_gym.cost_models.base.model import BACKWARD
from shard_gym.cost_models.fitting.data.dataset import CostRecorder
from shard_gym.cost_models.fitting.data.shards import ShardRecorder
from shard_gym.cost_models.fitting.training import (
    Samples,
    as_arrays,
    estimates,
    new_optimizer,
    train_network,
    trainable,
    with_normalization,
)
from shard_gym.cost_models.neural import NETWORKS, NeuralCostModel, load_cost_model, save_cost_model
from shard_gym.cost_models.neural.groups import FACTS, LAYER, facts
from shard_gym.cost_models.neural.network import FloatWeights
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.plans.needs import MIXED, SERVING, WEIGHTED
from shard_gym.plans.placement import Placement
from shard_gym.plans.plan import TABLE_WISE
from shard_gym.tables import Tables, Workload, load_pool
from shard_gym.tasks import Task

BATCH = 65_536
OWN = (
    Workload(BATCH, "fp16", "sgd"),
    Workload(BATCH, "fp32", "adam"),
    Workload(BATCH, "fp32", "rowwise_adagrad", weighted=True),
)
EACH = pytest.mark.parametrize("architecture", NETWORKS)


def mixed(task: Task, rng: np.random.Generator) -> tuple[Tables, Topology]:
    """Tables of the task in groups at random, of some of which there are many, and devices with memory for them."""
    group = rng.choice(len(OWN), task.num_tables, p=rng.dirichlet([0.3] * len(OWN)))
    caps = np.full(task.num_devices, 2**50)
    return replace(task.tables, workload=Workload.mixed(OWN, group)), task.topology.with_caps(caps)


def loads(seeds: range) -> Iterator[tuple[Tables, Topology, Placement]]:
    """Random placements of wide tables, whose costs depend on their bytes."""
    pool, two = load_pool("dlrm-2021").tables, hardware_profile("a100-dgx").topology(2)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        count = int(rng.integers(2, 12))
        chosen = pool.select(rng.choice(len(pool), count, replace=False)).with_dims(rng.choice([256, 512], count))
        yield *mixed(Task("load", chosen, two), rng), rng.integers(2, size=count)


def measured(network: type[NeuralCostModel], seeds: range, knows: bool) -> Samples:
    """Their costs; `knows`: with the facts of the groups."""
    recorder = ShardRecorder()
    for tables, topology, placement in loads(seeds):
        estimate = AnalyticalCostModel().estimate(placement, tables, topology)
        recorder.add(network.all_inputs(tables, TABLE_WISE, knows), placement, topology, estimate)
    return Samples(recorder.dataset(), network)


def learned(network: type[NeuralCostModel], samples: Samples, knows: bool, steps: int) -> FloatWeights:
    rng, needs = np.random.default_rng(0), {MIXED} if knows else set[str]()
    with one_thread():
        weights = trainable(with_normalization(samples, network.first_weights(rng, needs)))
        train_network(weights, new_optimizer(weights, 0.1), samples, rng, steps=steps, learning_rate=5e-3)
    return as_arrays(weights)


def errors(weights: FloatWeights, samples: Samples) -> float:
    """Of the backward, in shares of its sum."""
    with torch.no_grad():
        phases, _ = estimates(trainable(weights), samples, np.arange(len(samples)))
    used = samples.phases_ms[..., BACKWARD] > 0
    true = samples.phases_ms[used][:, BACKWARD]
    return float((phases[used][:, BACKWARD] - true).abs().sum() / true.sum())


@pytest.mark.parametrize(("architecture", "steps"), [("dreamshard", 300), ("neuroshard", 150)])
def test_what_a_network_learns_of_groups_makes_it_better_on_new_loads(
    architecture: str, steps: int, random_task: Any, tmp_path: Path
) -> None:
    """`pooled` learns them, too, but most of it is in the work that it reads: bytes of rows and states."""
    network, found = NETWORKS[architecture], {}
    for knows in (True, False):
        samples = measured(network, range(60), knows)
        weights = learned(network, samples, knows, steps)
        found[knows] = errors(weights, measured(network, range(1000, 1060), knows))
        assert (LAYER in weights) == knows
        model = network(weights)
        assert ({MIXED, WEIGHTED} <= model.supports) == knows
        task = random_task(np.random.default_rng(5), 6, 2)
        tables, topology = mixed(task, np.random.default_rng(5))
        placement = np.arange(6) % 2
        if knows:
            save_cost_model(model, tmp_path / "model.safetensors")
            again = load_cost_model(tmp_path / "model.safetensors")
            one, other = (each.estimate(placement, tables, topology) for each in (model, again))
            assert one.phases_ms.tolist() == other.phases_ms.tolist()
            assert again.fingerprint == model.fingerprint
        else:
            with pytest.raises(InvalidOptionError, match="does not support"):
                model.estimate(placement, tables, topology)
    assert found[True] < 0.8 * found[False]


@EACH
def test_a_network_begins_as_if_groups_were_alike(architecture: str, untrained: Any, random_task: Any) -> None:
    """So tables of one group cost what they cost under the same weights without those of the facts."""
    model = untrained(architecture)
    network = type(model)
    layer = network.first_weights(np.random.default_rng(0), {WEIGHTED})[LAYER]
    assert not layer.any()
    rng = np.random.default_rng(3)
    task = random_task(rng, 7, 3)
    tables, topology = mixed(task, rng)
    placement = rng.integers(3, size=7)
    before = model.estimate(placement, task.tables, topology)
    plain = network({**model.weights, LAYER: layer})
    np.testing.assert_allclose(plain.estimate(placement, task.tables, topology).phases_ms, before.phases_ms, rtol=1e-5)
    told = network({**model.weights, LAYER: rng.normal(0, 0.3, layer.shape).astype(np.float32)})
    other = replace(tables, workload=Workload.mixed(OWN[::-1], tables.group))
    latents = [told.loads(each, topology)[:, : model.num_sums] for each in (tables, other)]
    assert not np.array_equal(*latents)


@EACH
def test_tensors_give_the_estimates_of_arrays(architecture: str) -> None:
    network, rng = NETWORKS[architecture], np.random.default_rng(1)
    samples = measured(network, range(6), True)
    first = network.first_weights(rng, {MIXED})
    weights = with_normalization(samples, {**first, LAYER: rng.normal(0, 0.3, first[LAYER].shape).astype(np.float32)})
    with torch.no_grad():
        phases, _ = estimates(trainable(weights), samples, np.arange(6))
    launches = samples.launches_ms.numpy() * network.learns_host_memory
    assert launches.any() == network.learns_host_memory
    for (tables, topology, placement), found, added in zip(loads(range(6)), phases.numpy(), launches, strict=True):
        own = network(weights).estimate(placement, tables, topology).phases_ms
        positive = own[:, COMPUTE] > added[:, COMPUTE]  # estimates that are not clipped
        wanted = own[:, COMPUTE][positive]
        np.testing.assert_allclose(found[:, COMPUTE][positive], wanted, rtol=1e-3, atol=1e-4)


@EACH
def test_a_data_set_of_such_tables_gives_what_its_shards_do(architecture: str) -> None:
    network, whole = NETWORKS[architecture], CostRecorder("analytical")
    for tables, topology, placement in loads(range(6)):
        whole.add(tables, topology, placement, AnalyticalCostModel().estimate(placement, tables, topology))
    data = whole.dataset()
    weights = trainable(network.first_weights(np.random.default_rng(2), data.needs))
    assert LAYER in weights
    with torch.no_grad():
        weights[LAYER] += 0.1
        every = (Samples(data, network), measured(network, range(6), True))
        found, wanted = (estimates(weights, samples, np.arange(6))[0].numpy() for samples in every)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("architecture", [name for name, each in NETWORKS.items() if each.learns_host_memory])
def test_every_further_group_of_a_device_is_launched(architecture: str, untrained: Any, random_task: Any) -> None:
    """Four equal tables in two groups: together on a device, or each on one; those of one group cost nothing."""
    first, rng = untrained(architecture), np.random.default_rng(0)
    network = type(first)
    model = network({**first.weights, LAYER: network.first_weights(rng, {MIXED})[LAYER]})
    task = random_task(rng, 1, 2)
    tables, topology = task.tables.select([0] * 4), task.topology
    two = Workload.mixed([tables.workload, replace(tables.workload, optimizer="adam")], [0, 0, 1, 1])
    together, apart = [0, 1, 0, 1], [0, 0, 1, 1]
    launch = topology.device.kernel_launch_us * 1e-3
    for workload, launched in ((two, True), (tables.workload, False)):
        used = replace(tables, workload=workload)
        one, other = (model.estimate(each, used, topology).phases_ms[:, COMPUTE] for each in (together, apart))
        np.testing.assert_allclose(one - other, launched * launch * np.array([[5.0, 20.0]] * 2), atol=1e-6)
    served = [replace(each, training=False) for each in two.workloads]
    used = replace(tables, workload=Workload.mixed(served, [0, 0, 1, 1]))
    if SERVING in model.supports:
        alone = model.forward_alone()
        one, other = (alone.estimate(each, used, topology).phases_ms[:, COMPUTE] for each in (together, apart))
        np.testing.assert_allclose(one - other, launch * np.array([[5.0, 0.0]] * 2), atol=1e-6)


def test_facts_are_those_of_each_table() -> None:
    workloads = [*OWN, Workload(BATCH, "int8", "partial_rowwise_adam")]
    tables = Tables.from_zipf([100] * 4, 8, 2.0, 1.0, Workload.mixed(workloads, [0, 1, 2, 3]))
    found = facts(replace(tables, pooled=np.array([True, True, True, False])))
    assert found.shape == (4, len(FACTS))
    assert found.tolist() == [
        [0.5, 0.0, 0.0, 0.0, 0.0, 0.0],
        [1.0, 0.0, 0.0, 2.0, 0.0, 0.0],
        [1.0, 0.0, 1.0, 0.0, 1.0, 0.0],
        [0.25, 1.0, 1.0, 1.0, 0.0, 1.0],
    ]
    one = facts(replace(tables, workload=OWN[1]))
    assert one.tolist() == [[1.0, 0.0, 0.0, 2.0, 0.0, 0.0]] * 4


def test_a_network_without_a_first_layer_for_tables_is_refused() -> None:
    class Other(NETWORKS["pooled"]):  # type: ignore[misc]
        architecture = "other"

        @classmethod
        def new_weights(cls, rng: np.random.Generator) -> FloatWeights:
            return {"own.0.weight": np.zeros((2, 2), np.float32)}

    with pytest.raises(InvalidOptionError, match="'other' cannot learn from tables of several workloads"):
        Other.first_weights(np.random.default_rng(0), {MIXED})
