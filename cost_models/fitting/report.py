"""Cost models compared with measurements, beside the differences between repeated measurements: numbers and a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shard_gym.common.io.markdown import table
from shard_gym.common.text import counted, format_percent
from shard_gym.cost_models.analytical.sharding import AnalyticalShardingModel
from shard_gym.cost_models.base.model import COMMUNICATION, PHASES, AdditiveCostModel, FloatArray
from shard_gym.cost_models.fitting.calibration import LAUNCH, LINKS, RATES, Calibration, calibrated_profile, profile_in
from shard_gym.cost_models.fitting.data.dataset import CostDataset, joined_data
from shard_gym.cost_models.fitting.data.measurements import Measurements
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
from shard_gym.hardware.profile_files import HardwareProfile

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
