"""Writes the card of the analytical cost model into docs/cost-model.md: its predictions beside published measurements.

The measurements are those of docs/published_measurements.json. `compare` takes any other additive cost model, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shard_gym.agents import GreedyAgent
from shard_gym.cost_models.all_to_all import all_to_all_ms
from shard_gym.cost_models.analytical import AnalyticalCostModel
from shard_gym.cost_models.base import BACKWARD, FORWARD, AdditiveCostModel
from shard_gym.hardware import hardware_profile
from shard_gym.io.files import read_json, write_atomically
from shard_gym.io.markdown import table, with_block
from shard_gym.pools import RowPopularity, load_pool
from shard_gym.tables import Tables, Workload, split_columns
from shard_gym.tasks import Task
from shard_gym.topology import Topology

DOCS = Path(__file__).parent.parent / "docs"
MEASUREMENTS = DOCS / "published_measurements.json"
PAGE = DOCS / "cost-model.md"
BLOCK = "card"

CRITEO_ROWS = (
    *(45833188, 36746, 17245, 7413, 20243, 3, 7114, 1441, 62, 29275261, 1572176, 345138, 10),
    *(2209, 11267, 128, 4, 974, 14, 48937457, 11316796, 40094537, 452104, 12606, 104, 35),
)
"""Rows of DLRM's 26 tables (pytorch/torchrec, benchmarks/README.md, and mlcommons/training, torchrec_dlrm)."""


@dataclass(frozen=True)
class Comparison:
    """One measurement and the prediction of the model."""

    label: str  # the setting, within its group
    measured: float | str  # the published value in ms, or a ratio of times; a text if it is not comparable
    predicted: float | None  # in the same unit; None if it is not comparable
    unit: str = "ms"  # "" for a ratio of times
    sets: str = ""  # the constant that was set from this row
    not_comparable: str = ""  # the reason for no prediction

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


def compare(model: AdditiveCostModel) -> list[Group]:
    """Every measurement with the prediction of `model`, in the order of the file."""
    return [
        Group(
            group["title"],
            group["source"],
            group["setting"],
            group.get("quantity") == "iteration",
            [_compare(group, row, model) for row in group["rows"]],
        )
        for group in read_json(MEASUREMENTS)["groups"]
    ]


def _compare(group: Mapping[str, Any], own: Mapping[str, Any], model: AdditiveCostModel) -> Comparison:
    """The comparison of one row; a row overrides the settings of its group."""
    row = {**group, **own, "tables": {**group.get("tables", {}), **own.get("tables", {})}}
    if "not_comparable" in row:
        return Comparison(row["label"], row["measured"], None, not_comparable=row["not_comparable"])
    unit = "" if row["quantity"] == "unfused/fused" else "ms"
    return Comparison(row["label"], _measured(row), _predicted(row, model), unit, row.get("sets", ""))


def _measured(row: Mapping[str, Any]) -> float:
    """Ms, or a ratio; bandwidths are converted to ms with the number of bytes that their source counts."""
    if "gb_per_s" not in row:
        return float(row["measured"])
    own_share = 1.0 / row["num_devices"] if row["quantity"] == "all-to-all" else 0.0  # not in the bus bandwidth
    return float(row["num_bytes"] * (1.0 - own_share) / (row["gb_per_s"] * 1e6))


def _predicted(row: Mapping[str, Any], model: AdditiveCostModel) -> float:
    topology = topology_of(row)
    quantity = row["quantity"]
    if quantity == "dram":
        device = topology.device
        return float((row["num_bytes"] + device.ramp_bytes) / (device.dram_gb_per_s * 1e6))
    if quantity == "all-to-all":
        sent = np.full(topology.num_devices, float(row["num_bytes"]))
        return float(all_to_all_ms(sent, topology.cluster()).max())
    tables = tables_of(row["tables"], topology)
    if quantity == "iteration":
        costs = model.single_table_costs(model.table_loads(tables, topology), topology)
        placement = GreedyAgent("longest first", lambda _: costs).place(Task(quantity, tables, topology))
        return model.estimate(placement, tables, topology).total_ms
    fused = model.estimate(np.zeros(len(tables), np.int64), tables, topology).phases_ms[0]
    if quantity == "unfused/fused":
        alone = model.single_table_phases(model.table_loads(tables, topology), topology)
        return float(alone.sum() / fused.sum())
    forward, backward = fused[FORWARD], fused[BACKWARD]
    return float({"forward": forward, "backward": backward, "forward+backward": forward + backward}[quantity])


def topology_of(row: Mapping[str, Any]) -> Topology:
    """The topology of a measurement: a named profile, with the row's own numbers for the device and the links."""
    profile = hardware_profile(row["hardware"])
    profile = replace(
        profile,
        device=replace(profile.device, **row.get("device", {})),
        links=replace(profile.links, **row.get("links", {})),
    )
    return profile.topology(row.get("num_devices", 1))


def tables_of(spec: Mapping[str, Any], topology: Topology) -> Tables:
    """The tables of a measurement: a shipped pool, or tables with a Zipf-Mandelbrot row popularity (default uniform).

    As in the suites, a table of a pool that exceeds a device's memory is split into column shards.
    """
    if "pool" in spec:
        return split_columns(load_pool(spec["pool"]).tables, int(topology.memory_cap_bytes.min()))[0]
    if "criteo_divided_by" in spec:
        divided = set(sorted(CRITEO_ROWS)[-5:])
        rows = np.array([n // spec["criteo_divided_by"] if n in divided else n for n in CRITEO_ROWS])
    else:
        rows = np.full(spec["num_tables"], spec["num_embeddings"])
    return Tables.from_popularity(
        num_embeddings=rows,
        embedding_dim=np.full(len(rows), spec["embedding_dim"]),
        pooling_factor=np.full(len(rows), float(spec["pooling_factor"])),
        popularity=RowPopularity(np.full(len(rows), spec.get("q", 0.0)), np.full(len(rows), spec.get("s", 0.0))),
        workload=Workload(spec["batch_size"], spec["weight_dtype"], spec["optimizer"]),
    )


def render(groups: Sequence[Group], model: AdditiveCostModel) -> str:
    """The card as Markdown: a summary, then a table for each group."""
    rows = [row for group in groups for row in group.rows]
    not_comparable = sum(row.predicted is None for row in rows)
    return "\n\n".join(
        [
            f"Model: `{model.fingerprint}`.",
            f"{len(rows)} rows; {not_comparable} of them cannot be compared.",
            _summary(groups),
            *(text for group in groups for text in _group_texts(group)),
        ]
    )


def _summary(groups: Sequence[Group]) -> str:
    """A row for each group with predictions, one for the rows that set a constant, and one for the others."""
    header = ("group", "rows", "within 10 %", "within a factor of 2", "predicted / measured: geometric mean", "range")
    kernels = [row for group in groups if not group.is_share for row in group.rows]
    others = [row for row in kernels if not row.sets]
    rows = [
        *(_summary_row(group.title, group.rows, is_share=group.is_share) for group in groups),
        _summary_row("**all but whole iterations, rows that set no constant**", others),
        _summary_row("**rows that set a constant**", [row for row in kernels if row.sets]),
    ]
    return table(header, filter(None, rows))


def _summary_row(title: str, rows: Sequence[Comparison], *, is_share: bool = False) -> list[str]:
    """The cells of a row of the summary; none if no row has a prediction."""
    ratios = np.array([row.ratio for row in rows if row.predicted is not None])
    if not ratios.size:
        return []
    factors = np.exp(np.abs(np.log(ratios)))
    within = ["-" if is_share else str(int((factors <= limit).sum())) for limit in (1.1, 2.0)]
    mean = f"{np.exp(np.log(ratios).mean()):.2f}{' (share)' if is_share else ''}"
    return [title, str(len(ratios)), *within, mean, f"{ratios.min():.2f} to {ratios.max():.2f}"]


def _group_texts(group: Group) -> tuple[str, str, str]:
    """Heading, setting and table of a group."""
    ratio = "share of the iteration" if group.is_share else "predicted / measured"
    header = ("setting", "measured", "predicted", ratio, "note")
    setting = f"{group.setting} Source: {group.source}."
    return f"### {group.title}", setting, table(header, map(_cells, group.rows), notes=1)


def _cells(row: Comparison) -> tuple[str, ...]:
    if row.predicted is None:
        return row.label, str(row.measured), "-", "-", f"not comparable: {row.not_comparable}"
    measured, predicted = (f"{value:.3g} {row.unit}".strip() for value in (row.measured, row.predicted))
    return row.label, measured, predicted, f"{row.ratio:.2f}", f"sets `{row.sets}`" if row.sets else ""


if __name__ == "__main__":
    MODEL = AnalyticalCostModel()
    write_atomically(PAGE, with_block(PAGE, BLOCK, render(compare(MODEL), MODEL)).encode())
