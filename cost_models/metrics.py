"""How far a cost model's estimates are from measured costs, and whether it tells good placements from bad ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import PHASES, AdditiveCostModel, FloatArray
from shard_gym.cost_models.data.dataset import CostDataset

LEAST_MS = 1e-3
"""Estimates below count as this much where a ratio is formed; a network may say 0."""

TOP = (1, 5)
"""Of how many placements that a model ranks first the best one is taken, see `top_k_regret`."""


@dataclass(frozen=True)
class Error:
    """How far estimates are from measurements; shares, 0.1 is 10 %.

    Attributes:
        mape: mean of |estimate / measured - 1|.
        ratio: exp(mean |ln(estimate / measured)|) - 1, which weighs half and double alike.
        count: numbers compared.
    """

    mape: float
    ratio: float
    count: int

    @staticmethod
    def of(measured: FloatArray, said: FloatArray) -> Error:
        """Of (n,) positive `measured` ms and (n,) estimates; NaN if there are none."""
        if not len(measured):
            return Error(np.nan, np.nan, 0)
        off = np.log(np.maximum(said, LEAST_MS) / measured)
        return Error(float(np.abs(said / measured - 1).mean()), float(np.expm1(np.abs(off).mean())), len(measured))


@dataclass(frozen=True)
class Errors:
    """Errors of a model on a data set.

    Attributes:
        cost: of the cost of an iteration.
        phases: of each of `PHASES`, over the devices that spend time in it.
    """

    cost: Error
    phases: dict[str, Error]


@dataclass(frozen=True)
class Ranking:
    """How well a model orders placements of one task, mean over tasks.

    Attributes:
        kendall_tau: from -1 (reversed) to 1 (the measured order).
        regret: for each k of `TOP`, how much more than the best placement the best of the k ranked first costs.
        tasks: number of tasks.
    """

    kendall_tau: float
    regret: dict[int, float]
    tasks: int


def predictions(model: AdditiveCostModel, data: CostDataset) -> tuple[FloatArray, FloatArray]:
    """What `model` says of all placements of `data`: (P, D, 4) and (P,) float64, ms, laid out as measured."""
    phases, cost = np.zeros_like(data.phases_ms), np.zeros(len(data))
    for number, topology in enumerate(data.topologies):
        chosen = np.flatnonzero(data.topology == number)
        if not chosen.size:
            continue
        loads, size = model.table_loads(data.tables, topology), topology.num_devices
        reduced = np.empty((len(chosen), size, model.num_loads))
        for row, placement in enumerate(chosen):
            tables = slice(data.start[placement], data.start[placement + 1])
            reduced[row] = model.reduce(loads[data.members[tables]], data.devices[tables], size)
        phases[chosen, :size], cost[chosen] = model.costs(reduced, topology.cluster())
    return phases, cost


def errors(model: AdditiveCostModel, data: CostDataset) -> Errors:
    """The errors of `model` on `data`."""
    return errors_of(data, *predictions(model, data))


def errors_of(data: CostDataset, phases: FloatArray, cost: FloatArray) -> Errors:
    """The errors of estimates of `data`, laid out as `predictions` gives them."""
    by_phase = {}
    for number, name in enumerate(PHASES):
        spent = data.phases_ms[..., number] > 0
        by_phase[name] = Error.of(data.phases_ms[..., number][spent], phases[..., number][spent])
    return Errors(Error.of(data.cost_ms, cost), by_phase)


def ranking(model: AdditiveCostModel, tasks: Sequence[CostDataset]) -> Ranking:
    """How `model` orders the placements of each of `tasks`: one data set for each, with placements of that task."""
    return ranking_of([(task.cost_ms, predictions(model, task)[1]) for task in tasks])


def ranking_of(pairs: Sequence[tuple[FloatArray, FloatArray]]) -> Ranking:
    """How estimates order placements: of each task the (n,) ms measured and the (n,) ms estimated."""
    return Ranking(
        kendall_tau=float(np.mean([kendall_tau(measured, said) for measured, said in pairs])),
        regret={k: float(np.mean([top_k_regret(measured, said, k) for measured, said in pairs])) for k in TOP},
        tasks=len(pairs),
    )


def kendall_tau(one: FloatArray, other: FloatArray) -> float:
    """Kendall's tau-b of two (n,) arrays, which allows for ties; 0 where either holds one value only."""
    first, second = _signs(one), _signs(other)
    pairs = np.sqrt(float(np.abs(first).sum()) * float(np.abs(second).sum()))
    return float((first * second).sum() / pairs) if pairs else 0.0


def _signs(values: FloatArray) -> NDArray[np.int64]:
    """(n, n), which of each pair is larger."""
    return np.sign(values[:, None] - values[None, :]).astype(np.int64)


def top_k_regret(measured: FloatArray, said: FloatArray, k: int) -> float:
    """Cost of the best of the `k` placements said to be cheapest, over the cheapest of all, minus 1."""
    first = np.argsort(said, kind="stable")[:k]
    return float(measured[first].min() / measured.min() - 1)
