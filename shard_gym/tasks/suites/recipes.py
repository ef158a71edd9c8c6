"""The recipes of the named suites of placement and sharding, from which `build.py` makes their files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from shard_gym.tables.tables import MAX_ROWS
from shard_gym.tasks.suites.info import MEASURED, SHARDING, SIMULATED

TASKS_PER_SPLIT = 50
SPLIT: dict[str, Any] = {"track": SHARDING, "splittable": True}  # of a suite whose tables may be split
NEUROSHARD_DIMS = (4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Recipe:
    """How to build one suite: random tasks of a pool's tables, or (without `num_tables`) one task with all of them.

    `num_tables` and `num_devices` are the smallest and largest T and D. A suite made to be measured has the track
    "measured", fewer test tasks, may have a batch of its own (`Tables.at_batch_size`), and leaves out tables with more
    rows than `max_rows`, so that a machine with little memory holds a task. With `host_memory`, rows may be in that of
    the hosts: drawn tasks have an HBM of `hbm_share` (`TaskSampler.hbm_share`), that of a whole model is all that the
    devices have. A task is on `hardware` or one of `more_hardware`. A table is a sequence table with the probability
    `sequence_share`. With `sync_every`, plans may have groups of devices, and tables the whole memory of a device.
    Without `training` the tables are served. Where it `repeats`, tables of the pool are drawn with replacement. With
    `splittable` they may be split. With `constrained` a task has constraints, as people have them
    (`drawing.with_constraints`).
    """

    name: str
    description: str
    num_devices: tuple[int, int]
    num_tables: tuple[int, int] | None = None
    embedding_dims: tuple[int, ...] = ()
    pool: str = "dlrm-2021"
    hardware: str = "a100-dgx"
    weight_dtype: str = "fp32"
    optimizer: str = "rowwise_adagrad"
    version: int = 1
    track: str = SIMULATED
    test_tasks: int = TASKS_PER_SPLIT
    train_tasks: int = TASKS_PER_SPLIT
    batch_size: int | None = None
    max_rows: int = MAX_ROWS
    host_memory: bool = False
    hbm_share: tuple[float, float] | None = None
    more_hardware: tuple[str, ...] = ()
    sequence_share: float = 0.0
    sync_every: int = 0
    training: bool = True
    splittable: bool = False
    constrained: bool = False
    repeats: bool = False


def _dlrm(tables: int, devices: int) -> Recipe:
    return Recipe(
        name=f"dlrm-{tables}x{devices}",
        description=f"DreamShard's setting: {tables} tables of dlrm-2021, dim 16, on {devices} RTX 2080 Ti.",
        num_devices=(devices, devices),
        num_tables=(tables, tables),
        embedding_dims=(16,),
        hardware="rtx2080ti-pcie",
        weight_dtype="fp16",
        optimizer="sgd",
    )


def _mixdim(tables: tuple[int, int], devices: int) -> Recipe:
    return Recipe(
        name=f"mixdim-{devices}",
        description=f"NeuroShard's setting: {tables[0]}-{tables[1]} tables of dlrm-2021, dims 4-128, {devices} A100.",
        num_devices=(devices, devices),
        num_tables=tables,
        embedding_dims=NEUROSHARD_DIMS,
        optimizer="sgd",
    )


MIXED_ON_V100 = replace(
    _mixdim((10, 60), 4),
    name="mixdim-v100-4",
    description="The setting of mixdim-4 on V100 with NVLink: 10-60 tables of dlrm-2021, dims 4-128, 4 V100.",
    hardware="v100-nvlink",
)

DLRM_MIXED = replace(
    _mixdim((20, 100), 4),
    name="dlrm-mixdim-4",
    description="DreamShard's tables with mixed dims: 20-100 tables of dlrm-2021, dims 4-128, on 4 A100 (NVLink).",
    weight_dtype="fp16",
)

GENERALIZE = Recipe(
    name="generalize",
    description="10-200 tables of dlrm-2022, dims 4-128, on 2-16 A100: one agent for all sizes.",
    num_devices=(2, 16),
    num_tables=(10, 200),
    embedding_dims=NEUROSHARD_DIMS,
    pool="dlrm-2022",
)


def _merlin(model: str, devices: int, which: str = "all its tables") -> Recipe:
    description = f"NVIDIA Merlin's synthetic model {model!r}, {which}, on {devices} A100."
    return Recipe(f"merlin-{model}-x{devices}", description, (devices, devices), pool=f"merlin-{model}")


def _measured(kind: str, tables: int, devices: int, description: str, hardware: str, **machine: Any) -> Recipe:
    """Mixed dims for a machine at hand; `description` is what it says after "To be measured on "."""
    return replace(
        _mixdim((tables, tables), devices),
        name=f"{kind}-{tables}x{devices}",
        description=f"To be measured on {description}",
        hardware=hardware,
        optimizer="rowwise_adagrad",
        track=MEASURED,
        test_tasks=20,
        **machine,
    )


def _for_cpu(tables: int, devices: int) -> Recipe:
    description = f"a CPU: {tables} tables of dlrm-2021, dims 4-128, {devices} processes, 16 GiB."
    return _measured("cpu", tables, devices, description, "cpu", batch_size=2_048, max_rows=2_000_000)


def _for_gpu(tables: int, devices: int) -> Recipe:
    stands = f"one GPU of 16 GiB or more, which stands for {devices}"
    description = f"{stands}: {tables} tables of dlrm-2021, dims 4-128."
    return _measured("gpu", tables, devices, description, "h200-dgx", max_rows=20_000_000)


def _sharded(recipe: Recipe, description: str, name: str = "") -> Recipe:
    return replace(recipe, name=f"shard-{name or recipe.name}", description=description, **SPLIT)


def _sharded_and_measured(recipe: Recipe) -> Recipe:
    """The measured `recipe`, whose description has one colon, with tables that may be split."""
    description = recipe.description.replace(": ", ", tables may be split: ")
    return replace(recipe, name=f"shard-{recipe.name}", description=description, splittable=True)


MERLIN_DEVICES = {
    "tiny": (8, 16),
    "small": (8, 16, 32),
    "medium": (8, 16, 32, 128),
    "large": (32, 128),
    "jumbo": (128,),
}
"""Numbers of A100s that NVIDIA published timings for; one A100 is left out, because it leaves no decision."""

SHARDED_MERLIN = (("small", 16), ("medium", 32), ("medium", 128), ("large", 128))
"""Models and numbers of A100s of the suites whose tables may be split; hosts of eight matter in all of them."""

HBM_SHARE = (0.05, 0.5)


def _tiered(recipe: Recipe, description: str, name: str, **more: Any) -> Recipe:
    """`recipe` with rows in host memory."""
    return replace(recipe, name=f"tier-{name}", description=description, host_memory=True, **more)


TIERED: tuple[Recipe, ...] = (
    _tiered(
        _mixdim((10, 60), 4),
        "mixdim-4 with host memory: 10-60 tables of dlrm-2021, 4 A100 whose HBM holds 5-50% of the bytes.",
        "4",
        hbm_share=HBM_SHARE,
    ),
    _tiered(
        _mixdim((20, 120), 8),
        "mixdim-8 with host memory: 20-120 tables of dlrm-2021, 8 A100 whose HBM holds 5-50% of the bytes.",
        "8",
        hbm_share=HBM_SHARE,
    ),
    _tiered(
        GENERALIZE,
        "generalize with host memory and SGD, tables may be split: 10-200, 2-16 of four devices, HBM for 5-50%.",
        "generalize",
        **SPLIT,
        optimizer="sgd",
        version=2,
        hbm_share=HBM_SHARE,
        more_hardware=("v100-nvlink", "h100-dgx", "rtx2080ti-pcie"),
    ),
    *(
        _tiered(_merlin(model, devices), f"NVIDIA Merlin's {model!r}, {size}.", f"merlin-{model}-x{devices}", **SPLIT)
        for model, devices, size in (
            ("large", 8, "774 GiB, on 8 A100 with 640 GiB of HBM, and 2 TiB of host memory"),
            ("jumbo", 16, "3,110 GiB, on 16 A100 with 1,280 GiB of HBM, and 4 TiB on two hosts"),
        )
    ),
)
"""The suites whose devices have too little HBM for their tables."""

MLPERF = Recipe("mlperf-x8", "MLPerf's DLRM-DCNv2, 26 tables of dim 128, on 8 A100.", (8, 8), pool="mlperf-dlrm-dcnv2")

SEQUENCE_SHARE = 0.25  # of the tables of a suite with sequences

BEYOND: tuple[Recipe, ...] = (
    replace(
        _mixdim((30, 100), 16),
        name="sequence-16",
        description="30-100 tables of dlrm-2021, a quarter of them sequences, on 16 A100; tables may be split.",
        **SPLIT,
        sequence_share=SEQUENCE_SHARE,
    ),
    replace(
        _mixdim((128, 300), 128),
        name="sequence-128",
        description="128-300 tables of dlrm-2021, a quarter of them sequences, on 128 A100; tables may be split.",
        **SPLIT,
        sequence_share=SEQUENCE_SHARE,
        test_tasks=10,
    ),
    replace(
        _mixdim((256, 400), 256),
        name="groups-256",
        description="256-400 tables of dlrm-2021 on 256 A100, in groups averaged every 100 iterations.",
        **SPLIT,
        sync_every=100,
        test_tasks=10,
    ),
    replace(
        _mixdim((20, 120), 8),
        name="inference-8",
        description="Serving: 20-120 tables of dlrm-2021, dims 4-128, on 8 A100 whose HBM holds 5-50% of the bytes.",
        **SPLIT,
        host_memory=True,
        hbm_share=HBM_SHARE,
        training=False,
    ),
)
"""Suites of the sharding track with sequence tables, with groups of devices, and of serving."""

CONSTRAINED: tuple[Recipe, ...] = (
    replace(
        _mixdim((20, 120), 8),
        name="constrained-8",
        description="mixdim-8 with constraints: tables kept to some devices, together or apart; 20-120 on 8 A100.",
        constrained=True,
    ),
    replace(
        _mixdim((20, 120), 8),
        name="shard-constrained-8",
        description="shard-8 with constraints of sharding types, shards, devices, and sets of tables; 8 A100.",
        **SPLIT,
        constrained=True,
    ),
)
"""Suites of tasks with constraints."""

LARGE: tuple[Recipe, ...] = tuple(
    replace(
        _sharded(
            _mixdim(tables, devices),
            f"{tables[0]:,}-{tables[1]:,} tables of dlrm-2021, repeated, on {devices} A100; tables may be split.",
            str(devices),
        ),
        repeats=True,
        train_tasks=train,
        test_tasks=test,
    )
    for tables, devices, train, test in (((600, 1_200), 128, 20, 10), ((2_000, 4_000), 512, 10, 5))
)
"""Suites of more tables than the pool has, so that each comes several times, with dims of its own; of few tasks, as
answers take long and are large."""

GENERATIVE: tuple[Recipe, ...] = (
    Recipe(
        name="shard-kuairand-x8",
        description="Meta's generative recommender (HSTU) on KuaiRand, 7 sequence tables, may be split, on 8 H100.",
        num_devices=(8, 8),
        pool="hstu-kuairand",
        hardware="h100-dgx",
        weight_dtype="fp16",
        **SPLIT,
    ),
    Recipe(
        name="inference-dlrm-v3-x8",
        description="Serving: MLPerf's DLRMv3, 3 sequence tables, 963 GiB, on 8 H100 with 640 GiB of HBM.",
        num_devices=(8, 8),
        pool="mlperf-dlrm-v3",
        hardware="h100-dgx",
        weight_dtype="fp16",
        host_memory=True,
        training=False,
        **SPLIT,
    ),
)
"""The generative recommenders, whole: one table has nearly all bytes and exchanges, so how it is split decides."""

RECIPES: tuple[Recipe, ...] = (
    *(_dlrm(tables, 4) for tables in (20, 40, 50, 60, 80, 100)),
    *(_dlrm(tables, 8) for tables in (40, 80, 120, 160, 200)),
    _mixdim((10, 60), 4),
    _mixdim((20, 120), 8),
    MIXED_ON_V100,
    DLRM_MIXED,
    GENERALIZE,
    *(_merlin(model, devices) for model, counts in MERLIN_DEVICES.items() for devices in counts),
    _for_cpu(20, 2),
    _for_cpu(40, 4),
    _for_gpu(40, 4),
    _for_gpu(80, 8),
    MLPERF,
    _sharded(_mixdim((10, 59), 4), "NeuroShard's setting, tables may be split: 10-59 of dlrm-2021 on 4 A100.", "4"),
    _sharded(_mixdim((20, 119), 8), "NeuroShard's setting, tables may be split: 20-119 of dlrm-2021 on 8 A100.", "8"),
    _sharded(GENERALIZE, "The setting of generalize, tables may be split: 10-200 on 2-16 A100."),
    _sharded(MLPERF, "MLPerf's DLRM-DCNv2, tables may be split, on 8 A100."),
    *(
        replace(_merlin(model, devices, "tables may be split"), name=f"shard-merlin-{model}-x{devices}", **SPLIT)
        for model, devices in SHARDED_MERLIN
    ),
    *TIERED,
    *BEYOND,
    *CONSTRAINED,
    *LARGE,
    *GENERATIVE,
    *(_sharded_and_measured(recipe) for recipe in (_for_cpu(20, 2), _for_cpu(40, 4), _for_gpu(40, 4))),
)
