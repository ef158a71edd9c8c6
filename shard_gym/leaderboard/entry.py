"""An entry: its files as they are parsed, and the entry without findings that verification makes of them.

Unknown keys, other types, NaN and duplicate keys are refused. Needs pydantic (extra `leaderboard`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Generic, Literal, TypeVar

from shard_gym.agents import AGENTS
from shard_gym.agents.registry.options import placing_options
from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import DamagedFileError, missing_extra, short_repr
from shard_gym.common.io.parsing import parse_json, parse_toml, require_schema
from shard_gym.leaderboard.leagues import league_of
from shard_gym.leaderboard.names import INVISIBLE, author_name, plain_name
from shard_gym.leaderboard.scorer import AnswerGrid, canonical, load_scorer
from shard_gym.leaderboard.store import ENTRY, FRESH, REPLAYED, TRACKS, EntryFolder, Finding
from shard_gym.leaderboard.training_data import recorded_training

try:
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
    from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
except ImportError as error:
    raise missing_extra(error.name or "pydantic", "leaderboard", "Reading entries of the leaderboards") from error

SCHEMA = 1
"""Version of all files; raised when their form changes."""

SEEDS = (0, 1, 2, 3, 4)
"""The seeds of a stochastic agent. They are fixed, so that nobody submits the best five of many."""

ONE_SEED = (0,)
"""The seed of a deterministic agent."""

MAX_INT = 2**53
"""Larger integers are not represented exactly by every JSON reader."""

UNSAID = "NumPy AVX2, OpenBLAS Haswell"
"""What entries and replays that do not say it were made with: those of before they did (`system.instruction_set`)."""

MAX_REPLAYED = 1_000_000
"""The largest search budget of an agent that ships with ShardGym: minutes for each task that a maintainer replays."""

MAX_ROWS = 2_000
"""The most rows of a file of answers: five seeds of 400 tasks."""

MAX_CONTAINERS = 5_000
"""The most lists and objects in a file of an entry, or with the times of all entries."""

MAX_SHARDS = 1_000_000
"""The same in `plans.json`, where every shard is a list."""

_LINK = re.compile(
    r"https://(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?(?::[0-9]{1,5})?"
    r"(?:[/?#][a-z0-9._~:/?#@!$&*+,;=%-]*)?",
    re.IGNORECASE,
)
"""A host with a domain, and a path without the characters that end a link in Markdown or HTML."""


def _printable(text: str) -> str:
    """Printable text on one line: no control or invisible characters, no blanks around it, one form of each letter."""
    if text != text.strip() or not text.isprintable() or any(character in INVISIBLE for character in text):
        raise ValueError("it must be printable text on one line, without blanks around it")
    if unicodedata.normalize("NFC", text) != text:
        raise ValueError("it must be in Unicode's form NFC")
    return text


def _link(text: str) -> str:
    """An https address, or nothing."""
    if text and not _LINK.fullmatch(text):
        raise ValueError(
            "it must be an https:// address in ASCII with a host such as example.org, without quotes, brackets, blanks "
            "or line breaks, or empty"
        )
    return text


def _licence(text: str) -> str:
    """A licence expression of SPDX, or nothing."""
    if not text:
        return text
    try:
        canonical = canonicalize_license_expression(text)
    except InvalidLicenseExpression as error:
        raise ValueError("it must be an SPDX licence expression such as MIT or Apache-2.0, or empty") from error
    if canonical != text:
        raise ValueError(f"it must be written {canonical!r}, as SPDX does")
    return text


def _unique(values: list[str]) -> list[str]:
    if len(set(values)) != len(values):
        raise ValueError("it must not hold the same value twice")
    return values


def _track(name: str) -> str:
    if name not in TRACKS:
        raise ValueError(f"it must be one of {', '.join(TRACKS)}")
    return name


Line = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(_printable)]
Name = Annotated[Line, AfterValidator(plain_name)]
Authors = Annotated[
    list[Annotated[Line, AfterValidator(author_name)]], Field(min_length=1, max_length=50), AfterValidator(_unique)
]
Licence = Annotated[str, Field(pattern=r"^[A-Za-z0-9.+ ()-]{0,60}$"), AfterValidator(_licence)]
Link = Annotated[str, Field(max_length=300), AfterValidator(_link)]
TrainingData = Annotated[list[Line], Field(max_length=40), AfterValidator(_unique)]
Sources = Annotated[
    list[Annotated[str, Field(pattern=r"^(best known|[a-z]+/[a-z0-9-]{1,64}/[a-z0-9-]{1,64})$")]],
    Field(max_length=40),
    AfterValidator(_unique),
]
Task = Annotated[str, Field(pattern=r"^[A-Za-z0-9/._-]{1,120}$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=MAX_INT)]
Amount = Annotated[float, Field(ge=0, le=float(MAX_INT))]
Schema = Annotated[int, Field(ge=SCHEMA, le=SCHEMA, alias="schema")]
"""Not a `Literal`, which 1.0 and true equal."""


def _no_integer(value: object) -> object:
    """A float that is none takes an integer, also one that is too large for `Option`."""
    if isinstance(value, int):
        raise ValueError("is too large")
    return value


Number = Annotated[int, Field(ge=-MAX_INT, le=MAX_INT)] | Annotated[float, BeforeValidator(_no_integer)]
Option = bool | Number | Line


class Strict(BaseModel):
    """A part of a file: no unknown keys, no other types, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class AgentPart(Strict):
    """`[agent]`: its name, whether its answers depend on the seed, whether it learnt from data, its options."""

    name: Name
    stochastic: bool
    learns: bool
    options: Annotated[dict[Line, Option], Field(max_length=40)] = {}


class MadeWithPart(Strict):
    """`[made_with]`: the version and commit of ShardGym that made the entry."""

    shard_gym: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+){1,3}[0-9a-z.+-]{0,40}$")]
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]


class MadeForPart(Strict):
    """`[suite]`, whose test tasks it answers, or `[cost_model]`, which scores it (see `Scorer.cost_model_sha256`)."""

    name: Line
    sha256: Digest


class TrainingPart(Strict):
    """`[training]`: the data it learnt from (see `training_data`), and its cost-model evaluations in training.

    `seconds` is the time of its longest training, on its own machine; older entries do not say it.
    """

    data: TrainingData
    queries: Count
    seconds: Amount | None = None


class PlanningPart(Strict):
    """`[planning]`: of one task: cost-model evaluations (mean), limit of answers it tries, seconds (median).

    `league` follows from the first two; an entry that names a later one is in that.
    """

    league: Literal["zero-query", "guided", "search"] | None = None
    queries: Amount
    search_budget: Count
    seconds: Amount


class HardwarePart(Strict):
    """`[hardware]`: the machine it planned on, and the instructions it computed with (`system.instruction_set`)."""

    machine: Line
    instructions: Line = UNSAID


class ScoresPart(Strict):
    """`[scores]`: the scores it claims; verification compares them with the answers."""

    mean_cost_ms: Annotated[float, Field(gt=0, le=float(MAX_INT))]
    failures: Count


class Entry(Strict):
    """`entry.toml`; without `cost_model` and `scores` in the measured track, where races score.

    `near` is what a near copy names as its sources: ids of entries, or "best known" (see `copies`).
    """

    schema_: Schema
    name: Name
    authors: Authors
    link: Link
    licence: Licence
    track: Annotated[str, AfterValidator(_track)]
    seeds: Annotated[list[Count], Field(min_length=1, max_length=100)]
    near: Sources = []
    agent: AgentPart
    made_with: MadeWithPart
    suite: MadeForPart
    cost_model: MadeForPart | None = None
    training: TrainingPart
    planning: PlanningPart
    hardware: HardwarePart
    scores: ScoresPart | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Entry:
        scored = TRACKS[self.track].scored
        if scored != (self.cost_model is not None) or scored != (self.scores is not None):
            raise ValueError(
                "[cost_model] and [scores] are refused in the measured track, where races score, and required in others"
            )
        if self.agent.learns != bool(self.training.data):
            raise ValueError(
                "agent.learns and training.data differ: an agent that learns declares its data, any other agent none"
            )
        if not self.agent.learns and self.training.queries:
            raise ValueError("training.queries must be 0 for an agent that does not learn")
        if not self.agent.learns and self.training.seconds is not None:
            raise ValueError("training.seconds must be left out for an agent that does not learn")
        if "seed" in self.agent.options:
            raise ValueError("agent.options must not hold 'seed'; the seeds are fixed")
        return self


class Row(Strict):
    """A row of a file of answers: the answer of a task under its problem's noun, or null where the agent found none."""

    task: Task
    seed: Count
    answer: Any


class PlacementRow(Row):
    """A row of `placements.json`: T device numbers.

    Validation reports one mistake of a row: a million wrong numbers would take long to list.
    """

    answer: Annotated[list[Annotated[int, Field(ge=-MAX_INT, le=MAX_INT)]], Field(fail_fast=True)] | None = Field(
        alias="placement"
    )


class PlanRow(Row):
    """A row of `plans.json`: T pairs of a sharding type and shards (see `shardings_to_json`); of a plan with groups an
    object of them and the groups.
    """

    answer: list[Any] | dict[str, Any] | None = Field(alias="plan")


class SequenceRow(Row):
    """A row of `sequences.json`: a digit for each decision, and the cost and the facts that it claims (see `Track`)."""

    answer: str | None = Field(alias="sequence")
    cost_ms: Amount | None = None
    facts: Annotated[dict[Line, Amount], Field(max_length=20)] = {}


RowT = TypeVar("RowT", bound=Row)


class Table(Strict, Generic[RowT]):
    """A file of answers."""

    schema_: Schema
    rows: list[RowT]


class ReplayRow(Strict):
    """An entry's row of `replayed.json`: the median planning time of a task when the agent was replayed.

    `placements` is the SHA-256 of the file of answers that the replay was compared with. `deviation` is the largest
    share by which a cost differed: more than rounding only where the `instructions` are not the entry's.
    """

    placements: Digest
    tasks: Annotated[int, Field(ge=1, le=MAX_INT)]
    seconds: Annotated[float, Field(gt=0, le=float(MAX_INT))]
    machine: Line
    instructions: Line = UNSAID
    deviation: Amount = 0.0


class ReplayTable(Strict):
    """`replayed.json`: rows by the ids of the entries."""

    schema_: Schema
    entries: dict[str, ReplayRow]


Cost = Annotated[float, Field(gt=0, le=1e12)]


class FreshTasks(Strict):
    """The fresh tasks of a suite in `fresh.json`: the seeds, the SHA-256 of each drawing, and the best known costs."""

    seeds: list[Annotated[int, Field(ge=0, le=999_999_999)]]
    sha256: list[Digest]
    best_ms: list[Cost]


class FreshEntry(Strict):
    """What the agent of an entry, trained with its first seed, costs on test and on fresh tasks, in ms.

    `answers` is the SHA-256 of the file of answers of the entry; null is the cost of a task without an answer.
    """

    answers: Digest
    test_ms: list[Cost | None]
    fresh_ms: list[Cost | None]


class FreshTable(Strict):
    """`fresh.json`: fresh tasks by the names of the suites, and costs by the ids of the entries."""

    schema_: Schema
    suites: dict[str, FreshTasks]
    entries: dict[str, FreshEntry]


MODELS: dict[str, type[BaseModel]] = {
    ENTRY: Entry,
    "placements.json": Table[PlacementRow],
    "plans.json": Table[PlanRow],
    "sequences.json": Table[SequenceRow],
    REPLAYED: ReplayTable,
    FRESH: FreshTable,
}
"""The model of each file, by its name."""


def parse(data: bytes, file: str) -> tuple[Any, list[Finding]]:
    """The content of a file as an instance of its model; or None, and everything wrong with it.

    Args:
        data: the content.
        file: the file as findings name it; its name is the last part.
    """
    name = file.rpartition("/")[2]
    try:
        most = MAX_SHARDS if name == "plans.json" else MAX_CONTAINERS
        record = parse_toml(data, "It") if name == ENTRY else parse_json(data, "It", most)
        record = require_schema(record, SCHEMA, "It")
        rows = record.get("rows")
        if isinstance(rows, list) and len(rows) > MAX_ROWS:
            raise DamagedFileError(f"It has {len(rows):,} rows; the limit is {MAX_ROWS:,}.")
    except DamagedFileError as error:
        return None, [Finding(file, str(error))]
    try:
        return MODELS[name].model_validate(record), []
    except ValidationError as error:
        return None, [_finding(each, record, file) for each in error.errors(include_url=False)]


def _finding(error: Any, record: Any, file: str) -> Finding:
    """An error of pydantic as a sentence, with the task and the seed of its row."""
    location: Sequence[int | str] = error["loc"]
    task, seed = "", None
    if len(location) > 1 and location[0] == "rows" and isinstance(record["rows"][location[1]], dict):
        row = record["rows"][location[1]]
        task = row["task"] if isinstance(row.get("task"), str) and len(row["task"]) <= 120 else ""
        seed = row["seed"] if type(row.get("seed")) is int and 0 <= row["seed"] <= MAX_INT else None
    key = ".".join(map(str, location))
    if error["type"] == "extra_forbidden":
        reason = f"The key {short_repr(key)} is not known."
    elif error["type"] == "missing":
        reason = f"The key {short_repr(key)} is missing."
    else:
        message = error["msg"].removeprefix("Value error, ")
        reason = f"{message}."
        if location:
            reason = f"{key} is refused: {message[0].lower()}{message[1:]}; it is {short_repr(error['input'])}."
    return Finding(file, reason, task, seed)


MACHINE_DEPENDENT = "max_seconds"
"""An option of searches with which a seed gives other answers on another machine."""


@dataclass(frozen=True, eq=False)
class VerifiedEntry:
    """An entry without findings.

    Attributes:
        folder: where it is.
        entry: the content of `entry.toml`.
        answers: by seed and task, all checked.
        costs_ms: (S, N) float64, ms of each seed and task by the cost model, in all tracks; the penalty where there is
            no answer.
        sha256: of the file of answers.
        facts: further numbers that tables show, by heading: (S, N) float64, NaN where there is no answer.
    """

    folder: EntryFolder
    entry: Entry
    answers: AnswerGrid
    costs_ms: FloatArray
    sha256: str
    facts: Mapping[str, FloatArray] = field(default_factory=dict)

    @property
    def failures(self) -> int:
        """Number of seeds and tasks without an answer."""
        return count_failures(self.answers)

    @property
    def league(self) -> str | None:
        """The declared league, or that of its queries and its search budget; None in tracks without leagues."""
        if not self.folder.rules.leagues:
            return None
        planning = self.entry.planning
        return planning.league or league_of(
            planning.queries, planning.search_budget, load_scorer(self.folder.suite).suite
        )

    @cached_property
    def cells(self) -> list[list[bytes]]:
        """For each task the answers of all seeds in canonical form, but those that say nothing about who copied."""
        by_seed = canonical(self.answers, load_scorer(self.folder.suite))
        return [[each for each in answers if each] for answers in zip(*by_seed, strict=True)]

    @cached_property
    def traits(self) -> list[list[Any]]:
        """By seed and task what is compared to find near copies; None where there is no answer."""
        scorer = load_scorer(self.folder.suite)
        traits = scorer.problem.traits
        return [
            [None if each is None else traits(each, task) for each, task in zip(row, scorer.suite, strict=True)]
            for row in self.answers
        ]


def can_replay(verified: VerifiedEntry) -> bool:
    """Whether the agent ships with ShardGym, trained as the entry declares, and its seed decides its answers."""
    agent, training = verified.entry.agent, verified.entry.training
    if not verified.folder.rules.scored or agent.name not in AGENTS or MACHINE_DEPENDENT in agent.options:
        return False
    recorded = recorded_training(agent.name, verified.folder.suite, agent.options)
    if recorded and not set(agent.options) <= {option.name for option in placing_options(agent.name)}:
        return False  # options of a training: it is another one
    shipped = (list(recorded.data), recorded.queries) if recorded else ([], 0)
    return (training.data, training.queries) == shipped


def is_stochastic(agent: str) -> bool:
    """Whether the answers of an agent depend on the seed; of one that is none of ShardGym's, True."""
    return AGENTS[agent].stochastic if agent in AGENTS else True


def count_failures(answers: AnswerGrid) -> int:
    """Number of seeds and tasks without an answer."""
    return sum(answer is None for row in answers for answer in row)


def near_copy_of(verified: VerifiedEntry) -> str:
    """That an entry is a near copy, and of what."""
    return f"near copy of {', '.join(each.rpartition('/')[2] for each in verified.entry.near)}"
