from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import DamagedFileError, InvalidTopologyError
from shard_gym.hardware import MAX_DEVICES, HostMemory, Replicas, Topology, hardware_profile
from shard_gym.hardware.topology import topologies_from_json, topology_from_json, topology_to_json

PROFILE = hardware_profile("a100-dgx")
DEVICE, LINKS = PROFILE.device, PROFILE.links
HOST = HostMemory(hbm_bytes=10**9, read_gb_per_s=16.0, update_gb_per_s=20.0)
BAD_NUMBERS = [0, -1, float("nan"), None, True, np.array([1.0])]


def numbers_of(spec: Any) -> list[str]:
    """The numbers; those of knees may be 0."""
    return [field.name for field in fields(spec) if field.name not in ("name", "rates", "sources")]


@pytest.mark.parametrize("bad", BAD_NUMBERS, ids=repr)
@pytest.mark.parametrize(
    ("spec", "name"), [(spec, name) for spec in (DEVICE, LINKS, HOST) for name in numbers_of(spec)]
)
def test_impossible_numbers_are_refused(spec: Any, name: str, bad: Any) -> None:
    may_be_zero = ("knee" in name or name == "dense_ms") and bad == 0 and bad is not False
    if may_be_zero or (name == "total_bytes" and bad is None):
        assert getattr(replace(spec, **{name: bad}), name) == bad
        return
    with pytest.raises(
        InvalidTopologyError, match=f"{name} of {type(spec).__name__} must be a positive number( or 0)?, not"
    ):
        replace(spec, **{name: bad})


def test_rates_of_another_kind_are_refused() -> None:
    with pytest.raises(InvalidTopologyError, match="rates of DeviceSpec must be WorkRates, or None, not"):
        replace(DEVICE, rates=(1.0, 2.0))


@pytest.mark.parametrize("bad", [10**400, 2**63, 1e-10], ids=lambda bad: f"{float(str(bad)):g}")
@pytest.mark.parametrize("name", ["num_sms", "l2_bytes", "dram_gb_per_s"])
def test_numbers_that_would_make_costs_infinite_are_refused(name: str, bad: Any) -> None:
    with pytest.raises(InvalidTopologyError, match=f"{name} of DeviceSpec must be (from 1e-09 to|a positive number)"):
        replace(DEVICE, **{name: bad})


@pytest.mark.parametrize("bad", [5, "two\nlines", "x" * 201], ids=repr)
def test_a_name_of_a_device_is_one_line(bad: Any) -> None:
    with pytest.raises(InvalidTopologyError, match="The name of a device is printable text on one line"):
        replace(DEVICE, name=bad)


@pytest.mark.parametrize("bad", ["web", {"num_sms": 5}, {5: "web"}], ids=repr)
def test_sources_are_texts_by_name(bad: Any) -> None:
    for spec in (DEVICE, LINKS, HOST):
        with pytest.raises(InvalidTopologyError, match=r"sources of .* must map names of its numbers to texts"):
            replace(spec, sources=bad)


@pytest.mark.parametrize("bad", [0, 2.0, True, None, MAX_DEVICES + 1], ids=repr)
@pytest.mark.parametrize("name", ["num_devices", "devices_per_host"])
def test_counts_must_be_whole_and_positive(name: str, bad: Any) -> None:
    with pytest.raises(InvalidTopologyError, match=f"{name} must be an integer of at least 1 and at most 4,096"):
        Topology(DEVICE, LINKS, **{"num_devices": 4, "devices_per_host": 4, name: bad})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "A100"}, "device of a Topology must be a DeviceSpec, not 'A100'.*hardware_profile"),
        ({"links": None}, "links of a Topology must be a LinkSpec, not None"),
        ({"host": 5}, "host of a Topology must be a HostMemory, not 5"),
        ({"num_devices": np.int64(-1)}, r"num_devices must be .*, not -1\.$"),  # a plain number
        ({"memory_cap_bytes": np.array([1, 2, 3])}, r"one for each of the 4 devices, not an array of shape \(3,\)"),
        ({"memory_cap_bytes": np.ones((4, 1), int)}, r"not an array of shape \(4, 1\)"),
        *(({"memory_cap_bytes": caps}, "memory_cap_bytes must be positive int64 integers") for caps in (
            np.array([1.0, 2.0, 3.0, 4.0]), np.array([1, 2, 0, 4]), np.full(4, True), -5, np.nan, "80",
            np.array(2**63, np.uint64))),
        *(({"cross_host_ratio": ratio}, "cross_host_ratio must be a number from 0.001 to 1, not") for ratio in (
            0, -0.5, 1.01, np.nan, "half", True)),
        ({"memory_cap_bytes": [[1], [1, 2]]}, r"one number or one for each device, not \[\[1"),
    ],
)  # fmt: skip
def test_a_topology_of_other_things_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTopologyError, match=message) as error:
        Topology(**{"device": DEVICE, "links": LINKS, "num_devices": 4, **arguments})
    assert len(str(error.value)) < 200


def test_caps_default_to_the_devices_memory_and_cannot_be_changed() -> None:
    given = np.array([3, 2**62])
    topology = Topology(DEVICE, LINKS, 2, memory_cap_bytes=given)
    given[0] = 99
    assert topology.memory_cap_bytes.tolist() == [3, 2**62]
    assert topology.memory_cap_bytes.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        topology.memory_cap_bytes[0] = 1
    assert Topology(DEVICE, LINKS, 2).memory_cap_bytes.tolist() == [DEVICE.memory_bytes] * 2


def test_a_cluster_says_who_shares_a_host() -> None:
    cluster = Topology(DEVICE, LINKS, 5, 2).cluster(max_devices=6)
    assert cluster.device_mask.tolist() == [True] * 5 + [False]
    assert cluster.domain_begin.tolist() == [0, 0, 2, 2, 4, 0]  # 4 is alone, and 5 is padding
    assert cluster.domain_end.tolist() == [2, 2, 4, 4, 5, 0]
    assert cluster.num_peers.tolist() == [1, 1, 1, 1, 0, 0]
    assert cluster.num_devices == 5
    assert cluster.crosses_domains
    assert cluster.intra_bytes_per_ms == LINKS.intra_host_gb_per_s * 1e9 / 1e3
    assert cluster.inter_bytes_per_ms == LINKS.inter_host_gb_per_s * 1e9 / 1e3
    assert (cluster.intra_knee_bytes, cluster.intra_knee_extra) == (3.70e6, 3.38)
    assert (cluster.inter_knee_bytes, cluster.inter_knee_extra) == (0.938e6, 0.612)


def test_hosts_and_domains_of_fast_links_are_two_numbers() -> None:
    topology = Topology(DEVICE, LINKS, 10, 2, devices_per_domain=4)
    assert topology.hosts.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert topology.domains.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert (topology.num_hosts, topology.num_domains, topology.fast_group) == (5, 3, "domain")
    cluster = topology.cluster()
    assert (cluster.num_peers.tolist(), cluster.host_size) == ([3] * 8 + [1] * 2, 2)
    assert not Topology(DEVICE, LINKS, 4, 2, devices_per_domain=4).cluster().crosses_domains
    alone = Topology(DEVICE, LINKS, 10, 2)
    assert (alone.domains.tolist(), alone.num_domains, alone.fast_group) == (alone.hosts.tolist(), 5, "host")
    assert "all-to-all in a domain" in topology._repr_html_()


@pytest.mark.parametrize("bad", [1, 3, 0, 2.0, True, MAX_DEVICES + 2], ids=repr)
def test_a_domain_has_whole_hosts(bad: Any) -> None:
    message = r"devices_per_domain must be (a multiple of the 2 devices|an integer)"
    with pytest.raises(InvalidTopologyError, match=message):
        Topology(DEVICE, LINKS, 4, 2, devices_per_domain=bad)


def test_a_domain_is_in_the_json_of_a_topology_only_if_it_has_several_hosts() -> None:
    plain, same, wide = (topology_to_json(Topology(DEVICE, LINKS, 8, 4, devices_per_domain=n)) for n in (None, 4, 8))
    assert plain == same
    assert "devices_per_domain" not in plain
    assert wide == {**plain, "devices_per_domain": 8}
    [read] = topologies_from_json([wide])
    assert (read.num_domains, read.num_hosts) == (1, 2)


@pytest.mark.parametrize("cap", [1.5e9, True, "1", -1, 2**63], ids=repr)
def test_memory_caps_in_json_are_whole_numbers_of_bytes(cap: Any) -> None:
    record = topology_to_json(Topology(DEVICE, LINKS, 2))
    with pytest.raises(DamagedFileError, match="memory_cap_bytes of a topology must be whole numbers"):
        topologies_from_json([{**record, "memory_cap_bytes": [2**30, cap]}])


def test_host_memory_that_is_shared_says_how_much_in_json() -> None:
    own, shared = (replace(HOST, total_bytes=total) for total in (None, 10**12))
    plain, more = (topology_to_json(Topology(DEVICE, LINKS, 8, host=host)) for host in (own, shared))
    assert "total_bytes" not in plain["host"]
    assert more["host"] == {**plain["host"], "total_bytes": 10**12}
    assert [read.host for read in topologies_from_json([plain, more])] == [own, shared]


def test_replicas_are_in_the_json_of_a_topology() -> None:
    copied = Topology(DEVICE, LINKS, 4, 2, replicas=Replicas(count=4, in_host=2, sync_every=10))
    [read] = topologies_from_json([topology_to_json(copied)])
    assert read.replicas == copied.replicas


@pytest.mark.parametrize("part", ["host", "replicas"])
def test_a_part_of_a_topology_in_json_has_all_its_keys(part: str) -> None:
    parts = {"host": HOST} if part == "host" else {"replicas": Replicas(count=2, in_host=1, sync_every=1)}
    record = topology_to_json(Topology(DEVICE, LINKS, 2, **parts))
    first = next(iter(record[part]))
    for changed in ({key: value for key, value in record[part].items() if key != first}, {**record[part], "x": 1}, {}):
        with pytest.raises(DamagedFileError, match=f"{part} of a topology must have the keys {first}, "):
            topology_from_json({**record, part: changed})


@pytest.mark.parametrize("given", [[], ()], ids=repr)
def test_no_memory_caps_are_not_one_for_each_device(given: Any) -> None:
    with pytest.raises(InvalidTopologyError, match="one for each of the 4 devices, not an array of shape"):
        Topology(DEVICE, LINKS, 4, memory_cap_bytes=given)


def test_a_model_that_compresses_sends_less_over_links_that_are_as_fast() -> None:
    """In the cluster, links across hosts carry so much more of what is sent before it shrinks."""
    plain, cluster = (Topology(DEVICE, LINKS, 4, 2, cross_host_ratio=ratio).cluster() for ratio in (1.0, 0.25))
    assert cluster.inter_bytes_per_ms == 4 * plain.inter_bytes_per_ms
    assert cluster.inter_knee_bytes == 4 * plain.inter_knee_bytes
    assert cluster.cross_host_ratio == 0.25
    assert cluster.intra_bytes_per_ms == plain.intra_bytes_per_ms


def test_padding_below_the_number_of_devices_is_refused() -> None:
    with pytest.raises(InvalidTopologyError, match="4 devices do not fit into max_devices=3"):
        Topology(DEVICE, LINKS, 4).cluster(3)


def test_the_hbm_of_a_host_memory_is_a_whole_number_of_bytes() -> None:
    with pytest.raises(InvalidTopologyError, match=r"hbm_bytes of HostMemory must be an integer, not 1\.5"):
        replace(HOST, hbm_bytes=1.5)
    assert type(replace(HOST, hbm_bytes=np.int64(7)).hbm_bytes) is int


def test_a_card_says_how_much_of_the_memory_is_hbm() -> None:
    topology = Topology(DEVICE, LINKS, 2, memory_cap_bytes=3 * 2**30)
    assert "of it in HBM" not in topology._repr_html_()
    card = replace(topology, host=replace(HOST, hbm_bytes=2**30))._repr_html_()
    assert "of it in HBM" in card
    assert "1.00 GiB" in card


@pytest.mark.parametrize(
    ("caps", "message"),
    [
        (
            [15, 15, 15, 16],
            "Host 1 has 10 bytes .total_bytes., but memory_cap_bytes allots 11 of it: .* above 10 of HBM",
        ),
        ([21, 10, 10, 10], "Host 0 has 10 bytes .total_bytes., but memory_cap_bytes allots 11 of it"),
        ([15, 15, 20, 9], "cap of device 3 on host 1, 9 bytes, is below its hbm_bytes, 10,"),
        (2**63 - 1, "Host 0 has 10 bytes .total_bytes., but memory_cap_bytes allots 18,446,744,073,709,551,594 of it"),
    ],
)
def test_caps_allot_no_more_of_a_host_than_it_has(caps: Any, message: str) -> None:
    host = replace(HOST, hbm_bytes=10, total_bytes=10)
    with pytest.raises(InvalidTopologyError, match=f"{message}.* or leave out total_bytes of HostMemory"):
        Topology(DEVICE, LINKS, 4, 2, caps, host)
    own = Topology(DEVICE, LINKS, 4, 2, caps, replace(host, total_bytes=None))  # parts of their own
    shared = Topology(DEVICE, LINKS, 4, 2, np.array([20, 10, 13, 17]), host)
    made = shared.with_caps(caps)
    assert (made.memory_cap_bytes.tolist(), made.host) == (own.memory_cap_bytes.tolist(), own.host)


def test_other_caps_may_be_of_another_number_of_devices() -> None:
    shared = Topology(DEVICE, LINKS, 4, 2, 15, replace(HOST, hbm_bytes=10, total_bytes=10))  # type: ignore[arg-type]
    six = shared.with_caps(9, 6)
    assert (six.num_devices, six.memory_cap_bytes.tolist(), six.num_hosts) == (6, [9] * 6, 3)
    plain = Topology(DEVICE, LINKS, 4).with_caps([1, 2, 3, 4])
    assert (plain.memory_cap_bytes.tolist(), plain.host) == ([1, 2, 3, 4], None)


@pytest.mark.parametrize("bad", [None, {}, {"memory_cap_bytes": []}])
def test_json_that_is_no_topology_is_refused(bad: Any) -> None:
    whole = topology_to_json(PROFILE.topology(2))
    with pytest.raises(DamagedFileError, match="topology"):
        topology_from_json({**whole, **bad} if bad else bad)
    with pytest.raises(DamagedFileError, match="Topologies must be a list, not 5"):
        topologies_from_json(5)  # type: ignore[arg-type]
