"""A lower bound on the cost of every sharding plan of a task, and its proof: `plan_lower_bound_ms`, `PlanProof`.

Plans are split by how many devices have each lane level, by the ms of each phase and by the collectives that they use,
best first (plan_tree.py). Of each part a linear program is a bound (plan_program.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from shard_gym.common.errors import DamagedFileError, InvalidOptionError
from shard_gym.cost_models.analytical import AnalyticalShardingModel
from shard_gym.cost_models.bounds.plan_nodes import Branch
from shard_gym.cost_models.bounds.plan_program import PlanProgram
from shard_gym.cost_models.bounds.plan_tree import Search, Tree, checked_ms
from shard_gym.hardware import Topology
from shard_gym.plans.constraints import Constraints
from shard_gym.tables import Tables

MAX_SHARES = 15_000_000  # variables of all programs solved for one task; then the bound is taken as it is
MIN_PROGRAMS, MAX_PROGRAMS = 200, 1500
ABOVE = 1.15  # how far above a bound plans are first looked at, whose phases are then known within less

BRANCHES = ("counts", "ms", "collective", "kind")


def plan_lower_bound_ms(
    tables: Tables,
    topology: Topology,
    model: AnalyticalShardingModel,
    limits: Constraints | None = None,
    known_ms: float = np.inf,
) -> float:
    """Ms that no sharding plan of the tables, under `limits`, costs less than; takes seconds. See `prove`."""
    return prove(tables, topology, model, limits, known_ms).bound_ms


@dataclass(frozen=True)
class PlanProof:
    """A proof that no plan of a task costs less than `bound_ms`.

    Attributes:
        below_ms: the tree is of plans that cost less than that.
        tree: how they were split, with the multipliers of each part.
    """

    below_ms: float
    tree: Tree

    @property
    def bound_ms(self) -> float:
        """What the tree states, at most `below_ms`."""
        return min(self.tree.least_ms, self.below_ms)

    def to_json(self) -> Any:
        """A JSON value: `below_ms` and the nodes of the tree, each before its children.

        A leaf is the keys of its rows, each behind its multiplier; an inner node is what it branches on, and how many
        children it has.
        """
        return [self.below_ms, list(_nodes(self.tree))]

    @staticmethod
    def from_json(value: Any) -> PlanProof:
        """The proof of a JSON value, without the bounds of its leaves; DamagedFileError if it is none."""
        try:
            below_ms, nodes = value
            return PlanProof(float(below_ms), _tree(nodes))
        except (TypeError, ValueError, IndexError, KeyError, OverflowError, RecursionError) as error:
            raise DamagedFileError(f"A proof is damaged: {error}. Make it again.") from error


def prove(
    tables: Tables,
    topology: Topology,
    model: AnalyticalShardingModel,
    limits: Constraints | None = None,
    known_ms: float = np.inf,
    max_programs: int | None = None,
) -> PlanProof:
    """The proof of a lower bound on all sharding plans of the tables under `limits`.

    Args:
        tables: of the task.
        topology: its devices, or those of one of several groups, whose averaging then counts.
        model: of training or of serving.
        limits: the constraints.
        known_ms: what a plan costs, if one is known; a bound is not raised above it.
        max_programs: how many programs are solved before the bound is taken as it is; by default up to 1,500, and
            fewer the more variables they have.

    Raises:
        MissingExtraError: scipy is not installed.
        InvalidOptionError: the overlap loss of the model is above 1, so its phases are no maxima of linear functions.
    """
    _require_linear(model)
    program = PlanProgram(tables, topology, model, limits, known_ms)
    programs = max_programs or int(np.clip(MAX_SHARES // program.num_shares, MIN_PROGRAMS, MAX_PROGRAMS))
    search = Search(program)
    best = PlanProof(program.below_ms, search.tree)
    while search.solved < programs and best.bound_ms < known_ms and np.isfinite(best.tree.least_ms):
        below = min(known_ms, ABOVE * best.bound_ms)
        search = Search(program.below(below))
        found = PlanProof(below, search.grow(programs))
        best = max(best, found, key=lambda proof: proof.bound_ms)
        if found.bound_ms < below:
            break
    return best


def proven_ms(
    proof: PlanProof,
    tables: Tables,
    topology: Topology,
    model: AnalyticalShardingModel,
    limits: Constraints | None = None,
) -> float:
    """Ms that `proof` proves that no plan costs less than, computed anew from its multipliers, without a solver.

    Raises:
        InvalidOptionError: as `prove` does.
    """
    _require_linear(model)
    if not proof.below_ms > 0:
        return 0.0
    return min(checked_ms(PlanProgram(tables, topology, model, limits, proof.below_ms), proof.tree), proof.below_ms)


def _require_linear(model: AnalyticalShardingModel) -> None:
    if model.constants.overlap_loss > 1.0:
        raise InvalidOptionError(
            f"Plans have no lower bound for an overlap_loss of {model.constants.overlap_loss:g}; it must be at most 1."
        )


def _nodes(tree: Tree) -> Iterator[Any]:
    todo = [tree]
    while todo:
        own = todo.pop()
        if own.branch is None:
            yield [*chain.from_iterable(zip(own.multipliers.values(), own.multipliers, strict=True))]
            continue
        what, which, at = own.branch
        yield {"branch": [BRANCHES.index(what), which, at], "children": len(own.children)}
        todo += own.children[::-1]


def _tree(nodes: Sequence[Any]) -> Tree:
    root = Tree()
    todo = [root]
    for node in nodes:
        own = todo.pop()
        if isinstance(node, Mapping):
            what, which, at = node["branch"]
            own.branch = Branch(dict(enumerate(BRANCHES))[what], int(which), float(at))
            own.children = [Tree() for _ in range(min(node["children"], len(nodes)))]
            todo += own.children[::-1]
        else:
            pairs = zip(node[::2], node[1::2], strict=True)
            own.multipliers = {int(key): float(multiplier) for multiplier, key in pairs}
    if todo:
        raise ValueError(f"{len(todo)} of its nodes are missing")
    return root
