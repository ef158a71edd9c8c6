"""The problem of replanning: when to make a new plan for tables that drift, and for which period of the past."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import InvalidOptionError, InvalidPlacementError, NoPlacementFoundError, short_repr
from shard_gym.cost_models import AdditiveCostModel, CostModel, make_cost_model
from shard_gym.replanning.drift.suite import DriftSuite
from shard_gym.replanning.drift.tasks import DAYS, DriftTask
from shard_gym.replanning.env.episode_data import DECISIONS, episode_data
from shard_gym.replanning.env.episodes import PENALTY_MARGIN
from shard_gym.replanning.env.fixed_devices import read_only
from shard_gym.replanning.env.history import NO_PLAN, SECONDS, History
from shard_gym.replanning.env.play import checked_actions, history_of, play, player_of
from shard_gym.replanning.env.windows import KINDS
from shard_gym.tables import Tables
from shard_gym.tasks import Suite
from shard_gym.tasks.problems import Attempt, Problem
from shard_gym.tasks.problems.base import FAILURES
from shard_gym.tasks.problems.likeness import NEAR_EPISODES, PlansMade, plans_alike
from shard_gym.tasks.problems.placement import cost_in_turn

Sequences = NDArray[np.int64]

ACTIONS = "".join(map(str, range(1 + len(KINDS))))
"""The digits of a sequence in JSON: 0 keeps the plan, the others make one of a kind."""


class ReplanningProblem(Problem[DriftTask]):
    """Answers are (336,) int64 actions, one for each decision of an episode; JSON has a text of their digits."""

    name = "replanning"
    env_id = "EmbeddingReplanning-v0"
    noun = "sequence"
    unit = "s"
    reference = "never"
    rivals = ("never", "ski-last-day")
    goals = ()  # to play all training episodes takes minutes
    bounds_are_reached = True  # by the best sequence with hindsight, which the bounds are computed from
    headings = ("pauses, s", "migrations, s", "plans", "repairs")
    best_name = "oracle"
    notice = "All episodes are played side by side, about 2 s for each task, so all their results come at once."
    takes = "an object with act(observations), or a function of observations that returns an action for each episode"

    @override
    def format_cost(self, cost_ms: float) -> str:
        return f"{cost_ms / 1e3:,.0f}"

    @override
    def asker(self, agent: Any) -> Callable[[Any], Any]:
        """The function of observations; `attempts` says how it is called."""
        act: Callable[[Any], Any] = getattr(agent, "act", agent)
        return act

    @override
    def require_agent(self, agent: Any) -> None:
        super().require_agent(agent)
        for name, value in (("begin", 1), ("act", {})):
            try:
                if callable(method := getattr(agent, name, None)):
                    inspect.signature(method).bind(value)
            except (TypeError, ValueError) as error:
                takes = "the number of episodes" if name == "begin" else "observations"
                raise InvalidOptionError(f"The agent's {name} does not take {takes} alone.") from error

    @override
    def attempts(self, agent: Any, tasks: Suite[DriftTask], model: CostModel) -> Iterator[Attempt]:
        """The episodes of all tasks, played side by side; each takes the same share of the agent's time.

        An error of the agent fails them all.
        """
        assert isinstance(model, AdditiveCostModel)
        assert isinstance(tasks, DriftSuite)
        try:
            played = play(player_of(agent), tasks, model)
        except FAILURES as failure:
            yield from [Attempt(None, 0.0, 0, failure)] * len(tasks)
            return
        for each in played:
            error = NoPlacementFoundError(each.failure) if each.failure else None
            yield Attempt(None if error else each.actions, each.planning_s, 0, error)

    @override
    def checked(self, returned: Any, task: DriftTask) -> Sequences:
        wanted = f"A sequence for task {task.name!r} must be {DECISIONS} integers, an action for each decision"
        given = checked_actions(returned, 1 + len(KINDS), wanted)
        if given.shape != (DECISIONS,):
            raise InvalidPlacementError(f"{wanted}, not an array of shape {given.shape}.")
        return given

    @override
    def to_json(self, answer: Sequences) -> str:
        return "".join(map(str, answer.tolist()))

    @override
    def from_json(self, value: Any, task: DriftTask) -> Sequences:
        if not isinstance(value, str) or len(value) != DECISIONS:
            found = f"{len(value):,} characters" if isinstance(value, str) else short_repr(value)
            raise InvalidPlacementError(
                f"The sequence of task {task.name!r} must be a text of {DECISIONS} characters, a digit for each "
                f"decision; it is {found}."
            )
        for decision, digit in enumerate(value):
            if digit not in ACTIONS:
                raise InvalidPlacementError(
                    f"Decision {decision} of task {task.name!r} is {digit!r}, but must be a digit from {ACTIONS[0]} to "
                    f"{ACTIONS[-1]}."
                )
        return np.array([int(digit) for digit in value])

    @override
    def model(self, cost_model: CostModel | str) -> CostModel:
        """One object for each name, so that histories are computed once."""
        return (
            _named_model(cost_model)
            if isinstance(cost_model, str)
            else make_cost_model(cost_model, additive=True, splits=True)
        )

    @override
    def cost_ms(self, answer: Sequences, task: DriftTask, model: CostModel) -> float:
        """The time of the whole episode: iterations, pauses and migrations."""
        return float(_history(task, answer, model).seconds.sum()) * 1e3

    @override
    def costs_ms(self, answers: Sequence[Sequences], task: DriftTask, model: AdditiveCostModel) -> FloatArray:
        return np.array([self.cost_ms(answer, task, model) for answer in answers])

    @override
    def penalty_ms(self, task: DriftTask, model: CostModel) -> float:
        """1.1 times the most that an episode can take."""
        assert isinstance(model, AdditiveCostModel)
        hour_s = episode_data(task, model).highest_hour_seconds + task.pause_s
        return PENALTY_MARGIN * DECISIONS * hour_s * 1e3

    @override
    def lower_bound_ms(self, task: DriftTask, model: AdditiveCostModel) -> float:
        """0: bounds are computed from all plans, which takes seconds, and are shipped with the suites."""
        return 0.0

    @override
    def probe_ms(self, task: DriftTask, model: AdditiveCostModel) -> tuple[float, float]:
        """Those of an iteration before the tables drift."""
        return float(model.penalty_ms(task.task.tables, task.topology)), cost_in_turn(task.task, model)

    @override
    def tables_of(self, task: DriftTask) -> Tables:
        return task.task.tables

    @override
    def canonical(self, answer: Sequences, task: DriftTask) -> bytes | None:
        """The plans that were made; None where it is no other than those that had to be: who does nothing is alike."""
        history = _history(task, answer, self.model("analytical"))
        return history.kinds.tobytes() if (history.kinds >= 0).sum() > history.repairs.sum() else None

    @override
    def traits(self, answer: Sequences, task: DriftTask) -> PlansMade:
        """What the actions do: many do the same where a plan has to be made."""
        history = _history(task, answer, self.model("analytical"))
        kinds, repairs = history.kinds, history.repairs
        most = np.bincount(kinds[repairs]).argmax() if repairs.any() else NO_PLAN
        own_kind = np.flatnonzero(repairs & (kinds != most)).tolist()
        return PlansMade(
            tuple(np.flatnonzero((kinds != NO_PLAN) & ~repairs).tolist()),
            frozenset((hour, int(kinds[hour])) for hour in own_kind),
            float(history.seconds.sum()),
        )

    @override
    def likeness(self, own: Sequence[Any], others: Sequence[Any], task: DriftTask, model: CostModel) -> FloatArray:
        return np.array([[plans_alike(one, other) for other in others] for one in own])

    @override
    def near_from(self, task: DriftTask) -> float:
        return NEAR_EPISODES

    @override
    def facts(self, answer: Sequences, task: DriftTask, model: CostModel) -> dict[str, float]:
        """Seconds of pauses and migrations, plans, and those of them that had to be made."""
        history = _history(task, answer, model)
        _, paused, moved = history.seconds.sum(axis=0).tolist()
        assert SECONDS[1:] == ("paused_s", "moved_s")
        counts = float((history.kinds >= 0).sum()), float(history.repairs.sum())
        return dict(zip(self.headings, (paused, moved, *counts), strict=True))

    @override
    def conditions(self, task: DriftTask) -> str:
        return f"An episode has {DAYS} days; a plan takes a pause of {task.pause_s:g} s."


def _history(task: DriftTask, actions: Sequences, model: CostModel) -> History:
    assert isinstance(model, AdditiveCostModel)
    return _kept_history(task, actions.tobytes(), model)


@lru_cache(maxsize=16)
def _named_model(name: str) -> CostModel:
    return make_cost_model(name, additive=True, splits=True)


@lru_cache(maxsize=4096)
def _kept_history(task: DriftTask, actions: bytes, model: AdditiveCostModel) -> History:
    history = history_of(task, np.frombuffer(actions, np.int64), model)
    for array in history:
        read_only(array)
    return history
