"""`shard-gym leaderboard`: entries of the leaderboards are made, verified and shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from shard_gym.checks import checked_count
from shard_gym.cli.console import FAILED, new_progress, output, sentence
from shard_gym.cli.options import OptionalPath
from shard_gym.cli.train import parse_options
from shard_gym.cost_models.measured.machine import this_machine
from shard_gym.errors import InvalidOptionError
from shard_gym.leaderboard.best import better_placements, update_best_known
from shard_gym.leaderboard.findings import Finding
from shard_gym.leaderboard.render import outdated, rendered, write_rendered
from shard_gym.leaderboard.replay import can_replay, replay
from shard_gym.leaderboard.replays import keep_replays, read_replays
from shard_gym.leaderboard.schema import ONE_SEED, SEEDS, ReplayRow
from shard_gym.leaderboard.sources import Source, from_agents, from_files
from shard_gym.leaderboard.store import LIMITS, MEASURED, TIMINGS, Place, find_entries, place_of
from shard_gym.leaderboard.submit import Declared, Timed, commit_here, submit
from shard_gym.leaderboard.timing import measured_timings
from shard_gym.leaderboard.verify import Verified, verify_all, verify_entry
from shard_gym.leaderboard.write import require_free
from shard_gym.suites import load_suite, suite_info
from shard_gym.system import cpu_model
from shard_gym.text import counted, format_seconds

ROOT = Path("leaderboards")
FOUND = 1
"""Exit code where something is wrong with the entries, or with what is made from them."""

Many = Annotated[list[str], tyro.conf.UseAppendAction]
Files = Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...", help_behavior_hint="(optional)")]
Options = Annotated[list[str], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="KEY=VALUE")]
Ids = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[TRACK/SUITE/ENTRY ...]")]


@dataclass(frozen=True)
class Submit:
    """Make an entry from an agent, or from evaluations that were written to files.

    Attributes:
        entry: where to: TRACK/SUITE/ENTRY, such as simulated/dlrm-50x4/my-agent.
        name: of the entry, as the tables show it.
        author: give it again for each further one.
        agent: name of an agent, or the folder of a training run; five folders are one for each seed.
        evaluation: files that `shard-gym evaluate --out` wrote, one for each seed, in their order.
        deterministic: the agent of the evaluation uses no chance, so there is one file.
        option: an option of the agent, such as max_queries=1000; give it again for each further one.
        licence: of the agent's code, an SPDX identifier such as MIT; leave it out if the code is not public.
        link: https address of the code or the paper.
        training_data: what the agent learnt from: SUITE/SPLIT, pool/POOL/train, pool/POOL or "other: TEXT"; folders of
            training runs say it themselves.
        training_queries: true costs asked in training; folders of training runs say it themselves.
        search_budget: placements the agent may try for one task, under whatever cost; 0 if it does not search.
        machine: what it planned on; this machine's CPU if left out.
        commit: of ShardGym, 40 hexadecimal digits; known where it runs from a checkout.
        timings: for the measured track: a file of raw timings; if left out, the placements are executed here, now.
        gpu: for the measured track: name of the GPU that the file of timings is from.
        layout: for the measured track: each (a GPU for each device) or in-turn (one for all).
        root: folder of the leaderboards.
    """

    entry: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TRACK/SUITE/ENTRY")]]
    name: str
    author: Many
    agent: Many = field(default_factory=list)
    evaluation: Files = ()
    deterministic: bool = False
    option: Options = field(default_factory=list)
    licence: str = ""
    link: str = ""
    training_data: Many = field(default_factory=list)
    training_queries: int = 0
    search_budget: int = 0
    machine: str = ""
    commit: str = ""
    timings: OptionalPath = None
    gpu: str = ""
    layout: Literal["each", "in-turn"] = "each"
    root: Path = ROOT

    def run(self) -> int:
        """Write the entry if it holds; else say why not."""
        place = place_of(self.root, self.entry)
        if bool(self.agent) == bool(self.evaluation):
            raise InvalidOptionError("Name either an agent with --agent, or files of evaluations with --evaluation.")
        if not self.author:
            raise InvalidOptionError("An entry has an author. Name one with --author NAME.")
        require_free(place)  # this and what follows before any work
        suite_info(place.suite)
        if place.track == MEASURED and self.timings is None:
            this_machine("cuda")
        commit = self.commit or commit_here()
        if not commit:
            raise InvalidOptionError("ShardGym does not run from a checkout here. Name its commit with --commit.")
        source = self._source(place)
        timed = self._timed(place, source) if place.track == MEASURED or self.timings else None
        findings = submit(place, source.evaluations, self._declared(source, commit), timed)
        if findings:
            return _refuse(findings, "The entry was not written")
        output().print(sentence(f"Written and verified: {place.folder}."), soft_wrap=True)
        output().print(sentence("\nNext: shard-gym leaderboard render", "dim"))
        return 0

    def _source(self, place: Place) -> Source:
        options = parse_options(self.option)
        if self.evaluation:
            return from_files(self.evaluation, not self.deterministic, options)
        with new_progress() as progress:
            bar = progress.add_task("placing", total=None)
            return from_agents(
                self.agent,
                place.suite,
                options,
                lambda seed: progress.update(bar, description=f"placing, seed {seed} done"),
            )

    def _declared(self, source: Source, commit: str) -> Declared:
        """What is known of the agent, and what the options say where it is not."""
        training = source.training
        return Declared(
            name=self.name,
            authors=self.author,
            licence=self.licence,
            link=self.link,
            agent=source.agent,
            uses_chance=source.uses_chance,
            machine=self.machine or cpu_model(),
            commit=commit,
            options=source.options,
            training_data=training.data if training else self.training_data,
            training_queries=training.queries if training else self.training_queries,
            search_budget=self.search_budget or source.search_budget,
        )

    def _timed(self, place: Place, source: Source) -> Timed:
        if self.timings is None:
            return self._timed_here(place, source)
        try:
            with self.timings.open("rb") as file:
                return Timed(self.gpu, self.layout, file.read(LIMITS[TIMINGS] + 1))  # verification refuses one more
        except OSError as error:
            raise InvalidOptionError(f"{self.timings} cannot be read: {error.strerror}.") from error

    def _timed_here(self, place: Place, source: Source) -> Timed:
        from shard_gym.cost_models.measured.model import MeasuredCostModel

        seeds = SEEDS if source.uses_chance else ONE_SEED
        with MeasuredCostModel("cuda", layout=self.layout) as model, new_progress() as progress:
            bar = progress.add_task("measuring", total=None)
            timings = measured_timings(
                model,
                load_suite(place.suite),
                source.evaluations,
                seeds,
                lambda done, total: progress.update(bar, completed=done, total=total),
            )
            return Timed(model.machine.device_name, self.layout, timings)


@dataclass(frozen=True)
class Verify:
    """Recompute what entries say; list what is wrong, and exit with 1 if anything is.

    Attributes:
        entries: which; or --all.
        all: verify every entry, and that nothing else stands in the folder.
        replay: let agents that come with ShardGym place so many tasks of their entries again, and compare.
        keep_times: keep how long that took, for the tables and the page; with --all.
        update_best_known: keep placements that are better than the best known ones in the suites' data.
        root: folder of the leaderboards.
    """

    entries: Ids = ()
    all: bool = False
    replay: int = 0
    keep_times: bool = False
    update_best_known: bool = False
    root: Path = ROOT

    def run(self) -> int:
        """Print what is wrong, and what is new."""
        checked_count("--replay", self.replay, 0)
        if self.all == bool(self.entries):
            raise InvalidOptionError("Name entries as TRACK/SUITE/ENTRY, or verify them all with --all.")
        if self.keep_times and not (self.all and self.replay):
            raise InvalidOptionError("--keep-times keeps what is taken with --all --replay TASKS.")
        verified, findings = self._verified()
        taken, differing = _replayed(verified, self.replay) if self.replay else ({}, [])
        if findings or differing:
            return _refuse([*findings, *differing], "The entries do not hold")
        if self.keep_times:
            output().print(sentence(f"Written: {keep_replays(self.root, taken)}.", "dim"), soft_wrap=True)
        hold = "1 entry holds" if len(verified) == 1 else f"All {len(verified)} entries hold"
        output().print(sentence(f"{hold}.", "green"))
        self._tell_better(verified)
        return 0

    def _verified(self) -> tuple[list[Verified], list[Finding]]:
        if self.all:
            with new_progress() as progress:
                bar = progress.add_task("entries", total=len(find_entries(self.root)[0]))
                verified, findings = verify_all(self.root, lambda _: progress.advance(bar))
            # Times that are about to be taken anew need not hold.
            stale = [] if self.keep_times else read_replays(self.root, verified)[1]
            return verified, findings + stale
        verified, findings = [], []
        for place in (place_of(self.root, entry) for entry in self.entries):
            holds, wrong = verify_entry(place)
            verified += [holds] if holds else []
            findings += wrong
        return verified, findings

    def _tell_better(self, verified: Sequence[Verified]) -> None:
        """What is better than the best known placements, which are kept if asked to."""
        for suite, better in better_placements(verified).items():
            entries = ", ".join(sorted({each.entry for each in better}))
            said = f"{suite}: {counted(len(better), 'task')} placed better than known, by {entries}."
            output().print(sentence(said), soft_wrap=True)
            if self.update_best_known:
                path = update_best_known(suite, better)
                output().print(sentence(f"Written to {path}.", "dim"), soft_wrap=True)
            else:
                output().print(sentence("Keep them with --update-best-known.", "dim"))


@dataclass(frozen=True)
class Render:
    """Make the tables of README.md and the page in site/ anew from the entries.

    Attributes:
        check: write nothing; the exit code is 1 if a file is not what it should be.
        root: folder of the leaderboards.
    """

    check: bool = False
    root: Path = ROOT

    def run(self) -> int:
        """Write them, or compare."""
        if not self.check:
            written = write_rendered(self.root)
            output().print(sentence(f"Written: {counted(len(written), 'file')} in {self.root}."), soft_wrap=True)
            return 0
        findings = outdated(self.root, rendered(self.root))
        if findings:
            return _refuse(findings, "The generated files are not what they should be")
        output().print(sentence("All generated files are up to date.", "green"))
        return 0


def leaderboard(
    command: Annotated[
        Annotated[Submit, tyro.conf.subcommand("submit")]
        | Annotated[Verify, tyro.conf.subcommand("verify")]
        | Annotated[Render, tyro.conf.subcommand("render")],
        tyro.conf.arg(name=""),
    ],
) -> int:
    """Submit to the leaderboards, verify entries, make their tables and page.

    leaderboards/README.md leads from a policy to an entry.
    """
    return command.run()


def _replayed(verified: Iterable[Verified], tasks: int) -> tuple[dict[str, ReplayRow], list[Finding]]:
    """Replay what can be, and say what it took beside what is declared; the times, and what differs."""
    findings: list[Finding] = []
    taken = {}
    for each in filter(can_replay, verified):
        done = replay(each, tasks)
        findings += done.findings
        times = f"{format_seconds(done.seconds)} for a task here, {format_seconds(done.declared_seconds)} declared"
        output().print(sentence(f"{each.place.id}: {counted(done.tasks, 'task')} replayed, {times}."), soft_wrap=True)
        if not done.findings:
            taken[each.place.id] = ReplayRow(
                placements=each.sha256, tasks=done.tasks, seconds=done.seconds, machine=cpu_model()
            )
    return taken, findings


def _refuse(findings: Sequence[Finding], headline: str) -> int:
    """Print every finding on a line of its own."""
    console = output()
    for finding in findings:
        console.print(sentence(str(finding)), soft_wrap=True)
    console.print(sentence(f"\n{headline}: {counted(len(findings), 'finding')}.", FAILED))
    return FOUND
