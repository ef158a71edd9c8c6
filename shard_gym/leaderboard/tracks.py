"""The tracks: what their entries answer, and what scores and orders these."""

from __future__ import annotations

from dataclasses import dataclass

from shard_gym.tasks.suites import info


@dataclass(frozen=True)
class Track:
    """A track of the leaderboards.

    Attributes:
        problems: names of the problems of its suites.
        scored: whether the cost model scores entries. If not, races on a machine do.
        leagues: whether entries are ranked in leagues, by what they ask of the cost model.
        looks_ahead: whether answers do not tell if their agent looked at what comes later, so that entries that were
            replayed come before the others.
        claims: whether a row of answers claims its cost and further facts, because these take a second to compute.
            Verification computes them again; tables are made of the claims.
    """

    problems: tuple[str, ...]
    scored: bool = True
    leagues: bool = True
    looks_ahead: bool = False
    claims: bool = False


TRACKS = {
    info.SIMULATED: Track(("placement",)),
    info.SHARDING: Track(("sharding",)),
    info.MEASURED: Track(("placement", "sharding"), scored=False, leagues=False),
    info.REPLANNING: Track(("replanning",), leagues=False, looks_ahead=True, claims=True),
}
"""By name, in the order of the tables."""

ANSWERS = {"placement": "placements.json", "sharding": "plans.json", "replanning": "sequences.json"}
"""The file with the answers of an entry, by the problem of its suite."""
