"""Cost models compared with measurements, beside the differences between repeated ones: numbers, a page, pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.io.files import require_writable, write_atomically
from shard_gym.common.io.markdown import table
from shard_gym.common.io.pictures import COLORS, GREY, INK, LINE, SIZE, matplotlib_missing, save_picture
from shard_gym.common.text import command_line, counted, format_percent
from shard_gym.cost_models.analytical import AnalyticalShardingModel
from shard_gym.cost_models.base import COMMUNICATION, PHASES, AdditiveCostModel
from shard_gym.cost_models.fitting.calibration import LAUNCH, LINKS, RATES, Calibration, calibrated_profile, profile_in
from shard_gym.cost_models.fitting.data.dataset import CostDataset, joined_data
from shard_gym.cost_models.fitting.data.measurements import Measurements, load_workloads
from shard_gym.cost_models.fitting.data.splits import SPLITS
from shard_gym.cost_models.fitting.linear import fit_linear
from shard_gym.cost_models.fitting.metrics import (
    LEAST_MS,
    TOP,
    Error,
    Errors,
    Estimates,
    Ranking,
    errors_of,
    estimates_of,
    kendall_tau,
    ranking_of,
)
from shard_gym.cost_models.neural import NeuralCostModel, load_cost_model
from shard_gym.hardware import HardwareProfile, hardware_profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REPEATED = "measured again"  # name of the repeated measurements beside the models
SAME = 1e-9  # errors below it are those of an estimate of the exchange against itself
MAX_REASONS = 5  # reasons of failed measurements that a page lists

INTRODUCTION = (
    "The page compares estimates of cost models with measurements of random placements of random tables. Errors are "
    "those on test tables, which no fitted model was trained on. `measured again` compares repeated measurements of "
    "the same placements, of all splits: a model as exact as that is as good as a measurement, and smaller "
    "differences between models mean nothing. `scaled` is the analytical model with one factor for each phase, "
    "`calibrated` the analytical model with measured rates of work and links, both fitted to the training tables; "
    "`linear` is least squares on sums of table features."
)


@dataclass(frozen=True)
class CostModelComparison:
    """Measurements and the estimates of models for their test placements."""

    measurements: Measurements  # all of them
    estimates: dict[str, Estimates]  # of the test placements, by name of the model
    assumed: HardwareProfile  # the hardware profile of the analytical model
    calibrated: Calibration  # the same with the numbers that fit the training tables best

    @property
    def test(self) -> CostDataset:
        """The test placements."""
        return self.measurements.test

    @property
    def repeat_errors(self) -> Errors | None:
        """Errors of second measurements against first ones, of all splits; None if nothing was repeated."""
        repeated = self.measurements.repeated
        return errors_of(repeated[0], Estimates(repeated[1].phases_ms, repeated[1].cost_ms)) if repeated else None

    def errors(self, name: str) -> Errors:
        """Errors of a model on the test placements."""
        return errors_of(self.test, self.estimates[name])

    def ranking(self, name: str) -> Ranking | None:
        """The ranking by a model, mean over the test tasks; None if there are none."""
        cost, tasks = self.estimates[name].cost_ms, self.measurements.test_task_rows
        return ranking_of([(self.test.cost_ms[rows], cost[rows]) for rows in tasks]) if tasks else None


def compare(
    measurements: Measurements,
    models: Mapping[str, AdditiveCostModel],
    profile: HardwareProfile | None = None,
    designed: CostDataset | None = None,
) -> CostModelComparison:
    """The analytical model, the same scaled and calibrated, a linear one and `models` against `measurements`.

    Args:
        measurements: training tables are used to scale, calibrate and fit; test tables to compare.
        models: fitted to such measurements, by name.
        profile: hardware that the analytical model assumes; None for that of the topologies.
        designed: designed loads, to which the numbers of the calibrated one are fitted, too.

    Raises:
        InvalidOptionError: there are no measurements of test tables, or none of training tables.
        MissingExtraError: scipy is not installed.
    """
    train, test = measurements.first.part("train"), measurements.test
    analytical = AnalyticalShardingModel()
    assumed = profile or profile_in(train)
    train_estimates, test_estimates = (estimates_of(analytical, part.on(assumed)) for part in (train, test))
    scaled = test_estimates.phases_ms * _phase_factors(train, train_estimates)
    to_fit = train if designed is None else joined_data([designed, train])
    calibrated = calibrated_profile(to_fit, assumed, links=not has_modelled_exchange(train))
    name = f"analytical, {assumed.device.name}"
    estimates = {
        name: test_estimates,
        f"{name}, scaled": Estimates(scaled, np.maximum(scaled.max(axis=1).sum(axis=-1), LEAST_MS)),
        f"{name}, calibrated": estimates_of(analytical, test.on(calibrated.profile)),
        "linear": estimates_of(fit_linear(train), test),
        **{name: estimates_of(model, test) for name, model in models.items()},
    }
    return CostModelComparison(measurements, estimates, assumed, calibrated)


def has_modelled_exchange(data: CostDataset) -> bool:
    """Whether the exchanges are estimates of the analytical model, because one device measured all loads."""
    estimated = estimates_of(AnalyticalShardingModel(), data).phases_ms[..., COMMUNICATION]
    measured = data.phases_ms[..., COMMUNICATION]
    return bool(measured.any() and np.allclose(measured, estimated, rtol=1e-6, atol=0.0))


def _phase_factors(data: CostDataset, estimates: Estimates) -> FloatArray:
    """(4,) float64: geometric means of measured over estimated times of each phase; 1 where there are none."""
    factors = np.ones(len(PHASES))
    for phase in range(len(PHASES)):
        measured, estimated = data.phases_ms[..., phase], estimates.phases_ms[..., phase]
        both = (measured > 0) & (estimated > 0)
        if both.any():
            factors[phase] = np.exp(np.log(measured[both] / estimated[both]).mean())
    return factors


def report_cost_models(
    data: str | Path,
    models: Sequence[Path] = (),
    out: str | Path = "report",
    *,
    profile: str | None = None,
    pictures: bool = True,
) -> list[Path]:
    """Compare cost models with the measurements in `data`; write a page with pictures: `shard-gym report-cost-model`.

    Args:
        data: folder of a data set, or of several, one for each batch size.
        models: files of neural cost models; each is compared at its own batch size.
        out: folder for the page and its pictures.
        profile: the hardware that the analytical model assumes; that of the data set if not given.
        pictures: whether the page has pictures.

    Returns:
        What was written: the page, and the pictures.

    Raises:
        InvalidOptionError: a model was fitted to a workload that no data set has; or see `load_workloads`, `compare`.
        UnknownNameError: there is no such profile.
        InvalidCheckpointError: a file is no cost model.
        MissingExtraError: scipy, pyarrow or matplotlib is not installed.
    """
    if pictures and (missing := matplotlib_missing()):
        raise missing
    folder, assumed = Path(out), None if profile is None else hardware_profile(profile)
    workloads = list(load_workloads(data).values())
    target = folder / page_name(workloads[0].index.hardware)
    require_writable(target)
    loaded = {path: load_cost_model(path) for path in models}
    chosen = [_models_of(loaded, measurements) for measurements in workloads]
    _check_all_used(loaded, chosen)
    comparisons = [compare(each, found, assumed) for each, found in zip(workloads, chosen, strict=True)]
    drawn, sizes = [], [each.index.workload.batch_size for each in workloads]
    for comparison, size in zip(comparisons, sizes, strict=True) if pictures else ():
        workload = comparison.measurements.index.workload
        of = "" if sizes.count(size) == 1 else f"-{workload.weight_dtype}-{workload.optimizer}"
        drawn.append(folder / "images" / f"{target.stem}-batch-{size}{of}.png")
        save_picture(draw(comparison), drawn[-1])
    links = [path.relative_to(folder).as_posix() for path in drawn] or [""] * len(comparisons)
    files = tuple(path.as_posix() for path in models)
    options = {"models": files, "profile": profile, "out": folder.as_posix(), "no_pictures": not pictures}
    command = command_line("report-cost-model", Path(data).as_posix(), **options)
    write_atomically(target, page(comparisons, command, links).encode())
    return [target, *drawn]


def _models_of(models: Mapping[Path, NeuralCostModel], measurements: Measurements) -> dict[str, NeuralCostModel]:
    """The models fitted to the workload of `measurements`, by architecture, or by path if that is not unique."""
    workload = measurements.index.workload.to_json()
    found = {path: model for path, model in models.items() if model.card.get("data", {}).get("workload") == workload}
    names = [model.architecture for model in found.values()]
    return {
        name if names.count(name) == 1 else str(path): model
        for (path, model), name in zip(found.items(), names, strict=True)
    }


def _check_all_used(models: Mapping[Path, NeuralCostModel], chosen: Sequence[dict[str, NeuralCostModel]]) -> None:
    used = {id(model) for found in chosen for model in found.values()}
    for path, model in models.items():
        if id(model) not in used:
            fitted_to = model.card.get("data", {}).get("workload", "nothing that its card names")
            raise InvalidOptionError(f"{path} was fitted to {fitted_to}, and no data set here has that workload.")


# The page


def page_name(hardware: str) -> str:
    """The file name of the page about that hardware."""
    return f"cost-model-{hardware}.md"


def page(comparisons: Sequence[CostModelComparison], command: str, pictures: Sequence[str]) -> str:
    """The page as Markdown: workloads on one hardware, a link to a picture of each, and the command that makes it."""
    import shard_gym

    blocks = [
        f"<!-- Generated by `{command}`; do not edit. -->",
        f"# Cost models against measurements on {comparisons[0].measurements.index.hardware}",
        INTRODUCTION,
        f"Made with ShardGym {shard_gym.__version__}.",
    ]
    for comparison, picture in zip(comparisons, pictures, strict=True):
        blocks += list(_section(comparison, picture))
    return "\n\n".join(blocks) + "\n"


def _section(comparison: CostModelComparison, picture: str) -> Iterator[str]:
    workload = comparison.measurements.index.workload
    yield f"## {workload.batch_size:,} samples, {workload.weight_dtype}, {workload.optimizer}"
    yield "\n".join(f"- {fact}" for fact in _facts(comparison))
    yield "### Errors"
    yield (
        "Mean of |estimate / measured - 1|, and in brackets exp(mean |ln(estimate / measured)|) - 1; `iteration` is "
        "the cost of a placement, the phases are those of each device that spends time in them."
    )
    yield _error_table(comparison)
    if picture:
        yield (
            "Every point is a placement or one of its devices; on the line, the estimate is exact. Triangles are "
            "points outside the panel. The numbers are the mean errors of the table."
        )
        yield f"![Estimated against measured ms]({picture})"
    yield "### Ranking of placements"
    yield from _ranking_section(comparison)
    yield "### Calibrated numbers"
    yield (
        "How long the work of a device takes, for each bag, lookup, value and distinct row of a batch, and the links, "
        "where exchanges were measured; with the standard error of each number. Work that comes together shares its "
        "time, so a single rate is no measurement of that part alone; 0 is work that the others cover."
    )
    yield table(("", "", "calibrated", "standard error"), _numbers(comparison.calibrated))


def _facts(comparison: CostModelComparison) -> Iterator[str]:
    measurements, index = comparison.measurements, comparison.measurements.index
    first, spreads = measurements.first, measurements.spreads
    sizes = [
        f"{(first.placement_split == k).sum():,} of {first.num_tables(split):,} tables ({split})"
        for k, split in enumerate(SPLITS)
    ]
    yield f"Placements: {'; '.join(sizes)}. No table is in two splits; each dim of a table counts as one table."
    counts, cost = np.diff(comparison.test.start), comparison.test.cost_ms
    devices = counted(int(first.data.num_devices.max()), "device")
    fewest = f"{counts.min()} to " if counts.min() < counts.max() else ""
    yield (
        f"Test placements: {fewest}{counted(int(counts.max()), 'table')} on {devices}, "
        f"{cost.min():.3g} to {cost.max():.3g} ms, median {np.median(cost):.3g} ms."
    )
    yield f"Measured by `{index.source}`."
    if has_modelled_exchange(comparison.test):
        yield (
            "One device measured the loads of all devices: forward and backward are measured, the all-to-alls and "
            "their part of an iteration are estimates of the analytical model."
        )
    if len(spreads):
        median, worst = (format_percent(float(np.quantile(spreads, share))) for share in (0.5, 0.95))
        yield (
            "Interquartile range of an iteration's cost within a measurement: "
            f"{median} of the median; 5 % of the measurements have more than {worst}."
        )
    if index.failed:
        reasons = Counter(failed.reason for failed in index.failed).most_common()
        named = [f"{count} x {reason}" for reason, count in reasons[:MAX_REASONS]]
        more = [f"and {len(reasons) - MAX_REASONS} other reasons"] if len(reasons) > MAX_REASONS else []
        yield f"Failed: {counted(len(index.failed), 'measurement')} ({'; '.join([*named, *more])})."


def _error_table(comparison: CostModelComparison) -> str:
    rows: dict[str, Errors] = {}
    modelled = has_modelled_exchange(comparison.test)
    repeated, repeat_errors = comparison.measurements.repeated, comparison.repeat_errors
    if repeated and repeat_errors:
        rows[f"*{REPEATED}* ({counted(len(repeated[0]), 'placement')})"] = repeat_errors
    rows |= {name: comparison.errors(name) for name in comparison.estimates}
    return table(
        ("model", "iteration", *PHASES),
        [
            (name, str(each.cost), *(_cell(error, modelled) for error in each.phases.values()))
            for name, each in rows.items()
        ],
    )


def _cell(error: Error, modelled: bool) -> str:
    """The error of a phase; none where an estimate is compared with itself."""
    return "-" if modelled and error.mape < SAME else str(error)


def _ranking_section(comparison: CostModelComparison) -> Iterator[str]:
    tasks, repeated = comparison.measurements.test_task_rows, comparison.measurements.repeated
    size = f" ({np.mean([len(rows) for rows in tasks]):.1f} placements each on average)" if tasks else ""
    over_repeats = f" `{REPEATED}` is over the repeated placements." if repeated else ""
    yield (
        f"Kendall's tau over all {counted(len(comparison.test), 'test placement')}, and its mean over "
        f"{counted(len(tasks), 'task')}, each with several placements of the same tables{size}. Regret is how much "
        "more the best of the k placements ranked first costs than the best of all, measured; where a task has few "
        f"more than k placements, every regret is small.{over_repeats}"
    )
    rows, no_tasks = [], ["-"] * (1 + len(TOP))
    if repeated:
        rows.append((f"*{REPEATED}*", f"{kendall_tau(repeated[0].cost_ms, repeated[1].cost_ms):.3f}", *no_tasks))
    for name, estimates in comparison.estimates.items():
        overall, ranking = kendall_tau(comparison.test.cost_ms, estimates.cost_ms), comparison.ranking(name)
        within = [f"{ranking.kendall_tau:.3f}", *map(format_percent, ranking.regret.values())] if ranking else no_tasks
        rows.append((name, f"{overall:.3f}", *within))
    yield table(("model", "tau, all", "tau, same tables", *(f"regret, k = {k}" for k in TOP)), rows)


def _numbers(calibration: Calibration) -> Iterator[Sequence[str]]:
    device, links = calibration.profile.device, calibration.profile.links
    assert device.rates is not None
    rates = (*device.rates.forward, *device.rates.backward, device.rates.dense_update or 0.0)
    units = {"intra_host_gb_per_s": "GB/s"}
    values = {**dict(zip(RATES, rates, strict=True)), LAUNCH: device.kernel_launch_us}
    values |= {name: getattr(links, name) for name in LINKS if name in calibration.errors}
    for name, value in values.items():
        error = calibration.errors.get(name)
        unit = units.get(name, "us" if name.endswith("_us") else "ns")
        yield f"`{name}`", unit, f"{value:.4g}", "-" if error is None else format_percent(error)


# The picture

MAX_POINTS = 1_000  # most points of a panel; more would overlap and make the file large
MARGIN = 1.6  # panels extend beyond the shortest and the longest measured time by this factor

_Row = tuple[str, CostDataset, Estimates, Errors]


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


def _rows(comparison: CostModelComparison) -> Iterator[_Row]:
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
