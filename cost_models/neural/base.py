"""The base class of neural cost models: tables have latents, devices their sums, and heads read ms from the sums.

A model is a dict of weights and functions of them that work on NumPy arrays and torch tensors alike (see `network`).
The functions `latents`, `own_phases`, `all_to_alls` and `overall` are the network. The methods of `AdditiveCostModel`
call them with NumPy arrays and make sure that no estimate is negative, that an empty device costs nothing, and that
every cost is within the bounds. Training calls them with tensors (see `training`).
"""

from __future__ import annotations

import hashlib
import warnings
from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.common.arrays import FloatArray
from shard_gym.common.either import Array, largest
from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models.base import COMMUNICATION, AdditiveCostModel
from shard_gym.cost_models.base.host_rows import HBM_MS, NUM_HOST_LOADS
from shard_gym.cost_models.neural import groups, host
from shard_gym.cost_models.neural.network import FloatWeights, Weights
from shard_gym.hardware import Cluster, Topology
from shard_gym.plans.needs import HOST_MEMORY, SPLITS, TRAINING
from shard_gym.plans.plan import COLUMN_WISE, TABLE_WISE
from shard_gym.plans.variants import Variants
from shard_gym.tables import Tables, Workload

LEAST_SHARE, MAX_SHARE = 0.002, 3.0
"""Bounds of the estimate of a placement, as shares of the sum of its tables' costs alone. A fused op is cheaper than
its tables one by one, and devices work in parallel; an estimate outside the bounds is an error of the network."""

LEAST_SHARE_WITH_HOST = LEAST_SHARE / 100
"""The lower one for a network that learned host memory, whose costs alone are those without any HBM."""

LEAST_MS = 1e-3  # lower bound of the cost of a table alone


@dataclass(frozen=True)
class NormalizationData:
    """Inputs and loads of an untrained network on its training data, for its normalization; NumPy arrays.

    Without what the host adds, so of devices whose rows are all in HBM.
    """

    inputs: NDArray[np.float32]  # (M, F) float32, inputs of each table
    loads: NDArray[np.float32]  # (P, D, K) float32, loads of each device
    cluster: Cluster  # the topologies, leading shape (P,)
    phases_ms: NDArray[np.float32]  # (P, D, 4) float32, measured ms


class NeuralCostModel(AdditiveCostModel):
    """A cost model whose formulas are a network.

    A column shard costs what a table with its columns costs. Other shards only a network estimates that says so in
    `sharding_types`.

    The loads of a table are `num_sums` latents that are summed over a device; then its cost alone in ms (column
    `alone`, summed too; it is 0 for an empty device, and bounds every cost); then latents reduced by maximum. Of a
    topology with host memory those of `host.py` are behind them, if the network learned host memory; if not, such tasks
    are refused. Costs alone, as bounds, are then those without any HBM.

    Tables of several workloads, or with weights of lookups, only a network estimates that learned them (`groups.py`).

    Args:
        weights: float32 arrays by name.
        card: training data and errors of the model, see `card`; JSON values.

    Attributes:
        architecture: name of the network in files and in `storage.NETWORKS`.
        num_sums: latents that are summed.
        num_maxima: latents that are reduced by maximum; none may be negative.
        sharding_types: those that it estimates.
        learns_host_memory: whether it can learn from tasks with host memory: one whose cost follows from its phases,
            to which the launches of groups of tables are added, too.
    """

    architecture: ClassVar[str]
    learns_host_memory: ClassVar[bool] = True
    sharding_types: ClassVar[tuple[str, ...]] = (TABLE_WISE, COLUMN_WISE)
    version = 1
    supports = frozenset({TRAINING, SPLITS})
    num_sums: int
    num_maxima: int = 0

    def __init__(self, weights: Mapping[str, NDArray[np.float32]], card: Mapping[str, Any] | None = None) -> None:
        self.weights: FloatWeights = {name: np.asarray(array, np.float32) for name, array in weights.items()}
        self.card = dict(card or {})
        self._warned: list[Workload] = []
        learned = host.learned_by(self.weights)
        self.supports = self.supports | {HOST_MEMORY} if learned else self.supports
        self.supports = self.supports | groups.NEEDS if groups.learned_by(self.weights) else self.supports
        self._least_share = LEAST_SHARE_WITH_HOST if learned else LEAST_SHARE
        self.name = f"neural-{self.architecture}"
        self.alone = self.num_sums
        self.num_sum_loads = self.num_sums + 1
        self.num_loads = self.num_sum_loads + self.num_maxima
        self.group_loads = groups.LOADS if self.counts_groups(self.weights) else 0

    @classmethod
    def counts_groups(cls, weights: Collection[str]) -> bool:
        """Whether a network with weights of these names adds the launches of groups of tables to its phases."""
        return cls.learns_host_memory and groups.learned_by(weights)

    @override
    def begin_of_groups(self, host_memory: bool) -> int:
        """Behind all loads that there may be, with host memory or without."""
        may_host = HOST_MEMORY in self.supports
        return self.num_loads + (NUM_HOST_LOADS if may_host else self.host_policy.num_maxima)

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256()
        for name in sorted(self.weights):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(self.weights[name]).tobytes())
        return digest.hexdigest()[:12]

    @property
    def fingerprint(self) -> str:
        """Name, version and the first digits of the SHA-256 of the weights."""
        return f"{super().fingerprint}-{self._digest}"

    def forward_alone(self) -> NeuralCostModel:
        """The model of tables that are served, which have no backward; itself, if it learned nothing but training."""
        return self

    # The network; `weights` and arrays are those of NumPy or of torch

    @classmethod
    @abstractmethod
    def new_weights(cls, rng: np.random.Generator) -> FloatWeights:
        """Weights of an untrained network."""

    @classmethod
    def first_weights(cls, rng: np.random.Generator, needs: Collection[str] = ()) -> FloatWeights:
        """`new_weights`, and those for host memory and for groups of tables if tasks have such `needs`.

        Raises InvalidOptionError for a network that cannot learn them.
        """
        host_memory = HOST_MEMORY in needs
        if host_memory and not cls.learns_host_memory:
            raise InvalidOptionError(
                f"The network {cls.architecture!r} cannot learn from tasks with host memory: it estimates the cost of "
                "an iteration without its phases. Train the network 'pooled', as presets that search do."
            )
        weights = {**cls.new_weights(rng), **(host.new_rates() if host_memory else {})}
        return groups.with_layer(weights, cls.architecture) if groups.NEEDS & set(needs) else weights

    @classmethod
    def weights_like(cls, names: Collection[str]) -> FloatWeights:
        """Those of an untrained network that learned what weights of such names are of: what a file holds."""
        needs = {HOST_MEMORY} if cls.learns_host_memory and host.learned_by(names) else set()
        needs |= groups.NEEDS if groups.learned_by(names) else set()
        return cls.first_weights(np.random.default_rng(0), needs)

    @classmethod
    def fitted_normalization(cls, data: NormalizationData) -> FloatWeights:
        """The weights that are statistics of the training data; by default there are none."""
        return {}

    @classmethod
    @abstractmethod
    def describe(cls, tables: Tables) -> NDArray[np.float32]:
        """(T, F) float32, the inputs of each table."""

    @classmethod
    def describe_shards(cls, shards: Tables, sharding_type: str) -> NDArray[np.float32]:
        """(S, F) float32, the inputs of shards as `shard_tables` describes them; InvalidOptionError for other types."""
        cls._require_known(sharding_type)
        return cls.describe(shards)

    @classmethod
    def all_inputs(cls, shards: Tables, sharding_type: str, has_groups: bool) -> NDArray[np.float32]:
        """(S, G + F) float32, those of `describe_shards`, behind the G facts of groups if the network learned them."""
        own = cls.describe_shards(shards, sharding_type)
        return np.concatenate([groups.facts(shards), own], axis=1) if has_groups else own

    @classmethod
    def table_loads(cls, weights: Weights, inputs: Array) -> Array:
        """(T, K) `latents` of tables with (T, G + F) `all_inputs`."""
        return cls.latents(groups.widened(weights) if groups.learned_by(weights) else weights, inputs)

    @classmethod
    def _require_known(cls, sharding_type: str) -> None:
        if sharding_type not in cls.sharding_types:
            raise InvalidOptionError(
                f"The network {cls.architecture!r} does not estimate {sharding_type} shards, only "
                f"{' and '.join(cls.sharding_types)}. Name these as sharding_types, or another cost model."
            )

    @classmethod
    @abstractmethod
    def latents(cls, weights: Weights, inputs: Array) -> Array:
        """(T, K) loads of tables with (T, F) `inputs`, with 1 in the column `alone`."""

    @classmethod
    @abstractmethod
    def own_phases(cls, weights: Weights, loads: Array) -> Array:
        """(..., 4) ms from the (..., K) loads of a device; may be negative, and is arbitrary for an empty device."""

    @classmethod
    def all_to_alls(cls, weights: Weights, phases: Array, loads: Array, cluster: Cluster) -> Array | None:
        """(..., D, 2) ms of the forward and the backward all-to-all; None for a network whose `own_phases` have them.

        They depend on the (..., D, 4) `own_phases` and the (..., D, C) `shared_loads` of all devices, and on the
        `cluster`, whose arrays are of the same library.
        """
        return None

    @classmethod
    def overall(cls, weights: Weights, phases: Array, loads: Array, cluster: Cluster) -> Array:
        """(...) ms of an iteration from (..., D, 4) phases and the (..., D, C) `shared_loads` of the devices.

        Both are 0 beyond the devices of `cluster`. By default the sum over the phases of the slowest device.
        """
        return largest(phases, -2).sum(-1)

    # The cost model

    def loads(self, shards: Tables, topology: Topology, sharding_type: str = TABLE_WISE) -> FloatArray:
        """(S, K) float64; InvalidOptionError for shards of a type that the network does not estimate.

        Warns, once for each, of another workload of whole tables than that of the training data.
        """
        if sharding_type == TABLE_WISE:
            self._check_workload(shards.workload)
        host_loads = host.host_megabytes(shards, sharding_type, topology)
        inputs = self.all_inputs(shards, sharding_type, groups.learned_by(self.weights))
        loads = self._loads(inputs, host_loads, topology)
        of_groups = groups.group_loads(shards, topology)
        if not self.group_loads or not of_groups.shape[1]:
            return loads
        between = np.zeros((len(shards), self.begin_of_groups(topology.host is not None) - loads.shape[1]))
        return np.concatenate([loads, between, of_groups], axis=1)

    def _loads(self, inputs: NDArray[np.float32], host_loads: FloatArray, topology: Topology) -> FloatArray:
        loads = np.asarray(self.table_loads(self.weights, inputs), np.float64)
        if host_loads.shape[1]:
            loads = np.concatenate([loads, host_loads], axis=1)
        without_hbm = loads.copy()
        without_hbm[:, self.num_loads :][:, HBM_MS : HBM_MS + 1] = 0.0
        loads[:, self.alone] = np.maximum(self._costs_alone(without_hbm, topology), LEAST_MS)
        return loads

    def _check_workload(self, workload: Workload) -> None:
        data = self.card.get("data")
        fitted = data.get("workload") if isinstance(data, Mapping) else None
        if not fitted or workload in self._warned:
            return
        if set(workload.workloads) <= set(Workload.from_json(fitted, "The workload of the card").workloads):
            return
        self._warned.append(workload)
        warnings.warn(
            f"This cost model was fitted to {fitted}, but these tables are used with {workload.to_json()}: "
            "its estimates of them are guesses.",
            stacklevel=3,
        )

    def _costs_alone(self, loads: FloatArray, topology: Topology) -> FloatArray:
        """(T,) ms, each table alone on the first device, without bounds."""
        shared = np.zeros((len(loads), topology.num_devices, loads[:, self.shared_loads].shape[1]))
        shared[:, 0] = loads[:, self.shared_loads]
        phases = np.zeros((len(loads), topology.num_devices, 4))
        phases[:, 0] = self.device_phases(loads)
        cluster = topology.cluster()
        self.fill_communication(phases, shared, cluster)
        return np.asarray(self.overall(self.weights, phases, shared, cluster), np.float64)

    def single_table_costs(self, loads: FloatArray, topology: Topology) -> FloatArray:
        """(T,) ms, without host memory a column of the loads."""
        if loads.shape[1] == self.num_loads:
            return loads[:, self.alone].copy()
        return np.maximum(self._costs_alone(loads, topology), LEAST_MS)

    @override
    def single_tables(self, loads: FloatArray, topology: Topology) -> tuple[FloatArray, FloatArray]:
        return super().single_tables(loads, topology)[0], self.single_table_costs(loads, topology)

    @override
    def device_phases(self, loads: FloatArray) -> FloatArray:
        own, end = loads[..., : self.num_loads], self.begin_of_groups(True)
        behind, of_groups = loads[..., self.num_loads : end], loads[..., end:]
        phases = np.maximum(self._own_phases(own), 0.0)
        if behind.shape[-1] and HOST_MEMORY in self.supports:
            phases = phases + host.host_ms(self.weights, behind)
        if of_groups.shape[-1]:
            phases = phases + groups.launches_ms(of_groups, self.exchanges)
        return np.where((loads[..., self.alone] > 0)[..., None], phases, 0.0).astype(np.float64)

    def _own_phases(self, loads: FloatArray) -> FloatArray:
        """`own_phases` of arrays, in ms."""
        return np.asarray(self.own_phases(self.weights, loads.astype(np.float32)))

    @override
    def fill_communication(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> None:
        both = self.all_to_alls(self.weights, phases, shared, cluster)
        if both is not None:
            sends = cluster.device_mask & (self._total_alone(shared) > 0)[..., None]
            phases[..., COMMUNICATION] = np.where(sends[..., None], np.maximum(both, 0.0), 0.0)

    def _total_alone(self, shared: FloatArray) -> FloatArray:
        """(...) ms, the sum of the costs alone of all placed tables, from the (..., D, C) `shared_loads`."""
        return np.asarray(shared[..., self.alone - (self.shared_loads.start or 0)].sum(axis=-1))

    def iteration_cost(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> FloatArray:
        """(...) ms, within the `bounds`."""
        return self._bounded(self.overall(self.weights, phases, shared, cluster), self._total_alone(shared))

    def _bounded(self, costs: FloatArray, total: FloatArray) -> FloatArray:
        """Costs within the bounds, from the (...) `total` of the costs alone of all placed tables."""
        return np.asarray(np.minimum(np.maximum(costs, self._least_share * total), MAX_SHARE * total), np.float64)

    def bounds(self, loads: FloatArray, topology: Topology, variants: Variants | None = None) -> tuple[float, float]:
        """Shares of the sum of the tables' costs alone, with variants of each in its least or largest form."""
        if variants is None:
            least = most = float(loads[:, self.alone].sum())
        else:
            alone = np.where(variants.legal, loads[..., self.alone] * variants.parts, np.nan)
            least, most = float(np.nanmin(alone, axis=1).sum()), float(np.nanmax(alone, axis=1).sum())
        # The order of additions differs between placements, so leave room for rounding.
        return self._least_share * least * (1 - 1e-9), MAX_SHARE * most * (1 + 1e-9)
