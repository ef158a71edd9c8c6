"""The cost of plans against plain arithmetic: shard by shard, message by message, in Python numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.agents import make_agent
from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models import AnalyticalShardingModel
from shard_gym.cost_models.analytical import FITTED
from shard_gym.cost_models.analytical.all_to_all import all_to_all_ms, least_all_to_all_ms
from shard_gym.cost_models.analytical.l2_cache import l2_bytes_per_table, l2_hits
from shard_gym.cost_models.analytical.model import SORT_BYTES
from shard_gym.cost_models.analytical.traffic import sent_bytes
from shard_gym.cost_models.fitting.linear import LinearCostModel
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.plans import ShardingPlan, column_wise, data_parallel, row_wise, table_row_wise, table_wise
from shard_gym.tables import Tables, Workload
from shard_gym.tasks import Task

Messages = dict[tuple[int, int], float]

# Of one number. 32 numbers have 8 bytes besides in INT8, a byte in MX4.
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": (32 + 8) / 32, "mx4": (16 + 1) / 32}
PASSES = dict.fromkeys(BYTES, 1.0) | {"mx4": 2.05}  # of a codec, beside those of its bytes at DRAM speed


def exchange_ms(messages: Messages, topology: Topology) -> list[float]:
    """Ms of each device: the larger of what it sends and receives, on the slower of its two links."""
    links, linked = topology.links, topology.domain_size
    if not any(messages.values()):
        return [0.0] * topology.num_devices
    took = []
    for device in range(topology.num_devices):
        times = []
        for same_domain in (True, False):
            kind = {
                pair: size
                for pair, size in messages.items()
                if pair[0] != pair[1] and (pair[0] // linked == pair[1] // linked) == same_domain
            }
            sent = sum(size for (source, _), size in kind.items() if source == device)
            received = sum(size for (_, target), size in kind.items() if target == device)
            bandwidth, knee, extra = (
                (links.intra_host_gb_per_s, links.intra_host_knee_bytes, links.intra_host_knee_extra)
                if same_domain
                else (links.inter_host_gb_per_s, links.inter_host_knee_bytes, links.inter_host_knee_extra)
            )
            size = max(sent, received) * (1.0 if same_domain else topology.cross_host_ratio)
            times.append((size + extra * min(size, knee)) / (bandwidth * 1e6))
        took.append(max(times) + latency_ms(topology))
    return took


def latency_ms(topology: Topology) -> float:
    if topology.num_devices == 1:
        return 0.0
    crosses = topology.num_devices > topology.domain_size
    links = topology.links
    return (links.inter_host_latency_us if crosses else links.intra_host_latency_us) / 1000


def all_reduce_of(size: float, topology: Topology) -> list[float]:
    """A ring inside each domain and one across domains, which the network cards of a domain share."""
    count, took = topology.num_devices, []
    for device in range(count):
        domain = device // topology.domain_size
        members = sum(other // topology.domain_size == domain for other in range(count))
        near = 2 * size * (members - 1) / members
        far = 2 * size * (count - members) / count / members
        links = topology.links
        near += links.intra_host_knee_extra * min(near, links.intra_host_knee_bytes)
        far += links.inter_host_knee_extra * min(far, links.inter_host_knee_bytes)
        slowest = max(near / links.intra_host_gb_per_s, far / links.inter_host_gb_per_s) / 1e6
        took.append(slowest + latency_ms(topology))
    return took


def sent_of(messages: Messages, topology: Topology, *, gradients: bool = False) -> list[list[float]]:
    """Bytes that each device sends inside its domain, and to others.

    But for gradients of replicas, every message is answered by one as large, and shrinks between domains.
    """
    linked, found = topology.domain_size, [[0.0, 0.0] for _ in range(topology.num_devices)]
    for (source, target), size in messages.items():
        leaves = source // linked != target // linked
        shrunk = topology.cross_host_ratio if leaves and not gradients else 1.0
        for sender in (source,) if gradients else (source, target):
            found[sender][leaves] += size * shrunk * (source != target)
    return found


def ring_messages(size: float, topology: Topology) -> Messages:
    """An all-reduce step by step: n - 1 steps that add up, and n - 1 that hand on, each of an n-th of the bytes.

    One ring is inside each domain. In another each domain sends to the next; every device of it sends its share.
    """
    devices, linked = list(range(topology.num_devices)), topology.domain_size
    domains = [devices[first : first + linked] for first in range(0, len(devices), linked)]
    messages: Messages = {}

    def add(source: int, target: int, sent: float) -> None:
        messages[source, target] = messages.get((source, target), 0.0) + sent

    for number, domain in enumerate(domains):
        for _ in range(2 * (len(domain) - 1)):
            for position, device in enumerate(domain):
                add(device, domain[(position + 1) % len(domain)], size / len(domain))
        for _ in range(2 * (len(domains) - 1)):
            for device in domain:
                add(device, domains[(number + 1) % len(domains)][0], size / len(domains) / len(domain))
    return messages


def plain_phases(
    plan: ShardingPlan, tables: Tables, topology: Topology, sent: float, codec: float
) -> tuple[list[list[float]], dict[str, list[list[float]]]]:
    """(D, 4) phases, shard by shard and message by message, and bytes of the collectives that send messages.

    A number has `sent` bytes on the links, which take the codec so many passes, but two at least, and one pass, where
    it is still to be added up.
    """
    count, batch = topology.num_devices, tables.workload.batch_size
    per_host = min(topology.devices_per_host, count)
    on: list[list[tuple[Tables, int, float]]] = [[] for _ in range(count)]  # shard, its bags, ms of dense updates
    to_all: Messages = {}
    scattered: Messages = {}
    in_host: Messages = {}
    over_hosts: Messages = {}
    gradients, coded, decoded, summed = 0.0, [0.0] * count, 0.0, max(sent, 2.0)  # coded: bytes that pass the DRAM
    dram = topology.device.dram_gb_per_s * 1e6

    def add(messages: Messages, source: int, target: int, size: float) -> None:
        messages[source, target] = messages.get((source, target), 0.0) + size

    for table, sharding in enumerate(plan.tables):
        one, bags = tables.select([table]), batch * int(tables.num_features[table])
        dim, kind = int(one.embedding_dim[0]), sharding.sharding_type
        for shard in sharding.shards:
            here, numbers = shard.device, float(bags * shard.num_columns)
            if kind in ("table_wise", "column_wise"):
                on[here].append((one.with_dims(shard.num_columns), bags, 0.0))
                for other in range(count):
                    add(to_all, here, other, numbers * sent / count)
                coded[here] += codec * numbers * (4 + sent)
                decoded += codec * numbers * (4 + sent) / count
            elif kind == "data_parallel":
                samples = int(np.ceil(batch / count))
                size = 4.0 * one.num_embeddings[0] * dim
                replica, passes = one.at_batch_size(samples), 9.22 * (count > 1)
                if count > 1 and one.workload.optimizer == "adam":  # both moments of all rows, read and written
                    replica, passes = replica.with_training(optimizer="sgd"), passes + 4.0
                on[here].append((replica, samples * bags // batch, passes * size / dram))
                gradients += size / count
            else:
                blocks = len(sharding.shards)
                block = replace(
                    one,
                    num_embeddings=np.array([int(np.ceil(one.num_embeddings[0] / blocks))]),
                    pooling_factor=one.pooling_factor / blocks,
                    distinct_rows=one.distinct_rows / blocks,
                )
                on[here].append((block, bags, 0.0))
                coded[here] += numbers * (4 + summed)
                decoded += numbers * (4 + summed) / blocks / count
                if blocks == count:
                    for other in range(count):
                        add(scattered, here, other, numbers * summed / count)
                else:
                    for other in sharding.devices:
                        add(in_host, here, other, numbers * summed / per_host)
                    for other in range(here % per_host, count, per_host):
                        add(over_hosts, here, other, numbers * sent / per_host / (count // per_host))
    exchanges = [exchange_ms(messages, topology) for messages in (to_all, scattered, in_host, over_hosts)]
    forward_comm = [sum(times) for times in zip(*exchanges, strict=True)]
    if sent != 4 and count > 1 and any(on):
        forward_comm = [ms + (own + decoded) / dram for ms, own in zip(forward_comm, coded, strict=True)]
    reduced = all_reduce_of(gradients, topology) if gradients else [0.0] * count
    phases = [
        [forward, exchange, exchange + all_reduce, backward]
        for (forward, backward), exchange, all_reduce in zip(
            (compute_ms(shards, topology) for shards in on), forward_comm, reduced, strict=True
        )
    ]
    by_host: Messages = {**in_host}
    for (source, target), size in over_hosts.items():
        if source // topology.devices_per_host != target // topology.devices_per_host:
            add(by_host, source, target, size)
    named = {"all_to_all": to_all, "reduce_scatter": scattered, "host_reduce_scatter": by_host}
    return phases, {name: sent_of(messages, topology) for name, messages in named.items()}


def compute_ms(shards: list[tuple[Tables, int, float]], topology: Topology) -> tuple[float, float]:
    """Forward and backward of a device as docs/cost-model.md writes them, in plain numbers."""
    if not shards:
        return 0.0, 0.0
    device, c = topology.device, FITTED
    dram, l2 = device.dram_gb_per_s * 1e6, device.l2_gb_per_s * 1e6
    cycles = device.num_sms * device.clock_ghz * 1e6
    forward, backward, on_top, share = [0.0] * 3, [0.0] * 3, 0.0, 0.0
    for table, bags, dense in shards:
        dim = int(table.embedding_dim[0])
        lookups, distinct = float(table.lookups_per_batch[0]), float(table.distinct_rows[0])
        row, gradient = -(-dim * table.workload.weight_bytes // 32) * 32, -(-dim * 4 // 32) * 32
        outputs, vectors = 4.0 * dim * bags, -(-dim // 128)
        state = {"sgd": 0, "rowwise_adagrad": 2 * 32, "adam": 2 * 2 * gradient}[table.workload.optimizer]
        kept = min(1.0, float(l2_bytes_per_table(table, device)[0]) / outputs)
        missed = lookups - float(l2_hits(table, device)[0])
        forward[0] += (8 * lookups + 8 * bags + missed * row + outputs) / dram
        forward[1] += (lookups * row + outputs) / l2
        forward[2] += (c.cycles_per_row * lookups * vectors + c.cycles_per_bag * bags) / cycles
        update = distinct * (2 * row + state) / c.random_update_efficiency
        backward[0] += (outputs + max(lookups - bags, 0.0) * gradient * (1 - kept) + update) / dram
        backward[1] += lookups * gradient / l2
        backward[2] += (c.cycles_per_gradient * lookups + c.cycles_per_update * distinct) * vectors / cycles
        on_top += lookups * SORT_BYTES / (c.sort_efficiency * dram) + dense
        share = max(share, 0.25 if dim <= 32 else 0.5 if dim <= 64 else 1.0)
    times = []
    for limits in (forward, backward):
        limits[2] *= share
        times.append(max(limits) + c.overlap_loss * (sum(limits) - max(limits)))
    launch = device.kernel_launch_us / 1000
    return times[0] + c.forward_launches * launch, times[1] + on_top + c.backward_launches * launch


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from(sorted(BYTES)))
def test_a_plan_costs_what_its_shards_and_messages_add_up_to(
    random_tables: Any, random_plan: Any, random_topology: Any, seed: int, dtype: str
) -> None:
    rng = np.random.default_rng(seed)
    training = {
        "optimizer": str(rng.choice(["sgd", "rowwise_adagrad", "adam"])),
        "weight_dtype": str(rng.choice(["bf16", "fp16", "fp32"])),
    }
    tables = random_tables(rng, int(rng.integers(1, 5)), dims=(4, 16, 40, 64, 128, 320), **training)
    topology = replace(random_topology(rng), cross_host_ratio=float(rng.choice([1.0, 0.5, 0.05])))
    plan = random_plan(rng, tables, topology)
    phases, sent = plain_phases(plan, tables, topology, BYTES[dtype], PASSES[dtype])
    plain, model = np.array(phases), AnalyticalShardingModel(dtype)
    cost = model.estimate(plan, tables, topology)
    told = sent_bytes(plan, tables, topology, dtype)
    replicas = sum(
        float(shard.num_rows * shard.num_columns * 4)
        for sharding in plan.tables
        for shard in sharding.shards[: sharding.sharding_type == "data_parallel"]
    )
    sent["all_reduce"] = sent_of(ring_messages(replicas, topology), topology, gradients=True)
    assert list(told) == list(sent)
    for name, numbers in sent.items():
        np.testing.assert_allclose(told[name], numbers, rtol=1e-9, atol=1e-3, err_msg=name)
    np.testing.assert_allclose(cost.phases_ms, plain, rtol=1e-9, atol=1e-12)
    assert cost.total_ms == pytest.approx(plain.max(axis=0).sum(), rel=1e-9)


def all_to_all_of(output_bytes: np.ndarray, topology: Topology) -> list[float]:
    """Every device sends a D-th of its outputs to every other one."""
    size = topology.num_devices
    shares = (output_bytes / size).tolist()
    return exchange_ms({(source, target): shares[source] for source in range(size) for target in range(size)}, topology)


@pytest.mark.parametrize("name", ["rtx2080ti-pcie", "v100-nvlink", "h100-dgx", "cpu"])
@pytest.mark.parametrize("devices_per_host", [1, 3, 8])
@pytest.mark.parametrize("num_devices", [1, 2, 5, 7])
def test_an_all_to_all_is_the_sum_over_all_messages(name: str, num_devices: int, devices_per_host: int) -> None:
    topology = hardware_profile(name).topology(num_devices, devices_per_host=devices_per_host)
    rng = np.random.default_rng([num_devices, devices_per_host])
    outputs = np.floor(10 ** rng.uniform(3, 9, (20, num_devices))) * rng.integers(0, 2, (20, num_devices))
    outputs[0] = 0.0
    expected = [all_to_all_of(one, topology) for one in outputs]
    np.testing.assert_allclose(all_to_all_ms(outputs, topology.cluster()), expected, rtol=1e-12)
    for one, took in zip(outputs, expected, strict=True):
        assert least_all_to_all_ms(one.sum(), topology.cluster()) <= max(took) * (1 + 1e-12)


@pytest.mark.parametrize(("hosts", "of_host", "of_domain"), [(2, 4, 8), (18, 4, 72), (3, 1, 3)])
def test_hosts_in_one_domain_cost_what_one_host_of_all_devices_costs(hosts: int, of_host: int, of_domain: int) -> None:
    count, profile = hosts * of_host, hardware_profile("gh200-quad")
    tables = Tables.from_zipf([9_000, 5_000, 700, 4_000], [128, 64, 16, 96], [9.0] * 4, 1.05, Workload(72 * 100))
    domain = profile.topology(count, devices_per_host=of_host, devices_per_domain=of_domain)
    one, apart = (profile.topology(count, devices_per_host=size) for size in (count, of_host))
    shardings = (
        *(table_wise(tables, 0, count - 1), column_wise(tables, 1, [0, 1])),
        *(data_parallel(tables, 2, domain), row_wise(tables, 3, domain)),
    )
    model, plan = AnalyticalShardingModel(), ShardingPlan(shardings)
    in_domain, in_host, in_hosts = (model.estimate(plan, tables, each) for each in (domain, one, apart))
    np.testing.assert_array_equal(in_domain.phases_ms, in_host.phases_ms)
    assert in_hosts.total_ms > 1.2 * in_host.total_ms
    np.testing.assert_array_equal(
        sum(sent_bytes(plan, tables, domain).values()), sum(sent_bytes(plan, tables, one).values())
    )


def test_a_table_on_one_host_of_a_domain_sends_nothing_over_network_cards() -> None:
    """Host 1 of two hosts of two: halves go to the other device, then half of each to that of the other host."""
    tables = Tables.from_zipf([40], [16], [2.0], 1.05, Workload(100, "fp16", "sgd"))
    topology = hardware_profile("a100-dgx").topology(4, devices_per_host=2, devices_per_domain=4)
    plan = ShardingPlan((table_row_wise(tables, 0, topology, 1),))
    np.testing.assert_allclose(sum(sent_bytes(plan, tables, topology).values()).T, [[1600] * 2 + [8000] * 2, [0] * 4])


@pytest.mark.parametrize("num_devices", [9, 12, 15, 16])
def test_across_hosts_the_lower_bound_is_reached_by_equal_outputs(num_devices: int) -> None:
    """Also where the second host is smaller: its devices receive from all of the first."""
    topology = hardware_profile("a100-dgx").topology(num_devices)
    took = all_to_all_of(np.full(num_devices, 1e8), topology)
    assert least_all_to_all_ms(1e8 * num_devices, topology.cluster()) == pytest.approx(max(took), rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "num_devices", "near", "far"),
    [
        # One table of 100 samples and 16 columns on device 0: 6,400 bytes of outputs, and their gradients come back.
        ("table_wise", 2, [3200, 3200], [0, 0]),
        ("table_wise", 4, [1600, 1600, 0, 0], [3200, 0, 1600, 1600]),
        ("table_wise", 3, [6400 / 3, 6400 / 3, 0], [6400 / 3, 0, 6400 / 3]),
        # Every device has 6,400 bytes of partial sums, of which each other one gets its part, and sends it back.
        ("row_wise", 2, [6400, 6400], [0, 0]),
        ("row_wise", 4, [3200] * 4, [6400] * 4),
        ("row_wise", 3, [2 * 6400 / 3, 2 * 6400 / 3, 0], [2 * 6400 / 3, 2 * 6400 / 3, 4 * 6400 / 3]),
        # On host 1: halves go to the other device of it, then half of each half to the device of the other host.
        ("table_row_wise", 2, [6400, 6400], [0, 0]),
        ("table_row_wise", 4, [0, 0, 6400, 6400], [1600] * 4),
        # 40 rows of 16 FP32 gradients are 2,560 bytes. Each host sends them once; the last one has a single card.
        ("data_parallel", 2, [2560, 2560], [0, 0]),
        ("data_parallel", 4, [2560] * 4, [1280] * 4),
        ("data_parallel", 3, [2560, 2560, 0], [1280, 1280, 2560]),
    ],
)
def test_bytes_of_one_table_in_hosts_of_two(kind: str, num_devices: int, near: list[float], far: list[float]) -> None:
    tables = Tables.from_zipf([40], [16], [2.0], 1.05, Workload(100, "fp16", "sgd"))
    topology = hardware_profile("a100-dgx").topology(num_devices, devices_per_host=2)
    sharding = {
        "table_wise": lambda: table_wise(tables, 0, 0),
        "row_wise": lambda: row_wise(tables, 0, topology),
        "table_row_wise": lambda: table_row_wise(tables, 0, topology, topology.num_hosts - 1),
        "data_parallel": lambda: data_parallel(tables, 0, topology),
    }[kind]()
    found = sum(sent_bytes(ShardingPlan((sharding,)), tables, topology).values())
    np.testing.assert_allclose(found, np.stack([near, far], axis=-1))


def test_a_model_that_does_not_know_compression_says_so() -> None:
    topology = replace(hardware_profile("a100-dgx").topology(16), cross_host_ratio=0.5)
    tables = Tables.from_zipf([40], [16], [2.0], 1.05, Workload(100, "fp16", "sgd"))
    with pytest.raises(InvalidOptionError, match=r"does not support links across hosts that send fewer bytes.*is 0\.5"):
        LinearCostModel(np.zeros((23, 4))).loads(tables, topology)
    agent = make_agent("dreamshard")
    with pytest.warns(UserWarning, match="they did not learn links across hosts that send fewer bytes"):
        agent.plan(Task("compressing", tables, topology, splittable=True))
