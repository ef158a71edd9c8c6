"""What the analytical cost model assumes and no public measurement determines, and a variant with other such terms.

The terms are those of docs/cost-model.md that are marked as assumed, or whose constants the fitted rows leave open: the
spread of the logarithm is above 1. A scale of 0 removes a term, 1 leaves it as it is, and 2 doubles its time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace

from typing_extensions import override

from shard_gym.common.arrays import FloatArray
from shard_gym.common.checks import is_not_negative
from shard_gym.common.errors import InvalidOptionError, short_repr, unknown_name
from shard_gym.cost_models.analytical.constants import FITTED
from shard_gym.cost_models.analytical.index_exchange import HIDDEN
from shard_gym.cost_models.analytical.sharding import (
    CODEC_MS_PER_BYTE,
    GRADIENT_BYTES,
    PARTIAL_BYTES,
    AnalyticalShardingModel,
)
from shard_gym.hardware import LinkSpec, Topology
from shard_gym.hardware.topology import LEAST
from shard_gym.plans import ShardingPlan
from shard_gym.plans.plan import DATA_PARALLEL, ROW_WISE, TABLE_WISE
from shard_gym.tables import Tables

ASSUMED: Mapping[str, str] = {
    "gradient_lanes": "lanes that read gradients",
    "update_lanes": "lanes that update rows",
    "sort": "the sort of the backward",
    "dense_update": "updates of replicas",
    "reduce_scatter": "reduce-scatters of row blocks across hosts",
    "all_reduce": "all-reduces of replicas",
    "codec": "the codec of outputs on the links",
    "latency": "latencies of collectives",
    "small_messages": "the slower start of messages",
    "host_memory": "reads and updates of rows in host memory",
}
"""The terms, with what they are the time of."""

_COLUMNS: Mapping[str, list[int]] = {
    "reduce_scatter": [PARTIAL_BYTES],
    "all_reduce": [GRADIENT_BYTES],
    "codec": [CODEC_MS_PER_BYTE],
}
"""The loads that a scale multiplies. Row blocks on one host send only what every reduce-scatter must."""

_LEAST_SHARE = 1e-12  # of the time of the sort, which divides by a constant that may not be infinite


def assumed_scales(plans: Iterable[ShardingPlan], topology: Topology, dtype: str) -> dict[str, tuple[float, float]]:
    """By name of each assumed term that a plan may have, the least and the largest scale that its time may have.

    They are 0 and 2, but for rows in host memory, which take half as long or twice as long, and for reduce-scatters
    across hosts: the model lets each device send all partial sums through its
    network card, and NCCL's rings at least let the W cards of a host share them. Inside a host the reduce-scatter is no
    assumed term, because a measured one agrees (tests/cost_models/analytical/test_assumptions.py).

    Args:
        dtype: of pooled outputs and their gradients on the links.
    """
    types = {sharding.sharding_type for plan in plans for sharding in plan.tables}
    several = topology.num_devices > 1
    exists = {
        **dict.fromkeys(("gradient_lanes", "update_lanes", "sort"), True),
        **dict.fromkeys(("latency", "small_messages"), several),
        **dict.fromkeys(("dense_update", "all_reduce"), several and DATA_PARALLEL in types),
        "reduce_scatter": topology.num_domains > 1 and ROW_WISE in types,
        "codec": several and dtype != "fp32",
        "host_memory": topology.host is not None,
    }
    least = {"reduce_scatter": 1.0 / topology.domain_size, "host_memory": 0.5}
    return {name: (least.get(name, 0.0), 2.0) for name in ASSUMED if exists[name]}


class VariedShardingModel(AnalyticalShardingModel):
    """The analytical cost model of sharded tables with assumed terms at `scales` times their values.

    A topology carries three of the terms, so costs are those on `varied_topology`. Collectives are scaled by
    their bytes. Without scales, every cost has the bits of `AnalyticalShardingModel`.

    Args:
        scales: by name of the term, see `ASSUMED`; 1 for those that are left out.
        communication_dtype, index_exchange: see `AnalyticalShardingModel`.

    Raises:
        UnknownNameError: there is no such term.
        InvalidOptionError: a scale is negative or no number.
    """

    def __init__(
        self, scales: Mapping[str, float], communication_dtype: str = "fp32", index_exchange: str = HIDDEN
    ) -> None:
        for name, scale in scales.items():
            if name not in ASSUMED:
                raise unknown_name("assumed term", name, ASSUMED)
            if not is_not_negative(scale):
                raise InvalidOptionError(
                    f"The scale of {name} must be a number of at least 0, not {short_repr(scale)}."
                )
        self.scales = {name: float(scale) for name, scale in scales.items() if scale != 1}
        super().__init__(
            communication_dtype,
            FITTED._replace(
                cycles_per_gradient=FITTED.cycles_per_gradient * self._scale("gradient_lanes"),
                cycles_per_update=FITTED.cycles_per_update * self._scale("update_lanes"),
                sort_efficiency=FITTED.sort_efficiency / max(self._scale("sort"), _LEAST_SHARE),
            ),
            index_exchange=index_exchange,
        )
        self.dense_update_scale = self._scale("dense_update")

    def _scale(self, name: str) -> float:
        return self.scales.get(name, 1.0)

    @property
    @override
    def fingerprint(self) -> str:
        """That of the analytical model; with scales, a hash of them is added."""
        own = hashlib.sha256(repr(sorted(self.scales.items())).encode()).hexdigest()[:12]
        return super().fingerprint + (f"-varied-{own}" if self.scales else "")

    @override
    def loads(self, shards: Tables, topology: Topology, sharding_type: str = TABLE_WISE) -> FloatArray:
        """(S, K) float64, see `AdditiveCostModel`."""
        loads = super().loads(shards, topology, sharding_type)
        for name, columns in _COLUMNS.items():
            if name in self.scales:
                loads[:, self.columns(columns)] *= self.scales[name]
        return loads

    def varied_topology(self, topology: Topology) -> Topology:
        """The same devices, with latencies, the extra time of small messages and host memory at the scales."""
        links, host = topology.links, topology.host
        if host is not None and "host_memory" in self.scales:
            slower = max(self._scale("host_memory"), _LEAST_SHARE)
            rates = host.read_gb_per_s / slower, host.update_gb_per_s / slower
            topology = replace(topology, host=replace(host, read_gb_per_s=rates[0], update_gb_per_s=rates[1]))
        changed: dict[str, float] = {}
        for where in ("intra_host", "inter_host"):
            if "latency" in self.scales:
                changed[f"{where}_latency_us"] = max(_of(links, f"{where}_latency_us") * self._scale("latency"), LEAST)
            if "small_messages" in self.scales:
                changed[f"{where}_knee_extra"] = _of(links, f"{where}_knee_extra") * self._scale("small_messages")
        return replace(topology, links=replace(links, **changed)) if changed else topology  # type: ignore[arg-type]


def _of(links: LinkSpec, name: str) -> float:
    return float(getattr(links, name))
