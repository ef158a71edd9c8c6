"""Cost models fitted to measurements: data sets, training, calibration, reports, and folders of machines.

Each of the commands `calibrate`, `collect`, `fit-cost-model` and `report-cost-model` is a function here. What trains
networks, and needs torch, is in `training`.
"""

from shard_gym.cost_models.fitting.calibrating import CalibrationProgress, MachineCalibration, calibrate
from shard_gym.cost_models.fitting.data.collecting import CollectionProgress, collect
from shard_gym.cost_models.fitting.data.dataset import CostDataset
from shard_gym.cost_models.fitting.data.measurements import Measurements, load_measurements, load_workloads
from shard_gym.cost_models.fitting.data.sampling import PlacementSampler
from shard_gym.cost_models.fitting.fit import FitOptions, fit_cost_model, fit_networks
from shard_gym.cost_models.fitting.measuring import collect_here
from shard_gym.cost_models.fitting.report import report_cost_models

__all__ = [
    "CalibrationProgress",
    "CollectionProgress",
    "CostDataset",
    "FitOptions",
    "MachineCalibration",
    "Measurements",
    "PlacementSampler",
    "calibrate",
    "collect",
    "collect_here",
    "fit_cost_model",
    "fit_networks",
    "load_measurements",
    "load_workloads",
    "report_cost_models",
]
