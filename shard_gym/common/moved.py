"""Modules that stood elsewhere before, under their old names: `from shard_gym.topology import Topology` still works."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from typing_extensions import override

MOVED = {
    "agents.autoshard.options": "agents.autoshard.agent",
    "agents.descent": "agents.search.descent",
    "agents.dreamshard.options": "agents.dreamshard.agent",
    "agents.dreamshard.policy": "agents.dreamshard.agent",
    "agents.items": "agents.search.items",
    "agents.neighbourhood": "agents.search.neighbourhood",
    "agents.neuroshard.options": "agents.neuroshard.agent",
    "agents.replanning": "replanning.agents",
    "agents.replanning.forecasters": "replanning.agents.rules",
    "agents.replanning.policy_env": "replanning.agents.ppo",
    "agents.replanning.table_episodes": "replanning.agents.tuning",
    "agents.surco.options": "agents.surco.agent",
    "agents.training.registry": "agents.training",
    "cli.agent_options": "cli.options",
    "cli.misfit": "planning.misfit",
    "cli.named_agents": "agents.named",
    "comparison": "planning.comparison",
    "cost_models.assumptions": "cost_models.analytical.assumptions",
    "cost_models.plan_bounds": "cost_models.bounds.plans",
    "drift": "replanning.drift",
    "envs.replanning": "replanning.env",
    "errors": "common.errors",
    "explain": "planning.explanation",
    "grouping": "tasks.groups",
    "hot_rows": "planning.hot_rows",
    "index_dedup": "planning.index_dedup",
    "io": "common.io",
    "jobs": "common.jobs",
    "leaderboard.changes": "leaderboard.check",
    "leaderboard.competitors": "leaderboard.ranking",
    "leaderboard.race_files": "leaderboard.race",
    "leaderboard.rows": "leaderboard.verify",
    "leaderboard.schema": "leaderboard.entry",
    "leaderboard.tracks": "leaderboard.store",
    "leaderboard.verified": "leaderboard.entry",
    "offline": "agents.training.offline",
    "placement": "plans.placement",
    "plots": "evaluation.plots",
    "pools": "tables.pools",
    "problems": "tasks.problems",
    "problems.replanning": "replanning.problem",
    "row_popularity": "tables.row_popularity",
    "sharding": "plans",
    "suites": "tasks.suites",
    "suites.build_drifting": "replanning.build",
    "system": "common.system",
    "table_features": "tables.tables",
    "task_sampler": "tasks.sampler",
    "text": "common.text",
    "topology": "hardware.topology",
    "training_memory": "plans.memory",
    "trust": "planning.trust",
    "workload": "tables.workload",
}
"""Old name -> name, both below shard_gym; what was in a package that is named here is in the new one."""

_PACKAGE = f"{__name__.partition('.')[0]}."


class _OldNames(MetaPathFinder, Loader):
    """Finds modules under their old names, as the same objects."""

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if _new_name(fullname) else None

    @override
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(_new_name(spec.name))
        spec.loader_state = module.__spec__
        return module

    @override
    def exec_module(self, module: ModuleType) -> None:
        """The module has run under its name; only its own spec is put back."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def _new_name(name: str) -> str:
    """The name of the module that had this one; empty if none had."""
    if not name.startswith(_PACKAGE):
        return ""
    old, below = name.removeprefix(_PACKAGE), ""
    while old and old not in MOVED:
        old, _, last = old.rpartition(".")
        below = f".{last}{below}"
    return f"{_PACKAGE}{MOVED[old]}{below}" if old else ""


def keep_old_names() -> None:
    """Let imports find modules under their old names, too."""
    if not any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OldNames())
