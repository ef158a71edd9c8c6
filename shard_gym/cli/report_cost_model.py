"""`shard-gym report-cost-model`: cost models held against measurements, on a page with pictures."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import tyro

from shard_gym.cli import PROG
from shard_gym.cli.console import output, sentence
from shard_gym.cli.options import OptionalStr
from shard_gym.cost_models.base import PHASES, FloatArray
from shard_gym.cost_models.data.dataset import CostDataset
from shard_gym.cost_models.data.loading import Measured, read_all
from shard_gym.cost_models.metrics import Errors
from shard_gym.cost_models.neural.base import NeuralCostModel
from shard_gym.cost_models.neural.storage import load_cost_model
from shard_gym.cost_models.report import NOISE, Comparison, Estimates, compare, page, page_name
from shard_gym.errors import InvalidOptionError
from shard_gym.hardware import hardware_profile
from shard_gym.io.arrays import SUFFIX
from shard_gym.io.files import require_writable, write_atomically
from shard_gym.io.pictures import COLORS, GREY, INK, LINE, SIZE, matplotlib_missing, save_picture
from shard_gym.text import format_percent

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
) -> None:
    """Hold cost models against what `shard-gym collect` measured; write a page.

    Args:
        data: folder of a data set, or of several, one for each batch size.
        models: files of neural cost models, see `shard-gym fit-cost-model`; each for the batch size it was fitted to.
        out: folder for the page and its pictures.
        profile: the hardware that the analytical model assumes; that of the data set if not given.
        no_pictures: write the page alone; without this, matplotlib is needed.
    """
    if not no_pictures and (missing := matplotlib_missing()):
        raise missing
    assumed = None if profile is None else hardware_profile(profile)
    every = list(read_all(data).values())
    hardware = every[0].about.hardware
    target = out / page_name(hardware)
    require_writable(target)
    loaded = {path: load_cost_model(path) for path in models}
    chosen = [_of_workload(loaded, measured) for measured in every]
    _require_used(loaded, chosen)
    comparisons = [compare(measured, found, assumed) for measured, found in zip(every, chosen, strict=True)]
    drawn = []
    for comparison in comparisons if not no_pictures else ():
        size = comparison.measured.about.workload.batch_size
        drawn.append(out / "images" / f"{target.stem}-batch-{size}.png")
        save_picture(draw(comparison), drawn[-1])
    links = [path.relative_to(out).as_posix() for path in drawn] or [""] * len(comparisons)
    command = _command(data, models, profile, out) + " --no-pictures" * no_pictures
    write_atomically(target, page(comparisons, command, links).encode())
    output().print(sentence(f"Written: {', '.join(map(str, (target, *drawn)))}.", "dim"), soft_wrap=True)


def _of_workload(models: dict[Path, NeuralCostModel], measured: Measured) -> dict[str, NeuralCostModel]:
    """Those of `models` that were fitted to the workload of `measured`, each under the shortest name that tells it.

    A model whose card does not say is left out.
    """
    about = measured.about.workload
    found = {path: model for path, model in models.items() if model.card.get("data", {}).get("workload") == vars(about)}
    names = [model.architecture for model in found.values()]
    return {
        name if names.count(name) == 1 else str(path): model
        for (path, model), name in zip(found.items(), names, strict=True)
    }


def _require_used(models: dict[Path, NeuralCostModel], chosen: Sequence[dict[str, NeuralCostModel]]) -> None:
    used = {id(model) for found in chosen for model in found.values()}
    for path, model in models.items():
        if id(model) not in used:
            fitted_to = model.card.get("data", {}).get("workload", "nothing that its card names")
            raise InvalidOptionError(f"{path} was fitted to {fitted_to}, and no data set here is trained that way.")


def _command(data: Path, models: Sequence[Path], profile: str | None, out: Path) -> str:
    """What makes the same page anywhere."""
    words = [PROG, "report-cost-model", data.as_posix()]
    words += ["--models", *(path.as_posix() for path in models)] if models else []
    words += ["--profile", profile] if profile else []
    words += ["--out", out.as_posix()]
    return shlex.join(words)


# The picture

MOST_POINTS = 1_000
"""Of one panel; more would hide each other and swell the file."""

MARGIN = 1.6
"""Panels reach from the shortest time measured to the longest, so many times shorter and longer."""

Row = tuple[str, CostDataset, Estimates, Errors]


def draw(comparison: Comparison) -> Figure:
    """Estimated against measured ms: a row of panels for each model, a column for the iteration and for each phase."""
    from matplotlib.figure import Figure

    rows = list(_rows(comparison))
    columns = ("iteration", *PHASES)
    ends = [
        _ends(times) for times in zip(*(_columns(data.phases_ms, data.cost_ms) for _, data, _, _ in rows), strict=True)
    ]
    figure = Figure(figsize=(2.5 * len(columns), 0.8 + 2.15 * len(rows)), facecolor="white", layout="constrained")
    panels = figure.subplots(len(rows), len(columns), squeeze=False, sharex="col", sharey="col")
    for row, (name, data, said, found) in enumerate(rows):
        measured, estimated = _columns(data.phases_ms, data.cost_ms), _columns(said.phases_ms, said.cost_ms)
        errors = (found.cost, *found.phases.values())
        color = GREY if name == NOISE else COLORS[row % len(COLORS)]
        for axes, across, up, error, span in zip(panels[row], measured, estimated, errors, ends, strict=True):
            _prepare(axes, span)
            if span:
                _scatter(axes, across[across > 0], up[across > 0], span, color)
                label = axes.text(
                    0.05, 0.94, format_percent(error.mape), transform=axes.transAxes, va="top", color=INK, fontsize=SIZE
                )
                label.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5})
        panels[row, 0].set_ylabel(name.replace(", ", "\n"), fontsize=SIZE, color=INK)
    for column, words in enumerate(columns):
        panels[0, column].set_title(words, fontsize=SIZE + 1, color=INK, weight="bold")
        panels[-1, column].set_xlabel("measured, ms", fontsize=SIZE, color=INK)
    return figure


def _rows(comparison: Comparison) -> Iterator[Row]:
    """Second against first measurements, then the models."""
    twice, noise = comparison.measured.twice, comparison.noise
    if twice and noise:
        yield NOISE, twice[0], Estimates(twice[1].phases_ms, twice[1].cost_ms), noise
    for name, said in comparison.estimates.items():
        yield name, comparison.test, said, comparison.errors(name)


def _columns(phases_ms: FloatArray, cost_ms: FloatArray) -> list[FloatArray]:
    return [cost_ms, *(phases_ms[..., phase].ravel() for phase in range(len(PHASES)))]


def _ends(times: Sequence[FloatArray]) -> tuple[float, float] | None:
    """Where the panels of a column begin and end, ms; None if nothing was measured."""
    spent = np.concatenate([each[each > 0] for each in times])
    return (float(spent.min()) / MARGIN, float(spent.max()) * MARGIN) if spent.size else None


def _prepare(axes: Axes, ends: tuple[float, float] | None) -> None:
    """An empty panel with the line on which an estimate is right."""
    from matplotlib.ticker import LogLocator, NullLocator

    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(labelsize=SIZE - 2, colors=INK, length=0)
    if ends is None:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, "nothing\nmeasured", transform=axes.transAxes, ha="center", color=GREY, fontsize=SIZE - 1)
        return
    axes.grid(color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set_aspect("equal", adjustable="box")
    for each in (axes.xaxis, axes.yaxis):
        each.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        each.set_minor_locator(NullLocator())
        each.set_major_formatter(lambda value, _: f"{value:g}")
    axes.plot(ends, ends, color=INK, linewidth=1.2)


def _scatter(axes: Axes, across: FloatArray, up: FloatArray, ends: tuple[float, float], color: str) -> None:
    """Points, and triangles at the edge for what lies beyond it."""
    step = -(-len(across) // MOST_POINTS) or 1
    across, up = across[::step], up[::step]
    low, high = ends
    for those, marker in ((up < low, "v"), (up > high, "^"), ((up >= low) & (up <= high), "o")):
        place = np.clip(up[those], low, high)
        axes.scatter(across[those], place, s=11, marker=marker, color=color, alpha=0.5, linewidths=0, clip_on=False)
