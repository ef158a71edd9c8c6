"""What is known of a named suite without building its tasks, and the names of splits and tracks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parent / "data"
"""Folder of the suites' files; best known answers and bounds are in folders below."""

DRIFTING, DRIFT_SCHEMA = DATA / "drifting", 1
"""Folder with one JSON file for each kind of drift, whose suites differ in the seconds of a pause; and their schema."""

SPLITS = ("train", "test")

SIMULATED, MEASURED, SHARDING, REPLANNING = TRACKS = ("simulated", "measured", "sharding", "replanning")
"""Tracks of the leaderboards: suites of whole tables whose costs are estimated; those made to be measured on a machine
at hand, of whole tables or not; those whose tables may be sharded, with estimated costs; and those of tables that drift
over days."""


@dataclass(frozen=True)
class SuiteInfo:
    """Summary of a suite, read without building its tasks."""

    name: str
    version: int  #: raised when its data change
    description: str
    pool: str  #: name of the pool of its tables
    hardware: str  #: name of the hardware profile
    track: str  #: one of `TRACKS`
    sha256: str
    tasks: Mapping[str, int]  #: number of tasks in each split
    num_tables: tuple[int, int]  #: smallest and largest T over all splits
    num_devices: tuple[int, int]  #: smallest and largest D over all splits
    splittable: bool = False  #: whether tables may be split

    @property
    def problem(self) -> str:
        """The problem of its tasks: "placement", "sharding" or "replanning"."""
        if self.track == REPLANNING:
            return "replanning"
        return "sharding" if self.splittable or self.track == SHARDING else "placement"


"""The core suites: those that learned agents are compared on."""

CORE_SUITES = (
    "dlrm-20x4",
    "dlrm-50x4",
    "dlrm-80x8",
    "dlrm-mixdim-4",
    "mixdim-4",
    "mixdim-8",
    "mixdim-v100-4",
    "generalize",
)
"""Three sizes of the paper's, and five of mixed dims. All have training tasks, so learned agents are ranked where they
were trained. The ranking across suites and the study of DreamShard are over these."""
