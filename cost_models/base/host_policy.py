"""The interface of policies that decide which rows of a device are in its HBM, and which in its host's memory."""

from __future__ import annotations

from abc import ABC, abstractmethod

from shard_gym.common.arrays import FloatArray
from shard_gym.cost_models.base.linear import HostReads
from shard_gym.hardware import Topology
from shard_gym.tables import Tables


class HostPolicy(ABC):
    """What rows in host memory add to the phases of a device, in additive-load form.

    Its loads are behind those of the cost model: first maxima, which stand beside the maxima of the model, then sums.
    All ms never fall when a table is added, and are 0 where all rows fit into the HBM.

    Attributes:
        name: the option `host_policy` of the analytical models.
        num_maxima: the loads that are reduced by maximum.
        num_loads: all loads, H, of tables of one workload.
        num_mixed_loads: H of tables of several workloads; the further ones are sums.
        is_linear: whether the ms are the largest of linear functions of the loads, so that the mean device takes no
            longer than the slowest.
    """

    name: str
    num_maxima: int
    num_loads: int
    num_mixed_loads: int
    is_linear: bool

    @abstractmethod
    def loads(self, tables: Tables, topology: Topology, dense: bool = False) -> FloatArray:
        """(T, H) float64 loads of a topology with host memory.

        Args:
            dense: whether a batch updates every row, as those of a replica with its dense gradient.
        """

    @abstractmethod
    def added_ms(self, loads: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(...) ms that are added to the forward and to the backward of devices with (..., H) loads."""

    @abstractmethod
    def plain_added_ms(self, loads: list[float]) -> tuple[float, float]:
        """`added_ms` of one device on floats, with the same bits."""

    def reads_of(self, loads: FloatArray) -> HostReads | None:
        """The (T, H) loads of tables as linear functions; None for (T, 0), and for a policy that has none."""
        return None

    def with_host(self, phases: FloatArray, loads: FloatArray) -> FloatArray:
        """`phases`, (..., 4) ms of devices whose rows are all in HBM, changed in place: with those in the host.

        `loads` are their (..., H) loads, or (..., 0) without host memory.
        """
        if loads.shape[-1]:
            forward, backward = self.added_ms(loads)
            phases[..., 0] += forward
            phases[..., -1] += backward
        return phases
