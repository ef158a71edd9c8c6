"""Writes the card of version 2 of the analytical cost model: `python tools/cost_model_v2_card.py`, half a minute.

It fits the model (fit_cost_model_v2.py) and writes its errors, splits and constants into docs/cost-model-v2.md.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from fit_cost_model_v2 import (
    PARAMETERS,
    SEEDS,
    START,
    Array,
    Error,
    Mask,
    Problem,
    current_parameters,
    errors_by_kind,
    held_out,
    read_rows,
)

from shard_gym.io.files import write_atomically
from shard_gym.io.markdown import table, with_block

PAGE = Path(__file__).parent.parent / "docs" / "cost-model-v2.md"
BLOCK = "fit"


def render(problem: Problem) -> str:
    """The card as Markdown."""
    current = np.log(problem.predict(current_parameters()) / problem.measured)
    fit = problem.fit(problem.fitted)
    parts = [
        f"{len(problem.rows)} rows; {int(problem.fitted.sum())} are fitted.",
        "### Errors\n\n" + _error_table(problem, current),
        "### The splits\n\n" + _split_list(problem),
        "### Constants\n\n" + _constants_table(problem, fit),
        "### Other start values\n\n" + _sensitivity_table(problem),
        "### Rows that are not fitted\n\n" + _rows_table(problem, current, ~problem.fitted),
        "### Rows off by more than a quarter\n\n"
        + _rows_table(problem, current, problem.fitted & (np.abs(current) > math.log(1.25))),
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


def _constants_table(problem: Problem, fit: Array) -> str:
    current = np.exp(current_parameters())
    rows = [
        (
            f"`{name}`",
            f"{now:.3g}",
            f"{math.exp(best):.3g}",
            f"{spread:.2f}",
            f"{parameter.start:.3g}",
            parameter.reason,
        )
        for (name, parameter), now, best, spread in zip(
            PARAMETERS.items(), current, fit, problem.spreads(fit), strict=True
        )
    ]
    header = ("constant", "in the package", "fitted", "spread of its logarithm", "start", "why this start")
    return table(header, rows, notes=1)


def _spread(spread: float) -> str:
    """A number, or a text where the rows leave more than a factor of seven open."""
    return f"{spread:.2f}" if spread < 2.0 else "not determined"


def _sensitivity_table(problem: Problem) -> str:
    """Held-out errors of seed 0 when every start value is moved by a random factor of up to 2."""
    rows = []
    for draw in range(3):
        moved = START + np.random.default_rng([9, draw]).uniform(-math.log(2), math.log(2), len(START))
        _, outside = held_out(problem, SEEDS[0], moved)
        by_kind = errors_by_kind(problem, outside, problem.fitted)
        rows.append([f"draw {draw}", *(_error(error) for _, error in by_kind.values())])
    return table(["all starts moved by up to a factor of 2", *by_kind], rows)


def _rows_table(problem: Problem, errors: Array, chosen: Mask) -> str:
    rows = [
        (row.kind, row.settings["title"], row.settings["label"], f"{row.measured:.3g}", f"{math.exp(error):.2f}", note)
        for row, error, use in zip(problem.rows, errors, chosen, strict=True)
        if use
        for note in [row.not_fitted]
    ]
    header = ("kind", "group", "setting", "measured ms", "predicted / measured", "why not fitted")
    return table(header, rows, notes=1)


if __name__ == "__main__":
    PROBLEM = Problem(read_rows())
    write_atomically(PAGE, with_block(PAGE, BLOCK, render(PROBLEM)).encode())
