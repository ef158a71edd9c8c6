"""Embedding table sharding under an estimated cost: `EmbeddingSharding-v0`."""
