"""What an entry says: the form of its three files, and of the times that were taken by replaying.

Unknown keys, other types, NaN and doubled keys are refused. Needs pydantic (extra `leaderboard`).
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

from shard_gym.errors import DamagedFileError, missing_extra, short_repr
from shard_gym.io.files import parse_json
from shard_gym.leaderboard.findings import Finding
from shard_gym.leaderboard.store import ENTRY, PLACEMENTS, REPLAYED, TIMINGS, Place

if sys.version_info >= (3, 11):
    import tomllib
else:
    try:
        import tomli as tomllib
    except ImportError as error:
        raise missing_extra("tomli", "leaderboard", "Reading entries of the leaderboards") from error

try:
    from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
except ImportError as error:
    raise missing_extra("pydantic", "leaderboard", "Reading entries of the leaderboards") from error

SCHEMA = 1
"""Of all three files; raised when their form changes."""

SEEDS = (0, 1, 2, 3, 4)
"""Of an agent that uses chance. They are fixed, so that nobody chooses the five best of many."""

ONE_SEED = (0,)
"""Of an agent that does not."""

MIN_ITERATIONS = 10
"""Timed iterations behind every measured placement."""

MAX_INT = 2**53
"""Integers beyond it are not the same everywhere."""


def _printable(text: str) -> str:
    """Text that shows what it is: no control or invisible characters, no blanks around it, one form of each letter."""
    if text != text.strip() or not text.isprintable():
        raise ValueError("it must be printable text on one line, without blanks around it")
    if unicodedata.normalize("NFC", text) != text:
        raise ValueError("it must be in Unicode's form NFC")
    return text


def _plain_name(text: str) -> str:
    """A name of Latin letters, digits and ASCII: letters of other scripts look like these, and some cannot be seen."""
    for character in text:
        latin = character.isalpha() and unicodedata.name(character, "").startswith("LATIN ")
        if not (character.isascii() or latin):
            raise ValueError("it must be made of Latin letters, digits and other ASCII, so that no two look alike")
    return text


def _without_layout(gpu: str) -> str:
    """A GPU's name says nothing of how it was measured; `layout` does."""
    if "in turn" in gpu.lower().replace("-", " "):
        raise ValueError("it must not say how the GPU was measured")
    return gpu


def _link(text: str) -> str:
    """A web page, or nothing."""
    if text and (not text.startswith("https://") or any(c in "<>\"'`()[]{}|\\^ " for c in text) or not text.isascii()):
        raise ValueError("it must be an https:// address in ASCII without quotes, brackets or blanks, or empty")
    return text


def _unique(values: list[str]) -> list[str]:
    if len(set(values)) != len(values):
        raise ValueError("nothing may stand in it twice")
    return values


Line = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(_printable)]
Name = Annotated[Line, AfterValidator(_plain_name)]
Link = Annotated[str, Field(max_length=300), AfterValidator(_link)]
Gpu = Annotated[
    str, Field(max_length=60, pattern=r"^[A-Za-z0-9]+([ -][A-Za-z0-9]+)*$"), AfterValidator(_without_layout)
]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=MAX_INT)]
Amount = Annotated[float, Field(ge=0, le=float(MAX_INT))]
Option = bool | int | float | Line


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class AgentPart(_Strict):
    """`[agent]`: its name, whether another seed may lead to another placement, whether it learnt from data, options."""

    name: Line
    uses_chance: bool
    learns: bool
    options: Annotated[dict[Line, Option], Field(max_length=40)] = {}


class MadeWithPart(_Strict):
    """`[made_with]`: the ShardGym that made it."""

    shard_gym: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+){1,3}[0-9a-z.+-]{0,40}$")]
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]


class SuitePart(_Strict):
    """`[suite]`: whose test tasks it places."""

    name: Line
    sha256: Digest


class CostModelPart(_Strict):
    """`[cost_model]`: what scores it; see `hashes.cost_model_sha256`."""

    name: Line
    sha256: Digest


class TrainingPart(_Strict):
    """`[training]`: what it learnt from (see `overlap`), and how often it asked the true cost meanwhile."""

    data: Annotated[list[Line], Field(max_length=40), AfterValidator(_unique)]
    queries: Count


class PlanningPart(_Strict):
    """`[planning]`: for one task: true costs asked (mean), placements it may try at most, seconds (median)."""

    queries: Amount
    search_budget: Count
    seconds: Amount


class HardwarePart(_Strict):
    """`[hardware]`: what it planned on; in the measured track also what was measured, and how."""

    machine: Line
    gpu: Gpu | None = None
    layout: Literal["each", "in-turn"] | None = None


class ScoresPart(_Strict):
    """`[scores]`: what the entry claims; verification holds it against the placements."""

    mean_cost_ms: Annotated[float, Field(gt=0, le=float(MAX_INT))]
    failures: Count


class Entry(_Strict):
    """`entry.toml`."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    name: Name
    authors: Annotated[list[Line], Field(min_length=1, max_length=50), AfterValidator(_unique)]
    link: Link
    licence: Annotated[str, Field(pattern=r"^[A-Za-z0-9.+ ()-]{0,60}$")]
    track: Literal["simulated", "measured"]
    seeds: Annotated[list[Count], Field(min_length=1, max_length=100)]
    agent: AgentPart
    made_with: MadeWithPart
    suite: SuitePart
    cost_model: CostModelPart
    training: TrainingPart
    planning: PlanningPart
    hardware: HardwarePart
    scores: ScoresPart

    @model_validator(mode="after")
    def _consistent(self) -> Entry:
        measured = self.track == "measured"
        if measured != (self.hardware.gpu is not None) or measured != (self.hardware.layout is not None):
            raise ValueError("hardware.gpu and hardware.layout belong into the measured track, both, and nowhere else")
        if self.agent.learns != bool(self.training.data):
            raise ValueError(
                "agent.learns and training.data differ: an agent that learns declares what from, any other nothing"
            )
        if not self.agent.learns and self.training.queries:
            raise ValueError("training.queries must be 0 of an agent that does not learn")
        if "seed" in self.agent.options:
            raise ValueError("agent.options must not hold 'seed'; the seeds are fixed")
        return self


class PlacementRow(_Strict):
    """One of `placements.json`: T device numbers, or null where the agent found nothing.

    Of each row one mistake is told: a million wrong numbers would take long to list.
    """

    task: str
    seed: Count
    placement: Annotated[list[Annotated[int, Field(ge=-MAX_INT, le=MAX_INT)]], Field(fail_fast=True)] | None


Ms = Annotated[float, Field(ge=0, le=1e9)]
Phases = Annotated[list[Ms], Field(min_length=4, max_length=4, fail_fast=True)]
Devices = Annotated[list[Phases], Field(fail_fast=True)]


class TimingRow(_Strict):
    """One of `timings.json`: for each iteration and device the ms of the four phases; null where nothing was placed."""

    task: str
    seed: Count
    phases_ms: Annotated[list[Devices], Field(max_length=1000, fail_fast=True)] | None


Row = TypeVar("Row", PlacementRow, TimingRow)


class Table(_Strict, Generic[Row]):
    """A file of rows."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    rows: list[Row]


class ReplayRow(_Strict):
    """One of `replayed.json`: how long the agent of an entry took for the median task, when it was run again.

    `placements` is the SHA-256 of the `placements.json` that it was compared with.
    """

    placements: Digest
    tasks: Annotated[int, Field(ge=1, le=MAX_INT)]
    seconds: Annotated[float, Field(gt=0, le=float(MAX_INT))]
    machine: Line


class ReplayTable(_Strict):
    """`replayed.json`: rows by the names of the entries."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    entries: dict[str, ReplayRow]


def parse_entry(data: bytes, place: Place) -> tuple[Entry | None, list[Finding]]:
    """`entry.toml` from its bytes, or what is wrong with it."""
    file = place.named(ENTRY)
    try:
        record = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        return None, [Finding(file, f"It is not readable TOML: {error}.")]
    return _validated(Entry, record, file)


def parse_placements(data: bytes, place: Place) -> tuple[list[PlacementRow] | None, list[Finding]]:
    """The rows of `placements.json`, or what is wrong with it."""
    return _rows(Table[PlacementRow], data, place.named(PLACEMENTS))


def parse_timings(data: bytes, place: Place) -> tuple[list[TimingRow] | None, list[Finding]]:
    """The rows of `timings.json`, or what is wrong with it."""
    return _rows(Table[TimingRow], data, place.named(TIMINGS))


def parse_replays(data: bytes) -> tuple[ReplayTable | None, list[Finding]]:
    """`replayed.json` from its bytes, or what is wrong with it."""
    return _from_json(ReplayTable, data, REPLAYED)


def _rows(kind: type[Table[Row]], data: bytes, file: str) -> tuple[list[Row] | None, list[Finding]]:
    table, findings = _from_json(kind, data, file)
    return None if table is None else table.rows, findings


Model = TypeVar("Model", bound=BaseModel)


def _from_json(kind: type[Model], data: bytes, file: str) -> tuple[Model | None, list[Finding]]:
    try:
        record = parse_json(data, file)
    except DamagedFileError as error:
        return None, [Finding(file, str(error).removeprefix(f"{file} ").replace("is not", "It is not", 1))]
    return _validated(kind, record, file)


def _validated(kind: type[Model], record: Any, file: str) -> tuple[Model | None, list[Finding]]:
    if not isinstance(record, dict):
        return None, [Finding(file, f"It must be an object, not {short_repr(record)}.")]
    said = record.get("schema")
    if isinstance(said, int) and not isinstance(said, bool) and said > SCHEMA:
        return None, [
            Finding(file, f"It is of schema {short_repr(said)}, but this version reads {SCHEMA}; update shard-gym.")
        ]
    try:
        return kind.model_validate(record), []
    except ValidationError as error:
        return None, [_finding(each, record, file) for each in error.errors(include_url=False)]


def _finding(error: Any, record: Any, file: str) -> Finding:
    """What pydantic says, as a sentence, and with the task and the seed of the row it is about."""
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
    elif not location:
        reason = f"{error['msg'].removeprefix('Value error, ')}."
    else:
        said = error["msg"].removeprefix("Value error, ")
        reason = f"{key} is refused: {said[0].lower()}{said[1:]}; it is {short_repr(error['input'])}."
    return Finding(file, reason, task, seed)
