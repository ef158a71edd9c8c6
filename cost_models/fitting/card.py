"""The card of a neural cost model: its training data, its errors and how it was fitted.

`make_card` computes it as JSON values that go into the model's file; `card_page` writes it as Markdown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shard_gym.common.io.markdown import table
from shard_gym.common.text import counted, format_percent
from shard_gym.cost_models.base import PHASES, AdditiveCostModel
from shard_gym.cost_models.fitting.data.dataset import CostDataset
from shard_gym.cost_models.fitting.data.splits import SPLITS, SplitCosts
from shard_gym.cost_models.fitting.linear import fit_linear
from shard_gym.cost_models.fitting.metrics import errors, ranking
from shard_gym.cost_models.neural import NeuralCostModel
from shard_gym.cost_models.neural.network import NORMALIZATION

COST = "cost"
MAX_DIMS = 8  # dims that a page lists one by one


def make_card(
    model: NeuralCostModel, costs: SplitCosts, test_tasks: Sequence[CostDataset], hardware: str
) -> dict[str, Any]:
    """The card of `model`, as `fit_cost_model` returned it for the data set `costs`; JSON values.

    Args:
        model, costs: the network, and the data set it was fitted to, with test tables.
        test_tasks: several placements of test tables for each task; if there are none, the card has no rankings.
        hardware: name of the machine on which the costs were measured.

    Raises:
        InvalidOptionError: a split has no placement.
        MissingExtraError: scipy is not installed.
    """
    models: dict[str, AdditiveCostModel] = {"network": model, "linear": fit_linear(costs.part("train"))}
    return {
        "model": model.fingerprint,
        "architecture": model.architecture,
        "parameters": sum(array.size for name, array in model.weights.items() if not name.endswith(NORMALIZATION)),
        "data": {**_data(costs), "hardware": hardware},
        "errors": {
            name: {split: _errors(each, costs.part(split)) for split in ("train", "test")}
            for name, each in models.items()
        },
        "ranking": {name: _ranking(each, test_tasks) for name, each in models.items()} if test_tasks else {},
        "fit": model.card.get("fit", {}),
    }


def _data(costs: SplitCosts) -> dict[str, Any]:
    data = costs.data
    return {
        "source": data.source,
        "workload": data.tables.workload.to_json(),
        "devices": sorted({topology.device.name for topology in data.topologies}),
        "num_devices": [int(data.num_devices.min()), int(data.num_devices.max())],
        "num_tables": [int(np.diff(data.start).min()), int(np.diff(data.start).max())],
        "embedding_dims": sorted(set(data.tables.embedding_dim.tolist())),
        "placements": {split: int((costs.placement_split == k).sum()) for k, split in enumerate(SPLITS)},
        "tables": {split: costs.num_tables(split) for split in SPLITS},
    }


def _errors(model: AdditiveCostModel, data: CostDataset) -> dict[str, Any]:
    found = errors(model, data)
    return {
        name: {"mape": _rounded(error.mape), "ratio": _rounded(error.ratio)} if error.count else None
        for name, error in {COST: found.cost, **found.phases}.items()
    }


def _ranking(model: AdditiveCostModel, test_tasks: Sequence[CostDataset]) -> dict[str, Any]:
    found = ranking(model, test_tasks)
    return {
        "tasks": found.tasks,
        "placements": sum(map(len, test_tasks)),
        "kendall_tau": _rounded(found.kendall_tau),
        "regret": {str(k): _rounded(regret) for k, regret in found.regret.items()},
    }


def _rounded(number: float) -> float:
    return float(f"{number:.4g}")


def card_page(card: Mapping[str, Any]) -> str:
    """A card that `make_card` made, as Markdown."""
    return "\n\n".join([*_head(card), *_error_table(card), *_ranking_table(card), *_fit_lines(card)]) + "\n"


def _head(card: Mapping[str, Any]) -> Iterator[str]:
    data = card["data"]
    yield f"# Neural cost model `{card['model']}`"
    yield (
        f"A network of architecture `{card['architecture']}` with {counted(card['parameters'], 'trained parameter')}, "
        f"fitted to measurements on `{data['hardware']}` (`{data['source']}`)."
    )
    sizes = [f"{data['placements'][split]:,} of {data['tables'][split]:,} tables ({split})" for split in SPLITS]
    facts = (
        f"Devices: {_range(data['num_devices'])} x {', '.join(data['devices'])}",
        f"Tables of a placement: {_range(data['num_tables'])}, of dim {_listed(data['embedding_dims'])}",
        f"Workload: {', '.join(f'{key} {value}' for key, value in data['workload'].items())}",
        f"Placements: {'; '.join(sizes)}. No table is in two splits; each dim of a table counts as one table.",
    )
    yield "\n".join(f"- {fact}" for fact in facts)


def _range(ends: Sequence[int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _listed(dims: Sequence[int]) -> str:
    return ", ".join(map(str, dims)) if len(dims) <= MAX_DIMS else f"{dims[0]} to {dims[-1]}"


def _error_table(card: Mapping[str, Any]) -> Iterator[str]:
    columns = [card["errors"][model][split] for model, split in (("network", "train"), ("network", "test"))]
    columns.append(card["errors"]["linear"]["test"])
    yield "## Errors"
    yield "Mean of |estimate / measured - 1|, and in brackets exp(mean |ln(estimate / measured)|) - 1."
    yield table(
        ("", "training tables", "test tables", "linear model, test tables"),
        [(row, *(_cell(column[row]) for column in columns)) for row in (COST, *PHASES)],
    )


def _cell(error: Mapping[str, float] | None) -> str:
    return f"{format_percent(error['mape'])} ({format_percent(error['ratio'])})" if error else "-"


def _ranking_table(card: Mapping[str, Any]) -> Iterator[str]:
    if not card["ranking"]:
        return
    network = card["ranking"]["network"]
    yield "## Ranking"
    yield (
        f"{counted(network['placements'], 'placement')} of {counted(network['tasks'], 'task')} of test tables, random "
        "and greedy. Regret is how much more the best of the k placements ranked first costs than the best of all."
    )
    yield table(
        ("", "Kendall's tau", *(f"regret, k = {k}" for k in network["regret"])),
        [
            (name, f"{found['kendall_tau']:.3f}", *map(format_percent, found["regret"].values()))
            for name, found in card["ranking"].items()
        ],
    )


def _fit_lines(card: Mapping[str, Any]) -> Iterator[str]:
    yield "## Fit"
    yield "\n".join(f"- {key.replace('_', ' ')}: {_value_text(value)}" for key, value in card["fit"].items())


def _value_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
