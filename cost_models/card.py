"""The card of the analytical cost model: every public measurement it can be held against, and how far off it is.

The measurements stand in measurements.json. `python -m shard_gym.cost_models.card` predicts each and writes the tables
into docs/cost-model.md, so that no prediction is ever typed by hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.all_to_all import all_to_all_ms
from shard_gym.cost_models.analytical import AnalyticalCostModel
from shard_gym.cost_models.base import AdditiveCostModel
from shard_gym.errors import DamagedFileError, NoPlacementFoundError
from shard_gym.hardware import hardware_profile
from shard_gym.io.files import read_json, write_atomically
from shard_gym.placement import Placement
from shard_gym.pools import load_pool
from shard_gym.pools.reuse import reuse_statistics
from shard_gym.tables import Tables, Workload, split_columns
from shard_gym.topology import Topology

MEASUREMENTS = Path(__file__).with_name("measurements.json")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "cost-model.md"
BEGIN, END = "<!-- generated: card -->", "<!-- end -->"

CRITEO_ROWS = (
    *(45833188, 36746, 17245, 7413, 20243, 3, 7114, 1441, 62, 29275261, 1572176, 345138, 10),
    *(2209, 11267, 128, 4, 974, 14, 48937457, 11316796, 40094537, 452104, 12606, 104, 35),
)
"""Rows of DLRM's 26 tables (pytorch/torchrec, benchmarks/README.md, and mlcommons/training, torchrec_dlrm)."""


@dataclass(frozen=True)
class Comparison:
    """One measurement and what the model says.

    Attributes:
        label: the setting, within its group.
        measured: as published and turned into ms (or a ratio of times); a text where it cannot be compared.
        predicted: by the model, in the same unit; None where it cannot be compared.
        unit: "ms", or nothing for a ratio of times.
        sets: the constant that was set from this row, or nothing.
        not_comparable: why there is no prediction, or nothing.
    """

    label: str
    measured: float | str
    predicted: float | None
    unit: str = "ms"
    sets: str = ""
    not_comparable: str = ""

    @property
    def ratio(self) -> float:
        """Predicted over measured; NaN where there is no prediction."""
        return math.nan if self.predicted is None else self.predicted / float(self.measured)


@dataclass(frozen=True)
class Group:
    """Comparisons with one source and one setting; `quantity` is "iteration" where whole iterations were measured."""

    title: str
    source: str
    setting: str
    quantity: str
    rows: tuple[Comparison, ...]


def compare(model: AdditiveCostModel) -> tuple[Group, ...]:
    """Every measurement beside the prediction of `model`, in the order of measurements.json."""
    groups = []
    for group in read_json(MEASUREMENTS)["groups"]:
        rows = tuple(_compare(_merged(group, row), model) for row in group["rows"])
        groups.append(Group(group["title"], group["source"], group["setting"], group.get("quantity", ""), rows))
    return tuple(groups)


def _merged(group: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with what its group says for all rows."""
    return {**group, **row, "tables": {**group.get("tables", {}), **row.get("tables", {})}}


def _compare(row: Mapping[str, Any], model: AdditiveCostModel) -> Comparison:
    label = row["label"]
    if "not_comparable" in row:
        return Comparison(label, row["measured"], None, not_comparable=row["not_comparable"])
    unit = "" if row["quantity"] == "unfused/fused" else "ms"
    return Comparison(label, _measured(row), _predicted(row, model), unit, row.get("sets", ""))


def _measured(row: Mapping[str, Any]) -> float:
    """Ms, or a ratio; rates are turned into ms by the bytes their source counts."""
    if "gb_per_s" not in row:
        return float(row["measured"])
    own_part = 1.0 / row["num_devices"] if row["quantity"] == "all-to-all" else 0.0  # bus bandwidth leaves it out
    return float(row["num_bytes"] * (1.0 - own_part) / (row["gb_per_s"] * 1e6))


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
        return model.estimate(longest_first(tables, topology, model), tables, topology).total_ms
    fused = model.estimate(np.zeros(len(tables), np.int64), tables, topology).phases_ms[0]
    if quantity == "unfused/fused":
        alone = model.single_table_phases(model.table_loads(tables, topology), topology)
        return float(alone.sum() / fused.sum())
    return float({"forward": fused[0], "backward": fused[3], "forward+backward": fused[0] + fused[3]}[quantity])


def topology_of(row: Mapping[str, Any]) -> Topology:
    """The topology of a measurement: a named profile, with the numbers of device and links that the row changes."""
    profile = hardware_profile(row["hardware"])
    profile = replace(
        profile,
        device=replace(profile.device, **row.get("device", {})),
        links=replace(profile.links, **row.get("links", {})),
    )
    return profile.topology(row.get("num_devices", 1))


def tables_of(spec: Mapping[str, Any], topology: Topology) -> Tables:
    """The tables of a measurement: a shipped pool, or tables whose rows are read by a Zipf law (uniform if s = 0).

    As in the suites, a table of a pool that exceeds a device's memory is halved by columns until it fits.
    """
    if "pool" in spec:
        return split_columns(load_pool(spec["pool"]).tables, int(topology.memory_cap_bytes.min()))[0]
    if "criteo_divided_by" in spec:
        divided = set(sorted(CRITEO_ROWS)[-5:])
        rows = np.array([n // spec["criteo_divided_by"] if n in divided else n for n in CRITEO_ROWS])
    else:
        rows = np.full(spec["num_tables"], spec["num_embeddings"])
    lookups = np.full(len(rows), float(spec["pooling_factor"] * spec["batch_size"]))
    statistics = reuse_statistics(
        rows, lookups, np.full(len(rows), spec.get("q", 0.0)), np.full(len(rows), spec.get("s", 0.0))
    )
    return Tables(
        num_embeddings=rows,
        embedding_dim=np.full(len(rows), spec["embedding_dim"]),
        pooling_factor=np.full(len(rows), spec["pooling_factor"]),
        distinct_rows=statistics.distinct_rows,
        reuse_histogram=statistics.reuse_histogram,
        access_histogram=statistics.access_histogram,
        workload=Workload(spec["batch_size"], spec["weight_dtype"], spec["optimizer"]),
    )


def longest_first(tables: Tables, topology: Topology, model: AdditiveCostModel) -> Placement:
    """(T,) int64: the costliest table first, each to the device with the least cost so far that has room for it.

    Costs are those of each table alone, so this is a plain placement and not the best one.

    Raises:
        NoPlacementFoundError: a table finds no device with room.
    """
    costs = model.single_table_costs(model.table_loads(tables, topology), topology)
    busy = np.zeros(topology.num_devices)
    free = topology.memory_cap_bytes.copy()
    placement = np.empty(len(tables), np.int64)
    for table in np.argsort(-costs, kind="stable"):
        needed = tables.memory_bytes[table]
        if needed > free.max():
            raise NoPlacementFoundError(
                f"Table {table} ({tables.names[table]}) needs {needed} bytes, and no device has them left."
            )
        device = int(np.where(free >= needed, busy, np.inf).argmin())
        placement[table] = device
        busy[device] += costs[table]
        free[device] -= needed
    return placement


def render(groups: Sequence[Group], model: AdditiveCostModel) -> str:
    """The card as Markdown."""
    return "\n".join([f"Model: `{model.fingerprint}`.", "", *_summary(groups), *_tables(groups)])


def _summary(groups: Sequence[Group]) -> Iterator[str]:
    """A line for each group that can be compared, then one for the rows that set a constant and one for the others."""
    rows = [row for group in groups for row in group.rows]
    yield f"{len(rows)} rows; {sum(row.predicted is None for row in rows)} of them cannot be compared."
    yield ""
    yield "| group | rows | within 10 % | within a factor of 2 | predicted / measured: geometric mean | range |"
    yield "|---|--:|--:|--:|--:|--:|"
    single = [row for group in groups if group.quantity != "iteration" for row in group.rows]
    for group in groups:
        yield from _summary_line(group.title, group.rows, is_share=group.quantity == "iteration")
    yield from _summary_line(
        "**all but whole iterations, rows that set no constant**", [r for r in single if not r.sets]
    )
    yield from _summary_line("**rows that set a constant**", [r for r in single if r.sets])
    yield ""


def _summary_line(what: str, rows: Sequence[Comparison], *, is_share: bool = False) -> Iterator[str]:
    ratios: NDArray[np.float64] = np.array([row.ratio for row in rows if row.predicted is not None])
    if not ratios.size:
        return
    off = np.exp(np.abs(np.log(ratios)))
    within = ["-" if is_share else str(int((off <= factor).sum())) for factor in (1.1, 2.0)]
    mean = float(np.exp(np.log(ratios).mean()))
    spread = f"{ratios.min():.2f} to {ratios.max():.2f}"
    yield f"| {what} | {len(ratios)} | {' | '.join(within)} | {mean:.2f}{' (share)' if is_share else ''} | {spread} |"


def _tables(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups:
        last = "share of the iteration" if group.quantity == "iteration" else "predicted / measured"
        yield f"### {group.title}"
        yield ""
        yield f"{group.setting} Source: {group.source}."
        yield ""
        yield f"| setting | measured | predicted | {last} | note |"
        yield "|---|--:|--:|--:|---|"
        for row in group.rows:
            yield _line(row)
        yield ""


def _line(row: Comparison) -> str:
    if row.predicted is None:
        return f"| {row.label} | {row.measured} | - | - | not comparable: {row.not_comparable} |"
    measured, predicted = (f"{value:.3g} {row.unit}".strip() for value in (row.measured, row.predicted))
    note = f"sets `{row.sets}`" if row.sets else ""
    return f"| {row.label} | {measured} | {predicted} | {row.ratio:.2f} | {note} |"


def page_with_card(page: str, card: str) -> str:
    """`page` with the text between the two markers replaced by `card`.

    Raises:
        DamagedFileError: the markers are not there, each once and in order.
    """
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise DamagedFileError(f"{PAGE} must hold {BEGIN} and after it {END}, each once.")
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    return f"{before}{BEGIN}\n{card}\n{END}{after}"


def main() -> None:
    """Write the card into docs/cost-model.md."""
    model = AnalyticalCostModel()
    page = page_with_card(PAGE.read_text(encoding="utf-8"), render(compare(model), model))
    write_atomically(PAGE, page.encode())


if __name__ == "__main__":
    main()
