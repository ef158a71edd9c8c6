"""`ShardGymPlanner`: what it keeps to, takes, refuses, leaves to TorchRec and says."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("torchrec")

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embedding_tower_sharding import EmbeddingTowerSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, EmbeddingBagSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.mc_embeddingbag import ManagedCollisionEmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.proposers import GreedyProposer
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import CustomTopologyData, PlannerError, PlannerErrorType
from torchrec.distributed.quant_embeddingbag import QuantEmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import CacheParams, ShardingPlan
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.embedding_tower import EmbeddingTower
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
from torchrec.modules.mc_modules import ManagedCollisionCollection
from torchrec.optim import Adam, LarsSGD, RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.quant.embedding_modules import EmbeddingBagCollection as QuantEmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shard_gym.hardware import hardware_profile
from shard_gym.interop.torchrec import ShardGymPlanner

META = torch.device("meta")
GIB = 2**30
BATCH = 256
SHARDERS: list[Any] = [
    EmbeddingBagCollectionSharder(),
    EmbeddingCollectionSharder(),
    ManagedCollisionEmbeddingBagCollectionSharder(),
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Without TorchRec's warnings."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def bags(rows: dict[str, int], dim: int = 64, weighted: bool = False, **config: Any) -> EmbeddingBagCollection:
    configs = [
        EmbeddingBagConfig(name=name, num_embeddings=count, embedding_dim=dim, feature_names=[f"f_{name}"], **config)
        for name, count in rows.items()
    ]
    return EmbeddingBagCollection(tables=configs, device=META, is_weighted=weighted)


def sequences(rows: dict[str, int], dim: int = 64) -> EmbeddingCollection:
    configs = [
        EmbeddingConfig(name=name, num_embeddings=count, embedding_dim=dim, feature_names=[f"f_{name}"])
        for name, count in rows.items()
    ]
    return EmbeddingCollection(tables=configs, device=META)


def gpus(count: int = 4, cap: int = 8 * GIB, **options: Any) -> Topology:
    return Topology(count, "cuda", hbm_cap=cap, **options)


def of_caps(caps: list[int]) -> Topology:
    """GPUs of a host with a list of memory."""
    return Topology(len(caps), "cuda", custom_topology_data=CustomTopologyData({"hbm_cap": caps}, len(caps)))


def planner(topology: Any = None, **options: Any) -> Any:
    given: dict[str, Any] = {"hardware": "a100-dgx", "max_queries": 2000, "batch_size": BATCH} | options
    return ShardGymPlanner(topology=topology or gpus(), **given)


def entries(plan: Any) -> dict[str, Any]:
    return {name: entry for module in plan.plan.values() for name, entry in module.items()}


def widths(entry: Any) -> list[int]:
    return [shard.shard_sizes[1] for shard in entry.sharding_spec.shards]


def failed(error: Any) -> tuple[PlannerErrorType, str]:
    return error.value.error_type, str(error.value)


ROWS = {f"t{number}": 200 * 3**number for number in range(8)}


class TestConstraints:
    def test_each_table_is_what_it_may_be_and_where(self) -> None:
        model = nn.ModuleDict(
            {"a": bags(ROWS), "w": bags({"w0": 5000, "w1": 70}, weighted=True), "s": sequences({"s0": 9000, "s1": 64})}
        )
        types = {
            "t0": ["data_parallel"],
            "t1": ["row_wise"],
            "t2": ["column_wise"],
            "t3": ["table_row_wise", "data_parallel"],
            "t7": ["table_wise", "column_wise"],
            "w0": ["table_row_wise"],
            "s0": ["row_wise"],
            "s1": ["table_wise"],
        }
        constraints = {name: ParameterConstraints(sharding_types=own) for name, own in types.items()}
        constraints["t7"].min_partition = 32
        constraints["t6"] = ParameterConstraints(min_partition=32, pooling_factors=[60.0], compute_kernels=["fused"])
        ranks = {"t7": [5], "t6": [2, 3], "t5": [0], "s1": [6, 7], "w0": range(4, 8)}
        own = planner(gpus(8, local_world_size=4), constraints=constraints, ranks=ranks)
        found = entries(own.plan(model, SHARDERS))
        assert len(found) == 12
        for name, allowed in types.items():
            assert found[name].sharding_type in allowed, name
        for name, allowed in ranks.items():
            assert set(found[name].ranks) <= set(allowed), name
        assert min(widths(found["t6"])) >= 32
        assert min(widths(found["t7"])) >= 32
        kernels = {name: entry.compute_kernel for name, entry in found.items()}
        assert {kernel for name, kernel in kernels.items() if found[name].sharding_type == "data_parallel"} <= {"dense"}
        assert kernels["t6"] == kernels["t1"] == "fused"

    @pytest.mark.parametrize("ranks", [{1, 2}, np.array([1, 2]), (np.int64(1),)])
    def test_ranks_may_be_any_collection(self, ranks: Any) -> None:
        found = entries(planner(ranks={"t1": ranks}).plan(bags({"t1": 900}), SHARDERS))
        assert set(found["t1"].ranks) <= {1, 2}

    def test_ranks_go_by_the_path_of_a_table(self) -> None:
        """As they must where tables of several modules have one name."""
        model = nn.ModuleDict({"m": bags({"a": 900, "b": 70}), "n": nn.ModuleDict({"deep": bags({"a": 800})})})
        plan = planner(ranks={"m.a": [1], "n.deep.a": [2], "m.b": [3]}).plan(model, SHARDERS).plan
        assert (plan["m"]["a"].ranks, plan["n.deep"]["a"].ranks, plan["m"]["b"].ranks) == ([1], [2], [3])
        with pytest.raises(PlannerError, match=r"`ranks` has table 'a', and the model has n\.deep\.a, m\.a, b"):
            planner(ranks={"a": [1]}).plan(model, SHARDERS)

    def test_column_wise_alone_may_be_one_shard(self) -> None:
        constraints = {"t0": ParameterConstraints(sharding_types=["column_wise"], min_partition=64)}
        entry = entries(planner(constraints=constraints).plan(bags(ROWS), SHARDERS))["t0"]
        assert (entry.sharding_type, widths(entry)) == ("column_wise", [64])

    @pytest.mark.parametrize("cap_mib", [600, 700])
    def test_the_bytes_of_one_column_shard_are_those_that_torchrec_counts(self, cap_mib: int) -> None:
        """489 MiB of rows, and 119 MiB of lookups and outputs."""
        constraint = ParameterConstraints(
            sharding_types=["column_wise"], compute_kernels=["fused"], pooling_factors=[200.0], min_partition=64
        )
        own = planner(
            gpus(2, cap_mib * 2**20),
            constraints={"t": constraint},
            storage_reservation=FixedPercentageStorageReservation(0.0),
            batch_size=32768,
        )
        if cap_mib == 600:
            with pytest.raises(PlannerError, match="No plan was found that fits the memory"):
                own.plan(bags({"t": 2_000_000}), SHARDERS)
        else:
            assert widths(entries(own.plan(bags({"t": 2_000_000}), SHARDERS))["t"]) == [64]

    def test_tables_with_fewer_rows_than_ranks_may_be_in_blocks(self) -> None:
        """As TorchRec plans them: the last blocks have no rows. In columns sequences of 13 rows cost twice as much."""
        own = planner(
            gpus(24, local_world_size=8),
            constraints={
                "s": ParameterConstraints(sharding_types=["row_wise", "column_wise"], pooling_factors=[20.0]),
                "b": ParameterConstraints(sharding_types=["table_row_wise"]),
                "c": ParameterConstraints(sharding_types=["row_wise"]),
            },
            compare=30.0,
            batch_size=2048,
        )
        model = nn.ModuleDict({"s": sequences({"s": 13}, dim=128), "b": bags({"b": 9, "c": 3})})
        found = entries(own.plan(model, SHARDERS))
        rows = {name: [s.shard_sizes[0] for s in entry.sharding_spec.shards] for name, entry in found.items()}
        assert rows == {"s": [1] * 13 + [0] * 11, "b": [2] * 4 + [1] + [0] * 3, "c": [1] * 3 + [0] * 21}
        assert (own.searched.away, own.searched.taken) == ([], False)
        assert own.costed.estimate.total_ms <= own.searched.theirs.estimate.total_ms

    @pytest.mark.parametrize("types", [["table_wise", "column_wise"], ["column_wise"]])
    def test_column_shards_of_sequences_have_one_width_on_a_rank(self, types: list[str]) -> None:
        """FBGEMM trains no others. One table fits no rank whole; the cheapest plan has narrower shards beside it."""
        constraint = ParameterConstraints(sharding_types=types, compute_kernels=["fused"], pooling_factors=[20.0])
        rows = {"s0": 500_000, "s1": 10_000, "s2": 10_000}
        own = planner(
            gpus(4, 150 * 2**20),
            constraints=dict.fromkeys(rows, constraint),
            ranks={"s0": [0, 1], "s1": [0, 1, 2]},
            storage_reservation=FixedPercentageStorageReservation(0.0),
        )
        found = entries(own.plan(sequences(rows, dim=96), SHARDERS))
        assert widths(found["s0"]) == [48, 48]
        on_rank: dict[int, set[int]] = {}
        for entry in found.values():
            if entry.sharding_type == "column_wise":
                for rank, width in zip(entry.ranks, widths(entry), strict=True):
                    on_rank.setdefault(rank, set()).add(width)
        assert all(len(each) == 1 for each in on_rank.values())
        assert "s0, s1, s2: in column shards of one width, if any, as FBGEMM trains no column shards" in own.report

    def test_the_plan_has_what_constraints_say_of_the_table(self) -> None:
        params = CacheParams(load_factor=0.5)
        constraints = {
            "t1": ParameterConstraints(output_dtype=DataType.FP16, enforce_hbm=True, stochastic_rounding=False),
            "t2": ParameterConstraints(cache_params=params),
        }
        found = entries(planner(constraints=constraints).plan(bags(ROWS), SHARDERS))
        assert found["t1"].output_dtype == DataType.FP16
        assert (found["t1"].enforce_hbm, found["t1"].stochastic_rounding) == (True, False)
        assert found["t2"].cache_params == params

    def test_constraints_that_leave_nothing_raise_as_torchrec_does(self) -> None:
        constraints = {"s": ParameterConstraints(sharding_types=["table_row_wise"])}  # which sequences have not
        said = []
        for make in (planner, lambda **options: EmbeddingShardingPlanner(topology=gpus(), **options)):
            with pytest.raises(RuntimeError, match="after applying user provided constraints for s") as error:
                make(constraints=constraints).plan(sequences({"s": 9}), SHARDERS)
            said.append(str(error.value))
        assert said[0] == said[1]

    def test_empty_constraints_and_models_without_tables_are_no_error(self) -> None:
        assert len(entries(planner(constraints={}).plan(bags(ROWS), SHARDERS))) == 8
        assert planner().plan(nn.Linear(2, 2), SHARDERS).plan == {}


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {"hardware": None},
                r"default bandwidths.*Give `hardware`, such as ShardGymPlanner\(hardware='h100-dgx'\)",
            ),
            ({"hardware": "h1000"}, "h1000"),
            ({"hardware": 3}, "`hardware` is the name of a profile"),
            ({"ranks": {"t9": [0]}}, r"`ranks` has table 't9', and the model has t0, t1"),
            ({"ranks": {"t1": [4]}}, r"`ranks` of table 't1' has 4; the ranks are 0 to 3"),
            ({"ranks": {"t1": []}}, r"`ranks` of table 't1' must be a list of ranks"),
            ({"ranks": {"t1": 4}}, r"`ranks` of table 't1' must be a list of ranks, not 4"),
            ({"ranks": [1]}, r"`ranks` has a list of ranks by the name of each table.*not \[1\]"),
            (
                {"ranks": {"t1": [0]}, "constraints": {"t1": ParameterConstraints(device_group="cpu")}},
                "table 't1', which is in no plan of this topology, as its device_group is 'cpu'",
            ),
            ({"lookups": 5}, "`lookups` are `KeyedJaggedTensor`s.*not 5"),
            ({"lookups": [5]}, "A recorded batch is a KeyedJaggedTensor of TorchRec, not 5"),
            (
                {"hardware": None, "topology": gpus(hbm_mem_bw=0.0)},
                r"hbm_mem_bw of the topology is 0.0, and a bandwidth is a positive number",
            ),
            ({"exponent": 1.0, "lookups": []}, "Give `exponent` or `lookups`, not both"),
            ({"exponent": -1.0}, "`exponent` must be a number of at least 0"),
            ({"compare": -1.0}, "`compare`, if neither True nor False, must be a positive number"),
            ({"max_queries": 0}, "max_queries"),
            ({"topology": gpus(0)}, "world_size of `topology` must be an integer of at least 1, not 0"),
            ({"topology": "a100"}, "`topology` is a Topology of torchrec.distributed.planner.*not 'a100'"),
            ({"batch_size": 0}, "`batch_size` must be an integer of at least 1, not 0"),
            ({"timeout_seconds": 0}, "`timeout_seconds` must be a positive number, not 0"),
            ({"callbacks": ["f"]}, r"`callbacks` are functions that take and return the chosen options.*\['f'\]"),
            ({"constraints": [1]}, r"`constraints` has a ParameterConstraints by the name of each table.*not \[1\]"),
            ({"constraints": {"t1": {}}}, "`constraints` of table 't1' must be a ParameterConstraints, not {}"),
        ],
    )
    def test_wrong_input_is_an_error_of_torchrec_with_a_sentence(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(PlannerError, match=message) as error:
            planner(**options).plan(bags(ROWS), SHARDERS)
        assert error.value.error_type == PlannerErrorType.INPUT_VALIDATION

    @pytest.mark.parametrize(
        ("field", "message"),
        [
            ({"pooling_factors": [float("nan")]}, r"pooling_factors in .* must be a list of numbers .*not \[nan\]"),
            ({"pooling_factors": [-1.0]}, "must be a list of numbers of at least 0, one for each feature"),
            ({"pooling_factors": [float("inf")]}, r"not \[inf\]"),
            ({"pooling_factors": 5.0}, "not 5.0"),
            ({"pooling_factors": None}, "pooling_factors in .* must be a list of numbers, not None"),
            ({"num_poolings": ["a"]}, r"num_poolings in .*not \['a'\]"),
            ({"num_poolings": [1.0, 2.0]}, "has 1 pooling_factors, 2 num_poolings and 1 batch_sizes"),
            ({"batch_sizes": [BATCH, BATCH]}, "has 1 pooling_factors, 1 num_poolings and 2 batch_sizes"),
            ({"batch_sizes": [2.5]}, "batch_sizes in .* must be a list of integers of at least 0"),
            ({"min_partition": -4}, "min_partition in .* must be an integer of at least 0, not -4"),
            ({"sharding_types": "row_wise"}, "sharding_types in .* must be a list of names, not 'row_wise'"),
            ({"sharding_types": ["rowwise"]}, "has 'rowwise', which is none of them: data_parallel, table_wise, "),
            ({"compute_kernels": ["hbm"]}, "has 'hbm', which is none of them: dense, fused, "),
            ({"device_group": "gpu"}, "device_group in .* must be one of cpu, cuda, mtia, or None, not 'gpu'"),
        ],
    )
    def test_wrong_constraints_of_a_table_name_it(self, field: dict[str, Any], message: str) -> None:
        with pytest.raises(PlannerError, match=message) as error:
            planner(constraints={"t1": ParameterConstraints(**field)}).plan(bags(ROWS), SHARDERS)
        assert error.value.error_type == PlannerErrorType.INPUT_VALIDATION
        assert "'t1'" in str(error.value)

    @pytest.mark.parametrize(
        ("module", "sharders", "message"),
        [
            (3, SHARDERS, "`module` must be a torch.nn.Module, not 3"),
            (nn.Linear(2, 2), EmbeddingBagCollectionSharder(), "`sharders` must be a list of sharders, such as"),
            (nn.Linear(2, 2), [EmbeddingBagCollectionSharder], "`sharders` must be a list of sharders, such as"),
        ],
    )
    def test_what_is_planned_must_be_a_module_and_sharders(self, module: Any, sharders: Any, message: str) -> None:
        with pytest.raises(PlannerError, match=message) as error:
            planner().plan(module, sharders)
        assert error.value.error_type == PlannerErrorType.INPUT_VALIDATION

    def test_constraints_of_no_table_are_warned_about(self) -> None:
        """But not those of tables of other devices, which are in no plan of these."""
        constraints = {
            "t9": ParameterConstraints(sharding_types=["row_wise"]),
            "on_cpu": ParameterConstraints(device_group="cpu"),
        }
        own = planner(constraints=constraints)
        with pytest.warns(UserWarning, match="`constraints` has t9, and the plan has no such table"):
            own.plan(bags({"t1": 900}), SHARDERS)
        assert "`constraints` has t9, and" in own.report

    def test_too_little_memory(self) -> None:
        topology = Topology(2, "cpu", ddr_cap=GIB // 2)
        with pytest.raises(PlannerError) as error:
            planner(topology, timeout_seconds=5).plan(bags({"a": 10_000_000, "b": 9_000_000}), SHARDERS)
        kind, text = failed(error)
        assert kind == PlannerErrorType.INSUFFICIENT_STORAGE
        assert "Table 0 (a) needs 2600000000 bytes" in text
        assert "Give the Topology more hbm_cap or ddr_cap, or reserve less" in text
        assert not any(words in text for words in ("memory_cap_bytes", "task 'model'"))
        assert "insufficient storage" in text  # TorchRec's own

    def test_ranks_that_no_form_can_have(self) -> None:
        constraints = {"t1": ParameterConstraints(sharding_types=["row_wise"])}
        with pytest.raises(PlannerError, match=r"'t1'.*row_wise only.*on devices 0, 1 only") as error:
            planner(constraints=constraints, ranks={"t1": [0, 1]}).plan(bags(ROWS), SHARDERS)
        assert error.value.error_type == PlannerErrorType.STRICT_CONSTRAINTS

    def test_arguments_that_only_torchrecs_planner_uses_are_warned_about(self) -> None:
        with pytest.warns(UserWarning, match="`proposer` is used for what TorchRec plans"):
            planner(proposer=GreedyProposer())
        with pytest.warns(UserWarning, match="`plan_loader` is not used"):
            planner(plan_loader=object())


class TestHardware:
    def test_cpus_are_cpus(self) -> None:
        own = planner(Topology(2, "cpu"), hardware=None)
        plan = own.plan(bags(ROWS), SHARDERS)
        assert "Hardware: cpu, as the topology is one of CPUs" in own.report
        sharded = [entry for entry in entries(plan).values() if entry.sharding_spec is not None]
        placements = {str(shard.placement) for entry in sharded for shard in entry.sharding_spec.shards}
        assert placements <= {"rank:0/cpu", "rank:1/cpu"}

    def test_bandwidths_of_the_topology_are_those_of_the_nearest_profile(self) -> None:
        own = planner(gpus(hbm_mem_bw=1900e6, intra_host_bw=200e6), hardware=None)
        own.plan(bags(ROWS), SHARDERS)
        assert "a100-dgx with hbm_mem_bw, intra_host_bw of the topology" in own.report
        slow = planner(gpus(hbm_mem_bw=190e6, intra_host_bw=200e6), hardware=None)
        slow.plan(bags(ROWS), SHARDERS)
        assert slow.costed.estimate.total_ms > own.costed.estimate.total_ms

    def test_a_profile_and_a_pod_of_hosts(self) -> None:
        constraints = {"t7": ParameterConstraints(sharding_types=["table_row_wise"])}
        pod = gpus(8, local_world_size=2, pod_size=2)  # links join hosts of two, as TorchRec's blocks of rows do
        plan = planner(pod, hardware=hardware_profile("h100-dgx"), constraints=constraints).plan(bags(ROWS), SHARDERS)
        entry = entries(plan)["t7"]
        assert entry.ranks in ([0, 1, 2, 3], [4, 5, 6, 7])
        assert [str(shard.placement).split("/")[1] for shard in entry.sharding_spec.shards] == ["cuda:0", "cuda:1"] * 2

    def test_names_of_cuda_devices(self) -> None:
        from shard_gym.planning.dropin.hardware import profile_of_device

        names = {
            "NVIDIA A100-SXM4-80GB": "a100-dgx",
            "NVIDIA H100 80GB HBM3": "h100-dgx",
            "NVIDIA H200": "h200-dgx",
            "NVIDIA GH200 480GB": "gh200-quad",
            "Tesla V100-SXM2-32GB": "v100-nvlink",
            "NVIDIA GeForce RTX 2080 Ti": "rtx2080ti-pcie",
            "NVIDIA T4": None,
        }
        assert {name: profile_of_device(name) for name in names} == names


def quantized(rows: dict[str, int]) -> QuantEmbeddingBagCollection:
    collection = EmbeddingBagCollection(tables=bags(rows).embedding_bag_configs(), device=torch.device("cpu"))
    observer = torch.quantization.PlaceholderObserver.with_args
    collection.qconfig = torch.quantization.QConfig(observer(dtype=torch.float), observer(dtype=torch.qint8))
    return QuantEmbeddingBagCollection.from_float(collection)


def managed(rows: int = 4000) -> ManagedCollisionEmbeddingBagCollection:
    collection = bags({"mch": rows})
    module = HashZchManagedCollisionModule(zch_size=rows, device=META, total_num_buckets=8)
    return ManagedCollisionEmbeddingBagCollection(
        collection, ManagedCollisionCollection({"mch": module}, collection.embedding_bag_configs())
    )


class TestDelegated:
    CASES: ClassVar[dict[str, tuple[ParameterConstraints, str]]] = {
        "fused_uvm": (
            ParameterConstraints(compute_kernels=["fused_uvm"]),
            "by no kernel that they may have (fused_uvm)",
        ),
        "cached": (
            ParameterConstraints(compute_kernels=["fused_uvm_caching"], cache_params=CacheParams(load_factor=0.3)),
            "by no kernel that they may have (fused_uvm_caching)",
        ),
        "key_value": (
            ParameterConstraints(compute_kernels=["key_value"]),
            "by no kernel that they may have (key_value)",
        ),
        "grid": (
            ParameterConstraints(sharding_types=["grid_shard"], min_partition=32),
            "(grid_shard: no search knows it)",
        ),
        "twcw": (
            ParameterConstraints(sharding_types=["table_column_wise"], min_partition=32),
            "(table_column_wise: no search knows it)",
        ),
    }

    def test_what_shardgym_does_not_model_is_planned_by_torchrec_and_named(self) -> None:
        rows = dict.fromkeys(self.CASES, 60000) | {"own": 70_000}
        constraints = {name: constraint for name, (constraint, _) in self.CASES.items()}
        model = nn.ModuleDict({"bags": bags(rows), "mc": managed()})
        own = planner(gpus(8, local_world_size=4), constraints=constraints)
        found = entries(own.plan(model, SHARDERS))
        assert len(found) == len(rows) + 1
        for name, (constraint, why) in self.CASES.items():
            assert found[name].sharding_type in (constraint.sharding_types or [found[name].sharding_type])
            assert found[name].compute_kernel in (constraint.compute_kernels or ["fused"])
            assert f"TorchRec plans {name}" in own.report or f", {name}" in own.report
            assert why in own.report
        assert found["cached"].cache_params == CacheParams(load_factor=0.3)
        assert "mch, as their ids are mapped to rows while they train (managed collision)" in own.report
        assert found["mch"].sharding_type == "row_wise"

    def test_the_reason_is_what_rules_the_types_out(self) -> None:
        for ranks, dim, kind, why in (
            (5, 64, "table_row_wise", "table_row_wise: hosts of 2 do not divide 5 ranks"),
            (4, 10, "column_wise", "column_wise: the dim 10 is no multiple of 4"),
        ):
            own = planner(
                gpus(ranks, local_world_size=2), constraints={"a": ParameterConstraints(sharding_types=[kind])}
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # TorchRec plans all tables of the first
                own.plan(bags({"a": 5000}, dim=dim), SHARDERS)
            assert f"as ShardGym plans no sharding type that they may have ({why})" in own.report

    def test_blocks_with_a_dim_that_is_no_multiple_of_4_have_costs(self) -> None:
        types = ["table_row_wise", "grid_shard"]
        constraint = ParameterConstraints(sharding_types=types, compute_kernels=["fused_uvm"])
        own = planner(gpus(4, local_world_size=2), constraints={"a": constraint})
        assert entries(own.plan(bags({"a": 5000}, dim=10), SHARDERS))["a"].sharding_type in types
        assert own.costed.tables.embedding_dim.tolist() == [12]

    def test_no_shard_is_narrower_than_a_huge_min_partition(self) -> None:
        constraint = ParameterConstraints(sharding_types=["column_wise"], min_partition=10**30)
        own = planner(gpus(2), constraints={"a": constraint})
        found = entries(own.plan(nn.ModuleDict({"m": bags({"a": 5000}), "n": bags({"b": 50})}), SHARDERS))
        assert widths(found["a"]) == [64]

    def test_quantized_tables_are_in_the_memory_of_devices(self) -> None:
        model = nn.ModuleDict({"q": quantized({"q": 500}), "b": bags({"t": 900})})
        own = planner(gpus(2), compare=30.0)
        own.plan(model, [QuantEmbeddingBagCollectionSharder(), *SHARDERS])
        assert "TorchRec plans q, as their rows are quantized, to be served (quant, " in own.report
        assert "outside" not in own.report

    @pytest.mark.parametrize(
        ("make", "cap_mib", "message"),
        [
            (lambda: quantized({"theirs": 300_000}), 56, ""),  # 24 MiB on a rank
            (lambda: managed(100_000), 56, ""),  # 12 MiB on each rank
            (lambda: managed(100_000), 45, "No plan was found that fits .* Give the Topology more hbm_cap or ddr_cap"),
        ],
        ids=["quantized", "managed collision", "no room"],
    )
    def test_tables_of_torchrec_leave_the_memory_that_it_counts(self, make: Any, cap_mib: int, message: str) -> None:
        """To a table of 37 MiB, which may be whole alone."""
        whole = ParameterConstraints(sharding_types=["table_wise"], pooling_factors=[50.0])
        own = planner(
            gpus(2, cap_mib * 2**20),
            constraints={
                "theirs": whole,
                "ours": replace(whole, compute_kernels=["fused"]),
                "mch": ParameterConstraints(compute_kernels=["fused"]),
            },
            storage_reservation=FixedPercentageStorageReservation(0.0),
            timeout_seconds=5,
        )
        model = nn.ModuleDict({"theirs": make(), "own": bags({"ours": 150_000})})
        sharders = [QuantEmbeddingBagCollectionSharder(), *SHARDERS]
        if message:
            with pytest.raises(PlannerError, match=message):
                own.plan(model, sharders)
            return
        own.plan(model, sharders)
        held = np.zeros(2)
        for option in own._best_plan:
            for shard in option.shards:
                held[shard.rank] += shard.storage.hbm
        assert held.max() <= cap_mib * 2**20
        assert f"HBM of tables on the fullest device, rank {held.argmax()}: " in own.report
        assert (own.costed.estimate.phases_ms[:, 0] > 0).all()  # each rank looks something up

    def test_blocks_of_virtual_tables_are_whole_buckets(self) -> None:
        config = EmbeddingConfig(
            name="v",
            num_embeddings=3 * 2**30,
            embedding_dim=64,
            feature_names=["f_v"],
            use_virtual_table=True,
            total_num_buckets=3,
        )
        constraint = ParameterConstraints(
            sharding_types=["row_wise"], compute_kernels=["ssd_virtual_table"], use_virtual_table=True
        )
        own = planner(gpus(2, ssd_cap=10**15), constraints={"v": constraint})
        plan = own.plan(EmbeddingCollection(tables=[config], device=META), SHARDERS)
        shards = entries(plan)["v"].sharding_spec.shards
        assert [shard.shard_sizes[0] for shard in shards] == [2 * 2**30, 2**30]

    def test_their_memory_and_their_work_count(self) -> None:
        """TorchRec puts a table on a rank; the other one goes elsewhere, as that rank is full or busy."""
        constraint = ParameterConstraints(sharding_types=["table_column_wise"], pooling_factors=[50.0])
        free = ParameterConstraints(sharding_types=["table_wise"], pooling_factors=[50.0])
        for rows, cap in ((3_000_000, GIB), (2_000, 8 * GIB)):
            constraints = {"theirs": constraint, "ours": free}
            own = planner(
                gpus(2, cap), constraints=constraints, storage_reservation=FixedPercentageStorageReservation(0.0)
            )
            found = entries(own.plan(bags({"theirs": rows, "ours": rows}), SHARDERS))
            assert found["theirs"].ranks != found["ours"].ranks
            assert (own.costed.estimate.phases_ms[:, 0] > 0).all()  # on both devices

    def test_rows_in_host_memory_take_none_of_the_device(self) -> None:
        constraints = {"huge": ParameterConstraints(compute_kernels=["fused_uvm"])}
        own = planner(gpus(2, GIB), constraints=constraints)
        found = entries(own.plan(bags({"huge": 20_000_000, "small": 500_000}), SHARDERS))
        assert found["huge"].compute_kernel == "fused_uvm"
        assert found["small"].compute_kernel in ("fused", "dense")

    def test_other_collections(self) -> None:
        """Towers are TorchRec's; feature processors, fused collections and plain bags of one name are planned."""
        scored = FeatureProcessedEmbeddingBagCollection(
            bags({"fp0": 900, "fp1": 800}, weighted=True), PositionWeightedModuleCollection({"f_fp0": 5, "f_fp1": 5})
        )
        configs = [EmbeddingBagConfig(name="fu", num_embeddings=700, embedding_dim=64, feature_names=["f_fu"])]
        fused = FusedEmbeddingBagCollection(
            tables=configs, optimizer_type=torch.optim.SGD, optimizer_kwargs={"lr": 0.1}, device=META
        )
        model = nn.ModuleDict(
            {
                "scored": scored,
                "fused": fused,
                "tower": EmbeddingTower(bags({"to0": 600, "to1": 500}), nn.Linear(2, 2)),
                "one": nn.EmbeddingBag(400, 64, device=META),
                "two": nn.EmbeddingBag(300, 64, device=META),
            }
        )
        own = planner(compare=30.0)
        plan = own.plan(model, [*get_default_sharders(), EmbeddingTowerSharder(), EmbeddingBagSharder()])
        assert sorted(plan.plan) == ["fused", "one", "scored", "tower", "two"]
        assert sorted(plan.plan["scored"]) == ["fp0", "fp1"]
        assert "TorchRec plans to0, to1, as they belong to towers, whose tables share a host" in own.report
        assert {"one.weight", "two.weight"} <= set(own.costed.tables.names)
        tables = own.costed.tables
        trained = {
            name: tables.workloads[group].optimizer for name, group in zip(tables.names, tables.group, strict=True)
        }
        assert trained == dict.fromkeys(trained, "rowwise_adagrad") | {
            "fu": "sgd"
        }  # where nothing says it, the default

    def test_a_model_that_is_all_torchrecs(self) -> None:
        own = planner()
        assert entries(own.plan(managed(), SHARDERS))["mch"].sharding_type == "row_wise"
        assert "TorchRec plans mch" in own.report
        assert f"Embeddings cost {own.costed.estimate.total_ms:.4f} ms an iteration" in own.report
        assert "MiB of the 6.80 GiB that the storage reservation leaves" in own.report

    def test_such_a_plan_stands_where_its_cost_is_not_known(self) -> None:
        own = planner(hardware=None)
        assert entries(own.plan(managed(), SHARDERS))["mch"].sharding_type == "row_wise"
        assert own.costed is None
        assert "ShardGym does not cost this plan: The topology has TorchRec's default bandwidths" in own.report

    def test_that_torchrec_finds_no_plan_of_them_is_an_error_that_names_them(self) -> None:
        constraints = {"huge": ParameterConstraints(compute_kernels=["fused_uvm"], sharding_types=["table_wise"])}
        with pytest.raises(PlannerError, match="TorchRec plans huge first, and finds no plan") as error:
            planner(gpus(2, ddr_cap=GIB), constraints=constraints).plan(bags({"huge": 20_000_000, "t": 9}), SHARDERS)
        assert error.value.error_type == PlannerErrorType.INSUFFICIENT_STORAGE

    def test_unequal_memory(self) -> None:
        """The largest table goes where there is room, and blocks of rows stay equal, with which TorchRec is right."""
        caps = [GIB // 2, GIB, 4 * GIB, 4 * GIB]
        topology = of_caps(caps)
        constraints = {
            "large": ParameterConstraints(sharding_types=["table_wise"]),
            "rows": ParameterConstraints(sharding_types=["row_wise"]),
        }
        found = entries(
            planner(topology, constraints=constraints).plan(bags({"large": 7_000_000, "rows": 1000}), SHARDERS)
        )
        assert found["large"].ranks in ([2], [3])
        assert [shard.shard_sizes[0] for shard in found["rows"].sharding_spec.shards] == [250] * 4

    def test_blocks_of_rows_of_unequal_size_are_never_returned(self) -> None:
        """TorchRec cuts rows as the memory of ranks is where a topology has a list of it, and then adds up wrongly."""
        rows, types = {"large": 10_000_000}, ["row_wise"]
        in_memory = ParameterConstraints(sharding_types=types, compute_kernels=["fused"])
        for caps, constraint, message in (
            (
                [8 * GIB, *[GIB // 2] * 3],
                in_memory,
                "(?s)row_wise only.*no sharding type for large but.* blocks of rows of unequal size",
            ),
            (
                [8 * GIB, *[4 * GIB] * 3],
                ParameterConstraints(sharding_types=types, compute_kernels=["fused_uvm"]),
                "Give all ranks of the Topology the same memory, or these tables another sharding type",
            ),
        ):
            topology = of_caps(caps)
            for others in ({}, {"small": 900}):
                with pytest.raises(PlannerError, match=message) as error:
                    planner(topology, constraints={"large": constraint}).plan(bags(rows | others), SHARDERS)
                assert error.value.error_type == PlannerErrorType.STRICT_CONSTRAINTS

    def test_ranks_of_such_a_table_are_refused(self) -> None:
        with pytest.raises(PlannerError, match="`ranks` has table 'mch', which TorchRec plans") as error:
            planner(ranks={"mch": [0]}).plan(managed(), SHARDERS)
        assert error.value.error_type == PlannerErrorType.INPUT_VALIDATION

    def test_torchrecs_plan_stands_in_where_hbm_is_too_small(self) -> None:
        own = planner(gpus(2, GIB), timeout_seconds=20)
        with pytest.warns(UserWarning, match="This is TorchRec's plan; it keeps rows of huge outside"):
            found = entries(own.plan(bags({"huge": 20_000_000}), SHARDERS))
        assert found["huge"].compute_kernel.startswith("fused_uvm")
        assert (
            "this is TorchRec's plan; it keeps rows of huge outside their devices' memory, as ShardGym found none"
            in own.report
        )
        assert f"Embeddings cost {own.costed.estimate.total_ms:.4f} ms an iteration" in own.report
        assert "Of huge, rows outside their devices' memory are costed as if they were in it" in own.report
        with pytest.raises(PlannerError, match="but with table 'huge' on other ranks than `ranks` has") as error:
            planner(gpus(2, GIB), timeout_seconds=20, ranks={"huge": [1], "small": [0]}).plan(
                bags({"huge": 20_000_000, "small": 9}), SHARDERS
            )
        assert error.value.error_type == PlannerErrorType.STRICT_CONSTRAINTS

    def test_torchrecs_plan_that_does_not_fit_by_shardgyms_count_is_no_plan(self) -> None:
        """TorchRec does not count the state of Adam in `fused_params`."""
        constraint = ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"])
        sharder = EmbeddingBagCollectionSharder({"optimizer": EmbOptimType.ADAM})
        own = planner(gpus(1, 8 * GIB), constraints={"a": constraint})
        with pytest.raises(PlannerError, match="which does not fit by what ShardGym counts") as error:
            own.plan(bags({"a": 12_000_000}), [sharder])
        assert error.value.error_type == PlannerErrorType.INSUFFICIENT_STORAGE
        own.plan(bags({"a": 6_000_000}), [sharder])  # 6e6 rows of 3 * 64 numbers
        assert "rank 0: 4.29 GiB of the" in own.report


class TestApproximations:
    def test_each_is_said(self) -> None:
        constraints = {
            "t1": ParameterConstraints(pooling_factors=[3.0], num_poolings=[2.0]),
            "t2": ParameterConstraints(pooling_factors=[3.0], batch_sizes=[BATCH // 2]),
        }
        model = nn.ModuleDict(
            {"a": bags(ROWS), "w": bags({"w0": 500}, weighted=True), "odd": bags({"odd": 600}, dim=10)}
        )
        own = planner(constraints=constraints)
        plan = own.plan(model, SHARDERS)
        assert "t1, t2: num_poolings and batch_sizes count as lookups and bags of whole batches" in own.report
        assert "w0: gradients of the weights of lookups are in no cost" in own.report
        assert "odd: dims are rounded up to a multiple of 4 in costs" in own.report
        odd = entries(plan)["odd"]
        if odd.sharding_spec is not None:
            assert widths(odd) == [10] * len(odd.ranks)
        tables = own.costed.tables
        lookups = dict(zip(tables.names, tables.pooling_factor.tolist(), strict=True))
        assert (lookups["t1"], lookups["t2"], lookups["t3"]) == (6.0, 1.5, 1.0)
        assert tables.workload.batch_size == 4 * BATCH

    def test_no_pooling_factors_are_ones(self) -> None:
        own = planner(constraints={"t1": ParameterConstraints(pooling_factors=[])})
        own.plan(bags({"t1": 900}), SHARDERS)
        assert own.costed.tables.pooling_factor.tolist() == [1.0]
        assert "t1: pooling_factors without a number count as 1 for each feature" in own.report

    def test_very_many_features(self) -> None:
        names = [f"f{number}" for number in range(5000)]
        config = EmbeddingBagConfig(name="t", num_embeddings=900, embedding_dim=8, feature_names=names)
        own = planner()
        own.plan(EmbeddingBagCollection(tables=[config], device=META), SHARDERS)
        assert own.costed.tables.num_features.tolist() == [4096]
        assert "t: more than 4,096 bags of a sample count as so many" in own.report

    def test_replicas_of_sequences_are_left_out_on_a_cpu(self) -> None:
        for hardware in (None, "h100-dgx"):  # the ranks are CPUs, whatever the costs are of
            own = planner(Topology(2, "cpu"), hardware=hardware)
            found = entries(own.plan(sequences({"s0": 8, "s1": 8}), SHARDERS))
            assert all(entry.sharding_type != "data_parallel" for entry in found.values())
            assert "s0, s1: not replicated, as TorchRec 1.8 reads replicas wrongly on a CPU" in own.report

    def test_optimizers_and_dtypes_of_several_kinds(self) -> None:
        model = nn.ModuleDict(
            {
                "a": bags(ROWS),
                "b": bags({"b0": 900}, data_type=DataType.FP16),
                "c": bags({"c0": 700}),
                "d": sequences({"d0": 600}),
            }
        )
        for name, optimizer in {"a": RowWiseAdagrad, "b": Adam, "c": LarsSGD}.items():
            apply_optimizer_in_backward(optimizer, model[name].parameters(), {"lr": 0.1})
        own = planner()
        sharders = [SHARDERS[0], EmbeddingCollectionSharder({"optimizer": EmbOptimType.EXACT_SGD})]
        assert len(entries(own.plan(model, sharders))) == 11
        kinds = {(each.weight_dtype, each.optimizer) for each in own.costed.tables.workloads}
        assert kinds == {("fp32", "rowwise_adagrad"), ("fp16", "adam"), ("fp32", "adagrad"), ("fp32", "sgd")}
        assert "c0: fp32 and LarsSGD are costed as fp32 and adagrad" in own.report


def recorded(samples: int, rows: dict[str, int], seed: int = 0) -> KeyedJaggedTensor:
    rng = np.random.default_rng(seed)
    lengths = {name: np.full(samples, number + 1) for number, name in enumerate(rows)}
    values = [rng.integers(0, count, lengths[name].sum()) for name, count in rows.items()]
    return KeyedJaggedTensor(
        keys=[f"f_{name}" for name in rows],
        values=torch.from_numpy(np.concatenate(values)),
        lengths=torch.from_numpy(np.concatenate(list(lengths.values()))),
    )


class TestLookups:
    def test_recorded_batches_of_one_rank_are_joined(self) -> None:
        rows = {"a": 50, "b": 4000}
        own = planner(lookups=[recorded(BATCH, rows, seed) for seed in range(8)])
        own.plan(bags(rows), SHARDERS)
        tables = own.costed.tables
        assert tables.workload.batch_size == 4 * BATCH
        assert sorted(zip(tables.names, tables.pooling_factor.tolist(), strict=True)) == [("a", 1.0), ("b", 2.0)]
        distinct = dict(zip(tables.names, tables.distinct_rows.tolist(), strict=True))
        assert distinct["a"] == 50
        assert 1500 < distinct["b"] < 1700  # of 2,048 lookups in 4,000 rows

    def test_those_of_a_generator_are_counted_in_every_plan(self) -> None:
        own = planner(lookups=(recorded(BATCH, {"a": 50}, seed) for seed in range(4)))
        for _ in range(2):
            own.plan(bags({"a": 50}), SHARDERS)
            assert own.costed.tables.distinct_rows.tolist() == [50]

    def test_lookups_beside_tables_of_torchrec(self) -> None:
        own = planner(lookups=recorded(4 * BATCH, {"a": 50}))
        own.plan(nn.ModuleDict({"bags": bags({"a": 50}), "mc": managed()}), SHARDERS)
        assert own.costed.tables.distinct_rows[own.costed.tables.names.index("a")] == 50

    @pytest.mark.parametrize(
        ("samples", "message"),
        [
            ([BATCH] * 3, f"The last {3 * BATCH} samples of the lookups fill no batch of 1,024"),
            ([100], "has 100 samples, which do not divide the 1,024"),
        ],
    )
    def test_batches_that_do_not_fit_are_refused(self, samples: list[int], message: str) -> None:
        own = planner(lookups=[recorded(each, {"a": 50}) for each in samples])
        with pytest.raises(PlannerError, match=message) as error:
            own.plan(bags({"a": 50}), SHARDERS)
        assert error.value.error_type == PlannerErrorType.INPUT_VALIDATION


class NeverEnds(GreedyProposer):
    """Makes the same proposal for ever."""

    def propose(self) -> Any:
        return super().propose() or self._first

    def load(self, *arguments: Any, **options: Any) -> None:
        super().load(*arguments, **options)
        self._first = super().propose()

    def feedback(self, *_: Any, **__: Any) -> None:
        pass


class TestBesideTorchRec:
    def test_the_cheaper_plan_is_returned(self) -> None:
        constraints = {name: ParameterConstraints(pooling_factors=[20.0]) for name in ROWS}
        own = planner(constraints=constraints, compare=30.0)
        own.plan(bags(ROWS), SHARDERS)
        assert own.searched.theirs is not None
        assert own.costed.estimate.total_ms <= own.searched.theirs.estimate.total_ms
        assert "TorchRec's plan, found in" in own.report

    def test_torchrecs_plan_is_taken_where_it_costs_less(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A search that answers with all tables on one device."""
        from shard_gym.agents.search.plan_search import PlanSearchAgent
        from shard_gym.plans import plan_of_placement

        monkeypatch.setattr(
            PlanSearchAgent, "plan", lambda _, task: plan_of_placement([0] * task.num_tables, task.tables)
        )
        constraints = {name: ParameterConstraints(pooling_factors=[20.0]) for name in ROWS}
        for compare in (False, 30.0):
            own = planner(constraints=constraints, compare=compare)
            found = entries(own.plan(bags(ROWS), SHARDERS))
            assert (len({rank for entry in found.values() for rank in entry.ranks}) > 1) == bool(compare)
        assert "costs less than ShardGym's" in own.report
        theirs = EmbeddingShardingPlanner(gpus(), BATCH, constraints=constraints).plan(bags(ROWS), SHARDERS)
        assert {n: (e.sharding_type, e.ranks) for n, e in found.items()} == {
            n: (e.sharding_type, e.ranks) for n, e in entries(theirs).items()
        }

    def test_torchrecs_planner_is_not_offered_unequal_blocks_of_rows(self) -> None:
        """Where a topology has a list of memory, it cuts rows as memory is, and chooses that for these tables."""
        topology = of_caps([8 * GIB, *[4 * GIB] * 3])
        rows = {"t0": 2_000_001, "t1": 2_000_001}
        for kernel, others in (("fused", {}), ("fused_uvm", {}), ("fused_uvm", {"ours": 900})):
            constraint = ParameterConstraints(
                pooling_factors=[30.0], compute_kernels=[kernel], sharding_types=["row_wise", "table_wise"]
            )
            constraints = dict.fromkeys(rows, constraint)
            theirs = EmbeddingShardingPlanner(topology, 2048, constraints=constraints)
            blocks = [
                shard.shard_sizes[0] for shard in entries(theirs.plan(bags(rows), SHARDERS))["t0"].sharding_spec.shards
            ]
            assert blocks == [800_000, 400_000, 400_000, 400_001]
            own = planner(topology, constraints=constraints, compare=30.0, batch_size=2048)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # TorchRec plans all tables of the second
                found = entries(own.plan(bags(rows | others), SHARDERS))
            assert [found[name].sharding_type for name in rows] == ["table_wise"] * 2
            assert f"t0, t1{', ours' * bool(others)}: TorchRec's planner is not offered row_wise" in own.report

    def test_tables_of_which_torchrec_has_unequal_blocks_alone_have_no_comparison(self) -> None:
        topology = of_caps([8 * GIB, *[4 * GIB] * 3])
        constraints = {"t0": ParameterConstraints(sharding_types=["row_wise"])}
        own = planner(topology, constraints=constraints, compare=30.0)
        entry = entries(own.plan(bags({"t0": 1000, "t1": 800}), SHARDERS))["t0"]
        assert [shard.shard_sizes[0] for shard in entry.sharding_spec.shards] == [250] * 4
        assert "TorchRec has no sharding type for t0 but row_wise, which TorchRec cuts into" in own.report

    def test_tables_outside_memory_in_both_plans_are_not_held_against_torchrecs(self) -> None:
        constraints = {"huge": ParameterConstraints(compute_kernels=["fused_uvm"])}
        own = planner(gpus(2), constraints=constraints, compare=30.0)
        own.plan(bags({"huge": 90_000, "small": 500}), SHARDERS)
        assert own.searched.theirs is not None
        assert own.searched.away == []

    def test_an_error_of_torchrec_does_not_lose_the_plan(self) -> None:
        class Fails(GreedyProposer):
            def propose(self) -> Any:
                raise AssertionError("no proposal")

        with pytest.warns(UserWarning, match="proposer"):
            own = planner(proposer=Fails(), compare=30.0)
        assert len(entries(own.plan(bags(ROWS), SHARDERS))) == 8
        assert "TorchRec's planner fails, AssertionError: no proposal" in own.report

    def test_the_limit_of_time_ends_torchrecs_planner(self) -> None:
        with pytest.warns(UserWarning, match="proposer"):
            own = planner(proposer=NeverEnds(), compare=1.0)
        own.plan(bags(ROWS), SHARDERS)
        assert own.searched.compare_s < 10
        slow = planner(compare=1e-9)
        slow.plan(bags(ROWS), SHARDERS)
        assert "TorchRec's planner found no plan within" in slow.report

    def test_estimates_are_torchrecs(self) -> None:
        """Storage and perf of the shards of a plan, which are estimated without enumerating."""
        model = nn.ModuleDict({"a": bags(ROWS), "s": sequences({"s0": 9000})})
        types = ["row_wise", "table_row_wise", "data_parallel", "table_wise"]
        constraints = {f"t{n}": ParameterConstraints(sharding_types=[types[n % 4]]) for n in range(8)}
        own = planner(gpus(8, local_world_size=4), constraints=constraints)
        own.plan(model, SHARDERS)
        options = EmbeddingEnumerator(gpus(8, local_world_size=4), BATCH, constraints).enumerate(model, SHARDERS)
        compared = 0
        for chosen in own._best_plan:
            same = [
                option
                for option in options
                if (option.fqn, option.sharding_type, option.compute_kernel)
                == (chosen.fqn, chosen.sharding_type, chosen.compute_kernel)
            ]
            theirs = {(*shard.offset, *shard.size): shard for shard in same[0].shards}
            for shard in chosen.shards:
                known = theirs.get((*shard.offset, *shard.size))
                if known is not None:
                    assert (shard.storage, shard.perf) == (known.storage, known.perf)
                    compared += 1
        assert compared > 25

    def test_an_enumerator_of_the_user_is_asked(self) -> None:
        constraints = {"t3": ParameterConstraints(sharding_types=["row_wise"])}
        enumerator = EmbeddingEnumerator(gpus(), BATCH, constraints)
        found = entries(planner(enumerator=enumerator).plan(bags(ROWS), SHARDERS))
        assert found["t3"].sharding_type == "row_wise"

    def test_callbacks_stats_and_hashes_stay(self, caplog: pytest.LogCaptureFixture) -> None:
        logging.disable(logging.NOTSET)
        seen: list[int] = []

        def callback(plan: list[Any]) -> list[Any]:
            seen.append(len(plan))
            return plan

        own = planner(callbacks=[callback])
        theirs = EmbeddingShardingPlanner(topology=gpus(), batch_size=BATCH)
        model = bags({"t0": 900, "t1": 800})
        with caplog.at_level(logging.INFO):
            own.plan(model, SHARDERS)
        theirs.plan(model, SHARDERS)
        assert seen == [2]
        assert own.hash_planner_context_inputs() == theirs.hash_planner_context_inputs()
        assert own.hash_planner_context_inputs_str() == theirs.hash_planner_context_inputs_str()
        assert "--- Planner Statistics ---" in caplog.text
        assert caplog.text.index("--- Planner Statistics ---") < caplog.text.index("Embeddings cost")

    def test_what_is_logged(self) -> None:
        own = planner()
        own.plan(bags(ROWS), SHARDERS)
        total = own.costed.estimate.total_ms
        assert f"Embeddings cost {total:.4f} ms an iteration (forward " in own.report
        assert "Hardware: a100-dgx, as given." in own.report
        assert "HBM of tables on the fullest device, rank " in own.report
        assert "Mean error of the cost model on held-out measurements, a100-dgx" in own.report
        assert "plan-search, " in own.report


def test_the_plan_is_one_of_torchrecs() -> None:
    assert isinstance(planner().plan(bags(ROWS), SHARDERS), ShardingPlan)
    assert isinstance(planner().collective_plan(bags(ROWS), SHARDERS, OneRank()), ShardingPlan)


class OneRank:
    """A process group of one process."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1


def test_outputs_that_a_sharder_compresses_cost_less() -> None:
    """As TorchRec's `QCommsConfig` makes codecs; those of the forward stand for both where they differ."""
    found = {}
    for forward, backward in ((None, None), (CommType.FP16, CommType.FP16), (CommType.FP16, CommType.BF16)):
        registry = None
        if forward is not None:
            registry = get_qcomm_codecs_registry(QCommsConfig(forward_precision=forward, backward_precision=backward))
        own = planner(constraints={name: ParameterConstraints(sharding_types=["table_wise"]) for name in ROWS})
        own.plan(bags(ROWS), [EmbeddingBagCollectionSharder(qcomm_codecs_registry=registry)])
        found[forward, backward] = own.costed.estimate.total_ms
    assert found[CommType.FP16, CommType.FP16] < found[None, None]
    assert "outputs are sent in fp16, bf16, and costed as fp16" in own.report
