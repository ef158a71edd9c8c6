"""Writes the card of the analytical cost model: `python tools/cost_model_card.py`, a minute.

    docs/results/cost-model-errors.md  errors of the fit (fit_analytical.py), fitted and held out, and its constants
    docs/results/measurements.md       every row of docs/published_measurements.json beside its prediction
    cost_models/evidence/              what was measured on each profile (evidence.py), for `shard_gym.planning.trust`

`compare` takes any other additive cost model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import evidence
import numpy as np
from fit_analytical import (
    PARAMETERS,
    SEEDS,
    START,
    Array,
    Error,
    Problem,
    copy_ms,
    current_parameters,
    errors_by_kind,
    held_out,
    phase_ms,
    read_rows,
)
from published import MEASUREMENTS, measured_value, settings_of, tables_of, topology_of

from shard_gym.agents import GreedyAgent
from shard_gym.common.io.files import read_json, write_atomically
from shard_gym.common.io.markdown import table, with_block
from shard_gym.cost_models.analytical import AnalyticalCostModel
from shard_gym.cost_models.analytical.all_to_all import all_to_all_ms
from shard_gym.cost_models.base import AdditiveCostModel
from shard_gym.tasks import Task

PAGE = Path(__file__).parent.parent / "docs" / "results" / "cost-model-errors.md"
ROWS_PAGE = PAGE.with_name("measurements.md")
FIT_BLOCK = "fit"
ROWS_BLOCK = "rows"


@dataclass(frozen=True)
class Comparison:
    label: str  # the setting, within its group
    measured: float | str  # the published value in ms, or a ratio of times; a text if it is not comparable
    predicted: float | None  # in the same unit; None if it is not comparable
    unit: str = "ms"  # "" for a ratio of times
    held_out: float | None = None  # the prediction of a fit to the other half of the rows; None if it was not fitted
    note: str = ""  # why it is not comparable, or not fitted

    @property
    def ratio(self) -> float:
        """Predicted / measured; NaN without a prediction."""
        return math.nan if self.predicted is None else self.predicted / float(self.measured)


class Group(NamedTuple):
    """Comparisons with the same source and setting."""

    title: str
    source: str
    setting: str
    is_share: bool  # whole iterations were measured, and the embedding part is a share of them
    rows: list[Comparison]
    provenance: str = ""  # the GPU, what the source does not state, and what was checked


def compare(model: AdditiveCostModel) -> list[Group]:
    """Every measurement with the prediction of `model`, in the order of the file.

    A row is predicted as an operator of its tables. What only the fit knows of it, such as a kernel without its launch,
    an older thread group or repeated indices, is left out; `with_fit` replaces these predictions.
    """
    return [
        Group(
            group["title"],
            group["source"],
            group["setting"],
            group.get("quantity") == "iteration",
            [_compare(settings_of(group, row), model) for row in group["rows"]],
            _provenance(group),
        )
        for group in read_json(MEASUREMENTS)["groups"]
    ]


def with_fit(groups: Sequence[Group], problem: Problem) -> list[Group]:
    """`groups` with what the fit predicts for its rows, fitted to all rows, and held out (the split of seed 0)."""
    predicted = problem.predict(current_parameters())
    outside = problem.measured * np.exp(held_out(problem, SEEDS[0])[1])
    known = {
        (row.settings["title"], row.settings["label"]): (both, float(outside[at]) if problem.fitted[at] else None, row)
        for at, (row, both) in enumerate(zip(problem.rows, predicted.tolist(), strict=True))
    }

    def changed(title: str, row: Comparison) -> Comparison:
        if (title, row.label) not in known:
            return row
        ms, other_half, fitted = known[title, row.label]
        return replace(row, predicted=ms, held_out=other_half, note=fitted.not_fitted)

    return [group._replace(rows=[changed(group.title, row) for row in group.rows]) for group in groups]


def _provenance(group: Mapping[str, Any]) -> str:
    inferred = f" Inferred: {'; '.join(group['inferred'])}." if group["inferred"] else ""
    return f"GPU: {group['gpu']}.{inferred} Checked: {group['checked']}."


def _compare(row: Mapping[str, Any], model: AdditiveCostModel) -> Comparison:
    if "not_comparable" in row:
        return Comparison(row["label"], row["measured"], None, note=f"not comparable: {row['not_comparable']}")
    unit = "" if row["quantity"] == "unfused/fused" else "ms"
    return Comparison(row["label"], measured_value(row), _predicted(row, model), unit)


def _predicted(row: Mapping[str, Any], model: AdditiveCostModel) -> float:
    topology, quantity = topology_of(row), row["quantity"]
    if quantity == "dram":
        return copy_ms(row)
    if quantity == "all-to-all":
        sent = np.full(topology.num_devices, float(row["num_bytes"]))
        return float(all_to_all_ms(sent, topology.cluster()).max())
    tables = tables_of(row["tables"], topology)
    if quantity == "iteration":
        costs = model.single_table_costs(model.loads(tables, topology), topology)
        placement = GreedyAgent("longest first", lambda _: costs).place(Task(quantity, tables, topology))
        return model.estimate(placement, tables, topology).total_ms
    fused = model.estimate(np.zeros(len(tables), np.int64), tables, topology).phases_ms[0]
    if quantity == "unfused/fused":
        alone = model.single_tables(model.loads(tables, topology), topology)[0]
        return float(alone.sum() / fused.sum())
    return float(phase_ms(quantity, *fused))


# The errors and constants

_TWO_NUMBERS = (
    "A cell has two numbers: the mean error (the geometric mean of the factor between prediction and measurement, "
    "either way, less 1), and the factor of the worst row. `7%, 1.19` is 7% off on average, and by a factor of 1.19 in "
    "the worst row."
)
_OTHER_STARTS = (
    f"The held-out halves of seed {SEEDS[0]}, with the same two numbers, when every start value is moved by a random "
    "factor of up to 2."
)


def render_fit(problem: Problem) -> str:
    current = np.log(problem.predict(current_parameters()) / problem.measured)
    parts = [
        f"{len(problem.rows)} rows time one operator, one copy or one all-to-all, which is what the fit predicts; "
        f"{int(problem.fitted.sum())} of them are fitted. The table of all rows below has the others, too: whole "
        "iterations, ratios of fused to unfused operators, and rows that cannot be compared.",
        f"### Errors\n\nOf the fitted rows. {_TWO_NUMBERS}\n\n" + _error_table(problem, current),
        "### The splits\n\n" + _split_list(problem),
        "### Constants\n\n" + _constants_table(problem),
        f"### Other start values\n\n{_OTHER_STARTS}\n\n" + _sensitivity_table(problem),
    ]
    return "\n\n".join(parts)


def _error_table(problem: Problem, current: Array) -> str:
    splits = [held_out(problem, seed) for seed in SEEDS]
    columns = [errors_by_kind(problem, current, problem.fitted)]
    columns += [errors_by_kind(problem, errors, problem.fitted) for pair in splits for errors in pair]
    header = ["kind", "rows", "the constants"]
    for seed in SEEDS:
        header += [f"seed {seed}: fitted half", "held-out half"]
    return table(
        header,
        (
            [name, str(count), *(_error(column[name][1]) for column in columns)]
            for name, (count, _) in columns[0].items()
        ),
    )


def _error(error: Error) -> str:
    return f"{error.mean - 1:.0%}, {error.worst:.2f}"


def _split_list(problem: Problem) -> str:
    lines = []
    for seed in SEEDS:
        half = problem.halves(seed)
        parts = []
        for name in ("compute", "NVLink", "network"):
            first = problem.fitted & (problem.classes == name) & (half == 0)
            parts.append(f"{name}: {', '.join(sorted(set(problem.origins[first])))}")
        lines.append(f"- Seed {seed}, first half: {'; '.join(parts)}.")
    return "\n".join([*lines, "- PCIe has one origin; its rows are split alternately."])


def _constants_table(problem: Problem) -> str:
    current, fit = np.exp(current_parameters()), problem.fit(problem.fitted)
    rows = [
        (
            f"`{name}`",
            *(_constant(name, value) for value in (now, math.exp(best))),
            f"{spread:.2f}",
            _constant(name, known.start),
            known.reason,
        )
        for (name, known), now, best, spread in zip(PARAMETERS.items(), current, fit, problem.spreads(fit), strict=True)
    ]
    header = ("constant", "in the package", "fitted", "spread of its logarithm", "start", "why this start")
    return table(header, rows, notes=1)


def _constant(name: str, value: float) -> str:
    for ending, size, unit in (("_bytes", 1e6, "MB"), ("_gb_per_s", 1.0, "GB/s"), ("_us", 1.0, "us")):
        if name.endswith(ending):
            return f"{_three_digits(value / size)} {unit}"
    return _three_digits(value)


def _three_digits(value: float) -> str:
    """Three significant digits without an exponent: 0.937, 26.1, 2,640."""
    digits = f"{value:.3g}"
    return f"{float(digits):,.0f}" if "e" in digits or value >= 1000 else digits


def _sensitivity_table(problem: Problem) -> str:
    """Held-out errors of the first split when every start value is moved by a random factor of up to 2."""
    rows = []
    for draw in range(3):
        moved = START + np.random.default_rng([9, draw]).uniform(-math.log(2), math.log(2), len(START))
        _, outside = held_out(problem, SEEDS[0], moved)
        by_kind = errors_by_kind(problem, outside, problem.fitted)
        rows.append([f"draw {draw}", *(_error(error) for _, error in by_kind.values())])
    return table(["start values", *by_kind], rows)


# Every measurement


def render_rows(groups: Sequence[Group], model: AdditiveCostModel) -> str:
    rows = [row for group in groups for row in group.rows]
    not_comparable = sum(row.predicted is None for row in rows)
    fitted = sum(row.held_out is not None for row in rows)
    return "\n\n".join(
        [
            f"Model: `{model.fingerprint}`.",
            f"{len(rows)} rows; {not_comparable} of them cannot be compared, {fitted} are fitted.",
            _summary(groups),
            *(text for group in groups for text in _group_texts(group)),
        ]
    )


def _summary(groups: Sequence[Group]) -> str:
    """A row for each group with predictions, one for the rows that were fitted, and one for the others."""
    header = ("group", "rows", "within 10%", "within a factor of 2", "predicted / measured: geometric mean", "range")
    kernels = [row for group in groups if not group.is_share for row in group.rows]
    rows = [
        *(_summary_row(group.title, group.rows, is_share=group.is_share) for group in groups),
        _summary_row("**all fitted rows**", [row for row in kernels if row.held_out is not None]),
        _summary_row("**all others but whole iterations**", [row for row in kernels if row.held_out is None]),
    ]
    return table(header, filter(None, rows))


def _summary_row(title: str, rows: Sequence[Comparison], *, is_share: bool = False) -> list[str]:
    ratios = np.array([row.ratio for row in rows if row.predicted is not None])
    if not ratios.size:
        return []
    factors = np.exp(np.abs(np.log(ratios)))
    within = ["-" if is_share else str(int((factors <= limit).sum())) for limit in (1.1, 2.0)]
    mean = f"{np.exp(np.log(ratios).mean()):.2f}{' (share)' if is_share else ''}"
    return [title, str(len(ratios)), *within, mean, f"{ratios.min():.2f} to {ratios.max():.2f}"]


def _group_texts(group: Group) -> tuple[str, str, str]:
    ratio = "share of the iteration" if group.is_share else "predicted / measured"
    header = ("setting", "measured", "predicted", ratio, "held out", "note")
    setting = f"{group.setting.rstrip('.')}. Source: {group.source}. {group.provenance}"
    return f"## {group.title}", setting, table(header, map(_cells, group.rows), notes=1)


def _cells(row: Comparison) -> tuple[str, ...]:
    if row.predicted is None:
        return row.label, str(row.measured), "-", "-", "-", row.note
    measured, predicted = (f"{value:.3g} {row.unit}".strip() for value in (row.measured, row.predicted))
    held = "-" if row.held_out is None else f"{row.held_out / float(row.measured):.2f}"
    return row.label, measured, predicted, f"{row.ratio:.2f}", held, row.note


def pages(problem: Problem, model: AdditiveCostModel) -> Iterator[tuple[Path, str]]:
    """Files and their contents; each is to be written before the next is asked for, as one page has two blocks."""
    yield PAGE, with_block(PAGE, FIT_BLOCK, render_fit(problem))
    yield ROWS_PAGE, with_block(ROWS_PAGE, ROWS_BLOCK, render_rows(with_fit(compare(model), problem), model))
    found = evidence.evidence(problem)
    yield PAGE, with_block(PAGE, evidence.BLOCK, evidence.render(problem, found))
    yield PAGE, with_block(PAGE, evidence.MACHINES_BLOCK, evidence.render_machines())
    yield from evidence.data_files(found).items()


if __name__ == "__main__":
    for path, text in pages(Problem(read_rows()), AnalyticalCostModel()):
        write_atomically(path, text.encode())
