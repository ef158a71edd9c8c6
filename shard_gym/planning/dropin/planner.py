"""`ShardGymPlanner`, with the interface of TorchRec's `EmbeddingShardingPlanner`; importing this imports TorchRec."""

from __future__ import annotations

import logging
import re
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torchrec.distributed.planner.planners import (
    EmbeddingPlannerBase,
    to_sharding_plan,
    validate_compute_kernels,
    validate_modules_inclusion_in_sharding_plan,
    validate_rank_assignment,
)
from torchrec.distributed.planner.types import PlanDebugStats, PlannerError, PlannerErrorType
from torchrec.distributed.types import ShardingPlan as TorchRecPlan

from shard_gym.agents.search import PlanSearchAgent
from shard_gym.agents.search.restarts import restarted
from shard_gym.common.checks import checked_positive, is_integer, is_not_negative
from shard_gym.common.errors import (
    InvalidConstraintsError,
    InvalidOptionError,
    InvalidTaskError,
    MemoryExceededError,
    NoPlacementFoundError,
    ShardGymError,
    short_repr,
)
from shard_gym.common.text import format_seconds, listed
from shard_gym.cost_models import AnalyticalCostModel, with_communication_dtype
from shard_gym.interop.replicas import replicas_are_wrong
from shard_gym.planning.answers import searched_sentence
from shard_gym.planning.dropin.arguments import (
    check_callbacks,
    check_constraints,
    check_model,
    check_topology,
    checked_lookups,
    checked_ranks,
    unused_constraints,
)
from shard_gym.planning.dropin.hardware import devices_of
from shard_gym.planning.dropin.lookups import with_lookups
from shard_gym.planning.dropin.options import (
    TableOptions,
    by_table,
    communication_dtype,
    has_equal_blocks_of_rows,
    has_weights,
    kept_forms,
    least_bytes,
    outside_devices,
    probes_of,
    tables_of,
    workload_of,
)
from shard_gym.planning.dropin.problem import CostedPlan, PlanningTask
from shard_gym.planning.dropin.report import Searched, report_of
from shard_gym.planning.dropin.torchrec_calls import (
    Deadline,
    OutOfTimeError,
    PlainEnumerator,
    Reserved,
    TorchRecPlanner,
)
from shard_gym.plans.plan import DATA_PARALLEL
from shard_gym.tables import MAX_DIM, Tables

logger = logging.getLogger(__name__)

EXPONENT = 1.05
"""Of Zipf's law of the lookups, where neither `exponent` nor `lookups` is given."""

COMPARE_S = 60.0
"""Seconds for TorchRec's plan where `compare` is True."""

FALLBACK_S = 600.0
"""Seconds for TorchRec's planner where ShardGym finds no plan, and there is no `timeout_seconds`."""

MAX_SHARDS = (None, 64)
"""Column shards of a table at most, as of `PlanSearchAgent`: the second number if no plan fits with the first."""

PARTS_OF_ONE_WIDTH = (1, 2, 4)
"""Column shards of a sequence table at most, where those of a plan have several widths on a device; the last if no plan
fits with fewer."""

_OPTION = re.compile(r"`agent_options=\{'max_queries': (\d+)\}`")

_WORDS = {
    " of task 'model'": "",
    "Task 'model' needs": "The model needs",
    "Add devices or raise the caps": "Give the Topology more ranks or memory",
    "Raise memory_cap_bytes": "Give the Topology more hbm_cap or ddr_cap, or reserve less",
    "Raise the caps of the devices": "Give the Topology more hbm_cap or ddr_cap, reserve less",
}

ONLY_TORCHREC = ("proposer", "partitioner", "performance_model")
"""Arguments of `EmbeddingShardingPlanner` that only TorchRec's planner uses, where it plans something."""


class ShardGymPlanner(EmbeddingPlannerBase):  # type: ignore[misc]
    """A planner in place of TorchRec's `EmbeddingShardingPlanner`: the cheapest plan that plan-search finds.

    TorchRec's enumerator, with the constraints and the estimators of the user, says which forms each table may have and
    what these store; its storage reservation says how much memory tables may take; and its functions write the plan,
    its statistics and its errors. The search takes the place of proposers and partitioner, and ShardGym's cost model
    that of TorchRec's perf estimates. Tables that ShardGym does not model are planned by TorchRec first, and their
    memory and loads count.

    Args:
        topology, batch_size, enumerator, storage_reservation, stats, constraints, debug, callbacks, timeout_seconds:
            as those of `EmbeddingShardingPlanner`; the last limits the search, and TorchRec's where it plans.
        proposer, partitioner, performance_model: used where TorchRec plans, and for nothing else.
        plan_loader: not used.
        hardware: the name of a hardware profile, such as "h100-dgx", the folder of `shard-gym calibrate`, or a profile;
            None for that of the topology (`planning.dropin.hardware.devices_of`).
        exponent: of Zipf's law, which the lookups of all tables follow; 1.05 if None.
        lookups: recorded ones, in place of a law: `KeyedJaggedTensor`s, or paths of NPZ or Parquet files.
        ranks: by the name of a table, the ranks that may have a shard of it.
        max_queries: cost-model evaluations of each search; by default as many as `plan-search` makes.
        seed: of the first search; where the plans of seeds differ, the next ones are tried, too.
        compare: whether TorchRec's plan is found, too, within a minute, or so many seconds; the cheaper plan is then
            returned.

    Attributes:
        report: what was found for the last plan, which is also logged.
        costed: the last plan with what it costs; None where ShardGym does not cost it.
        searched: what was done for it, and TorchRec's plan.

    Raises:
        PlannerError: an argument is not valid.
    """

    def __init__(
        self,
        topology: Any = None,
        batch_size: int | None = None,
        enumerator: Any = None,
        storage_reservation: Any = None,
        proposer: Any = None,
        partitioner: Any = None,
        performance_model: Any = None,
        stats: Any = None,
        constraints: Mapping[str, Any] | None = None,
        debug: bool = True,
        callbacks: list[Any] | None = None,
        timeout_seconds: int | None = None,
        plan_loader: Any = None,
        *,
        hardware: Any = None,
        exponent: float | None = None,
        lookups: Any = None,
        ranks: Mapping[str, Iterable[int]] | None = None,
        max_queries: int | None = None,
        seed: int = 0,
        compare: bool | float = False,
    ) -> None:
        with _planner_errors():
            check_topology(topology, batch_size)
            check_constraints(constraints)
            check_callbacks(callbacks)
            if timeout_seconds is not None:
                checked_positive("`timeout_seconds`", timeout_seconds)
        super().__init__(
            topology=topology,
            batch_size=batch_size,
            enumerator=enumerator,
            storage_reservation=storage_reservation,
            stats=stats,
            constraints=constraints,
            debug=debug,
            callbacks=callbacks,
            timeout_seconds=timeout_seconds,
        )
        self._own_enumerator = enumerator
        self._of_torchrec = {"proposer": proposer, "partitioner": partitioner, "performance_model": performance_model}
        for name in (name for name in ONLY_TORCHREC if self._of_torchrec[name] is not None):
            warnings.warn(
                f"ShardGymPlanner searches by itself: `{name}` is used for what TorchRec plans, and for nothing else.",
                stacklevel=2,
            )
        if plan_loader is not None:
            warnings.warn("ShardGymPlanner makes a new plan and loads none: `plan_loader` is not used.", stacklevel=2)
        self.plan_loader = plan_loader
        with _planner_errors():
            if exponent is not None and lookups is not None:
                raise InvalidOptionError("Give `exponent` or `lookups`, not both: each says what the lookups are.")
            if exponent is not None and not is_not_negative(exponent):
                raise InvalidOptionError(f"`exponent` must be a number of at least 0, not {short_repr(exponent)}.")
            self._searches: dict[str, Any] = {"max_queries": max_queries, "max_seconds": timeout_seconds, "seed": seed}
            PlanSearchAgent(**self._searches)  # its errors
            self._compare_s = None if compare is False else COMPARE_S
            if not isinstance(compare, bool):
                self._compare_s = checked_positive("`compare`, if neither True nor False,", compare)
            self._ranks = checked_ranks(ranks)
            lookups = checked_lookups(lookups)
        self._hardware = hardware
        self._exponent, self._lookups = EXPONENT if exponent is None else float(exponent), lookups
        self._num_proposals = self._num_plans = 0
        self._best_plan: list[Any] | None = None
        self._last: tuple[Any, Any] | None = None
        self.report = ""
        self.costed: CostedPlan | None = None
        self.searched = Searched()

    def plan(self, module: Any, sharders: Any) -> TorchRecPlan:
        """The plan of the tables of a module that `sharders` shard, as an argument of `DistributedModelParallel`.

        Raises:
            PlannerError: INSUFFICIENT_STORAGE or STRICT_CONSTRAINTS, where neither ShardGym nor TorchRec finds a plan;
                INPUT_VALIDATION, where an argument does not suit the module or the topology.
            RuntimeError: the constraints leave a table no sharding type and compute kernel, as TorchRec raises it.
        """
        begin = time.perf_counter()
        with _planner_errors():
            check_model(module, sharders)
        self._last, self.costed, self.report = (module, sharders), None, ""
        self._num_proposals = self._num_plans = 0
        work = _Work(self, module, sharders)
        if not work.tables:
            return TorchRecPlan({})
        names = [each.first.name for each in work.tables]
        if unused := unused_constraints(work.constraints, names, self._topology.compute_device):
            warnings.warn(unused, stacklevel=2)
            work.notes.append(unused)
        with _planner_errors():
            best = work.best()
        if work.searched.instead:
            warnings.warn(work.notes[-1][0].upper() + work.notes[-1][1:], stacklevel=2)
        for callback in self._callbacks:
            best = callback(best)
        self._best_plan = best
        self._num_proposals, self._num_plans = work.evaluations, work.plans
        found = to_sharding_plan(best, self._topology)
        for stats in self._stats:
            stats.log(
                sharding_plan=found,
                topology=self._topology,
                batch_size=self._batch_size,
                storage_reservation=self._storage_reservation,
                num_proposals=self._num_proposals,
                num_plans=self._num_plans,
                run_time=time.perf_counter() - begin,
                best_plan=best,
                constraints=self._constraints,
                sharders=sharders,
                enumerator=work.enumerator,
                debug=self._debug,
                debug_stats=PlanDebugStats(planner_type=self.__class__.__name__, timeout_seconds=self._timeout_seconds),
            )
        self.costed, self.searched = work.costed, work.searched
        self.report = work.report(time.perf_counter() - begin)
        logger.info("%s", self.report)
        validate_modules_inclusion_in_sharding_plan(found, module, sharders)
        validate_rank_assignment(found, self._topology)
        validate_compute_kernels(best)
        return found

    def hash_planner_context_inputs(self) -> int:
        """TorchRec's hash of the inputs of the last plan."""
        self._enumerate()
        return int(super().hash_planner_context_inputs())

    def hash_planner_context_inputs_str(self) -> str:
        """The same as a text."""
        self._enumerate()
        return str(super().hash_planner_context_inputs_str())

    def _enumerate(self) -> None:
        """Let TorchRec's enumerator, which plans need not, find the options that its hash is made of."""
        if self._last is not None:
            self._enumerator.enumerate(*self._last)


@contextmanager
def _planner_errors() -> Iterator[None]:
    """Errors of ShardGym as TorchRec's, with their sentences."""
    try:
        yield
    except InvalidConstraintsError as error:
        raise PlannerError(_in_words_of_torchrec(str(error)), PlannerErrorType.STRICT_CONSTRAINTS) from error
    except (InvalidTaskError, NoPlacementFoundError, MemoryExceededError) as error:
        raise PlannerError(_in_words_of_torchrec(str(error)), PlannerErrorType.INSUFFICIENT_STORAGE) from error
    except ShardGymError as error:
        raise PlannerError(str(error), PlannerErrorType.INPUT_VALIDATION) from error


def _in_words_of_torchrec(text: str) -> str:
    """A sentence of a search, which has one task, with the names that a model and a `Topology` have."""
    for words, own in _WORDS.items():
        text = text.replace(words, own)
    return text


def _preceded(text: str, error: PlannerError | InvalidConstraintsError) -> Exception:
    """The same error with a text before its message."""
    if isinstance(error, InvalidConstraintsError):
        return InvalidConstraintsError(f"{text}{error}")
    made: Exception = PlannerError(f"{text}{error}", error.error_type)
    return made


UNEQUAL = (
    "which TorchRec cuts into blocks of rows of unequal size, as the memory of ranks is, and then computes wrong sums"
)


class _Work:
    """What is planned for one module."""

    def __init__(self, planner: ShardGymPlanner, module: Any, sharders: Any) -> None:
        self.planner, self.module, self.sharders = planner, module, sharders
        self.notes: list[str] = []
        self.unequal: dict[str, dict[str, None]] = {}  # tables that TorchRec is not offered, by sharding type
        self.evaluations = self.plans = 0
        self.costed: CostedPlan | None = None
        self.search = PlanSearchAgent(
            with_communication_dtype(AnalyticalCostModel(), communication_dtype(sharders, self.notes.append)),
            **planner._searches,
        )
        self.problem: PlanningTask | None = None
        self.searched = Searched()
        own, topology = planner._own_enumerator, planner._topology
        self.reserved = planner._storage_reservation.reserve(
            topology=topology,
            batch_size=planner._batch_size,
            module=module,
            sharders=sharders,
            constraints=planner._constraints,
        )
        self.enumerator = own if own is not None else self._plain(in_memory=True)
        self.constraints: Mapping[str, Any] = planner._constraints or {}
        found = self.enumerator.enumerate(module, sharders)
        self.tables = by_table(found, topology.world_size, topology.intra_group_size)
        self.memory = "ddr" if topology.compute_device == "cpu" else "hbm"

    def _plain(self, *, in_memory: bool) -> PlainEnumerator:
        planner = self.planner
        return PlainEnumerator(
            in_memory,
            topology=planner._topology,
            batch_size=planner._batch_size,
            constraints=planner._constraints,
        )

    def _estimate(self, options: Sequence[Any], *, perf: bool = True) -> None:
        if isinstance(self.enumerator, PlainEnumerator):
            self.enumerator.estimate(options, perf=perf)
        else:
            self.enumerator.populate_estimates(list(options))

    # What TorchRec plans

    def _left_to_torchrec(self, tables: Sequence[TableOptions]) -> list[Any]:
        """TorchRec's plan of tables that ShardGym does not plan; those that may be in the devices' memory are, if that
        can be; raises as `_planned_by_torchrec`."""
        try:
            return self._planned_by_torchrec(tables, None, in_memory=True)
        except PlannerError:
            return self._planned_by_torchrec(tables, None)

    def _planned_by_torchrec(
        self, tables: Sequence[TableOptions], deadline: Deadline | None, *, in_memory: bool = False
    ) -> list[Any]:
        """TorchRec's plan of some tables, of which it is told all options that it computes rightly.

        Args:
            in_memory: see `PlainEnumerator`.

        Raises:
            PlannerError: it finds none.
            InvalidConstraintsError: it is wrong with all options of a table.
            OutOfTimeError: the time is over.
        """
        names = {table.first.fqn for table in tables}
        if isinstance(self.enumerator, PlainEnumerator):
            enumerator = self._plain(in_memory=in_memory)
            options = [each for each in enumerator.enumerate(self.module, self.sharders) if each.fqn in names]
        else:
            enumerator, options = self.enumerator, [option for table in tables for option in table.options]
        options = self._with_equal_blocks(tables, options)
        if isinstance(enumerator, PlainEnumerator):
            enumerator.estimate(options, perf=True, deadline=deadline)
        planner = self.planner
        some = len(tables) < len(self.tables)  # TorchRec misses the others in its plan, unless nothing shards them
        torchrec = TorchRecPlanner(
            topology=planner._topology,
            batch_size=planner._batch_size,
            storage_reservation=Reserved(self.reserved) if some else planner._storage_reservation,
            constraints=planner._constraints,
            **planner._of_torchrec,
        )
        found = torchrec.planned(self.module, [] if some else self.sharders, options, enumerator, deadline)
        by_name = {option.fqn: option for option in found}
        return [by_name[table.first.fqn] for table in tables]

    def _with_equal_blocks(self, tables: Sequence[TableOptions], options: Sequence[Any]) -> list[Any]:
        """The options without blocks of rows with which TorchRec computes wrong sums."""
        of = {table.first.fqn: table for table in tables}
        right = []
        for option in options:
            table = of[option.fqn]
            if has_equal_blocks_of_rows(option, table.config):
                right.append(option)
            else:
                self.unequal.setdefault(option.sharding_type, {})[table.name] = None
        known = {each.fqn for each in right}
        if none := [table.name for fqn, table in of.items() if fqn not in known]:
            types = [kind for kind, names in self.unequal.items() if names.keys() & set(none)]
            raise InvalidConstraintsError(
                f"TorchRec has no sharding type for {listed(none)} but {listed(types)}, {UNEQUAL}. "
                "Give all ranks of the Topology the same memory, or these tables another sharding type."
            )
        return right

    def _limit_s(self) -> float:
        return FALLBACK_S if self.planner._timeout_seconds is None else float(self.planner._timeout_seconds)

    # The plan

    def best(self) -> list[Any]:
        """The option of each table, whose shards have ranks, storage and perf."""
        pins = self._pins()
        left = {table: each for table, each in enumerate(self.tables) if each.why_torchrec}
        for table, each in left.items():
            if not pins[table].all():
                raise InvalidOptionError(
                    f"`ranks` has table {each.name!r}, which TorchRec plans, as {each.why_torchrec}. Leave it out."
                )
        self._note_left(left.values())
        if len(left) == len(self.tables):
            options = self._left_to_torchrec(self.tables)
            try:
                self.problem = self._problem(pins)
                self.costed = self.problem.costed(options)
            except ShardGymError as error:  # the plan stands without it
                self.notes.append(f"ShardGym does not cost this plan: {error}")
            return options
        planned = self._planned_first(left)
        self.problem = problem = self._problem(pins)
        try:
            options = self._search(problem, planned)
        except (InvalidTaskError, NoPlacementFoundError, MemoryExceededError) as error:
            return self._instead(problem, error)
        self.costed = problem.costed(options)
        if self.planner._compare_s is not None:
            options = self._cheaper(problem, self.planner._compare_s)
        return options

    def _planned_first(self, left: Mapping[int, TableOptions]) -> dict[int, Any]:
        """TorchRec's options of the tables that it plans."""
        if not left:
            return {}
        try:
            found = self._left_to_torchrec(list(left.values()))
        except (PlannerError, InvalidConstraintsError) as error:
            names = listed([each.name for each in left.values()])
            raise _preceded(f"TorchRec plans {names} first, and finds no plan. ", error) from error
        return dict(zip(left, found, strict=True))

    def _note_left(self, left: Any) -> None:
        reasons: dict[str, list[str]] = {}
        for each in left:
            reasons.setdefault(each.why_torchrec, []).append(each.name)
        for why, names in reasons.items():
            self.notes.append(f"TorchRec plans {listed(names)}, as {why}")

    def _pins(self) -> Any:
        """(N, D) bool, which ranks may have a shard of each table."""
        count = self.planner._topology.world_size
        found = np.ones((len(self.tables), count), np.bool_)
        names = {each.name: table for table, each in enumerate(self.tables)}
        paths = {each.first.fqn: table for table, each in enumerate(self.tables)}
        for name, ranks in self.planner._ranks.items():
            group = getattr(self.constraints.get(name), "device_group", None)
            table = names.get(name, paths.get(name))
            if table is None and group not in (None, self.planner._topology.compute_device):
                raise InvalidOptionError(
                    f"`ranks` has table {name!r}, which is in no plan of this topology, as its device_group is "
                    f"{group!r}. Leave it out."
                )
            if table is None:
                raise InvalidOptionError(f"`ranks` has table {name!r}, and the model has {listed(list(names))}.")
            if not ranks:
                raise InvalidOptionError(f"`ranks` of table {name!r} must be a list of ranks, not [].")
            for rank in ranks:
                if not is_integer(rank) or not 0 <= rank < count:
                    raise InvalidOptionError(
                        f"`ranks` of table {name!r} has {short_repr(rank)}; the ranks are 0 to {count - 1}."
                    )
            found[table] = np.isin(np.arange(count), ranks)
        return found

    def _problem(self, pins: Any) -> PlanningTask:
        planner, tables = self.planner, self.tables
        caps = np.array([getattr(each.storage, self.memory) for each in self.reserved.devices], np.int64)
        topology, self.searched.hardware = devices_of(planner._topology, caps, planner._hardware)
        fused = {f"{each.module_type.__module__}.{each.module_type.__name__}": each for each in self.sharders}
        params = {name: getattr(each, "fused_params", None) or {} for name, each in fused.items()}
        batch_size = planner._batch_size * topology.num_devices
        statistics = tables_of(
            tables,
            self.constraints,
            workload_of(tables, batch_size, params, self.notes.append),
            planner._exponent,
            self.notes.append,
        )
        if planner._lookups is not None:
            features = {table: each.features for table, each in enumerate(tables) if not each.why_torchrec}
            statistics = with_lookups(statistics, features, planner._lookups)
        if weighted := [each.name for each in tables if has_weights(each)]:
            self.notes.append(f"{listed(weighted)}: gradients of the weights of lookups are in no cost")
        self.tables = tables = self._without_wrong_replicas(planner._topology.compute_device, statistics)
        probes = [probes_of(each, topology.num_devices, topology.devices_per_host) for each in tables]
        self._estimate([option for forms in probes for option in forms.values()], perf=False)
        return PlanningTask(
            tables,
            statistics,
            topology,
            least_bytes(probes, self.memory),
            np.array(
                [min(getattr(self.constraints.get(e.first.name), "min_partition", None) or 0, MAX_DIM) for e in tables]
            ),
            pins,
            self.memory,
            self.search.cost_model.model,
        )

    def _without_wrong_replicas(self, device_type: str, tables: Tables) -> list[TableOptions]:
        """The options without replicas that TorchRec reads wrongly, of tables that have other forms."""
        found = list(self.tables)
        if not replicas_are_wrong(tables, device_type):
            return found
        changed = []
        for number, table in enumerate(found):
            others = [kind for kind in table.forms if kind != DATA_PARALLEL]
            is_own = not table.first.is_pooled and not table.why_torchrec
            if is_own and others and len(others) < len(table.forms):
                found[number] = kept_forms(table, others)
                changed.append(table.name)
        if changed:
            self.notes.append(f"{listed(changed)}: not replicated, as TorchRec 1.8 reads replicas wrongly on a CPU")
        return found

    def _search(self, problem: PlanningTask, planned: Mapping[int, Any]) -> list[Any]:
        """The options of the cheapest plan that is found."""
        options = self._answer(problem, planned)
        if mixed := problem.mixed_widths(options):
            options = self._of_one_width(problem, planned, options, mixed)
        self._estimate([option for table, option in enumerate(options) if table not in planned])
        return options

    def _of_one_width(
        self, problem: PlanningTask, planned: Mapping[int, Any], options: list[Any], mixed: Sequence[str]
    ) -> list[Any]:
        """The cheapest of plans with sequence tables whole or in as few column shards as fit; `options` if all have
        column shards of several widths on a device, as these have."""
        why = "FBGEMM trains no column shards of several widths on a device"
        found: list[tuple[float, list[Any]]] = []
        for parts in PARTS_OF_ONE_WIDTH:
            if parts == PARTS_OF_ONE_WIDTH[-1] and found:
                break
            try:
                answer = self._answer(problem.with_few_parts(parts), planned)
            except (InvalidConstraintsError, InvalidTaskError, NoPlacementFoundError, MemoryExceededError):
                continue
            if not problem.mixed_widths(answer):
                found.append((problem.costed(answer).estimate.total_ms, answer))
        if not found:
            self.notes.append(f"{listed(mixed)}: no plan was found that can be trained, as {why}")
            return options
        self.notes.append(f"{listed(mixed)}: in column shards of one width, if any, as {why}")
        return min(found, key=lambda each: each[0])[1]

    def _answer(self, problem: PlanningTask, planned: Mapping[int, Any]) -> list[Any]:
        """The options of the cheapest plan of a search, without storage and perf."""
        task, search = problem.task(planned), self.search
        before = search.cost_model.queries
        agent = restarted(search)
        try:
            for most in MAX_SHARDS:
                search.max_shards = most
                try:
                    plan = agent.plan(task)
                    break
                except NoPlacementFoundError:
                    if most == MAX_SHARDS[-1]:
                        raise
        finally:
            search.max_shards = MAX_SHARDS[0]
            self.evaluations += search.cost_model.queries - before
        self.plans += len(getattr(agent, "found", [plan]))
        self.searched.sentence = _OPTION.sub(r"`max_queries=\1`", searched_sentence(agent))
        return problem.chosen(plan, planned)

    def _instead(self, problem: PlanningTask, error: ShardGymError) -> list[Any]:
        """TorchRec's plan where ShardGym found none, if it keeps to the ranks that are given."""
        text = _in_words_of_torchrec(str(error).splitlines()[0])
        try:
            options = self._planned_by_torchrec(self.tables, Deadline(self._limit_s()))
        except OutOfTimeError:
            raise NoPlacementFoundError(
                f"{text} TorchRec's planner found none either, within {format_seconds(self._limit_s())}."
            ) from error
        except (PlannerError, InvalidConstraintsError) as theirs:
            raise _preceded(f"{text}\n", theirs) from error
        for number, option in enumerate(options):
            if not problem.ranks[number, [shard.rank for shard in option.shards]].all():
                name = self.tables[number].name
                raise PlannerError(
                    f"{text} TorchRec's planner finds a plan, but with table {name!r} on other ranks than `ranks` has.",
                    PlannerErrorType.STRICT_CONSTRAINTS,
                ) from error
        self.searched.instead, self.searched.away = True, outside_devices(options)
        if not self.searched.away and not problem.fits(options):
            raise NoPlacementFoundError(
                f"{text} TorchRec's planner finds a plan, which does not fit by what ShardGym counts."
            ) from error
        host = f"; it keeps rows of {listed(self.searched.away)} outside their devices' memory"
        host *= bool(self.searched.away)
        self.notes.append(f"this is TorchRec's plan{host}, as ShardGym found none: {text}")
        self.costed = problem.costed(options)
        return options

    def _cheaper(self, problem: PlanningTask, limit_s: float) -> list[Any]:
        """The cheaper of the plan and TorchRec's, which is found within the limit."""
        assert self.costed is not None
        begin = time.perf_counter()
        try:
            theirs = problem.costed(self._planned_by_torchrec(self.tables, Deadline(limit_s)))
        except OutOfTimeError:
            self.searched.compared = f"TorchRec's planner found no plan within {format_seconds(limit_s)}."
            return list(self.costed.options)
        except PlannerError as error:
            kind = error.error_type.value.replace("_", " ")
            self.searched.compared = f"TorchRec's planner finds no plan ({kind})."
            return list(self.costed.options)
        except InvalidConstraintsError as error:
            self.searched.compared = str(error)
            return list(self.costed.options)
        except Exception as error:  # whatever it is, there is a plan
            why = str(error).splitlines()[0] if str(error) else "no message"
            self.searched.compared = f"TorchRec's planner fails, {type(error).__name__}: {why}"
            return list(self.costed.options)
        kept = outside_devices(self.costed.options)
        away = [name for name in outside_devices(theirs.options) if name not in kept]
        is_cheaper = theirs.estimate.total_ms < self.costed.estimate.total_ms
        taken = is_cheaper and not away and problem.fits(theirs.options)
        self.searched.theirs = theirs
        self.searched.compare_s = time.perf_counter() - begin
        self.searched.away = away
        self.searched.taken, self.searched.own_ms = taken, self.costed.estimate.total_ms
        if taken:
            self.costed = theirs
        return list(self.costed.options)

    def report(self, seconds: float) -> str:
        """What was found, as text."""
        notes = [
            f"{listed(list(names))}: TorchRec's planner is not offered {kind}, {UNEQUAL}"
            for kind, names in self.unequal.items()
        ]
        return report_of(self.costed, self.problem, self.searched, self.notes + notes, seconds)
