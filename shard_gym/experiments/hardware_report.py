"""The page and the figure of the study of measured costs, computed from the raw rounds of its race and its facts.

Next to the page stands what it is computed from: race.json and rounds.parquet (see `leaderboard.race_files`),
facts.json, and a folder race-2 and so on for each repetition of the race.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shard_gym.agents import PAPER_HEURISTICS
from shard_gym.cost_models.base import PHASES, FloatArray
from shard_gym.errors import DamagedFileError
from shard_gym.experiments.hardware import CALIBRATED, POLICY, RANDOM, Facts, HardwareStudy, race_folder
from shard_gym.experiments.study import DREAM_SEARCH, LOCAL_SEARCH
from shard_gym.io.files import read_json, write_atomically, write_json
from shard_gym.io.markdown import table
from shard_gym.io.pictures import COLORS, GREY, INK, LINE, SIZE, save_picture
from shard_gym.leaderboard.race import Race
from shard_gym.leaderboard.race_files import load_race, write_race
from shard_gym.leaderboard.statistics import bootstrap_samples, percentile_interval, probability_of_improvement
from shard_gym.text import counted, format_change, format_ms

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FACTS = "facts.json"
FIGURE = "costs.png"


class Method(NamedTuple):
    """A method's costs in the race.

    Attributes:
        name: without the seed.
        costs_ms: (S, N) float64, medians over the rounds, for S seeds and N tasks.
        phases_ms: (4,) float64, mean ms of the slowest device in each phase.
    """

    name: str
    costs_ms: FloatArray
    phases_ms: FloatArray

    @property
    def mean_ms(self) -> float:
        """Mean over seeds and tasks."""
        return float(self.costs_ms.mean())


def methods_of(race: Race) -> dict[str, Method]:
    """The methods by name, in the order of their first entries."""
    names, medians = list(race.placements), np.median(race.costs_ms(), axis=2)
    entries: dict[str, list[str]] = {}
    for name in names:
        entries.setdefault(name.rpartition("-seed")[0] or name, []).append(name)
    return {
        method: Method(method, medians[[names.index(each) for each in own]], _phases_of(race, own))
        for method, own in entries.items()
    }


def _phases_of(race: Race, entries: Sequence[str]) -> FloatArray:
    ms = [np.median(each.phases_ms, axis=0).max(axis=0) for each in race.measurements if each.entry in entries]
    return np.asarray(np.mean(ms, axis=0)) if ms else np.zeros(len(PHASES))


def change(method: Method, reference: Method) -> tuple[float, tuple[float, float]]:
    """Mean cost / that of `reference` - 1, and its 95% interval: tasks are resampled together, seeds for each task."""
    sampled = [bootstrap_samples(each.costs_ms, np.random.default_rng(0)).mean(axis=1) for each in (method, reference)]
    low, high = percentile_interval(sampled[0] / sampled[1])
    return method.mean_ms / reference.mean_ms - 1.0, (low - 1.0, high - 1.0)


def write_results(out: Path, races: Sequence[Race], facts: Facts) -> None:
    """Write the files that the page is computed from into the folder `out`."""
    for number, race in enumerate(races):
        write_race(_folder_of(out, number), race)
    write_json(out / FACTS, facts._asdict())


def read_results(out: Path) -> tuple[list[Race], Facts]:
    """What `write_results` wrote, checked against the raw rounds.

    Raises:
        DamagedFileError: a file is missing or was edited.
    """
    record = read_json(out / FACTS)
    try:
        facts = Facts(**record)
        suite = HardwareStudy(out, **{**facts.options, "budgets": tuple(facts.options["budgets"])}).test
    except (TypeError, KeyError, ValueError) as error:
        raise DamagedFileError(f"{out / FACTS} does not hold the facts of a study.") from error
    races = [load_race(out, suite)]
    while _folder_of(out, len(races)).exists():
        races.append(load_race(_folder_of(out, len(races)), suite))
    return races, facts


def _folder_of(out: Path, number: int) -> Path:
    """Of a race: the first one's files stand beside the facts."""
    return out / race_folder(number) if number else out


def write_page(path: Path, results: Path, races: Sequence[Race], facts: Facts) -> None:
    """Write the page to `path`, and its figure, of the first race, into the folder `results` beside it.

    Raises:
        MissingExtraError: matplotlib is not installed.
        UnwritablePathError: a file cannot be written.
    """
    save_picture(draw(races[0]), results / FIGURE)
    write_atomically(path, page(races, facts, results.relative_to(path.parent).as_posix()).encode())


def page(races: Sequence[Race], facts: Facts, folder: str) -> str:
    """The Markdown text; `folder` holds the figure and the raw rounds. It is about the first race; others check it."""
    race, command = races[0], _command(facts)
    blocks = [
        f"<!-- Generated by `{command}`; do not edit. -->",
        "# Learning from measured costs",
        _introduction(race, facts, folder),
        "\n".join(f"- {line}" for line in _findings(race)),
        f"![Measured cost against the best greedy heuristic]({folder}/{FIGURE})",
        "## Costs",
        *_costs(race, facts),
        "## Where the time goes",
        *_phases(race),
        "## Does the search exploit the model?",
        *_errors(race, facts),
        "## How exact the measurements are",
        _noise(race),
        *_repetitions(races),
        "## To repeat it",
        f"```\n{command}\n```",
    ]
    return "\n\n".join(blocks) + "\n"


def _command(facts: Facts) -> str:
    """What makes the study again, to copy."""
    parts = ["shard-gym experiment hardware"]
    for name, value in facts.options.items():
        if value is not None:
            words = map(str, value) if isinstance(value, list | tuple) else (str(value),)
            parts.append(f"--{name.replace('_', '-')} {' '.join(words)}")
    return " ".join(parts)


def _introduction(race: Race, facts: Facts, folder: str) -> str:
    settings = race.settings
    seeds = max(len(method.costs_ms) for method in methods_of(race).values())
    return (
        f"Agents learn from measured placements of the training tasks of `{race.suite.name}`. Then their placements of "
        f"{counted(len(race.suite), 'test task')} are measured in a race: {counted(race.num_rounds, 'round')}, all "
        "methods of a task one after the other in random order. The cost of a placement is the median over the rounds. "
        f"Agents that learn have {counted(seeds, 'seed')}. No agent asks for a true cost while it places.\n\n"
        f"Machine: {race.hardware}. Each device's operator is measured alone, one after the other (`sequential`), with "
        f"{counted(settings['threads'], 'thread')}, {counted(settings['iterations'], 'iteration')} after "
        f"{counted(settings['warmup'], 'warm-up')}; the all-to-alls are estimated. The load average of the whole "
        f"machine, all CPUs together, was {np.median([each.load for each in race.measurements]):.1f} during the race "
        f"(median). The raw times of every round are in [{folder}]({folder}/rounds.parquet).\n\n"
        f"`dream-search-N` and `paper-N` are DreamShard's two presets after N measured placements. `{POLICY}` is the "
        "agent of sb3-contrib, trained under the cost network of `dream-search` with the most placements: it measures "
        f"nothing of its own. `{CALIBRATED}` searches under the analytical model (`{facts.cost_model}`), its constants "
        f"fitted to the same placements, and `{LOCAL_SEARCH}` under that model as it ships."
    )


def references(methods: dict[str, Method]) -> tuple[Method, Method]:
    """The cheapest greedy heuristic over all tasks, and local search under the analytical model."""
    return min((methods[name] for name in PAPER_HEURISTICS), key=lambda each: each.mean_ms), methods[LOCAL_SEARCH]


def _findings(race: Race) -> Iterable[str]:
    """What the race shows of dream-search, in sentences."""
    methods = methods_of(race)
    for name in (each for each in methods if each.startswith(DREAM_SEARCH)):
        compared = []
        for reference in references(methods):
            mean, (low, high) = change(methods[name], reference)
            apart = "" if high < 0 or low > 0 else ", so no difference is shown"
            compared.append(f"{format_change(mean)} against `{reference.name}` ({_interval(low, high)}{apart})")
        yield f"`{name}`: {', '.join(compared)}."


def _interval(low: float, high: float) -> str:
    return f"{format_change(low)} to {format_change(high)}"


def _costs(race: Race, facts: Facts) -> Iterable[str]:
    methods = methods_of(race)
    greedy, search = references(methods)
    yield (
        f"`vs greedy` compares the mean cost with that of `{greedy.name}`, the cheapest of the four greedy heuristics "
        f"in this race, and `vs search` with `{LOCAL_SEARCH}`. Intervals are 95%, from a paired bootstrap over tasks "
        "and seeds; where seeds differ more than tasks, three of them make it too narrow. `cheaper` is the share of "
        "the tasks (and seeds) in which the method costs less than that heuristic. `measured` is the number of "
        "placements that were measured to train it, those of others included."
    )
    rows = []
    for method in sorted(methods.values(), key=lambda each: each.mean_ms):
        shared = f"{max(facts.options['budgets'])} (shared)" if method.name in (CALIBRATED, POLICY) else ""
        measured = [str(own) for name, own in facts.measured.items() if _is_of(name, method)] or [shared]
        cells = []
        for reference in (greedy, search):
            mean, interval = change(method, reference)
            cells += [format_change(mean), _interval(*interval)] if method is not reference else ["", ""]
        rows.append(
            [
                method.name,
                measured[0],
                format_ms(method.mean_ms),
                *cells,
                f"{probability_of_improvement(method.costs_ms, greedy.costs_ms):.0%}" if method is not greedy else "",
            ]
        )
    header = ("method", "measured", "mean ms", "vs greedy", "95%", "vs search", "95%", "cheaper")
    yield table(header, rows)
    yield "Mean ms of each seed:"
    rows = [
        [each.name, *map(format_ms, each.costs_ms.mean(axis=1))] for each in methods.values() if len(each.costs_ms) > 1
    ]
    if rows:
        yield table(("method", *(f"seed {seed}" for seed in range(len(rows[0]) - 1))), rows)


def _is_of(entry: str, method: Method) -> bool:
    return entry.rpartition("-seed")[0] == method.name


def _phases(race: Race) -> Iterable[str]:
    yield "Mean ms of the slowest device in each phase. A method gains where it balances the phase that takes longest."
    methods = sorted(methods_of(race).values(), key=lambda each: each.mean_ms)
    yield table(("method", *PHASES), [[each.name, *map(format_ms, each.phases_ms)] for each in methods])


def _errors(race: Race, facts: Facts) -> Iterable[str]:
    yield (
        "A search finds placements that its model thinks are cheap. If the model is wrong there, the search exploits "
        "it: the estimates of its own placements are then lower than what they cost. Mean of |estimate / measured - 1| "
        "over the test tasks, and in brackets the mean of estimate / measured - 1, for random placements, for those of "
        "the four greedy heuristics, and for those that were found under the model itself."
    )
    names, medians = list(race.placements), np.median(race.costs_ms(), axis=2)
    rows: dict[str, list[list[FloatArray]]] = {}
    for maker, by_entry in facts.estimates_ms.items():
        own = [
            np.concatenate([_ratios(by_entry[name], medians[names.index(name)]) for name in group])
            for group in ((RANDOM,), PAPER_HEURISTICS, (maker,))
        ]
        rows.setdefault(maker.rpartition("-seed")[0] or maker, []).append(own)
    cells = [
        [name, *(_error(np.concatenate([own[kind] for own in seeds])) for kind in range(3))]
        for name, seeds in rows.items()
    ]
    yield table(("model of", "random", "greedy", "its own"), cells)


def _ratios(estimates: Sequence[float | None], measured: FloatArray) -> FloatArray:
    return np.array([each / cost - 1.0 for each, cost in zip(estimates, measured, strict=True) if each is not None])


def _error(ratios: FloatArray) -> str:
    return f"{np.abs(ratios).mean():.1%} ({format_change(float(ratios.mean()))})" if len(ratios) else ""


def _noise(race: Race) -> str:
    if race.num_rounds < 2:
        return "Each placement was measured in one round, so the noise is not known."
    return (
        f"The measurements of a placement in {race.num_rounds} rounds have a standard deviation of {race.noise():.1%}. "
        "All methods bear it alike, because their order is drawn anew in every round and task."
    )


def _repetitions(races: Sequence[Race]) -> Iterable[str]:
    """Which of the differences in the first race the others confirm."""
    if len(races) < 2:
        return
    first, *others = map(methods_of, races)
    apart = [
        (cheap, dear)
        for cheap, dear in permutations(first, 2)
        if change(first[cheap], first[dear])[1][1] < 0.0  # the whole interval is below 0
    ]
    yield "## The race again"
    yield (
        f"The same placements, measured again at another hour, in {_rounds_of(races[1:])}. Of two methods one is "
        "cheaper where the 95% interval of "
        f"their paired difference is all on one side of 0: in the first race, that holds for {len(apart)} of "
        f"{math.comb(len(first), 2)} pairs of methods."
    )
    for number, other in enumerate(others, start=2):
        turned = [f"`{cheap}` and `{dear}`" for cheap, dear in apart if other[cheap].mean_ms >= other[dear].mean_ms]
        kept = f"{len(apart) - len(turned)} of these {len(apart)} pairs have the same order in race {number}"
        yield f"{kept}; not {', '.join(turned)}." if turned else f"{kept}."
    rows = [
        [name, *(format_ms(methods[name].mean_ms) for methods in (first, *others))]
        for name in sorted(first, key=lambda name: first[name].mean_ms)
    ]
    yield table(("method", *(f"race {number + 1}, mean ms" for number in range(len(races)))), rows)


def _rounds_of(races: Sequence[Race]) -> str:
    return " and ".join(f"a race of {counted(each.num_rounds, 'round')}" for each in races)


def draw(race: Race) -> Figure:
    """Mean cost of each method against the best greedy heuristic, with its interval; grey for one without seeds."""
    from matplotlib.figure import Figure

    methods = methods_of(race)
    greedy = references(methods)[0]
    ordered = sorted(methods.values(), key=lambda each: each.mean_ms, reverse=True)
    figure = Figure(figsize=(11.0, 1.4 + 0.42 * len(ordered)), facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    for row, method in enumerate(ordered):
        mean, (low, high) = change(method, greedy)
        color = COLORS[0] if len(method.costs_ms) > 1 else GREY
        error = [[100 * max(mean - low, 0.0)], [100 * max(high - mean, 0.0)]]
        axes.errorbar(100 * mean, row, xerr=error, marker="o", markersize=9, linewidth=2.5, color=color)
        axes.annotate(
            f"{format_ms(method.mean_ms)} ms",
            (100 * mean, row),
            (0, 8),
            textcoords="offset points",
            ha="center",
            fontsize=SIZE - 2,
            color=color,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
    axes.axvline(0.0, color=INK, linewidth=1.2)
    axes.set_yticks(range(len(ordered)), [each.name for each in ordered])
    axes.set_ylim(-0.6, len(ordered) - 0.2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+g}%" if value else "0")
    axes.tick_params(labelsize=SIZE, colors=INK)
    axes.grid(axis="x", color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(f"measured cost against {greedy.name} (left is better)", fontsize=SIZE, color=INK)
    return figure
