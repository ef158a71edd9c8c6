"""The page of the leaderboards: a folder of static files that works from a disk and from any web server."""

from shard_gym.leaderboard.site.build import site_files, write_site
from shard_gym.leaderboard.site.data import EntryData, ProfileData, ProfileLine, SiteData, SuiteData, TaskData

__all__ = [
    "EntryData",
    "ProfileData",
    "ProfileLine",
    "SiteData",
    "SuiteData",
    "TaskData",
    "site_files",
    "write_site",
]
