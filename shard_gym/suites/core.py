"""The core suites: those that agents that learn are compared on."""

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
"""Three sizes of the paper's, and five of mixed dims. All have training tasks, so agents that learn are ranked where
they learnt. The ranking across suites and the study of DreamShard are over these."""
