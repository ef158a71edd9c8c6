"""Costs that are measured: FBGEMM's embedding operator timed on real devices."""

from shard_gym.cost_models.measured.cache import DamagedCacheWarning, MeasurementCache
from shard_gym.cost_models.measured.diagnostics.diagnosis import Diagnosis, diagnose, operator_failure
from shard_gym.cost_models.measured.machine import Machine, machine_for, profile_of, this_machine
from shard_gym.cost_models.measured.model import PARALLEL, SEQUENTIAL, MeasuredCostModel, Measurement
from shard_gym.cost_models.measured.session import Session

__all__ = [
    "PARALLEL",
    "SEQUENTIAL",
    "DamagedCacheWarning",
    "Diagnosis",
    "Machine",
    "MeasuredCostModel",
    "Measurement",
    "MeasurementCache",
    "Session",
    "diagnose",
    "machine_for",
    "operator_failure",
    "profile_of",
    "this_machine",
]
