"""Where the jobs of a command run: the options that several commands share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shard_gym.cli.options import OptionalStr
from shard_gym.common.checks import checked_count
from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.jobs import Function, run_jobs


@dataclass(frozen=True)
class JobOptions:
    """Where the jobs run.

    Attributes:
        jobs: how many processes of this machine work at the same time.
        cluster: work on a Ray cluster: auto (that of this machine, or a new one on it) or ray://HOST:PORT.
    """

    jobs: int = 1
    cluster: OptionalStr = None

    @property
    def elsewhere(self) -> bool:
        """Whether the jobs run in other processes than this one."""
        return self.jobs != 1 or self.cluster is not None

    def run(self, function: Function, jobs: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """See `run_jobs`."""
        return run_jobs(function, jobs, jobs_at_once=checked_count("--jobs", self.jobs), cluster=self.cluster)

    def refuse(self, why: str) -> None:
        """Raise InvalidOptionError with the reason, a sentence, if the jobs run in other processes."""
        if self.elsewhere:
            raise InvalidOptionError(f"{why} Leave out --jobs and --cluster.")


HERE = JobOptions()
