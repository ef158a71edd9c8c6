"""Branch and bound over the plans of a task, `search`, and the proof that it leaves, a `Tree`.

A tree has a branch at every inner node and multipliers at every leaf. The children of a node follow from its branch and
hold all of its plans, so the leaves hold all plans of the task. The bound of a leaf is the Lagrangian of its
multipliers, which is valid for any that are not negative. So no number of a solver is trusted, and `checked_ms` needs
none.

Programs have thousands of columns and hundreds of rows, of which few matter. They are solved with some of both, and get
those that a solution asks for: columns by their prices, rows because they are violated.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.cost_models.bounds.placements import ROUNDING, linprog
from shard_gym.cost_models.bounds.plan_nodes import BACKWARD, COLLECTIVES, FORWARD, MS, OPEN, PHASES, Branch, Node
from shard_gym.cost_models.bounds.plan_program import Inequality, PlanProgram

DIGITS = 6  # of a number in a proof
CLOSE = 1e-4  # share of the value of a program by which its bound may be below it
SLACK = 100.0  # cost of a unit of slack, in multiples of the ms that plans cost less than
ROUNDS = 60  # times that a program gets columns and rows
NEW_COLUMNS = 3  # of a table, at a time
WIDE = 3.0  # how many times wider than that of devices an interval of ms is, relatively, that is split in its place
LEAST = 1e-4  # share of the ms of a plan below which what a solution leaves out does not count
MARGIN = 0.02  # share of an interval of ms by which a cut is outside of what seems possible
EPSILON = float(np.finfo(float).eps)


@dataclass
class Tree:
    """What is known of the plans of a node.

    Attributes:
        bound_ms: of a leaf, ms that none of them costs less than, or `below_ms` of the program.
        multipliers: of a leaf, by key of the row.
        branch: of an inner node; a leaf has none.
        children: of an inner node, in the order of `Node.children`.
    """

    bound_ms: float = 0.0
    multipliers: dict[int, float] = field(default_factory=dict)
    branch: Branch | None = None
    children: list[Tree] = field(default_factory=list)

    @property
    def least_ms(self) -> float:
        """The least bound of its leaves."""
        if self.branch is None:
            return self.bound_ms
        return min((each.least_ms for each in self.children), default=np.inf)

    @property
    def leaves(self) -> int:
        """How many leaves it has."""
        return 1 if self.branch is None else sum(each.leaves for each in self.children)


def checked_ms(program: PlanProgram, tree: Tree) -> float:
    """The least Lagrangian of the leaves of a tree whose root is that of the program; infinity for no plans.

    The bounds that the tree states are not read; of a tree that is none of the program, nothing follows, so 0.
    """
    ends = {
        "counts": program.num_levels,
        "ms": len(PHASES),
        "collective": len(COLLECTIVES),
        "kind": program.num_tables,
    }
    found, todo = float("inf"), [(program.root(), tree)]
    while todo:
        node, own = todo.pop()
        if own.branch is None:
            if not program.is_empty(node):
                rows = program.rows(node, own.multipliers)
                found = min(found, lagrangian_ms(program, node, rows, own.multipliers)[0])
            continue
        what, which, at = own.branch
        if not (0 <= which < ends.get(what, 0) and np.isfinite(at)):
            return 0.0
        children = node.children(own.branch)
        if len(children) != len(own.children):
            return 0.0
        todo += zip(children, own.children, strict=True)
    return found


def lagrangian_ms(
    program: PlanProgram, node: Node, rows: Iterable[Inequality], multipliers: Mapping[int, float]
) -> tuple[float, FloatArray]:
    """The Lagrangian of a node in ms, a bound whatever the multipliers are, and the (V,) cost of each share in it.

    Infinity if the node has no plans that cost less than `below_ms`.
    """
    prices = np.zeros(program.num_shares)
    if program.is_empty(node):
        return float("inf"), prices
    of_loads = np.zeros(program.base.shape[0])
    objective, low, high = program.others(node)
    reduced, sizes, limit, of_limits, terms = objective.copy(), objective.copy(), 0.0, 0.0, 0
    for row in rows:
        value = max(multipliers.get(row.key, 0.0), 0.0)
        if not 0.0 < value < np.inf:
            continue
        terms += 1
        for load, times in row.loads.items():
            of_loads[load] += value * times
        for other, times in row.others.items():
            reduced[other] += value * times
            sizes[other] += abs(value * times)
        limit += value * row.limit
        of_limits += abs(value * row.limit)
    # A sum of n terms is off by at most n roundings of the sum of their sizes. No load is negative.
    rounding = EPSILON * (4 * terms + program.base.shape[0] + program.num_tables + 100)
    prices = np.asarray(program.base.T @ of_loads) * (1.0 - rounding)
    usable = program.usable(node)
    least = np.full(program.num_tables, np.inf)
    np.minimum.at(least, program.table[usable], prices[usable])
    if not np.isfinite(least).all():  # a table has no form
        return float("inf"), prices
    rest = np.minimum((reduced - rounding * sizes) * low, (reduced - rounding * sizes) * high)
    constant = program.constant_ms(node)
    total = least.sum() + rest.sum() - limit + constant
    total -= rounding * (least.sum() + np.abs(rest).sum() + of_limits + constant)
    return max(float(total) * (1.0 - ROUNDING), 0.0) if np.isfinite(total) else 0.0, prices


@dataclass
class _Solution:
    """A bound of a node with its multipliers, and the solution of its program."""

    bound_ms: float
    multipliers: dict[int, float]
    shares: FloatArray
    others: FloatArray


class Solver:
    """Solves the programs of nodes, `solved` of them so far."""

    def __init__(self, program: PlanProgram) -> None:
        self.program = program
        self.solved = 0
        self._added: list[int] = []  # keys of rows that few programs need
        self._active = (program.parts == 1.0) | (program.kind > 0)  # columns; others come as they are needed
        self._columns: Any = None
        self._binding: set[int] = set()  # keys of rows that some node needed

    def solve(self, node: Node, first: Iterable[int] = ()) -> _Solution:
        """A bound of a node, and where its program has it; the keys of rows to begin with may be given."""
        program = self.program
        usable = program.usable(node)
        nothing = _Solution(float("inf"), {}, np.zeros(program.num_shares), np.zeros(program.num_others))
        if program.is_empty(node) or not np.bincount(program.table[usable], minlength=program.num_tables).all():
            return nothing
        found, chosen = replace(nothing, bound_ms=0.0), {*program.NUMBERS, *first, *self._binding}
        for _ in range(ROUNDS):
            rows = program.rows(node, self._added)
            some = [row for row in rows if row.key in chosen]
            value, marginals, shares, others = self._program(node, some, usable)
            pairs = zip(some, marginals, strict=True)
            multipliers = {row.key: float(f"{each:.{DIGITS}g}") for row, each in pairs if each > 1e-12}
            bound, prices = lagrangian_ms(program, node, some, multipliers)
            if bound > found.bound_ms or not found.multipliers:
                found.bound_ms, found.multipliers = bound, multipliers
            found.shares, found.others = shares, others
            new = set(program.violated(node, shares, others)) - set(self._added)
            self._added += sorted(new)
            new |= self._violated(rows, chosen, shares, others)
            chosen |= new
            if found.bound_ms >= program.below_ms or (not new and value - bound <= CLOSE * abs(value)):
                break
            if not self._add_columns(usable, prices, 1e-7 * abs(value) / program.num_tables) and not new:
                break
        self._binding |= set(found.multipliers)
        return found

    def _add_columns(self, usable: NDArray[np.bool_], prices: FloatArray, tolerance: float) -> bool:
        """Whether there are usable columns that are cheaper than all of their tables; the cheapest become active."""
        table, active = self.program.table, self._active & usable
        least = np.full(self.program.num_tables, np.inf)
        np.minimum.at(least, table[active], prices[active])
        some = np.flatnonzero(usable & ~active & (prices < least[table] - tolerance))
        order = some[np.lexsort((prices[some], table[some]))]
        nth = np.arange(len(order)) - np.searchsorted(table[order], table[order])
        self._active[order[nth < NEW_COLUMNS]] = True
        return bool(some.size)

    def _violated(self, rows: list[Inequality], chosen: set[int], shares: FloatArray, others: FloatArray) -> set[int]:
        """The keys of rows, not among the chosen, that a solution violates."""
        of_loads = self.program.base @ shares
        found = set()
        for row in rows:
            if row.key not in chosen:
                value = sum(times * of_loads[load] for load, times in row.loads.items())
                value += sum(times * others[other] for other, times in row.others.items())
                if value > row.limit + 1e-6 * max(abs(row.limit), 0.1 * row.scale * self.program.below_ms):
                    found.add(row.key)
        return found

    def reach(self, node: Node, rows: Iterable[int], phase: int, sign: float) -> float:
        """About the least ms of a phase in a node, or the most for a `sign` of -1, in plans of less than `below_ms`."""
        program, keys = self.program, {*rows, *self.program.NUMBERS}
        some = [row for row in program.rows(node, self._added) if row.key in keys]
        return float(self._program(node, some, program.usable(node), (phase, sign))[3][phase])

    def _program(
        self, node: Node, rows: list[Inequality], usable: NDArray[np.bool_], aim: tuple[int, float] | None = None
    ) -> tuple[float, FloatArray, FloatArray, FloatArray]:
        """The value of the program with the active columns, multipliers, (V,) shares, and the other variables.

        With `aim`, a phase and a sign, its ms are minimised. Slack of all rows makes any program feasible.
        """
        from scipy.sparse import csr_array, hstack, vstack

        self.solved += 1
        program = self.program
        missing = np.bincount(program.table[self._active & usable], minlength=program.num_tables) == 0
        if missing.any():
            some = np.flatnonzero(usable & missing[program.table])
            self._active[some[np.unique(program.table[some], return_index=True)[1]]] = True
        columns = np.flatnonzero(self._active & usable)
        if self._columns is None or self._columns.shape[0] != program.base.shape[0]:
            self._columns = program.base.tocsc()
        numbers = [(number, load, times) for number, row in enumerate(rows) for load, times in row.loads.items()]
        at, loads, times = (np.array(each) for each in zip(*numbers, strict=True)) if numbers else ((), (), ())
        weights = csr_array((times, (at, loads)), (len(rows), program.base.shape[0]))
        others = np.zeros((len(rows), program.num_others + 1))
        for number, row in enumerate(rows):
            others[number, list(row.others)] = list(row.others.values())
            others[number, -1] = 0.0 if row.key in program.NUMBERS else -row.scale
        matrix = hstack([weights @ self._columns[:, columns], csr_array(others)], format="csr")
        limits = np.array([row.limit for row in rows])
        costs, low, high = program.others(node)
        none, count_of = np.zeros(len(columns)), len(columns)
        objective = np.concatenate([none, costs, [SLACK * program.below_ms]])
        if aim is not None:
            total, objective = np.append(objective[:-1], 0.0), np.zeros(len(objective))
            objective[count_of + aim[0]], objective[-1] = aim[1], SLACK
            matrix = vstack([matrix, csr_array(total[None])], format="csr")
            limits = np.append(limits, program.below_ms - program.constant_ms(node))
        lowest = np.concatenate([none, low, [0.0]])
        highest = np.concatenate([none + 1.0, high, [np.inf]])
        shape = program.num_tables, len(objective)
        whole = csr_array((none + 1.0, (program.table[columns], np.arange(count_of))), shape)
        ends, ones = np.stack([lowest, highest], axis=1), np.ones(program.num_tables)
        result: Any = None
        for presolve in (False, True):  # without is faster, and fails sometimes
            options = {"presolve": presolve}
            result = linprog()(objective, matrix, limits, whole, ones, ends, "highs-ds", options=options)
            if result.status == 0:
                break
        shares = np.zeros(program.num_shares)
        if result.x is None or result.ineqlin is None or result.ineqlin.marginals is None:
            return float("inf"), np.zeros(len(rows)), shares, low
        shares[columns] = result.x[:count_of]
        value = float(result.fun) + program.constant_ms(node)
        return value, -result.ineqlin.marginals[: len(rows)], shares, result.x[count_of:-1]


def best_branch(program: PlanProgram, node: Node, solution: _Solution) -> Branch | None:
    """Where to split a node: where its solution leaves out most ms; None if nothing is left to split."""
    shares, others, found = solution.shares, solution.others, []
    numbers = others[MS : MS + program.num_levels]
    ends = program.ends(node)
    open_levels = [level for level in range(program.num_levels) if node.counts.low[level] < node.counts.high[level]]
    for level in open_levels:
        low, high = node.counts.low[level], node.counts.high[level]
        for phase in (FORWARD, BACKWARD)[: 2 if program.training else 1]:
            # What its devices take, if there are as many as in the solution.
            left_out = program.phase_ms(level, phase, float(numbers[level]), shares) - float(others[phase])
            least, most = ends[phase]
            if most - least > WIDE * (high - low) / high * most:
                found.append((left_out, Branch("ms", phase, _rounded((least + most) / 2.0))))
            else:
                found.append((left_out, Branch("counts", level, (low + high) // 2)))
    for collective, state in enumerate(node.states):
        if state == OPEN:
            found.append((program.left_out_ms(collective, shares), Branch("collective", collective)))
    left_out, branch = max(found, default=(0.0, None), key=lambda each: each[0])
    if left_out > LEAST * program.below_ms:
        return branch
    mixed, table, kind = program.mixed_kinds(shares)
    if mixed > 1e-6 * program.below_ms:
        return Branch("kind", table, kind)
    if open_levels:  # the devices of a level have less to do than the solution allows, but then there may be fewer
        level = max(open_levels, key=lambda each: node.counts.high[each] - node.counts.low[each])
        return Branch("counts", level, (node.counts.low[level] + node.counts.high[level]) // 2)
    return None


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


class Search:
    """A tree of the plans of a task that grows where its bound is lowest.

    Args:
        program: of the task.
    """

    def __init__(self, program: PlanProgram) -> None:
        self.program, self.tree = program, Tree()
        self._solver, self._order = Solver(program), count()
        self._open: list[tuple[float, int, Node, Tree, _Solution]] = []
        self._put(program.root(), self.tree, 0.0, ())

    @property
    def solved(self) -> int:
        """Programs so far."""
        return self._solver.solved

    def _put(self, node: Node, tree: Tree, least_ms: float, rows: Iterable[int]) -> None:
        solution = self._solver.solve(node, rows)
        tree.bound_ms, tree.multipliers = solution.bound_ms, solution.multipliers
        if solution.bound_ms < self.program.below_ms:
            entry = max(solution.bound_ms, least_ms), next(self._order), node, tree, solution
            heapq.heappush(self._open, entry)

    def _split(self, branch: Branch) -> None:
        bound, _, node, tree, solution = heapq.heappop(self._open)
        tree.branch = branch
        for child in node.children(branch):
            tree.children.append(Tree())
            self._put(child, tree.children[-1], bound, solution.multipliers)
        tree.multipliers = {}

    def grow(self, max_programs: int) -> Tree:
        """The tree, when all plans cost `below_ms` at least, nothing is left to split, or so many programs are solved.

        First the ms of each phase that cannot be are cut off, as far as these are in the node with the lowest bound.
        """
        for phase in PHASES:
            for sign in (1.0, -1.0):
                if not self._open or self.solved >= max_programs:
                    break
                _, _, node, _, solution = self._open[0]
                least, most = self.program.ends(node)[phase]
                at = self._solver.reach(node, solution.multipliers, phase, sign) - sign * MARGIN * (most - least)
                if least + 0.1 * (most - least) < at < most - 0.1 * (most - least):
                    self._split(Branch("ms", phase, _rounded(at)))
        while self._open and self.solved < max_programs:
            _, _, node, _, solution = self._open[0]
            branch = best_branch(self.program, node, solution)
            if branch is None:
                break
            self._split(branch)
        return self.tree
