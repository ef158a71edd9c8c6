"""Embedding table placement under an estimated cost: `EmbeddingPlacement-v0`."""
