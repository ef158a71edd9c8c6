"""Reads docs/published_measurements.json: settings and times of its rows, and the tables and topologies they name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.hardware import Topology, fitted_links, hardware_profile
from shard_gym.tables import RowPopularity, Tables, Workload, load_pool
from shard_gym.tasks.suites.drawing import split_columns

MEASUREMENTS = Path(__file__).parent.parent / "docs" / "published_measurements.json"

NO_CARD_GB_PER_S = 1.0  # line rate of a network card that no message of a row passes

CRITEO_ROWS = (
    *(45833188, 36746, 17245, 7413, 20243, 3, 7114, 1441, 62, 29275261, 1572176, 345138, 10),
    *(2209, 11267, 128, 4, 974, 14, 48937457, 11316796, 40094537, 452104, 12606, 104, 35),
)
"""Rows of DLRM's 26 tables (pytorch/torchrec, benchmarks/README.md, and mlcommons/training, torchrec_dlrm)."""


def settings_of(group: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    settings = {name: value for name, value in group.items() if name != "rows"}
    return {**settings, **own, "tables": {**group.get("tables", {}), **own.get("tables", {})}}


def measured_value(row: Mapping[str, Any]) -> float:
    """Ms, or a ratio; bandwidths are converted to ms with the number of bytes that their source counts."""
    if "gb_per_s" not in row:
        return float(row["measured"])
    own_share = 1.0 / row["num_devices"] if row["quantity"] == "all-to-all" else 0.0  # not in the bus bandwidth
    return float(row["num_bytes"] * (1.0 - own_share) / (row["gb_per_s"] * 1e6))


def link_kind(row: Mapping[str, Any]) -> str:
    return "pcie" if row.get("link") == "pcie" else "nvlink"


def topology_of(row: Mapping[str, Any]) -> Topology:
    """The topology of a measurement: a named profile, with the row's own numbers of the device and line rates."""
    profile = hardware_profile(row["hardware"])
    profile = replace(profile, device=replace(profile.device, **row.get("device", {})))
    if "line_rates" in row:
        rates = row["line_rates"]
        links = fitted_links(link_kind(row), rates["intra_host"], rates.get("inter_host", NO_CARD_GB_PER_S))
        profile = replace(profile, links=links)
    return profile.topology(row.get("num_devices", 1), devices_per_host=row.get("devices_per_host"))


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
