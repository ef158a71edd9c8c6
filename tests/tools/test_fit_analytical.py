"""The fit: it predicts what the model does, finds planted constants, and the page shows its numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("scipy")


@pytest.fixture(scope="module")
def fit(tool: Any) -> Any:
    return tool("fit_analytical")


@pytest.fixture(scope="module")
def problem(fit: Any) -> Any:
    return fit.Problem(fit.read_rows())


@pytest.fixture(scope="module")
def errors(fit: Any, problem: Any) -> Any:
    return np.log(problem.predict(fit.current_parameters()) / problem.measured)


@pytest.fixture(scope="module")
def outside(fit: Any, problem: Any) -> Any:
    """The errors of each row when the other half was fitted, with the last seed."""
    return fit.held_out(problem, fit.SEEDS[-1])[1]


def test_the_constants_of_the_package_are_those_of_the_fit(fit: Any, problem: Any) -> None:
    found, current = problem.fit(problem.fitted), fit.current_parameters()
    for name, best, now in zip(fit.NAMES, found, current, strict=True):
        assert math.exp(now) == pytest.approx(math.exp(best), rel=0.05), name


def test_planted_constants_are_found_where_the_rows_determine_them(fit: Any, problem: Any) -> None:
    planted = fit.START + np.random.default_rng(1).uniform(-0.4, 0.4, len(fit.START))
    copy = fit.Problem(problem.rows)
    copy.measured = problem.predict(planted)
    found, spreads = copy.fit(copy.fitted), copy.spreads(planted)
    determined = spreads < 0.3
    assert determined.sum() >= 8
    np.testing.assert_allclose(found[determined], planted[determined], atol=0.12)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rows_of_one_origin_are_never_on_both_sides(problem: Any, seed: int) -> None:
    half = problem.halves(seed)
    for name in ("compute", "NVLink", "network"):
        rows = problem.fitted & (problem.classes == name)
        assert set(half[rows]) == {0, 1}
        for origin in set(problem.origins[rows]):
            assert len(set(half[rows & (problem.origins == origin)])) == 1
    assert np.array_equal(half, problem.halves(seed))


def test_a_half_is_predicted_without_its_rows(fit: Any, problem: Any, outside: Any) -> None:
    """Nonsense in the rows of one half does not change what is predicted for them."""
    changed = fit.Problem(problem.rows)
    second = problem.halves(fit.SEEDS[-1]) == 1
    changed.measured = np.where(second, problem.measured * 3.0, problem.measured)
    _, after = fit.held_out(changed, fit.SEEDS[-1])
    rows = problem.fitted & second
    np.testing.assert_allclose(after[rows], outside[rows] - math.log(3.0), atol=1e-9)


def is_adam(row: Any) -> bool:
    return row.settings["tables"].get("optimizer") == "adam" if "tables" in row.settings else False


def test_guessed_gpus_host_times_and_adam_are_not_fitted(problem: Any) -> None:
    for row, fitted in zip(problem.rows, problem.fitted, strict=True):
        known = row.settings["gpu"] != "not published" and "host_bound" not in row.settings
        assert fitted == (known and row.kind != "copy" and not is_adam(row))


def test_adam_is_predicted_as_the_page_says(fit: Any, problem: Any, errors: Any) -> None:
    """No constant is fitted to Adam, so these rows test the bytes of its state."""
    chosen = np.array([is_adam(row) and "host_bound" not in row.settings for row in problem.rows])
    assert chosen.sum() == 8
    error = fit.error_of(errors[chosen])
    page = " ".join((Path(__file__).parents[2] / "docs" / "cost-model.md").read_text(encoding="utf-8").split())
    assert f"to {error.mean - 1:.0%} on average, and the worst by a factor of {error.worst:.2f}" in page
    predicted = problem.predict(fit.current_parameters())
    ms = {
        (r.settings["title"], r.settings["label"]): at
        for r, *at in zip(problem.rows, predicted, problem.measured, strict=True)
    }
    ratios = []
    for (title, label), adam in ms.items():
        if label == "Adam, backward":
            ratios.append(np.divide(*np.subtract(adam, ms[title, "SGD, backward"])))
    assert len(ratios) == 3
    assert f"{min(ratios):.2f} to {max(ratios):.2f} times what was measured" in page


def test_errors_are_what_the_page_claims(fit: Any, problem: Any, errors: Any, outside: Any) -> None:
    page = (Path(__file__).parents[2] / "docs" / "results" / "cost-model-errors.md").read_text(encoding="utf-8")
    by_kind = fit.errors_by_kind(problem, errors, problem.fitted)
    for name, (count, error) in by_kind.items():
        assert f"| {name} | {count} | {error.mean - 1:.0%}, {error.worst:.2f} |" in page, (
            "Run tools/cost_model_card.py."
        )
    for name, (count, error) in fit.errors_by_kind(problem, outside, problem.fitted).items():
        line = next(line for line in page.splitlines() if line.startswith(f"| {name} | {count} |"))
        assert line.endswith(f"| {error.mean - 1:.0%}, {error.worst:.2f} |")
    assert by_kind["all but small operators"][1].mean < 1.2
    assert by_kind["all but small operators"][1].worst < 1.6
    assert by_kind["H100 and H200, forward and backward"][1].mean < 1.15
