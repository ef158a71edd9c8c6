"""The measured variant: placements are executed, not estimated."""
