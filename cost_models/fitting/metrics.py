"""Errors of a cost model's estimates against measured costs, and how well they rank placements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import missing_extra
from shard_gym.common.text import format_percent
from shard_gym.cost_models.base import PHASES, AdditiveCostModel
from shard_gym.cost_models.fitting.data.dataset import CostDataset
from shard_gym.plans.needs import SPLITS
from shard_gym.plans.plan import TABLE_WISE

LEAST_MS = 1e-3  # estimates below count as this much in ratios, because a network may estimate 0
TOP = (1, 5)  # the k of the regrets of a `Ranking`


class Estimates(NamedTuple):
    """Estimates of P placements: `phases_ms` (P, D, 4) and `cost_ms` (P,), float64, laid out as in `CostDataset`."""

    phases_ms: FloatArray
    cost_ms: FloatArray


@dataclass(frozen=True)
class Error:
    """Distance of estimates from measurements, as shares; 0.1 is 10 %."""

    mape: float  # mean of |estimate / measured - 1|
    ratio: float  # exp(mean |ln(estimate / measured)|) - 1, which is the same for half and for double
    count: int  # numbers compared

    @staticmethod
    def of(measured: FloatArray, estimated: FloatArray) -> Error:
        """The error of (n,) estimates of (n,) positive measured ms; NaN if there are none."""
        if not len(measured):
            return Error(np.nan, np.nan, 0)
        logarithms = np.log(np.maximum(estimated, LEAST_MS) / measured)
        mape, ratio = np.abs(estimated / measured - 1).mean(), np.expm1(np.abs(logarithms).mean())
        return Error(float(mape), float(ratio), len(measured))

    def __str__(self) -> str:
        """Both as percentages, or "-" if nothing was compared."""
        return f"{format_percent(self.mape)} ({format_percent(self.ratio)})" if self.count else "-"


@dataclass(frozen=True)
class Errors:
    """Errors of a model on a data set."""

    cost: Error  # of the cost of an iteration
    phases: dict[str, Error]  # of each of `PHASES`, over the devices that spend time in it


@dataclass(frozen=True)
class Ranking:
    """How well a model ranks placements of one task, mean over tasks."""

    kendall_tau: float  # from -1 (reversed) to 1 (the measured order)
    regret: dict[int, float]  # for each k of `TOP`, the `top_k_regret`
    tasks: int  # number of tasks


def estimates_of(model: AdditiveCostModel, data: CostDataset) -> Estimates:
    """The estimates of `model` for all placements of `data`, of shards as of tables if it does not support splits."""
    phases, cost = np.zeros_like(data.phases_ms), np.zeros(len(data))
    loads = np.zeros((len(data.devices), model.num_loads))
    for topology, sharding_type, rows, tables, which in data.shards():
        kind = sharding_type if SPLITS in model.supports else TABLE_WISE
        own = model.loads(tables, data.topologies[topology], kind)
        loads[rows] = own[which]
    for number, topology_of in enumerate(data.topologies):
        chosen, size = np.flatnonzero(data.topology == number), topology_of.num_devices
        if not chosen.size:
            continue
        device_loads = np.empty((len(chosen), size, loads.shape[1]))
        for row, placement in enumerate(chosen):
            tables_of = slice(data.start[placement], data.start[placement + 1])
            device_loads[row] = model.reduce(loads[tables_of], data.devices[tables_of], size)
        phases[chosen, :size], cost[chosen] = model.costs(device_loads, topology_of.cluster())
    return Estimates(phases, cost)


def errors(model: AdditiveCostModel, data: CostDataset) -> Errors:
    """The errors of `model` on `data`."""
    return errors_of(data, estimates_of(model, data))


def errors_of(data: CostDataset, estimates: Estimates) -> Errors:
    """The errors of estimates of `data`."""
    by_phase = {}
    for number, name in enumerate(PHASES):
        spent = data.phases_ms[..., number] > 0
        by_phase[name] = Error.of(data.phases_ms[..., number][spent], estimates.phases_ms[..., number][spent])
    return Errors(Error.of(data.cost_ms, estimates.cost_ms), by_phase)


def ranking(model: AdditiveCostModel, tasks: Sequence[CostDataset]) -> Ranking:
    """How `model` ranks the placements of each of `tasks`, each a data set with the placements of one task."""
    return ranking_of([(task.cost_ms, estimates_of(model, task).cost_ms) for task in tasks])


def ranking_of(pairs: Sequence[tuple[FloatArray, FloatArray]]) -> Ranking:
    """How estimates rank placements: for each task the (n,) measured and the (n,) estimated ms."""
    return Ranking(
        kendall_tau=float(np.mean([kendall_tau(*pair) for pair in pairs])),
        regret={
            k: float(np.mean([top_k_regret(measured, estimated, k) for measured, estimated in pairs])) for k in TOP
        },
        tasks=len(pairs),
    )


def kendall_tau(one: FloatArray, other: FloatArray) -> float:
    """Kendall's tau-b of two (n,) arrays, which corrects for ties; 0 where either holds one value only. Needs scipy."""
    if len(one) < 2:
        return 0.0
    try:
        from scipy.stats import kendalltau
    except ModuleNotFoundError as error:
        raise missing_extra("scipy", "torch", "Ranking placements") from error
    tau = float(kendalltau(one, other).statistic)
    return 0.0 if np.isnan(tau) else tau


def top_k_regret(measured: FloatArray, estimated: FloatArray, k: int) -> float:
    """Cost of the best of the `k` placements with the lowest estimates, over the lowest cost of all, minus 1."""
    first = np.argsort(estimated, kind="stable")[:k]
    return float(measured[first].min() / measured.min() - 1)
