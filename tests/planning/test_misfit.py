"""Tables that fit nowhere: the numbers that are printed, by hand, and true."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import NoPlacementFoundError
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.planning import plan
from shard_gym.planning.misfit import devices_that_hold, misfit, missing_bytes
from shard_gym.tables import Tables, Workload

MIB, GIB = 2**20, 2**30
NAMES = tuple(f"table{table}" for table in range(6))


def tables_of(*mib: float, dtype: str = "fp32", optimizer: str = "sgd", batch: int = 64) -> Tables:
    """Tables of so many MiB of FP32 weights, 64 columns wide."""
    rows = (np.array(mib) * 4096).astype(int)
    return Tables.from_zipf(rows, 64, 1.0, 0.0, Workload(batch, dtype, optimizer), names=NAMES[: len(mib)])


def devices(count: int, mib: float) -> Topology:
    return hardware_profile("a100-dgx").topology(count, memory_cap_bytes=int(mib * MIB))


@pytest.mark.parametrize(("optimizer", "least"), [("rowwise_adagrad", 10), ("sgd", 5)])
def test_devices_with_host_memory_hold_buffers_and_states_in_hbm(optimizer: str, least: int) -> None:
    """Of 2.4 million rows, 4 bytes each are 9.2 MiB, and an MiB of HBM for each device."""
    tables = Tables.from_zipf([400_000] * 6, 4, 0.01, 0.0, Workload(64, "fp32", optimizer))
    profile = hardware_profile("a100-dgx")
    topology = profile.topology(4, memory_cap_bytes=100 * MIB)
    assert devices_that_hold(tables, replace(topology, host=profile.host_memory(MIB))) == least


def test_what_is_missing_is_counted_with_buffers() -> None:
    tables = tables_of(1024, 2048, batch=65_536)  # each 16 x 131,072 bytes of inputs, 16 MiB of outputs
    says = misfit("mine.json", tables, devices(2, 1024))
    assert says.startswith(
        "The tables of mine.json need 3.04 GiB (3.00 GiB for weights and optimizer states, 36.00 MiB for buffers of a "
        "training step), and 2 devices (A100-SXM4-80GB) have 2.00 GiB for both: 1.04 GiB are missing."
    )
    assert missing_bytes(tables, devices(2, 1024)) == 1024 * MIB + 2 * 18 * MIB
    assert "1 device (A100-SXM4-80GB) has 1.00 GiB for both" in misfit("mine.json", tables, devices(1, 1024))
    assert missing_bytes(tables, devices(2, 1554)) == 0


@pytest.mark.parametrize(
    ("dtype", "optimizer", "says"),
    [
        ("fp32", "adam", ["FP16 weights 3.00 GiB", "Rowwise Adagrad 11.91 GiB", "SGD, which has no states, 12.00 GiB"]),
        ("fp16", "adam", ["Rowwise Adagrad 11.91 GiB", "SGD, which has no states, 12.00 GiB"]),
        ("fp32", "rowwise_adagrad", ["FP16 weights 3.00 GiB"]),  # 0.09 GiB of states would not help
        ("bf16", "sgd", []),
        ("fp8", "adagrad", ["Rowwise Adagrad 5.91 GiB"]),  # FBGEMM does not train it with SGD
    ],
)
def test_savings_that_matter_are_named_with_their_argument(dtype: str, optimizer: str, says: list[str]) -> None:
    """Of 6 GiB of FP32 weights: 12 GiB of Adam's moments, and 4 bytes for each row of 256."""
    text = misfit("mine.json", tables_of(2048, 4096, dtype=dtype, optimizer=optimizer), devices(2, 512))
    found = re.findall(r"\. ([^.]*) \(`([a-z_]+)='([a-z0-9_]+)'`\) would save ([\d.]+ GiB)", text)
    assert [f"{what} {size}" for what, _, _, size in found] == says
    options = {
        "FP16": ("weight_dtype", "fp16"),
        "Rowwise": ("optimizer", "rowwise_adagrad"),
        "SGD,": ("optimizer", "sgd"),
    }
    for what, option, value, _ in found:
        assert (option, value) == options[what.split()[0]]


def test_a_small_saving_matters_where_little_is_missing() -> None:
    tables = tables_of(1024, 1024, optimizer="rowwise_adagrad")  # 32 MiB of states
    assert "SGD, which has no states, (`optimizer='sgd'`) would save 32.00 MiB." in misfit("", tables, devices(2, 1020))
    assert "SGD" not in misfit("", tables, devices(2, 512))


@pytest.mark.parametrize(
    ("mib", "count", "room", "enough", "says"),
    [
        ((1, 1, 1, 1, 1), 2, 1.2, 5, "5 devices of this kind would hold them."),
        ((9,), 2, 1.5, 7, "7 devices of this kind would hold them."),  # blocks of 1.29 MiB, and buffers
        ((9, 9, 1), 8, 1.5, 14, "14 devices of this kind in 2 hosts would hold them."),
    ],
)
def test_devices_that_would_hold_them_are_counted(
    mib: tuple[float, ...], count: int, room: float, enough: int, says: str
) -> None:
    tables = tables_of(*mib)
    assert devices_that_hold(tables, devices(count, room)) == enough
    assert says in misfit("mine.json", tables, devices(count, room))


def test_tables_with_large_outputs_are_counted_in_column_shards() -> None:
    """Outputs of 64 MiB: blocks of rows do not share them out, columns do, with inputs of 8 MiB for each."""
    tables = tables_of(1, batch=2**18)
    assert devices_that_hold(tables, devices(1, 45)) == 2
    assert devices_that_hold(tables, devices(1, 30)) == 4


def test_column_shards_that_are_no_halves_are_counted() -> None:
    """Outputs of 100 columns take 100 MiB, and every shard has 8 MiB of inputs: five of 20 columns take 28 MiB each."""
    tables = tables_of(1, batch=2**18).with_dims(100)
    assert devices_that_hold(tables, devices(1, 29)) == 5
    assert devices_that_hold(tables, devices(1, 45)) == 3


def test_where_no_number_of_devices_holds_them_that_is_said() -> None:
    """Every part reads all indices: 8 MiB, with offsets, here."""
    tables = tables_of(100, batch=2**18)
    assert devices_that_hold(tables, devices(2, 7)) is None
    says = "No number of them up to 4,096 was found that would; give each more memory, or train with smaller batches."
    assert says in misfit("mine.json", tables, devices(2, 7))


@pytest.mark.parametrize("seed", range(2))
def test_so_many_devices_do_hold_them(seed: int) -> None:
    """What is refused succeeds with the number of devices that it names."""
    rng = np.random.default_rng(seed)
    tables = tables_of(*rng.uniform(0.1, 20, 6), batch=1024, optimizer="rowwise_adagrad")
    options: dict[str, Any] = {"memory_cap_gib": 9 / 1024, "host_memory": 0}
    with pytest.raises(NoPlacementFoundError, match=r"MiB are missing\.") as refused:
        plan(tables, "a100-dgx", 2, **options)
    found = re.search(r"(\d+) devices of this kind", str(refused.value))
    assert found
    planned = plan(tables, "a100-dgx", int(found[1]), agent_options={"max_queries": 300}, **options)
    assert planned.memory.total.max() <= 9 * MIB
