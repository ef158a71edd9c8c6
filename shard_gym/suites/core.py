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
