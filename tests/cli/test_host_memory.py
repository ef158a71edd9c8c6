"""Models larger than HBM on the command line: rows in host memory in plans, texts, and TorchRec's JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import AnalyticalCostModel, AnalyticalShardingModel, make_cost_model
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.hardware.profile_files import usable_bytes
from shard_gym.planning.memory import popularity_source
from shard_gym.plans import plan_from_json
from shard_gym.plans.files import hbm_rows_from_json
from shard_gym.plans.memory import training_memory
from shard_gym.tables import Pool, RowPopularity, RowSteps, Tables, Workload, load_pool
from shard_gym.tables.pools import save_pool
from shard_gym.tasks import load_suite

MIB, GIB = 2**20, 2**30


def tables_of(*mib: float, known: bool = True) -> Tables:
    """Tables of so many MiB, 64 columns of FP32, in batches of 1,024 samples with a lookup each, by Zipf's law."""
    rows = (np.array(mib) * 4096).astype(np.int64)
    names = [f"table{table}" for table in range(len(mib))]
    return Tables.from_zipf(rows, 64, 1.0, 1.05, Workload(1024, "fp32", "sgd"), names=names)


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    def write(*mib: float, law: bool = True) -> Path:
        path, tables = tmp_path / "mine.json", tables_of(*mib)
        tables = tables if law else replace(tables, popularity=None)
        save_pool(Pool("mine", tables, load_pool("dlrm-2021").card), path)
        return path

    return write


def place(file: Path, *more: object, devices: int = 2, cap: float = 4.0, host: float | None = 20.0) -> list[object]:
    """The command, with `cap` MiB of HBM and `host` MiB of each host."""
    command: list[object] = ["place", "--tables", file, "--hardware", "a100-dgx", "--num-devices", devices]
    command += ["--memory-cap-gib", cap / 1024, *more]
    return command if host is None else [*command, "--host-memory", host / 1024]


QUICK = ("--option", "max_queries=300")


def devices_of(content: Any, devices: int = 2, host: float = 20.0) -> Topology:
    """The devices of a plan that was placed: the HBM that its buffers leave, and a part of the host."""
    profile, hbm = hardware_profile("a100-dgx"), content["host_memory"]["hbm_bytes"]
    return replace(
        profile.topology(devices, memory_cap_bytes=hbm + int(host * MIB) // devices), host=profile.host_memory(hbm)
    )


def test_a_model_that_does_not_fit_is_placed_without_a_flag(run: Any, file: Callable[..., Path]) -> None:
    path = file(5, 3, 2, 1, 1)
    plain = run.ok(*place(path, "--agent", "local-search", *QUICK, host=None), columns=400)
    content = json.loads(plain.out)
    assert "of the rows' bytes, " in plain.err
    assert "rows are ranked by the law of the tables' lookups" in plain.err
    tables = tables_of(5, 3, 2, 1, 1)
    devices = [content["placement"][name] for name in tables.names]
    buffers = training_memory(devices, tables, 2).buffers.max()
    assert content["host_memory"]["hbm_bytes"] == 4 * MIB - buffers
    there = sum(
        int(rows - content["hbm_rows"][name]) * 256
        for name, rows in zip(tables.names, tables.num_embeddings, strict=True)
    )
    assert there == content["host_memory"]["bytes_in_host"] > 0
    assert content["host_memory"]["popularity"] == "law"
    topology = devices_of(content, host=usable_bytes(2 * 2**40) / MIB)
    cost = AnalyticalCostModel().estimate(np.array(devices), tables, topology).total_ms
    assert content["cost_ms"] == cost
    for device in range(2):
        held = sum(content["hbm_rows"][name] * 256 for name, its in content["placement"].items() if its == device)
        assert held <= content["host_memory"]["hbm_bytes"]


def test_answers_to_a_suite_say_how_much_of_the_hbm_tables_may_take(run: Any) -> None:
    host = load_suite("tier-4", "test")[0].topology.host
    assert host is not None
    text = " ".join(run.ok("show", "--suite", "tier-4", "--agent", "lane-greedy").out.split())
    assert f"GiB of 80.00 of HBM, of which tables may take {host.hbm_bytes / GIB:.2f} " in text


def test_tables_that_are_split_say_their_rows_in_hbm_shard_by_shard(
    run: Any, file: Callable[..., Path], tmp_path: Path
) -> None:
    path, out = file(9, 3, 2), tmp_path / "plan.json"
    shown = run.ok(*place(path, *QUICK, "--out", out))
    text = " ".join(shown.out.split())
    assert "Memory of a training step, GiB of 0.00 of HBM" in text
    assert "lie in host memory, which costs" in text
    assert "Rows in HBM of tables with rows in host memory" in text
    assert max(map(len, shown.out.splitlines())) <= 80
    content, tables = json.loads(out.read_text()), tables_of(9, 3, 2)
    topology = devices_of(content)
    plan = plan_from_json(content["plan"], tables, topology)
    rows = hbm_rows_from_json(content["plan"], plan, tables, topology)
    assert rows is not None
    whole = int((plan.shard_arrays()[:, 3] * plan.shard_arrays()[:, 5]).sum())
    kept = int((rows * plan.shard_arrays()[:, 5]).sum())
    assert content["host_memory"]["bytes_in_host"] == 4 * (whole - kept) > 0
    estimate = make_cost_model(additive=True, splits=True).estimate(plan, tables, topology)
    assert content["cost_ms"] == estimate.total_ms
    again = run.ok(
        *("show", "--tables", path, "--plan", out, "--hardware", "a100-dgx", "--num-devices", 2),
        *("--memory-cap-gib", 4 / 1024, "--host-memory", 20 / 1024),
        columns=400,
    )
    assert "which keeps" not in again.err
    assert f"{estimate.total_ms:.4g} ms" in again.out


def test_a_model_that_fits_hbm_is_placed_as_without_host_memory(run: Any, file: Callable[..., Path]) -> None:
    path = file(3, 2, 1)
    some, none = (run.ok(*place(path, *QUICK, host=host)) for host in (None, 0))
    assert some == none
    assert "host_memory" not in json.loads(some.out)


def test_what_neither_memory_holds_is_said_in_numbers(run: Any, file: Callable[..., Path]) -> None:
    path = file(9, 9, 9)
    says = "have 20.00 MiB for both, 8.00 MiB in HBM and 12.00 MiB in host memory: 7."
    err = run.refused(says, *place(path, host=12)).err
    assert "6 devices of this kind would hold them." in " ".join(err.split())
    run.ok(*place(path, *QUICK, devices=6, host=12))
    run.refused("have 8.00 MiB for both: ", *place(path, host=0))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--host-memory", -1), "--host-memory must be a number of GiB from 0 to 1,048,576, not -1.0"),
        (("--host-memory", "nan"), "--host-memory must be a number of GiB"),
        (("--host-memory", 1e300), "--host-memory must be a number of GiB"),
    ],
)
def test_impossible_host_memory_is_a_sentence(
    run: Any, file: Callable[..., Path], options: tuple[object, ...], says: str
) -> None:
    run.refused(says, *place(file(1, 1), host=None), *options)
    command = ["place", "--tables", file(1, 1), "--hardware", "cpu", "--num-devices", 2, "--host-memory", 1]
    run.refused("--host-memory is 1, but of the hosts of cpu it is not known how fast", *command)


def test_costs_that_do_not_know_host_memory_are_refused(run: Any, file: Callable[..., Path], machine: type) -> None:
    says = "Host memory could hold rows of them, but the cost model 'measured' does not know it; leave out --cost-model"
    run.refused(says, *place(file(9, 3, 2), "--cost-model", "measured"))


def test_a_file_that_keeps_other_rows_in_hbm_is_named_beside_the_best_split(
    run: Any, file: Callable[..., Path], tmp_path: Path
) -> None:
    path, out = file(9, 3, 2), tmp_path / "plan.json"
    run.ok(*place(path, *QUICK, "--out", out, "--format", "torchrec"))
    value = json.loads(out.read_text())
    entries = value["plan"][""].values()
    assert "fused_uvm_caching" in {entry["compute_kernel"] for entry in entries}
    for entry in entries:
        if "cache_params" in entry:
            entry["cache_params"]["load_factor"] = 0.01
    out.write_text(json.dumps(value))
    outcome = run.ok(*place(path, *QUICK, "--compare", out), columns=400)
    assert "of the rows' bytes in HBM. What follows is of the best split of the same plan, which keeps" in outcome.err


def torchrec_plan(path: Path, ranks: list[int], kernels: list[str], mib: list[float]) -> Path:
    """A file with a plan of TorchRec, of whole tables of so many MiB."""
    entries = {}
    for table, (rank, kernel, size) in enumerate(zip(ranks, kernels, mib, strict=True)):
        shards = [{"shard_offsets": [0, 0], "shard_sizes": [int(size * 4096), 64], "placement": f"rank:{rank}/cuda:0"}]
        entry = {"sharding_type": "table_wise", "compute_kernel": kernel, "ranks": [rank], "shards": shards}
        entries[f"table{table}"] = entry
    path.write_text(json.dumps({"plan": {"m": entries}}))
    return path


def show(file: Path, plan: Path, devices: int, *more: object, cap: float = 4.0, host: float = 20.0) -> list[object]:
    """The command that shows a plan, with `cap` MiB of HBM and `host` MiB of each host."""
    command: list[object] = ["show", "--tables", file, "--plan", plan, "--hardware", "a100-dgx"]
    return [*command, "--num-devices", devices, "--memory-cap-gib", cap / 1024, "--host-memory", host / 1024, *more]


def test_a_device_may_use_what_others_leave_of_its_hosts_memory(
    run: Any, file: Callable[..., Path], tmp_path: Path
) -> None:
    """One table has 15 MiB; each of eight devices has 4 MiB and an eighth of 20, which 1.5 MiB do not need."""
    sizes = [15, *[0.5] * 7]
    path = file(*sizes)
    plan = torchrec_plan(tmp_path / "plan.json", list(range(8)), ["fused_uvm", *["fused"] * 7], sizes)
    shown = run.ok(*show(path, plan, 8), columns=400)
    assert "exceeds the memory" not in shown.err
    assert "host 0 15.00 MiB of 20.00 MiB in TorchRec" in shown.out
    over = run.ok(*show(path, plan, 8, host=10), columns=400)
    assert "exceeds the memory: device 0" in over.err
    assert re.search(r"for tables: host 0 1\d\.\d\d MiB of 10\.00 MiB\.", over.out)
    out = tmp_path / "placed.json"
    said = run.ok(*place(path, "--whole", *QUICK, "--out", out, devices=8), columns=400).out
    assert "memory of hosts" in said.lower()
    content = json.loads(out.read_text())
    [held] = content["host_memory"]["bytes_in_each_host"]
    assert 11 * MIB <= held == content["host_memory"]["bytes_in_host"] <= 20 * MIB
    assert run(*place(path, "--whole", *QUICK, devices=8, host=10)).code == 2


def test_hosts_do_not_lend_each_other_memory(run: Any, file: Callable[..., Path], tmp_path: Path) -> None:
    """Two hosts of two: 15 and 13 MiB fit one on each host, and not both on the first."""
    path, more = file(15, 13, 0.5, 0.5), ("--devices-per-host", 2)
    apart = torchrec_plan(tmp_path / "apart.json", [0, 2, 1, 3], ["fused_uvm"] * 2 + ["fused"] * 2, [15, 13, 0.5, 0.5])
    shown = run.ok(*show(path, apart, 4, *more), columns=400)
    assert "exceeds" not in shown.err
    assert "host 0 15.00 MiB of 20.00 MiB, host 1 13.00 MiB of 20.00 MiB" in shown.out
    both = torchrec_plan(tmp_path / "both.json", [0, 1, 2, 3], ["fused_uvm"] * 2 + ["fused"] * 2, [15, 13, 0.5, 0.5])
    assert "exceeds the memory" in run.ok(*show(path, both, 4, *more), columns=400).err


@pytest.mark.parametrize("kernel", ["fused_uvm", "fused_uvm_caching"])
@pytest.mark.parametrize("model", ["analytical", "analytical-lru", "analytical-inference"])
def test_tables_behind_a_cache_are_counted_whole_in_the_host(
    run: Any, file: Callable[..., Path], tmp_path: Path, model: str, kernel: str
) -> None:
    """Also where the HBM would hold all of them, as with a cache of all rows."""
    plan = torchrec_plan(tmp_path / "plan.json", [0, 0], [kernel, "fused"], [3, 0.5])
    value = json.loads(plan.read_text())
    if kernel == "fused_uvm_caching":
        value["plan"]["m"]["table0"]["cache_params"] = {"load_factor": 1.0}
    plan.write_text(json.dumps(value))
    out = run.ok(*show(file(3, 0.5), plan, 1, "--cost-model", model), columns=400).out
    assert "host 0 3.00 MiB of 20.00 MiB in TorchRec, which keeps all rows of tables with fused_uvm or" in out


def test_the_source_of_the_popularity_is_said() -> None:
    from dataclasses import replace

    tables = tables_of(1)
    assert "the tail is assumed" in popularity_source(replace(tables, popularity=None))
    steps = RowSteps(np.array([[4096.0]]), np.ones((1, 1)))
    ranked = "rows are ranked by their shares of the lookups, recorded or published"
    assert popularity_source(replace(tables, popularity=steps)) == ranked


def test_a_model_of_1382_gib_on_eight_h100_becomes_a_plan_of_torchrec(run: Any, tmp_path: Path) -> None:
    """Few large tables; host memory of 2 TiB, less the reserve, and no flag."""
    rows = np.array([1_178_000_000, 786_000_000, 491_000_000, 196_000_000, 78_600_000, 39_300_000, 14_750_000, 100_000])
    names = [f"large{table}" for table in range(len(rows))]
    workload = Workload(65_536, "fp16", "rowwise_adagrad")
    tables = Tables.from_zipf(rows, 256, [2, 1, 5, 1, 10, 1, 1, 20], 1.05, workload, names=names)
    assert tables.memory_bytes.sum() / GIB == pytest.approx(1382, rel=0.05)
    path, out = tmp_path / "large.json", tmp_path / "torchrec.json"
    save_pool(Pool("large", tables, load_pool("dlrm-2021").card, RowPopularity.zipf([1.05] * len(rows))), path)
    command = ["place", "--tables", path, "--hardware", "h100-dgx", "--num-devices", 8, *QUICK]
    text = run.ok(*command, "--format", "torchrec", "--module", "sparse", "--out", out).out
    assert "GiB, lie in host memory, which costs" in " ".join(text.split())
    value = json.loads(out.read_text())
    kernels = [entry["compute_kernel"] for entry in value["plan"]["sparse"].values()]
    assert kernels[0] == "fused_uvm_caching"
    pytest.importorskip("torchrec")
    from torch import device
    from torchrec.distributed.types import EmbeddingModuleShardingPlan
    from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    from shard_gym.interop.torchrec import from_torchrec, modules_of, plan_from_torchrec_json

    class Model(EmbeddingBagCollection):  # type: ignore[misc]
        """On the meta device: 1,382 GiB are not allocated."""

    configs = [
        EmbeddingBagConfig(
            name=name, num_embeddings=int(count), embedding_dim=256, feature_names=[name], data_type=DataType.FP16
        )
        for name, count in zip(names, rows, strict=True)
    ]
    model = Model(tables=configs, device=device("meta"))
    assert list(modules_of(model)) == names
    plan = plan_from_torchrec_json(value)
    module = plan.plan["sparse"]
    assert isinstance(module, EmbeddingModuleShardingPlan)
    for name, entry in value["plan"]["sparse"].items():
        sharding = module[name]
        assert sharding.compute_kernel == entry["compute_kernel"]
        if "cache_params" in entry:
            assert 0 < sharding.cache_params.load_factor == entry["cache_params"]["load_factor"] < 1
        cells = sum(rows * columns for rows, columns in (shard.shard_sizes for shard in sharding.sharding_spec.shards))
        assert cells == model.embedding_bags[name].weight.numel()
    topology = hardware_profile("h100-dgx").topology(8, reserve=0.15, host_memory_bytes=usable_bytes(2 * 2**40))
    assert len(from_torchrec(plan, tables, topology)) == len(rows)


def test_each_table_gets_the_kernel_that_its_constraints_say(run: Any, tmp_path: Path) -> None:
    """The plan of `place --constraints` is read back by TorchRec with these kernels."""
    kernels = {
        **{"busy": ["fused"], "idle": ["fused_uvm"], "large": ["fused_uvm_caching"], "small": ["dense"]},
        "free": ["fused", "fused_uvm_caching"],
    }
    tables = Tables.from_zipf(
        *([400_000, 100_000, 3_000_000, 2_000, 300_000], 64, [0.01, 40.0, 20.0, 1.0, 30.0], 1.05),
        Workload(4096, "fp16", "rowwise_adagrad"),
        names=["busy", "idle", "large", "small", "free"],
    )
    save_pool(Pool("mine", tables, load_pool("dlrm-2021").card), tmp_path / "mine.json")
    limits, out = tmp_path / "constraints.json", tmp_path / "plan.json"
    limits.write_text(json.dumps({"tables": {name: {"compute_kernels": own} for name, own in kernels.items()}}))
    command = place(tmp_path / "mine.json", *QUICK, "--constraints", limits, devices=2, cap=200, host=2_000)
    done = run.ok(*command, "--format", "torchrec", "--module", "m", "--out", out)
    assert "The plan keeps to the constraints of 5 tables." in " ".join(done.err.split())
    value = json.loads(out.read_text())
    found = {name: entry["compute_kernel"] for name, entry in value["plan"]["m"].items()}
    assert found.pop("free") in kernels["free"]
    assert {name: [kernel] for name, kernel in found.items()} == {name: kernels[name] for name in found}
    none = run(*place(tmp_path / "mine.json", *QUICK, "--constraints", limits, devices=2, cap=4_000, host=0))
    assert "which keeps rows in host memory, and these devices have none" in " ".join(none.err.split())
    full = {"tables": {"large": {"compute_kernels": ["fused"]}, "busy": {"compute_kernels": ["fused"]}}}
    limits.write_text(json.dumps(full))
    refused = run(*place(tmp_path / "mine.json", *QUICK, "--constraints", limits, devices=2, cap=100, host=2_000))
    assert refused.code == 2
    assert "must have all rows in HBM need" in " ".join(refused.err.split())
    pytest.importorskip("torchrec")
    from shard_gym.interop.torchrec import plan_from_torchrec_json

    theirs = plan_from_torchrec_json(value).plan["m"]
    assert {name: theirs[name].compute_kernel for name in found} == found


def test_tables_behind_a_cache_lie_in_host_memory_too_where_all_rows_have_room_in_hbm(
    run: Any, file: Callable[..., Path], tmp_path: Path
) -> None:
    limits = tmp_path / "constraints.json"
    limits.write_text(json.dumps({"tables": {"table0": {"compute_kernels": ["fused_uvm_caching"]}}}))
    shown = run.ok(*place(file(3, 1), *QUICK, "--constraints", limits, "--out", tmp_path / "plan.json", cap=40))
    said = " ".join(shown.out.split())
    assert "TorchRec keeps all of their rows in host memory, too, 3.00 MiB." in said
    assert "nothing of the host memory is needed" not in said


def test_devices_that_would_hold_tables_are_counted_without_their_constraints(
    run: Any, file: Callable[..., Path], tmp_path: Path
) -> None:
    """Replicas take all devices, so more of them do not help."""
    limits = tmp_path / "constraints.json"
    limits.write_text(json.dumps({"tables": {"table0": {"compute_kernels": ["dense"]}}}))
    path = file(9)
    command = place(path, "--constraints", limits, host=0)
    says = "devices of this kind would hold them, if there were no constraints."
    run.refused(says, *command)
    assert says not in " ".join(run(*place(path, host=0)).err.split())


def test_states_of_rows_that_the_hbm_cannot_hold_are_refused(run: Any, tmp_path: Path) -> None:
    """Rowwise Adagrad keeps 4 bytes of each row in HBM, here more than there is; the rows alone would fit the host."""
    tables = Tables.from_zipf([4_000_000, 2_000_000], 4, 1.0, 1.05, Workload(1024, "fp16", "rowwise_adagrad"))
    save_pool(Pool("mine", tables, load_pool("dlrm-2021").card), tmp_path / "mine.json")
    for agent in ("local-search", "plan-search"):
        failed = run(*place(tmp_path / "mine.json", *QUICK, "--agent", agent, devices=1, cap=8, host=100))
        assert failed.code == 2
        said = " ".join(failed.err.split())
        assert f"{agent} found no plan whose HBM holds the states of all rows. Device 0 keeps" in said
        assert "an optimizer without a state of each row, such as sgd" in said


def test_where_whole_tables_leave_no_room_beside_buffers_tables_are_split(run: Any, tmp_path: Path) -> None:
    """One table has many features, so its buffers are large, and no device has room for a whole one beside them."""
    rows, dims = [50_000] * 12 + [1000], [64] * 12 + [256]
    workload = Workload(655, "fp16", "sgd")
    tables = Tables.from_zipf(rows, dims, 1.0, 1.05, workload, num_features=[1] * 12 + [30])
    save_pool(Pool("mine", tables, load_pool("dlrm-2021").card), tmp_path / "mine.json")
    options = (*QUICK, "--out", tmp_path / "plan.json")
    run.ok(*place(tmp_path / "mine.json", *options, cap=30.7, host=41.0))
    assert {each["sharding_type"] for each in json.loads((tmp_path / "plan.json").read_text())["plan"]} != {
        "table_wise"
    }


def test_more_memory_than_hosts_have_is_refused(run: Any, file: Callable[..., Path]) -> None:
    failed = run(*place(file(9), host=2**22))
    assert failed.code == 2
    assert "a host of a100-dgx has 2048.00 GiB. Give at most that" in " ".join(failed.err.split())


def test_a_cache_is_not_told_as_a_split(run: Any, file: Callable[..., Path], tmp_path: Path) -> None:
    command = place(file(9, 3, 2), *QUICK, "--cost-model", "analytical-lru", "--out", tmp_path / "plan.json")
    text = " ".join(run.ok(*command).out.split())
    assert "The cost is that of a cache in HBM, and all rows in host memory" in text
    assert "lie in host memory, which costs" not in text


def test_a_cache_is_costed_with_what_is_sent(run: Any, file: Callable[..., Path], tmp_path: Path) -> None:
    command = place(file(9, 3, 2), *QUICK, "--cost-model", "analytical-lru", "--communication-dtype", "fp16")
    content = json.loads(run.ok(*command).out)
    assert content["cost_model"] == AnalyticalShardingModel("fp16", host_policy="lru").fingerprint


def test_buffers_beyond_the_hbm_are_named(run: Any, file: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"placement": {"table0": 0, "table1": 1}}))
    command = ["show", "--tables", file(9, 9), "--plan", tmp_path / "plan.json", "--hardware", "a100-dgx"]
    shown = run.ok(*command, "--num-devices", 2, "--memory-cap-gib", 0.1 / 1024, "--host-memory", 40 / 1024)
    assert "the buffers of a training step need" in " ".join(shown.err.split())


def test_a_plan_for_torchrec_says_what_its_caches_cost(run: Any, file: Callable[..., Path], tmp_path: Path) -> None:
    command = [*QUICK, "--format", "torchrec", "--out", tmp_path / "plan.json"]
    said = " ".join(run.ok(*place(file(9, 3, 2), *command, host=60)).err.split())
    assert "TorchRec keeps a cache of the tables with rows in host memory, and this plan then costs" in said
    again = run.ok(*place(file(9, 3, 2), *command, "--cost-model", "analytical-lru", host=60))
    assert "TorchRec keeps a cache" not in " ".join(again.err.split())
