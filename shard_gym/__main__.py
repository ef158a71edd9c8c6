"""`python -m shard_gym` is `shard-gym`."""

from __future__ import annotations

import sys

from shard_gym.cli import main

if __name__ == "__main__":
    sys.exit(main())
