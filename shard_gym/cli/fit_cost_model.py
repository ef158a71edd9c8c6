"""`shard-gym fit-cost-model`: fit neural cost models to measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.progress import Progress, TaskID

from shard_gym.cli.console import NONE, heading, new_progress, new_table, output, print_table, say, warn
from shard_gym.cli.options import OptionalFloat, OptionalInt
from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.io.arrays import SUFFIX
from shard_gym.common.io.files import require_writable
from shard_gym.common.text import counted, format_percent
from shard_gym.cost_models.base import PHASES, AdditiveCostModel
from shard_gym.cost_models.fitting import FitOptions, Measurements, fit_networks, load_workloads
from shard_gym.cost_models.fitting.fit import LINEAR, FitProgress
from shard_gym.cost_models.fitting.metrics import errors, ranking
from shard_gym.cost_models.neural.storage import network_named
from shard_gym.plans import SHARDING_TYPES

ENOUGH = 1_000
"""Placements below which a collection gets a warning. With 1,109 of them the networks were nearly as close to
measurements as these are to each other (docs/results/cost-model-cpu-amd-epyc-2-threads.md)."""

NETWORKS = ("pooled", "neuroshard", "dreamshard")

Bars = Mapping[str, TaskID]
Networks = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")]


def fit_cost_model(
    data: Annotated[Path, tyro.conf.Positional],
    out: Path,
    network: Networks = NETWORKS,
    seed: int = 0,
    steps: OptionalInt = None,
    learning_rate: OptionalFloat = None,
) -> None:
    """Fit neural cost models to measurements of `shard-gym collect`; needs torch.

    Shows their errors on test tables, beside those of a linear model.

    Args:
        data: folder of a data set, or of several, one for each batch size.
        out: folder for the models and their cards; with several data sets, for a sub-folder for each.
        network: pooled, neuroshard, dreamshard, linear; of data with plans pooled alone.
        seed: of everything random.
        steps: most batches to train each network on; for a trial.
        learning_rate: of the first step; falls linearly to 0.
    """
    names = [name for name in dict.fromkeys(network) if name != LINEAR]
    for name in names:
        network_named(name, LINEAR)
    default = FitOptions()
    options = replace(
        default,
        steps=default.steps if steps is None else steps,
        learning_rate=default.learning_rate if learning_rate is None else learning_rate,
    )
    options = replace(options, check_every=min(options.steps, default.check_every))
    workloads = load_workloads(data)
    if any(each.costs.data.has_plans for each in workloads.values()):
        names = _of_plans(names, asked=network != NETWORKS)
    for folder, measurements in workloads.items():
        measurements.require_splits()
        _warn_if_small(measurements)
        for name in names:
            require_writable(out / folder / f"{name}{SUFFIX}")
    for folder, measurements in workloads.items():
        with new_progress() as progress:
            bars = {name: progress.add_task(name, total=options.steps) for name in names}

            def show(name: str, state: FitProgress, bars: Bars = bars, progress: Progress = progress) -> None:
                description = f"{name}, error on validation tables {format_percent(state.validation_error)}"
                progress.update(bars[name], completed=state.step, description=description)

            found = fit_networks(measurements, out / folder, names, seed=seed, options=options, on_progress=show)
        _print_errors(measurements, found)
    if names:
        written = ", ".join(str(out / folder / f"{name}{SUFFIX}") for folder in workloads for name in names)
        say(f"Written, each with its card: {written}.", "dim")


def _of_plans(names: list[str], *, asked: bool) -> list[str]:
    """Those networks that estimate plans; InvalidOptionError if others were asked for."""
    able = [name for name in names if set(network_named(name).sharding_types) == set(SHARDING_TYPES)]
    others = ", ".join(name for name in names if name not in able)
    if others and asked:
        raise InvalidOptionError(f"The data have plans, which {others} cannot estimate. Pass --network pooled.")
    if others:
        warn(f"The data have plans, which {others} cannot estimate, so pooled alone is fitted.", "dim")
    return able


def _warn_if_small(measurements: Measurements) -> None:
    count, train = len(measurements.first.data), len(measurements.first.part("train"))
    if count < ENOUGH:
        warn(
            f"{measurements.folder} has {counted(count, 'placement')}, {train:,} of them to train on: {ENOUGH:,} or "
            "more are recommended. The same shard-gym collect with a larger --budget adds to them; shard-gym "
            "report-cost-model shows how far the models are from measuring again."
        )


def _print_errors(measurements: Measurements, models: Mapping[str, AdditiveCostModel]) -> None:
    """A row for each model: mean relative errors on the test tables, and Kendall's tau over their placements."""
    test, test_tasks = measurements.test, measurements.test_tasks
    table = new_table()
    table.add_column("model")
    for header in ("iteration", *(phase.replace("_", "\n") for phase in PHASES), "Kendall's\ntau"):
        table.add_column(header, justify="right")
    for name, model in models.items():
        found = errors(model, test)
        cells: Sequence[str] = [
            format_percent(error.mape) if error.count else NONE for error in (found.cost, *found.phases.values())
        ]
        tau = f"{ranking(model, test_tasks).kendall_tau:.3f}" if test_tasks else NONE
        table.add_row(name, *cells, tau)
    size = measurements.index.workload.batch_size
    console = output()
    heading(console, f"Mean relative errors on {len(test):,} placements of test tables, {size:,} samples")
    print_table(console, table)
