"""`shard-gym report-cost-model`: compare cost models with measurements, on a page with pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import tyro

from shard_gym.cli.console import say
from shard_gym.cli.options import OptionalInt, OptionalStr, command_line
from shard_gym.cli.torchrec_check import check_with_torchrec
from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.io.arrays import SUFFIX
from shard_gym.common.io.files import require_writable, write_atomically
from shard_gym.common.io.pictures import COLORS, GREY, INK, LINE, SIZE, matplotlib_missing, save_picture
from shard_gym.common.text import format_percent
from shard_gym.cost_models.base.model import PHASES, FloatArray
from shard_gym.cost_models.fitting.data.dataset import CostDataset
from shard_gym.cost_models.fitting.data.measurements import Measurements, load_workloads
from shard_gym.cost_models.fitting.metrics import Errors, Estimates
from shard_gym.cost_models.fitting.report import REPEATED, CostModelComparison, compare, page, page_name
from shard_gym.cost_models.neural.base import NeuralCostModel
from shard_gym.cost_models.neural.storage import load_cost_model
from shard_gym.hardware.profiles import hardware_profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Files = Annotated[tuple[Path, ...], tyro.conf.arg(metavar=f"FILE{SUFFIX} ...", help_behavior_hint="(optional)")]


def report_cost_model(
    data: Annotated[Path, tyro.conf.Positional],
    models: Files = (),
    out: Path = Path("report"),
    profile: OptionalStr = None,
    no_pictures: bool = False,
    torchrec: OptionalInt = None,
) -> None:
    """Compare cost models with measurements of `shard-gym collect`; write a page.

    Args:
        data: folder of a data set, or of several, one for each batch size.
        models: files of neural cost models, see `shard-gym fit-cost-model`; each is compared at its own batch size.
        out: folder for the page and its pictures.
        profile: the hardware that the analytical model assumes; that of the data set if not given.
        no_pictures: write the page only; pictures need matplotlib.
        torchrec: instead, time so many random plans of the data set here, as ShardGym measures them and as TorchRec
            trains them, and print how far they agree; needs TorchRec.
    """
    if torchrec is not None:
        if models:
            raise InvalidOptionError("--torchrec times plans and compares no cost models; leave --models out.")
        check_with_torchrec([each.index for each in load_workloads(data).values()], torchrec, profile)
        return
    if not no_pictures and (missing := matplotlib_missing()):
        raise missing
    assumed = None if profile is None else hardware_profile(profile)
    workloads = list(load_workloads(data).values())
    target = out / page_name(workloads[0].index.hardware)
    require_writable(target)
    loaded = {path: load_cost_model(path) for path in models}
    chosen = [_models_of(loaded, measurements) for measurements in workloads]
    _check_all_used(loaded, chosen)
    comparisons = [compare(each, found, assumed) for each, found in zip(workloads, chosen, strict=True)]
    drawn, sizes = [], [each.index.workload.batch_size for each in workloads]
    for comparison, size in zip(comparisons, sizes, strict=True) if not no_pictures else ():
        workload = comparison.measurements.index.workload
        of = "" if sizes.count(size) == 1 else f"-{workload.weight_dtype}-{workload.optimizer}"
        drawn.append(out / "images" / f"{target.stem}-batch-{size}{of}.png")
        save_picture(draw(comparison), drawn[-1])
    links = [path.relative_to(out).as_posix() for path in drawn] or [""] * len(comparisons)
    files = tuple(path.as_posix() for path in models)
    options = {"models": files, "profile": profile, "out": out.as_posix(), "no_pictures": no_pictures}
    command = command_line("report-cost-model", data.as_posix(), **options)
    write_atomically(target, page(comparisons, command, links).encode())
    say(f"Written: {', '.join(map(str, (target, *drawn)))}.", "dim")


def _models_of(models: dict[Path, NeuralCostModel], measurements: Measurements) -> dict[str, NeuralCostModel]:
    """The models fitted to the workload of `measurements`, by architecture, or by path if that is not unique."""
    workload = measurements.index.workload.to_json()
    found = {path: model for path, model in models.items() if model.card.get("data", {}).get("workload") == workload}
    names = [model.architecture for model in found.values()]
    return {
        name if names.count(name) == 1 else str(path): model
        for (path, model), name in zip(found.items(), names, strict=True)
    }


def _check_all_used(models: dict[Path, NeuralCostModel], chosen: Sequence[dict[str, NeuralCostModel]]) -> None:
    used = {id(model) for found in chosen for model in found.values()}
    for path, model in models.items():
        if id(model) not in used:
            fitted_to = model.card.get("data", {}).get("workload", "nothing that its card names")
            raise InvalidOptionError(f"{path} was fitted to {fitted_to}, and no data set here has that workload.")


# The picture

MAX_POINTS = 1_000  # most points of a panel; more would overlap and make the file large
MARGIN = 1.6  # panels extend beyond the shortest and the longest measured time by this factor

Row = tuple[str, CostDataset, Estimates, Errors]


def draw(comparison: CostModelComparison) -> Figure:
    """Estimated against measured ms: a row of panels for each model, a column for each phase that took time."""
    from matplotlib.figure import Figure

    titles, rows = ("iteration", *PHASES), list(_rows(comparison))
    measured = [_columns(data) for _, data, _, _ in rows]
    spent = [np.concatenate([each[each > 0] for each in times]) for times in zip(*measured, strict=True)]
    shown = [column for column in range(len(titles)) if spent[column].size]
    figure = Figure(figsize=(2.5 * len(shown), 0.8 + 2.15 * len(rows)), facecolor="white", layout="constrained")
    panels = figure.subplots(len(rows), len(shown), squeeze=False, sharex="col", sharey="col")
    for row, (name, _, estimates, found) in enumerate(rows):
        estimated, errors = _columns(estimates), (found.cost, *found.phases.values())
        color = GREY if name == REPEATED else COLORS[row % len(COLORS)]
        for axes, column in zip(panels[row], shown, strict=True):
            across, up = measured[row][column], estimated[column]
            ends = spent[column].min() / MARGIN, spent[column].max() * MARGIN
            _draw_points(axes, across[across > 0], up[across > 0], ends, color)
            label = axes.text(0.05, 0.94, format_percent(errors[column].mape), transform=axes.transAxes, va="top")
            label.set(color=INK, fontsize=SIZE)
            label.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5})
        panels[row, 0].set_ylabel(name.replace(", ", "\n"), fontsize=SIZE, color=INK)
    for axes, column in zip(panels[0], shown, strict=True):
        axes.set_title(titles[column], fontsize=SIZE + 1, color=INK, weight="bold")
    for axes in panels[-1]:
        axes.set_xlabel("measured, ms", fontsize=SIZE, color=INK)
    return figure


def _rows(comparison: CostModelComparison) -> Iterator[Row]:
    """Repeated against first measurements, then the models."""
    repeated, repeat_errors = comparison.measurements.repeated, comparison.repeat_errors
    if repeated and repeat_errors:
        yield REPEATED, repeated[0], Estimates(repeated[1].phases_ms, repeated[1].cost_ms), repeat_errors
    for name, estimates in comparison.estimates.items():
        yield name, comparison.test, estimates, comparison.errors(name)


def _columns(times: CostDataset | Estimates) -> list[FloatArray]:
    return [times.cost_ms, *(times.phases_ms[..., phase].ravel() for phase in range(len(PHASES)))]


def _draw_points(
    axes: Axes, measured: FloatArray, estimated: FloatArray, ends: tuple[float, float], color: str
) -> None:
    """A panel with the line of exact estimates; points beyond its ends are on its edge."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.spines[:].set_visible(False)
    axes.tick_params(labelsize=SIZE - 2, colors=INK, length=0)
    axes.grid(color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set_aspect("equal", adjustable="box")
    for each in (axes.xaxis, axes.yaxis):
        each.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        each.set_minor_locator(NullLocator())
        each.set_major_formatter(lambda value, _: f"{value:g}")
    axes.plot(ends, ends, color=INK, linewidth=1.2)
    step = -(-len(measured) // MAX_POINTS) or 1
    inside = np.clip(estimated[::step], *ends)
    axes.scatter(measured[::step], inside, s=11, color=color, alpha=0.5, linewidths=0, clip_on=False)
