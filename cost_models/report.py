"""How far cost models are from measurements, beside how far measurements are from each other: numbers, and a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shard_gym.cost_models.analytical import AnalyticalCostModel
from shard_gym.cost_models.base import PHASES, AdditiveCostModel, FloatArray
from shard_gym.cost_models.calibration import DEVICE, LINKS, calibrated_profile, profile_in
from shard_gym.cost_models.data.dataset import CostDataset
from shard_gym.cost_models.data.loading import Measured
from shard_gym.cost_models.data.splits import SPLITS
from shard_gym.cost_models.metrics import (
    LEAST_MS,
    TOP,
    Error,
    Errors,
    Ranking,
    errors_of,
    kendall_tau,
    predictions,
    ranking_of,
)
from shard_gym.cost_models.neural.linear import fit_linear
from shard_gym.hardware import HardwareProfile
from shard_gym.text import counted, format_percent

NOISE = "measured again"
EXCHANGES = slice(1, 3)
"""The all-to-alls among the phases."""

MAX_REASONS = 5
"""Reasons for what was skipped that are named one by one."""

INTRODUCTION = (
    "Placements of random tables were executed, and the time of each phase of an iteration was taken. Errors of models "
    "are those on tables that no fitted model has seen. `measured again` compares measurements with later ones of the "
    "same placements, whatever their tables: a model as exact as that is as good as measuring, and smaller differences "
    "mean nothing. "
    "`scaled` is the analytical model with one factor for each phase, `calibrated` the same model with the bandwidths, "
    "latencies and the like that fit best, both found on the training tables; `linear` is least squares on sums of "
    "table features."
)


class Estimates(NamedTuple):
    """What something says of P placements: `phases_ms` (P, D, 4) and `cost_ms` (P,) float64."""

    phases_ms: FloatArray
    cost_ms: FloatArray


@dataclass(frozen=True)
class Comparison:
    """A data set and what models say of its test tables.

    Attributes:
        measured: the data set.
        test: its placements of test tables.
        estimates: by the models' names.
        assumed: the hardware that the analytical model starts from.
        calibrated: the same with the numbers that fit the training tables best.
    """

    measured: Measured
    test: CostDataset
    estimates: dict[str, Estimates]
    assumed: HardwareProfile
    calibrated: HardwareProfile

    @property
    def exchanges_modelled(self) -> bool:
        """Whether the all-to-alls are the analytical model's, and no clock's: one device stood for all."""
        said = predictions(AnalyticalCostModel(), self.test)[0][..., EXCHANGES]
        measured = self.test.phases_ms[..., EXCHANGES]
        return bool(measured.any() and np.allclose(measured, said, rtol=1e-6, atol=0.0))

    @property
    def noise(self) -> Errors | None:
        """How far second measurements are from first ones, of all splits."""
        twice = self.measured.twice
        return errors_of(twice[0], twice[1].phases_ms, twice[1].cost_ms) if twice else None

    def errors(self, name: str) -> Errors:
        """Of a model."""
        return errors_of(self.test, *self.estimates[name])

    def ranking(self, name: str) -> Ranking | None:
        """Of a model, mean over the sets of test tables that were placed in several ways; None if there are none."""
        cost = self.estimates[name].cost_ms
        rivals = self.measured.rivals
        return ranking_of([(self.test.cost_ms[rows], cost[rows]) for rows in rivals]) if rivals else None


def compare(
    measured: Measured, models: Mapping[str, AdditiveCostModel], profile: HardwareProfile | None = None
) -> Comparison:
    """What the analytical model, the same scaled, a linear one and `models` say of the test tables of `measured`.

    Args:
        measured: the data set.
        models: fitted to such measurements, by name.
        profile: hardware that the analytical model assumes; None for that of the topologies.

    Raises:
        InvalidOptionError: there are no measurements of test tables, or none of training tables.
    """
    train, test = measured.first.part("train"), measured.test
    analytical = AnalyticalCostModel()
    assumed = profile or profile_in(train)
    said, raw = (Estimates(*predictions(analytical, part.on(assumed))) for part in (train, test))
    calibrated = calibrated_profile(train, assumed)
    name = f"analytical, {assumed.device.name}"
    estimates = {
        name: raw,
        f"{name}, scaled": _scaled(raw, _factors(train, said)),
        f"{name}, calibrated": Estimates(*predictions(analytical, test.on(calibrated))),
        "linear": Estimates(*predictions(fit_linear(train), test)),
        **{name: Estimates(*predictions(model, test)) for name, model in models.items()},
    }
    return Comparison(measured, test, estimates, assumed, calibrated)


def _factors(data: CostDataset, said: Estimates) -> FloatArray:
    """(4,) float64: geometric means of measured over estimated times of each phase; 1 where there are none."""
    factors = np.ones(len(PHASES))
    for phase in range(len(PHASES)):
        measured, estimated = data.phases_ms[..., phase], said.phases_ms[..., phase]
        both = (measured > 0) & (estimated > 0)
        if both.any():
            factors[phase] = np.exp(np.log(measured[both] / estimated[both]).mean())
    return factors


def _scaled(estimates: Estimates, factors: FloatArray) -> Estimates:
    phases = estimates.phases_ms * factors
    return Estimates(phases, np.maximum(phases.max(axis=1).sum(axis=-1), LEAST_MS))


# The page


def page_name(hardware: str) -> str:
    """The file name of the page about that hardware."""
    return f"cost-model-{hardware}.md"


def page(comparisons: Sequence[Comparison], command: str, pictures: Sequence[str]) -> str:
    """The Markdown.

    Args:
        comparisons: one for each data set, all of one hardware.
        command: what makes the page anew.
        pictures: a link for each comparison; "" for none.
    """
    import shard_gym

    hardware = comparisons[0].measured.about.hardware
    blocks = [
        f"<!-- Generated by `{command}`; do not edit. -->",
        f"# Cost models against measurements on {hardware}",
        INTRODUCTION,
        f"Made with ShardGym {shard_gym.__version__}.",
    ]
    for comparison, picture in zip(comparisons, pictures, strict=True):
        blocks += list(_section(comparison, picture))
    return "\n\n".join(blocks) + "\n"


def _section(comparison: Comparison, picture: str) -> Iterator[str]:
    workload = comparison.measured.about.workload
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
            "Every point is a placement, or one of its devices; on the line, the estimate is right. Triangles lie "
            "beyond the edge. The numbers are the mean errors of the table."
        )
        yield f"![Estimated against measured ms]({picture})"
    yield "### Order of placements"
    yield from _order(comparison)
    yield "### Calibrated numbers"
    yield (
        f"What the analytical model assumes of {comparison.assumed.device.name}, and what fits the training tables "
        "best. These stand for whatever the model leaves out, too; several of them together may say the same, so none "
        "is a measurement of that part alone. One that stays as assumed is one that the measurements say nothing of."
    )
    yield _table(("", "assumed", "calibrated"), _numbers(comparison))


def _facts(comparison: Comparison) -> Iterator[str]:
    measured, about = comparison.measured, comparison.measured.about
    first = measured.first
    splits = first.placement_split
    sizes = [
        f"{(splits == k).sum():,} of {first.num_tables(split):,} tables ({split})" for k, split in enumerate(SPLITS)
    ]
    yield f"Placements: {'; '.join(sizes)}. No table is in two of these groups; each width of a table counts as one."
    counts, cost = np.diff(comparison.test.start), comparison.test.cost_ms
    devices = counted(int(first.data.num_devices.max()), "device")
    fewest = f"{counts.min()} to " if counts.min() < counts.max() else ""
    yield (
        f"Test placements: {fewest}{counted(int(counts.max()), 'table')} on {devices}, "
        f"{cost.min():.3g} to {cost.max():.3g} ms, median {np.median(cost):.3g} ms."
    )
    yield f"Measured by `{about.source}`."
    if comparison.exchanges_modelled:
        yield (
            "One device stood for all: forward and backward were measured device by device, the all-to-alls are the "
            "analytical model's, and so is their part of an iteration."
        )
    spreads = measured.spreads
    if len(spreads):
        median, worst = (format_percent(float(np.quantile(spreads, share))) for share in (0.5, 0.95))
        yield (
            "Interquartile range of an iteration's cost within a measurement: "
            f"{median} of the median, {worst} in the worst twentieth."
        )
    if about.skipped:
        reasons = Counter(skipped.reason for skipped in about.skipped).most_common()
        named = [f"{count} x {reason}" for reason, count in reasons[:MAX_REASONS]]
        more = [f"and {len(reasons) - MAX_REASONS} other reasons"] if len(reasons) > MAX_REASONS else []
        yield f"Could not be measured: {counted(len(about.skipped), 'draw')} ({'; '.join([*named, *more])})."


def _error_table(comparison: Comparison) -> str:
    noise, twice = comparison.noise, comparison.measured.twice
    rows = [_error_row(f"*{NOISE}* ({counted(len(twice[0]), 'placement')})", noise)] if noise and twice else []
    rows += [_error_row(name, comparison.errors(name)) for name in comparison.estimates]
    return _table(("model", "iteration", *PHASES), rows)


def _error_row(name: str, errors: Errors) -> Sequence[str]:
    return name, *map(_cell, (errors.cost, *errors.phases.values()))


def _cell(error: Error) -> str:
    return f"{format_percent(error.mape)} ({format_percent(error.ratio)})" if error.count else "-"


def _order(comparison: Comparison) -> Iterator[str]:
    sets, twice = comparison.measured.rivals, comparison.measured.twice
    apart = f" `{NOISE}` has placements, and a tau, of its own." if twice else ""
    often = f" ({np.mean([len(rows) for rows in sets]):.1f} on average)" if sets else ""
    yield (
        f"Kendall's tau over all {counted(len(comparison.test), 'test placement')}, and as a mean over "
        f"{counted(len(sets), 'set')} of tables that were placed in several ways{often}. Regret is what the best of "
        "the k placements ranked first costs more than the best one, measured; where there are few more than k, it is "
        f"small whoever ranks.{apart}"
    )
    rows = []
    if twice:
        rows.append((f"*{NOISE}*", f"{kendall_tau(twice[0].cost_ms, twice[1].cost_ms):.3f}", *["-"] * (1 + len(TOP))))
    for name, estimates in comparison.estimates.items():
        overall, ranking = kendall_tau(comparison.test.cost_ms, estimates.cost_ms), comparison.ranking(name)
        within = (
            [f"{ranking.kendall_tau:.3f}", *map(format_percent, ranking.regret.values())]
            if ranking
            else ["-"] * (1 + len(TOP))
        )
        rows.append((name, f"{overall:.3f}", *within))
    yield _table(("model", "tau, all", "tau, same tables", *(f"regret, k = {k}" for k in TOP)), rows)


def _numbers(comparison: Comparison) -> Iterator[Sequence[str]]:
    for part in ("device", "links"):
        before, after = (getattr(profile, part) for profile in (comparison.assumed, comparison.calibrated))
        for name in DEVICE if part == "device" else LINKS:
            yield f"`{name}`", f"{getattr(before, name):.4g}", f"{getattr(after, name):.4g}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, numbers to the right."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|--:" * (len(header) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
