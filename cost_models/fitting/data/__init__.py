"""Data sets of measured placements: their schema and files, and how they are sampled, collected, loaded and split."""
