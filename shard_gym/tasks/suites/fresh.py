"""Names of fresh tasks: "mixdim-8@7" are 50 new tasks of each split, drawn with seed 7 as those of "mixdim-8" were."""

from __future__ import annotations

import re

from shard_gym.common.errors import InvalidOptionError

SEED = "@"
MOST_DIGITS = 9  # of a seed


def parted(name: str) -> tuple[str, int | None]:
    """The name of the suite whose recipe draws the tasks, and the seed; None for the suite itself.

    Raises:
        InvalidOptionError: what follows the @ is no seed, or not written as a number is.
    """
    base, at, seed = name.partition(SEED)
    if not at:
        return base, None
    if not re.fullmatch(rf"0|[1-9][0-9]{{0,{MOST_DIGITS - 1}}}", seed, re.ASCII):
        raise InvalidOptionError(
            f"The seed of the suite {name!r} must be a whole number after the {SEED}, of at most {MOST_DIGITS} digits "
            f"and without zeros before it, such as {base or 'mixdim-8'}{SEED}7; it is {seed!r}."
        )
    return base, int(seed)


def fresh_name(name: str, seed: int | None) -> str:
    """The name of the tasks that the recipe of the suite draws with that seed; its own without one."""
    return name if seed is None else f"{name}{SEED}{seed}"
