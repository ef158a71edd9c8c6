"""`what_if`: a model planned on several hardware with several numbers of devices, and which of these setups is fastest
and cheapest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack, override

from shard_gym.agents import Agent
from shard_gym.common.checks import checked_count, checked_positive, is_iterable
from shard_gym.common.errors import (
    InvalidConstraintsError,
    InvalidOptionError,
    InvalidPlanError,
    InvalidTopologyError,
    NoPlacementFoundError,
    ShardGymError,
    short_repr,
    wrong_kind,
)
from shard_gym.common.report import Cell, Grid, Note, Notes, Printout, Tell
from shard_gym.common.text import counted, format_bytes, format_gib, format_ms, listed
from shard_gym.hardware import MAX_DEVICES, HardwareProfile, Topology, hardware_profile
from shard_gym.planning.answers import BY_BUDGET, searched_sentence
from shard_gym.planning.misfit import devices_that_hold, missing_bytes
from shard_gym.planning.planned import PlannedModel, plan
from shard_gym.planning.reading import ModelOptions, model_on_devices, read_tables, require_options
from shard_gym.planning.trust import evidence_sentence
from shard_gym.tasks import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLES = 1e9
"""Samples of which device-hours and prices are said."""

MAX_PRICE = 1e12  # of a device for an hour, in any currency

MS_OF_HOUR = 3.6e6

OF_TABLES = ("lookups", "batch_size", "pooling_factors", "embedding_dim", "weight_dtype", "optimizer")
"""The `ModelOptions` that say which tables there are; they are read once for all setups."""

UNSUITABLE = (InvalidConstraintsError, InvalidOptionError, InvalidPlanError, InvalidTopologyError)
"""Errors of options that do not suit a setup; those that suit none are raised."""

Price = float | Mapping[str, float]
"""Of a device for an hour, in any currency: one number, or one for each hardware by its name."""


@dataclass(frozen=True, eq=False)
class Setup:
    """A number of devices of one hardware, and the plan for it if there is one."""

    hardware: str  #: the name of the profile, or the folder of a calibration
    num_devices: int
    samples: int  #: of an iteration, on all devices together
    price: float | None  #: of a device for an hour; None if nobody said it
    planned: PlannedModel | None  #: None if the tables do not fit, or the options do not suit it
    why_not: str = ""  #: why there is no plan, sentences
    missing_bytes: int = 0  #: how many bytes all devices together lack at least, where there is no plan
    enough: int | None = None  #: a number of these devices that is known to hold the tables, where bytes are missing

    @property
    def label(self) -> str:
        """The setup in a sentence: 8 x a100-dgx."""
        return f"{self.num_devices} x {self.hardware}"

    @property
    def cost_ms(self) -> float | None:
        """Ms of the embedding part of an iteration; None without a plan."""
        return None if self.planned is None else self.planned.cost_ms

    @property
    def device_hours(self) -> float | None:
        """Hours that all devices together take for the embedding part of `SAMPLES`; None without a plan."""
        ms = self.cost_ms
        return None if ms is None else ms * self.num_devices / MS_OF_HOUR * SAMPLES / self.samples

    @property
    def price_of_samples(self) -> float | None:
        """What these hours cost; None without a plan or a price."""
        hours = self.device_hours
        return None if hours is None or self.price is None else hours * self.price

    @cached_property
    def fullest(self) -> tuple[int, int, int] | None:
        """The device whose HBM is fullest, bytes of tables and buffers there, and bytes that they may take."""
        if self.planned is None:
            return None
        used, caps = self.planned.memory.total - self.planned.memory.host, self.planned.room
        device = int((used / caps).argmax())
        return device, int(used[device]), int(caps[device])

    @property
    def percent_full(self) -> float | None:
        """How much of what they may take there tables and buffers take, percent; None without a plan."""
        return None if self.fullest is None else 100 * self.fullest[1] / self.fullest[2]

    @property
    def host_bytes(self) -> int:
        """Bytes of rows in host memory."""
        return 0 if self.planned is None else int(self.planned.memory.host.sum())

    def to_json(self) -> dict[str, Any]:
        """The setup as a JSON value: its numbers, and its plan as `PlannedModel.to_json` has it."""
        found: dict[str, Any] = {
            "hardware": self.hardware,
            "num_devices": self.num_devices,
            "fits": self.planned is not None,
        }
        if self.price is not None:
            found["price_of_device_hour"] = self.price
        if self.planned is None or self.fullest is None:
            lacks = {"missing_bytes": self.missing_bytes, "devices_that_hold": self.enough}
            return found | {"why_not": self.why_not, **lacks}
        device, used, cap = self.fullest
        found |= {
            "cost_ms": self.cost_ms,
            "device_hours_of_1e9_samples": self.device_hours,
            **({} if self.price is None else {"price_of_1e9_samples": self.price_of_samples}),
            "fullest_device": {"device": device, "bytes": used, "cap_bytes": cap},
            "bytes_in_host": self.host_bytes,
        }
        return found | {"planned": self.planned.to_json()}


@dataclass(frozen=True, eq=False)
class Setups:
    """A model on several setups; `str` is what `shard-gym place` prints of several hardware."""

    name: str  #: of the model
    setups: tuple[Setup, ...]  #: each hardware with each number of devices, in the order that they were given
    notes: tuple[Note, ...]  #: what holds for all of them, and the warnings of each

    @property
    def fitting(self) -> list[Setup]:
        """Those with a plan."""
        return [each for each in self.setups if each.planned is not None]

    @property
    def fastest(self) -> Setup | None:
        """The one whose plan takes the fewest ms; of equal ones that with fewer devices. None if none fits."""
        return min(self.fitting, key=lambda each: (each.cost_ms, each.num_devices), default=None)

    @property
    def cheapest(self) -> Setup | None:
        """The one whose samples have the lowest price; without prices, that with the fewest device-hours."""
        return min(self.fitting, key=_worth, default=None)

    @property
    def priced(self) -> bool:
        """Whether prices are given."""
        return any(each.price is not None for each in self.setups)

    def report(self) -> Printout:
        """What `shard-gym place` prints of several hardware or numbers of devices."""
        report, first = Printout(), self.setups[0]
        report.heading(
            f"{self.name} on {counted(len(self.setups), 'setup')}, the embedding part alone,\n"
            f"{first.samples:,} samples an iteration on all devices\n"
        )
        report.add(self._table())
        report.line(
            "cost: of an iteration; of 1e9: of so many samples; fullest: tables and buffers of the fullest device, of "
            "what they may take of its HBM",
            "dim",
        )
        report.add(self._report_of_best(), self._report_of_budgets(), self._report_of_misfits())
        report.add(self._report_of_evidence())
        return report

    def _table(self) -> Grid:
        away, table = any(each.host_bytes for each in self.setups), Grid()
        table.column("\nhardware", overflow="fold", min_width=11)
        for header in ("\ndevices", "cost\nms", "fullest\nGiB", *["in hosts\nGiB"] * away, "device-h\nof 1e9"):
            table.column(header, right=True, no_wrap=True)
        if self.priced:
            table.column("price\nof 1e9", right=True, no_wrap=True)
        table.column(min_width=8)
        for each in self.setups:
            table.row(each.hardware, str(each.num_devices), *self._cells(each, away=away), self._remark(each))
        return table

    def _cells(self, setup: Setup, *, away: bool) -> list[str | Cell]:
        if setup.fullest is None or setup.cost_ms is None or setup.device_hours is None:
            return ["-"] * (3 + away + self.priced)
        _, used, cap = setup.fullest
        price = setup.price_of_samples
        return [
            format_ms(setup.cost_ms),
            f"{format_gib(used)}/{format_gib(cap)}",
            *[format_gib(setup.host_bytes)] * away,
            format_ms(setup.device_hours),
            *["-" if price is None else format_ms(price)] * self.priced,
        ]

    def _remark(self, setup: Setup) -> Cell:
        """Why it does not fit, or that it is one of the best."""
        if setup.planned is None:
            lacks = setup.missing_bytes
            return Cell(f"{format_bytes(lacks)} missing" if lacks else "no plan", "failed")
        best = [name for name, one in (("fastest", self.fastest), ("cheapest", self.cheapest)) if one is setup]
        return Cell(", ".join(best), "bold")

    def _report_of_best(self) -> Printout:
        report, fastest, cheapest = Printout(), self.fastest, self.cheapest
        if fastest is None or cheapest is None:
            report.line("\nNone of these fits.", "failed")
            return report
        report.line(f"\nFastest that fits: {fastest.label}, {format_ms(fastest.cost_ms or 0.0)} ms.", "bold")
        slower = (cheapest.cost_ms or 0.0) / (fastest.cost_ms or 1.0)
        beside = "" if cheapest is fastest else f"; it takes {slower:.2f} times as long as the fastest"
        how_much = f"{format_ms(_worth(cheapest))} for 1e9 samples"
        text = f"Cheapest that fits: {cheapest.label}, {how_much}{beside}."
        if not self.priced:
            hours = how_much.replace(" for", " device-hours for")
            text = f"Fewest device-hours: {cheapest.label}, {hours}{beside}. `price` says what a device-hour costs."
        report.line(text, "bold")
        return report

    def _report_of_budgets(self) -> Printout:
        """Which plans a longer search may make cheaper."""
        report, said = Printout(), dict[str, list[str]]()
        for each in self.fitting:
            if each.planned is not None:
                _, ended, longer = searched_sentence(each.planned.answer.agent).partition(f"{BY_BUDGET}; ")
                if ended:
                    said.setdefault(longer, []).append(each.label)
        for longer, labels in said.items():
            report.line(f"\nOf {listed(labels)} {BY_BUDGET}; {longer}")
        return report

    def _largest(self, setups: Sequence[Setup]) -> list[Setup]:
        """Of each hardware among `setups`, in the order that it was given, the one with most devices."""
        by_size = {each.hardware: each for each in sorted(setups, key=lambda each: each.num_devices)}
        return [by_size[name] for name in dict.fromkeys(each.hardware for each in self.setups) if name in by_size]

    def _report_of_misfits(self) -> Printout:
        """Why there is no plan, of each hardware for the most devices: what lacks memory, and other reasons.

        What lacks memory is told in full of the first hardware, and of the others how many devices would hold the
        tables.
        """
        report, without = Printout(), [each for each in self.setups if each.planned is None]
        lacking, labels = self._largest([each for each in without if each.missing_bytes]), dict[str, list[str]]()
        others = self._largest([each for each in without if not each.missing_bytes])
        for each in (*lacking[:1], *others):
            labels.setdefault(each.why_not, []).append(each.label)
        for why_not, own in labels.items():
            report.line(f"\n{', '.join(own)}: {why_not}")
        if len(lacking) > 1:
            enough = ", ".join(f"{each.enough:,} x {each.hardware}" for each in lacking[1:] if each.enough is not None)
            none = ", ".join(each.hardware for each in lacking[1:] if each.enough is None)
            holds = [f"{enough} would hold them"] * bool(enough) + [f"no number of {none} is known that would"] * bool(
                none
            )
            report.line(f"\nOf the others, {'; '.join(holds)}.")
        return report

    def _report_of_evidence(self) -> Printout:
        """How far the costs of each hardware may be off, by the setup with most devices that has a plan."""
        report, largest = Printout(), self._largest(self.fitting)
        said = dict.fromkeys(
            evidence_sentence(
                found.explanation.task.topology, found.explanation.cost_model, found.model.tables.workload
            )
            for found in (each.planned for each in largest)
            if found is not None
        )
        for sentence in said:
            report.line(f"\n{sentence}", "dim")
        if len(largest) > 1:
            report.line("\nSuch errors may turn the order of hardware whose costs are close.", "dim")
        return report

    def to_json(self) -> dict[str, Any]:
        """The setups as a JSON value, and the numbers of the fastest and of the cheapest among them; null if none
        fits."""
        best = {"fastest": self.fastest, "cheapest": self.cheapest}
        return {
            "samples": self.setups[0].samples,
            **{name: None if each is None else self.setups.index(each) for name, each in best.items()},
            "setups": [each.to_json() for each in self.setups],
        }

    def figure(self) -> Figure:
        """Cost, memory, and device-hours or prices over the number of devices, a line for each hardware.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        from shard_gym.planning.setups_figure import draw  # needs matplotlib

        panels: dict[str, Callable[[Setup], float | None]] = {
            "cost, ms": lambda each: each.cost_ms,
            "memory of the fullest device, %": lambda each: each.percent_full,
            "price of 1e9 samples" if self.priced else "device-hours of 1e9 samples": lambda each: (
                each.price_of_samples if self.priced else each.device_hours
            ),
        }
        names = list(dict.fromkeys(each.hardware for each in self.setups))
        return draw(
            {
                label: {
                    name: [(each.num_devices, value(each)) for each in self.setups if each.hardware == name]
                    for name in names
                }
                for label, value in panels.items()
            }
        )

    @override
    def __str__(self) -> str:
        return str(self.report())

    @override
    def __repr__(self) -> str:
        return f"Setups({self.name!r}, {counted(len(self.fitting), 'plan')} for {counted(len(self.setups), 'setup')})"


def _worth(setup: Setup) -> float:
    """The price of the samples of a setup with a plan, or its device-hours."""
    price, hours = setup.price_of_samples, setup.device_hours
    assert hours is not None
    return hours if price is None else price


def what_if(
    model_or_tables: Any,
    hardware: str | Path | HardwareProfile | Sequence[str | Path | HardwareProfile],
    num_devices: int | Sequence[int],
    *,
    price: Price | None = None,
    agent: str | Path | Agent | None = None,
    whole: bool = False,
    agent_options: Mapping[str, Any] | None = None,
    seed: int = 0,
    replicas: bool | None = None,
    balance: bool = True,
    on_note: Tell | None = None,
    on_setup: Callable[[Setup], None] | None = None,
    **options: Unpack[ModelOptions],
) -> Setups:
    """Plan the tables of a model on each hardware with each number of devices: what `shard-gym place` computes for
    several of them.

    The batch stays the same, that of all devices together. Each plan is that of `plan` with the same arguments, and
    where there is none, the others are made.

    Args:
        model_or_tables: as of `plan`, but for tasks, which have devices of their own.
        hardware: names of hardware profiles, folders of calibrations, or profiles; one, or several.
        num_devices: how many devices; one number, or several.
        price: of a device for an hour, in any currency: one number, or one for each hardware by its name.
        on_note: is called with each note at the end; all are among the `notes` of the result.
        on_setup: is called with each setup when its plan is made.
        agent, whole, agent_options, seed, replicas, balance, options: see `plan`. Memory caps of single devices are
            refused.

    Raises:
        InvalidOptionError, InvalidTopologyError, InvalidConstraintsError, InvalidTablesError: an argument is
            impossible, or options suit none of the setups.
        UnknownNameError: there is no such pool, hardware, agent or cost model.
        DamagedFileError: a file cannot be read.
        MissingExtraError: a package that an agent or a file needs is not installed.
    """
    require_options(what_if, options)
    if isinstance(model_or_tables, Task):
        raise InvalidOptionError("A task has devices of its own; give its tables (`task.tables`).")
    caps: Any = options.get("memory_cap_gib")
    if is_iterable(caps) and len(list(caps)) > 1:
        raise InvalidOptionError(
            "`memory_cap_gib` has one number for each device, and the setups have different devices. Give one number "
            "for all, or `reserve`."
        )
    profiles, counts = _profiles(hardware), _counts(num_devices)
    prices, notes = _prices(price, profiles), Notes(on_note)
    of_tables: dict[str, Any] = {name: value for name, value in options.items() if name in OF_TABLES}
    others: dict[str, Any] = {name: value for name, value in options.items() if name not in OF_TABLES}
    tables = read_tables(model_or_tables, notes, **of_tables)
    setups: list[Setup] = []
    errors: list[ShardGymError | None] = []
    for name, profile in profiles.items():
        for count in counts:
            error, planned, missing, enough = None, None, 0, None
            try:
                own = model_on_devices(tables, profile, count, Notes(), **others)
                missing = missing_bytes(own.tables, own.topology)
                enough = devices_that_hold(own.tables, own.topology) if missing else None
                planned = plan(
                    *(tables, profile, count),
                    agent=agent,
                    whole=whole,
                    agent_options=agent_options,
                    seed=seed,
                    replicas=replicas,
                    balance=balance,
                    **others,
                )
            except (NoPlacementFoundError, *UNSUITABLE) as failure:
                error = failure
            errors.append(error)
            why = "" if error is None else str(error)
            samples = tables.tables.workload.batch_size
            setups.append(Setup(name, count, samples, prices.get(name), planned, why, missing, enough))
            if on_setup is not None:
                on_setup(setups[-1])
    wrong = [each for each in errors if isinstance(each, UNSUITABLE)]
    if len(wrong) == len(setups):
        raise wrong[0]
    notes.all(_notes(setups))
    return Setups(tables.name, tuple(setups), tuple(notes.told))


def _notes(setups: Sequence[Setup]) -> list[Note]:
    """What is said of every plan, once, and the warnings of single ones. Each plan has all of its own."""
    planned = [(each.label, each.planned.warnings) for each in setups if each.planned is not None]
    texts = [{note.text for note in notes} for _, notes in planned]
    of_all = set.intersection(*texts) if texts else set()
    once = {note.text: note for _, notes in planned for note in notes if note.text in of_all}
    own = [
        Note(f"{label}: {note.text}")
        for label, notes in planned
        for note in notes
        if note.is_warning and note.text not in of_all
    ]
    return [*once.values(), *own]


def _listed(given: Any) -> list[Any]:
    """One of something as a list of one."""
    return list(given) if is_iterable(given) and not isinstance(given, (str, Path, Mapping)) else [given]


def _profiles(hardware: Any) -> dict[str, HardwareProfile]:
    """The hardware profiles by the names that they were given as."""
    found = {}
    for each in _listed(hardware):
        if isinstance(each, Topology):
            raise InvalidOptionError(
                "`hardware` is a Topology, which has a number of devices; give hardware profiles, or their names."
            )
        profile = each if isinstance(each, HardwareProfile) else hardware_profile(each)
        found[profile.name if isinstance(each, HardwareProfile) else str(each)] = profile
    if not found:
        raise InvalidOptionError("`hardware` is empty; name at least one hardware profile.")
    return found


def _counts(num_devices: Any) -> list[int]:
    found = [checked_count("`num_devices`", each, 1, MAX_DEVICES) for each in _listed(num_devices)]
    if not found:
        raise InvalidOptionError("`num_devices` is empty; give at least one number.")
    return list(dict.fromkeys(found))


def _prices(price: Any, profiles: Iterable[str]) -> dict[str, float]:
    """The price of each hardware; empty if none is given."""
    names = list(profiles)
    if price is None:
        return {}
    if not isinstance(price, Mapping):
        if isinstance(price, str) or is_iterable(price):
            raise wrong_kind("`price`", price, "a number, or a mapping of numbers by hardware")
        return dict.fromkeys(names, _checked_price("`price`", price))
    for name in price:
        if name not in names:
            raise InvalidOptionError(
                f"`price` has a number for {short_repr(name)}, which is not planned; planned: {', '.join(names)}."
            )
    lacking = [name for name in names if name not in price]
    if lacking:
        raise InvalidOptionError(
            f"`price` has no number for {', '.join(lacking)}; give one for each hardware, or one number for all."
        )
    return {name: _checked_price(f"`price` of {short_repr(name)}", price[name]) for name in names}


def _checked_price(what: str, price: Any) -> float:
    number = checked_positive(what, price)
    if number > MAX_PRICE:
        raise InvalidOptionError(f"{what} must be at most {MAX_PRICE:g} for a device and an hour, not {number:g}.")
    return number
