"""Importer of Meta's lookup files; see `import_meta`."""

from __future__ import annotations

from pathlib import Path

from shard_gym.pools.pool import Pool


def import_meta(path: str | Path, name: str) -> Pool:
    """Placeholder while the importer is written."""
    raise NotImplementedError
