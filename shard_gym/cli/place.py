"""`shard-gym place`: tables in, a plan out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from shard_gym.cli.console import errors, is_narrow, new_progress, output, print_report, tell, warn
from shard_gym.cli.options import (
    ANALYTICAL,
    AgentOptions,
    CostModelOptions,
    IndexExchange,
    OptionalDeviceType,
    OptionalFloat,
    OptionalFloats,
    OptionalInt,
    OptionalPath,
    OptionalStr,
    numbers,
    parse_options,
    split_numbers,
)
from shard_gym.common.errors import InvalidOptionError, short_repr
from shard_gym.common.io.files import require_writable, write_json
from shard_gym.common.io.pictures import require_picture, save_picture
from shard_gym.common.report import Note
from shard_gym.planning import plan, what_if

Balance = Literal["yes", "no"]
OptionalReplicas = Annotated[
    Literal["yes", "no"] | None, tyro.conf.arg(metavar="yes|no", help_behavior_hint="(optional)")
]
Names = Annotated[str, tyro.conf.arg(metavar="STR|STR,STR,...")]
Counts = Annotated[str, tyro.conf.arg(metavar="INT|INT,INT,...")]
OptionalPrice = Annotated[str | None, tyro.conf.arg(metavar="FLOAT|STR=FLOAT,...", help_behavior_hint="(optional)")]
Lookups = Annotated[list[Path], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="FILE")]


def place(
    tables: str,
    hardware: Names,
    num_devices: Counts,
    option: AgentOptions,
    lookups: Lookups,
    agent: OptionalStr = None,
    whole: bool = False,
    devices_per_host: OptionalInt = None,
    devices_per_domain: OptionalInt = None,
    memory_cap_gib: OptionalFloats = None,
    reserve: OptionalFloat = None,
    host_memory: OptionalFloat = None,
    embedding_dim: OptionalInt = None,
    weight_dtype: OptionalStr = None,
    optimizer: OptionalStr = None,
    communication_dtype: OptionalStr = None,
    cross_host_ratio: float = 1.0,
    index_exchange: IndexExchange = None,
    sync_every: int = 0,
    constraints: OptionalPath = None,
    replicas: OptionalReplicas = None,
    balance: Balance = "yes",
    index_dedup: bool = False,
    cost: CostModelOptions = ANALYTICAL,
    seed: int = 0,
    format: Literal["shard-gym", "torchrec"] = "shard-gym",
    module: str = "",
    device_type: OptionalDeviceType = None,
    compare: OptionalStr = None,
    price: OptionalPrice = None,
    plot: OptionalPath = None,
    out: OptionalPath = None,
) -> None:
    """Place the tables of a model; print the plan as JSON, or write it to a file.

    Without --agent, plan-search looks for the cheapest plan; it may split tables.

    Rows for which the HBM has no room lie in host memory.

    With several hardware or numbers of devices, print a table of what they cost.

    Args:
        tables: pool file (.json) with the model's tables, or name of a pool that ships with ShardGym.
        hardware: name of the hardware profile, such as a100-dgx, or a folder of shard-gym calibrate; several with
            commas between them.
        num_devices: number of devices; several with commas between them.
        lookups: NPZ or Parquet file of recorded lookups, whose statistics the tables get; repeat it for more. A column
            is found by the name of its table. Batches have --batch-size samples, or those of the tables.
        agent: name of the agent that plans, or folder of a training run; plan-search if not given.
        whole: whether all tables stay whole; without --agent, local-search then places them.
        option: an option of the agent, such as max_queries=5000; repeat it for more. `shard-gym agents` lists them all.
        devices_per_host: devices of a host, which have its local ranks and memory; that of the hardware if not given.
        devices_per_domain: devices joined by fast links, such as NVLink; those of a host if not given.
        memory_cap_gib: GiB that tables and their buffers may take on each device, instead of a reserve: one number, or
            one for each device, such as 40,40,20,20.
        reserve: share of each device's memory that is kept for dense parameters, activations and the allocator; 0.15 if
            neither it nor a cap is given.
        host_memory: GiB of each host for rows that the HBM has no room for, 0 for none; what the reserve leaves of it
            if not given.
        embedding_dim: dim of every table; required if the file has none, refused if it has its own.
        weight_dtype: fp32, fp16, bf16, int8 or fp8; that of the file if not given.
        optimizer: sgd, rowwise_adagrad, adagrad, adam, partial_rowwise_adam or lamb; that of the file if not given.
        communication_dtype: of outputs and their gradients on the links: fp32, fp16, bf16, fp8, int8 or mx4, as in
            TorchRec's QCommsConfig; that of the cost model if not given.
        cross_host_ratio: share of the bytes leaving a host that are sent, below 1 for models that compress them.
        index_exchange: exposed if every iteration waits for the exchange of the indices, because no pipeline hides it
            (TorchRec's TrainPipelineSparseDist does), else hidden; plans are then made for it. That of the cost model
            if not given.
        sync_every: iterations after which copies of tables are averaged, if groups of devices may hold all of them
            (2D sparse parallelism, TorchRec's DMPCollection); 0 for one group.
        constraints: JSON file with what the plan must keep to, by names of tables: sharding_types, min_partition,
            devices and compute_kernels of each, with TorchRec's names, and sets of tables that are together or apart.
        replicas: no for a plan without data_parallel tables, which TorchRec trains by a dense optimizer; yes, if not
            given, but for sequence tables on CPUs, where TorchRec reads replicas wrongly. Copies in groups of devices
            are none of these.
        balance: no for the cheapest answer of plan-search or local-search; yes for one within 1% of its cost whose
            fullest device is less full, if more than half of that device is taken. Other agents' answers, groups of
            devices and rows in host memory stay as they are.
        index_dedup: whether a device asks for a row of a sequence table once in a batch, as with TorchRec's
            EmbeddingCollectionSharder(use_index_dedup=True).
        cost: the cost model of the placement. With measured costs, agents that ask a cost model plan under analytical.
        seed: of the agent, if it is random; plan-search also takes the next ones, where plans of seeds differ.
        format: torchrec writes the JSON of TorchRec's ShardingPlan.
        module: with torchrec, path of the collection in the model that is wrapped; if not given, it is the collection.
        device_type: with torchrec, cpu or cuda in the placements of shards; that of the hardware if not given.
        compare: file with the plan that you have, in the JSON of ShardGym or TorchRec, to show beside the new one; or
            torchrec, for the default plan of TorchRec's planner.
        price: with several hardware or numbers of devices, what a device costs for an hour, in any currency: one
            number, or one for each hardware, such as a100-dgx=2.1,h100-dgx=3.9.
        plot: with several of them, also draw cost, memory and price to this file (.png, .svg, .pdf); needs matplotlib.
        out: write the plan to this JSON file, and print the cost of each device; without it, the JSON is printed. With
            several of them, the table is printed, and the plans are in the file.
    """
    names = _names(hardware)
    counts = split_numbers("--num-devices", num_devices, int, "an integer, or several with commas between them")
    several = len(names) * len(counts) > 1
    if module and format != "torchrec":
        raise InvalidOptionError("--module is a path in the JSON of TorchRec; give --format torchrec, too.")
    if device_type is not None and format != "torchrec":
        raise InvalidOptionError("--device-type is of the placements in the JSON of TorchRec; give --format torchrec.")
    if out is not None:
        require_writable(out)
    if plot is not None:
        require_picture(plot)
    _require_one_or_several(
        several,
        of_one={"--compare": compare is not None, "--format torchrec": format == "torchrec"},
        of_several={"--price": price is not None, "--plot": plot is not None},
    )
    shared: dict[str, Any] = {
        "agent": agent,
        "whole": whole,
        "agent_options": parse_options(option),
        "seed": seed,
        "replicas": None if replicas is None else replicas == "yes",
        "balance": balance == "yes",
        "on_note": tell,
        "lookups": lookups,
        "batch_size": cost.batch_size if lookups else None,
        "embedding_dim": embedding_dim,
        "weight_dtype": weight_dtype,
        "optimizer": optimizer,
        "index_dedup": index_dedup,
        "devices_per_host": devices_per_host,
        "devices_per_domain": devices_per_domain,
        "memory_cap_gib": numbers("--memory-cap-gib", memory_cap_gib),
        "reserve": reserve,
        "host_memory": host_memory,
        "cross_host_ratio": cross_host_ratio,
        "sync_every": sync_every,
        "constraints": constraints,
        "cost_model": (cost if cost.measures or not lookups else replace(cost, batch_size=None)).for_tables(),
        "communication_dtype": communication_dtype,
        "index_exchange": index_exchange,
    }
    if several:
        _what_if(tables, names, counts, _prices(price), shared, plot, out)
        return
    found = plan(
        *(tables, names[0], counts[0]),
        compare=compare,
        device_type=device_type,
        one_module=format == "torchrec",
        **shared,
    )
    content = found.to_json()
    if format == "torchrec":
        content = found.torchrec_json(module, device_type)
        for note in found.torchrec_notes:
            tell(note)
        if not module:
            warn("Without --module, the plan is for a model that is itself the collection of the tables.", "dim")
        if out is None and found.to_add:
            warn(found.to_add)
    for note in found.full_notes:
        tell(note)
    console = output()
    if out is not None:
        write_json(out, content)
        print_report(console, found.report(narrow=is_narrow(console)))
        console.print(f"\nPlan written to {out}.", style="dim", markup=False)
        return
    if found.host_note:
        tell(Note(found.host_note, is_warning=False))
    console.out(json.dumps(content, indent=1, allow_nan=False), highlight=False)
    if found.compared is not None:
        print_report(errors(), found.compared.report())


def _require_one_or_several(several: bool, of_one: dict[str, bool], of_several: dict[str, bool]) -> None:
    """Raise InvalidOptionError for an option that is given, as the dictionaries say, and does not suit."""
    for option in (name for name, given in of_one.items() if given and several):
        raise InvalidOptionError(f"{option} is of one plan; name one --hardware and one --num-devices.")
    for option in (name for name, given in of_several.items() if given and not several):
        raise InvalidOptionError(
            f"{option} is for several hardware or numbers of devices; give them with commas, such as --num-devices "
            "8,16."
        )


def _what_if(
    tables: str,
    hardware: list[str],
    num_devices: list[int],
    price: float | dict[str, float] | None,
    options: dict[str, Any],
    plot: Path | None,
    out: Path | None,
) -> None:
    """Print what each hardware with each number of devices costs and holds; write the plans and the picture."""
    with new_progress() as progress:
        bar = progress.add_task("plans", total=len(hardware) * len(num_devices))
        found = what_if(
            *(tables, hardware, num_devices), price=price, on_setup=lambda _: progress.advance(bar), **options
        )
    console, written = output(), []
    print_report(console, found.report())
    if out is not None:
        write_json(out, found.to_json())
        written.append(f"Plans written to {out}.")
    if plot is not None:
        save_picture(found.figure(), plot)
        written.append(f"Picture written to {plot}.")
    if written:
        console.print(f"\n{' '.join(written)}", style="dim", markup=False)


def _names(text: str) -> list[str]:
    """The names in an option, with commas between them; the path of a folder may have commas."""
    return [text] if Path(text).is_dir() else text.split(",")


def _prices(text: str | None) -> float | dict[str, float] | None:
    """The price in an option: one number, or one for each hardware."""
    if text is None:
        return None
    found, wanted = {}, "a number, or one for each hardware, such as a100-dgx=2.1,h100-dgx=3.9"
    for each in text.split(","):
        name, _, number = each.rpartition("=")
        (found[name],) = split_numbers("--price", number, float, wanted)
    if "" not in found:
        return found
    if "," in text:
        raise InvalidOptionError(f"--price must be {wanted}, not {short_repr(text)}.")
    return found[""]
