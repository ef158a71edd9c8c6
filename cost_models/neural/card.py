"""The card of a neural cost model: what it is, what it learnt from, and how wrong it is.

`make_card` measures it, as JSON values that go into the model's file; `card_page` writes it as Markdown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from shard_gym.cost_models.base import PHASES, AdditiveCostModel
from shard_gym.cost_models.data.dataset import CostDataset
from shard_gym.cost_models.data.splits import SPLITS, SplitCosts
from shard_gym.cost_models.metrics import Error, errors, ranking
from shard_gym.cost_models.neural.base import NeuralCostModel
from shard_gym.cost_models.neural.linear import fit_linear
from shard_gym.cost_models.neural.network import NORMALIZATION
from shard_gym.text import counted, format_percent

COST = "cost"
DIGITS = 4
"""Digits that the numbers of a card keep."""

MOST_DIMS = 8
"""Dims that a page names one by one."""


def make_card(
    model: NeuralCostModel, costs: SplitCosts, rivals: Sequence[CostDataset], hardware: str | None = None
) -> dict[str, Any]:
    """What is known about a `model` that was fitted to simulated or measured costs; JSON values.

    Args:
        model: as `fit_cost_model` returned it; what its card says of the fit is taken over.
        costs: what it was fitted to, with test tables it never saw.
        rivals: several placements of one task each, of test tables; see `rival_tasks`. Without any, the card says
            nothing about rankings.
        hardware: what the costs were measured on; None if they were simulated.

    Raises:
        InvalidOptionError: a split has no placement.
    """
    models: dict[str, AdditiveCostModel] = {"network": model, "linear": fit_linear(costs.part("train"))}
    return {
        "model": model.fingerprint,
        "architecture": model.architecture,
        "parameters": sum(array.size for name, array in model.weights.items() if not name.endswith(NORMALIZATION)),
        "data": {**_data(costs), **({"hardware": hardware} if hardware else {})},
        "errors": {
            name: {split: _errors(each, costs.part(split)) for split in ("train", "test")}
            for name, each in models.items()
        },
        "ranking": {name: _ranking(each, rivals) for name, each in models.items()} if rivals else {},
        "fit": model.card.get("fit", {}),
    }


def _data(costs: SplitCosts) -> dict[str, Any]:
    data = costs.data
    return {
        "source": data.source,
        "workload": asdict(data.tables.workload),
        "devices": sorted({topology.device.name for topology in data.topologies}),
        "num_devices": [int(data.num_devices.min()), int(data.num_devices.max())],
        "num_tables": [int(np.diff(data.start).min()), int(np.diff(data.start).max())],
        "embedding_dims": sorted(set(data.tables.embedding_dim.tolist())),
        "placements": {split: int((costs.placement_split == k).sum()) for k, split in enumerate(SPLITS)},
        "tables": {split: costs.num_tables(split) for split in SPLITS},
    }


def _errors(model: AdditiveCostModel, data: CostDataset) -> dict[str, Any]:
    found = errors(model, data)
    return {name: _error(error) for name, error in {COST: found.cost, **found.phases}.items()}


def _error(error: Error) -> dict[str, float] | None:
    """None where nothing could be compared."""
    return {"mape": _short(error.mape), "ratio": _short(error.ratio)} if error.count else None


def _ranking(model: AdditiveCostModel, rivals: Sequence[CostDataset]) -> dict[str, Any]:
    found = ranking(model, rivals)
    return {
        "tasks": found.tasks,
        "placements": sum(map(len, rivals)),
        "kendall_tau": _short(found.kendall_tau),
        "regret": {str(k): _short(regret) for k, regret in found.regret.items()},
    }


def _short(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


def card_page(card: Mapping[str, Any]) -> str:
    """A card that `make_card` made, as Markdown."""
    return "\n".join([*_head(card), *_error_table(card), *_ranking_table(card), *_fit_lines(card)])


def _head(card: Mapping[str, Any]) -> Iterator[str]:
    data = card["data"]
    yield f"# Neural cost model `{card['model']}`"
    yield ""
    if "hardware" in data:
        learnt = f"what placements were measured to cost on `{data['hardware']}` (`{data['source']}`)."
    else:
        learnt = (
            f"what the cost model `{data['source']}` says. Nothing was measured: **every error below is the distance "
            "to that cost model, not to hardware.**"
        )
    numbers = counted(card["parameters"], "learnt number")
    yield f"A network of architecture `{card['architecture']}` with {numbers}. It learnt {learnt}"
    yield ""
    yield f"- Devices: {_range(data['num_devices'])} x {', '.join(data['devices'])}"
    yield f"- Tables of a placement: {_range(data['num_tables'])}, of dim {_listed(data['embedding_dims'])}"
    yield f"- Workload: {', '.join(f'{key} {value}' for key, value in data['workload'].items())}"
    sizes = [f"{data['placements'][split]:,} of {data['tables'][split]:,} tables ({split})" for split in SPLITS]
    yield f"- Placements: {'; '.join(sizes)}. No table is in two of these groups; each width of a table counts as one."
    yield ""


def _range(ends: Sequence[int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _listed(dims: Sequence[int]) -> str:
    return ", ".join(map(str, dims)) if len(dims) <= MOST_DIMS else f"{dims[0]} to {dims[-1]}"


def _error_table(card: Mapping[str, Any]) -> Iterator[str]:
    yield "## Errors"
    yield ""
    yield "Mean of |estimate / cost - 1|, and in brackets exp(mean |ln(estimate / cost)|) - 1."
    yield ""
    yield "| | tables it learnt from | unseen tables | linear model, unseen tables |"
    yield "|---|--:|--:|--:|"
    for row in (COST, *PHASES):
        cells = [card["errors"][who][split][row] for who, split in _COLUMNS]
        yield f"| {row} | {' | '.join(map(_cell, cells))} |"
    yield ""


_COLUMNS = (("network", "train"), ("network", "test"), ("linear", "test"))


def _cell(error: Mapping[str, float] | None) -> str:
    return f"{format_percent(error['mape'])} ({format_percent(error['ratio'])})" if error else "-"


def _ranking_table(card: Mapping[str, Any]) -> Iterator[str]:
    if not card["ranking"]:
        return
    network = card["ranking"]["network"]
    yield "## Ranking"
    yield ""
    kinds = "random and greedy" if "hardware" in card["data"] else "random, greedy and searched"
    yield (
        f"{counted(network['placements'], 'placement')} of {counted(network['tasks'], 'task')} of unseen tables: "
        f"{kinds}. Regret is what the best of the k ranked first costs more than the best of all."
    )
    yield ""
    yield f"| | Kendall's tau | {' | '.join(f'regret, k = {k}' for k in network['regret'])} |"
    yield f"|---|--:|{'--:|' * len(network['regret'])}"
    for who, found in card["ranking"].items():
        regrets = " | ".join(format_percent(regret) for regret in found["regret"].values())
        yield f"| {who} | {found['kendall_tau']:.3f} | {regrets} |"
    yield ""


def _fit_lines(card: Mapping[str, Any]) -> Iterator[str]:
    yield "## How it was fitted"
    yield ""
    for key, value in card["fit"].items():
        yield f"- {key.replace('_', ' ')}: {_said(value)}"
    yield ""


def _said(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)
