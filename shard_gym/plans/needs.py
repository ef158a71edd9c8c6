"""Needs: what a task asks of whoever costs, measures, learns or records it, and the one check whether it is supported.

A fact of tasks that not everybody can handle is one entry of `NEEDS`. Whoever handles tasks declares the names of those
that it supports, and `require_supported` refuses the others with one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from shard_gym.common.errors import InvalidOptionError
from shard_gym.hardware import Topology
from shard_gym.tables import Tables

TRAINING, SERVING, SEQUENCES = "training", "serving", "sequences"
HOST_MEMORY, COMPRESSION, REPLICAS = "host-memory", "compression", "replicas"
SPLITS, GROUPS, MIXED, WEIGHTED = "splits", "groups", "mixed", "weighted"


@dataclass(frozen=True)
class Need:
    """One thing that a task may need.

    Attributes:
        what: what the task then has, a plural noun, for sentences.
        models: names of cost models that support it, for sentences; tests compare them with the registry.
        instead: what a user can do without them, as an imperative.
        found: whether tables on a topology have it; None for what only a task has.
        example: what of them has it, behind `what` in sentences; may be empty.
    """

    what: str
    models: tuple[str, ...]
    instead: str
    found: Callable[[Tables, Topology], bool] | None = None
    example: Callable[[Tables, Topology], str] = lambda tables, topology: ""


NEEDS: dict[str, Need] = {
    HOST_MEMORY: Need(
        "rows in host memory",
        ("analytical", "analytical-lru", "analytical-inference"),
        "give devices without host memory",
        lambda tables, topology: topology.host is not None,
    ),
    REPLICAS: Need(
        "devices whose shards have replicas in other groups",
        (),
        "take a task of one group, or cost it by what `with_replicas` of an AnalyticalShardingModel makes",
        lambda tables, topology: topology.replicas is not None,
    ),
    COMPRESSION: Need(
        "links across hosts that send fewer bytes",
        ("analytical", "analytical-lru", "analytical-inference"),
        "leave cross_host_ratio at 1",
        lambda tables, topology: topology.cross_host_ratio != 1.0,
        lambda tables, topology: f", and cross_host_ratio is {topology.cross_host_ratio:g}",
    ),
    SEQUENCES: Need(
        "sequence tables, whose rows are not added up",
        ("analytical", "analytical-lru", "analytical-inference"),
        "take pooled tables",
        lambda tables, topology: not tables.pooled.all(),
        lambda tables, topology: f", such as {tables.names[int(tables.pooled.argmin())]!r}",
    ),
    WEIGHTED: Need(
        "lookups with weights",
        ("analytical", "analytical-lru", "analytical-inference"),
        "leave weighted of the workload at False",
        lambda tables, topology: any(each.weighted for each in tables.workloads),
    ),
    MIXED: Need(
        "tables of several workloads",
        ("analytical", "analytical-lru", "analytical-inference"),
        "give all tables one weight dtype and one optimizer",
        lambda tables, topology: len(tables.workloads) > 1,
        lambda tables, topology: f", which are {len(tables.workloads)}",
    ),
    SERVING: Need(
        "tables that are served (the training of their workload is False)",
        ("analytical-inference",),
        "train them: tables.with_training(training=True)",
        lambda tables, topology: not tables.workload.training,
    ),
    TRAINING: Need(
        "tables that are trained",
        ("analytical", "analytical-lru"),
        "serve them: tables.with_training(training=False)",
        lambda tables, topology: tables.workload.training,
    ),
    SPLITS: Need(
        "split tables",
        (),
        "take `make_cost_model('analytical', splits=True)` or a subclass of its class, or leave them whole",
    ),
    GROUPS: Need("plans for groups of devices", (), "plan for one group (sync_every 0)"),
}
"""By name, in the order in which they are refused."""


def needs_of(tables: Tables, topology: Topology) -> frozenset[str]:
    """The names in `NEEDS` of what tables on a topology need."""
    return frozenset(name for name, need in NEEDS.items() if need.found is not None and need.found(tables, topology))


def unsupported(needs: Collection[str], supports: Collection[str]) -> Need | None:
    """The first need, in the order of `NEEDS`, that is not supported; None if all are."""
    return next((need for name, need in NEEDS.items() if name in needs and name not in supports), None)


def require_supported(
    who: str,
    needs: Collection[str],
    supports: Collection[str],
    of: tuple[Tables, Topology] | None = None,
    *,
    costs: bool = False,
) -> None:
    """Refuse needs that are not supported.

    Args:
        who: the subject of the sentence, such as "A data set".
        needs: names in `NEEDS`, such as those of `Task.needs`.
        supports: names in `NEEDS`.
        of: the tables and the topology that need them, for an example in the sentence.
        costs: whether `who` is a cost model; the sentence then names others that support it.

    Raises:
        InvalidOptionError: `who` lacks one; the sentence names the first in the order of `NEEDS`, and the way out.
    """
    need = unsupported(needs, supports)
    if need is None:
        return
    way_out = need.instead
    others = [NEEDS[name].models for name in needs if NEEDS[name].models]
    able = [model for model in need.models if all(model in models for models in others)]
    if costs and able:
        way_out = f"take the cost model {' or '.join(map(repr, able))} (for an agent, as its cost_model), or {way_out}"
    example = "" if of is None or need.found is None else need.example(*of)
    raise InvalidOptionError(f"{who} does not support {need.what}{example}. {way_out[0].upper()}{way_out[1:]}.")
