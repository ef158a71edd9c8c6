"""`shard-gym leaderboard`: make, verify and show entries of the leaderboards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Annotated

import tyro

from shard_gym.cli.console import FAILED, new_progress, say, warn
from shard_gym.cli.job_options import JobOptions
from shard_gym.cli.options import AgentOptions, OptionalInt, OptionalPath, OptionalStr, parse_options
from shard_gym.common.checks import checked_count
from shard_gym.common.errors import InvalidOptionError, MissingExtraError
from shard_gym.common.system import cpu_model, current_commit, instruction_set, usable_cpus
from shard_gym.common.text import counted, format_seconds
from shard_gym.leaderboard.check import check_all, check_changes, check_some
from shard_gym.leaderboard.entry import ReplayRow, VerifiedEntry, can_replay, near_copy_of
from shard_gym.leaderboard.evaluations import EvaluatedAgent, evaluate_agent, read_evaluations
from shard_gym.leaderboard.markdown import outdated, render_command, write_pages
from shard_gym.leaderboard.ranking import improvements, load_leaderboards, update_best_known
from shard_gym.leaderboard.replay import how_compared, read_replays, replay, write_replays
from shard_gym.leaderboard.scorer import load_scorer
from shard_gym.leaderboard.site import write_site
from shard_gym.leaderboard.store import EntryFolder, Finding, entry_folder, find_entries
from shard_gym.leaderboard.submission import EntryInfo, require_free, submit
from shard_gym.leaderboard.verify import Run, new_ids, to_replay, verify_entry
from shard_gym.tasks import suite_info, suite_names
from shard_gym.tasks.suites.info import MEASURED

ROOT = Path("leaderboards")
SITE = Path("build/leaderboard-site")
NOT_VALID = 1
"""Exit code if entries have findings, or generated tables are out of date."""

Many = Annotated[list[str], tyro.conf.UseAppendAction]
Files = Annotated[
    list[tuple[Path, ...]],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(metavar="FILE ...", help_behavior_hint="(optional)"),
]
Ids = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[TRACK/SUITE/ENTRY ...]")]


@dataclass(frozen=True)
class Submit:
    """Make an entry from an agent, or from files with its evaluations.

    Attributes:
        entry: TRACK/SUITE/ENTRY to write, such as simulated/dlrm-50x4/my-agent.
        name: of the entry, as the tables show it.
        author: repeat it for each further author.
        agent: name of an agent, or the folder of a training run; repeat it for five folders, one for each seed.
            For your own agent name files of its evaluations.
        evaluation: files from `shard-gym evaluate --agent FILE.py:NAME --out`, one for each seed, in their order.
        deterministic: the agent of --evaluation is not stochastic, so there is one file.
        option: an option of the agent, such as max_queries=1000; repeat it for each further option.
        licence: of the agent's code, an SPDX identifier such as MIT; leave it out if the code is not public.
        link: https address of the code or the paper.
        training_data: what the agent learnt from: SUITE/SPLIT, pool/POOL/train, pool/POOL or "other: TEXT"; repeat it
            for further data. Folders of training runs record it; --evaluation needs it, or --no-training.
        no_training: the agent of --evaluation learnt from no data, and no number of it was tuned on any.
        training_queries: cost-model evaluations in training; folders of training runs record them.
        search_budget: placements the agent may try for one task, under any cost model; 0 if it does not search.
        planning_queries: evaluations of the scoring cost model for one task, mean, of an agent that does not count
            them itself; 0 for those that were counted.
        machine: the machine it planned on; this machine's CPU if left out.
        instructions: what NumPy and its BLAS used there, as "NumPy AVX2, OpenBLAS Haswell"; this machine's if left out.
        commit: of ShardGym, 40 hexadecimal digits; found by itself in a checkout.
        replace: write it in place of the entry of that name.
        root: folder of the leaderboards.
    """

    entry: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TRACK/SUITE/ENTRY")]]
    name: str
    author: Many
    agent: Many = field(default_factory=list)
    evaluation: Files = field(default_factory=list)
    deterministic: bool = False
    option: AgentOptions = field(default_factory=list)
    licence: str = ""
    link: str = ""
    training_data: Many = field(default_factory=list)
    no_training: bool = False
    training_queries: int = 0
    search_budget: int = 0
    planning_queries: float = 0.0
    machine: str = ""
    instructions: str = ""
    commit: str = ""
    replace: bool = False
    root: Path = ROOT

    def run(self) -> int:
        """Write the entry if it is valid; otherwise print why not."""
        folder = entry_folder(self.root, self.entry)
        if bool(self.agent) == bool(self.evaluation):
            raise InvalidOptionError("Name either an agent with --agent, or files of evaluations with --evaluation.")
        if self.agent and self.deterministic:
            raise InvalidOptionError(
                "--deterministic is of files of --evaluation; of --agent it is known. Leave it out."
            )
        self._require_training()
        if not self.author:
            raise InvalidOptionError("An entry has an author. Name one with --author NAME.")
        require_free(folder, self.replace)  # this and the next checks come before the work
        if folder.track == MEASURED and suite_info(folder.suite).track != MEASURED:
            raise InvalidOptionError(
                f"{folder.suite!r} is not made to be measured, and no race is planned on it. Submit to a suite that "
                f"is, {' or '.join(suite_names(MEASURED))}, or in its track, {suite_info(folder.suite).track}."
            )
        commit = self.commit or current_commit()
        if not commit:
            raise InvalidOptionError("ShardGym does not run from a checkout here. Name its commit with --commit.")
        agent = self._evaluated(folder)
        where = self.machine or cpu_model(), commit, self.instructions or instruction_set()
        info = EntryInfo(self.name, self.author, self.licence, self.link, *where)
        findings = submit(folder, agent, info, self.replace)
        if findings:
            return _print_findings(findings, "The entry was not written")
        say(f"Written and verified: {folder.path}.")
        members = [each for each in find_entries(self.root)[0] if each.board == folder.board]
        board = [each for each, _ in (verify_entry(one, recompute=False) for one in members) if each is not None]
        verified = next(each for each in board if each.folder.id == folder.id)
        say(_standing(verified))
        if folder.rules.scored or verified.entry.near:
            say(_rank(verified, board))
        say(f"\nNext: {render_command(self.root)}", "dim")
        return 0

    def _require_training(self) -> None:
        """Refuse files of evaluations that say nothing of the training of their agent, or contradict themselves."""
        if self.no_training and self.training_data:
            raise InvalidOptionError("--no-training and --training-data contradict each other. Leave one of them out.")
        if self.no_training and self.agent:
            raise InvalidOptionError(
                "--no-training is of files of --evaluation; of --agent it is known. Leave it out, or, for an agent of "
                "your own, name files of its evaluations: shard-gym evaluate --agent FILE.py:NAME --out FILE."
            )
        if self.evaluation and not (self.training_data or self.no_training):
            raise InvalidOptionError(
                "Say what the agent of --evaluation learnt from: --training-data SUITE/SPLIT (also of data that "
                "numbers were tuned on), or --no-training if it learnt from nothing."
            )

    def _evaluated(self, folder: EntryFolder) -> EvaluatedAgent:
        """The agent with its evaluations; the options declare the facts that are not recorded."""
        options = parse_options(self.option)
        if self.evaluation:
            agent = read_evaluations([*chain(*self.evaluation)], not self.deterministic, options)
        else:
            with new_progress() as progress:
                bar = progress.add_task("answering", total=None)
                agent = evaluate_agent(
                    self.agent,
                    folder.suite,
                    options,
                    lambda seed: progress.update(bar, description=f"answering, seed {seed} done"),
                )
        if not agent.training_data:
            agent = replace(agent, training_data=self.training_data, training_queries=self.training_queries)
        budget = self.search_budget or agent.search_budget
        return replace(agent, search_budget=budget, planning_queries=self.planning_queries or None)


@dataclass(frozen=True)
class Verify:
    """Recompute the claims of entries; print all findings, and exit with 1 if any.

    Attributes:
        entries: which; races, too, as measured/SUITE/races/NAME. Or --all.
        all: verify every entry and every race, and that the folder holds nothing else.
        replay: let agents that ship with ShardGym answer this many tasks of their entries again, in the track
            replanning all tasks, and compare.
        keep_times: write the replayed planning times, for the tables and the page; with --all, instead of those that
            are there.
        update_best_known: write placements that are better than the best known ones to the suites' data.
        before: folder of the leaderboards before a pull request: nothing in it may be changed or removed but the
            generated tables.
        jobs: how many processes of this machine verify at the same time; with --all one for each CPU if not given.
        cluster: verify on a Ray cluster: auto (that of this machine, or a new one on it) or ray://HOST:PORT.
        root: folder of the leaderboards.
    """

    entries: Ids = ()
    all: bool = False
    replay: int = 0
    keep_times: bool = False
    update_best_known: bool = False
    before: OptionalPath = None
    jobs: OptionalInt = None
    cluster: OptionalStr = None
    root: Path = ROOT

    def run(self) -> int:
        """Print the findings, and the improvements of the best known placements."""
        checked_count("--replay", self.replay, 0)
        if self.all and self.entries:
            raise InvalidOptionError("--all is for all entries. Leave it out, or the names of entries.")
        if not self.all and not self.entries:
            raise InvalidOptionError("Name entries as TRACK/SUITE/ENTRY, or verify them all with --all.")
        if self.keep_times and not self.replay:
            raise InvalidOptionError("--keep-times needs --replay TASKS.")
        if self.replay:
            JobOptions(self.jobs or 1, self.cluster).refuse("--replay takes the times of agents, one after another.")
        verified, findings = self._verified()
        if self.before is not None:
            findings = [*check_changes(self.root, self.before), *findings]
        new = new_ids(find_entries(self.root)[0], self.before) if self.all else {each.folder.id for each in verified}
        whole = {each.folder.id for each in to_replay(verified, new)} if self.before or self.replay else set()
        replays, differences = _replayed(verified, self.replay, whole) if self.replay or whole else ({}, [])
        if findings or differences:
            return _print_findings([*findings, *differences], "The entries are not valid")
        if self.keep_times:
            kept = {} if self.all else read_replays(self.root, verified)[0]
            say(f"Written: {write_replays(self.root, {**kept, **replays})}.", "dim")
        count = len(verified)
        entries = "1 entry is valid." if count == 1 else f"All {count} entries are valid."
        say(entries if self.all else f"Valid: {', '.join(self.entries)}.", "green")
        self._print_improvements(verified)
        return 0

    def _verified(self) -> tuple[list[VerifiedEntry], list[Finding]]:
        few = usable_cpus() if self.all and self.cluster is None else 1
        where = JobOptions(few if self.jobs is None else self.jobs, self.cluster)
        if not self.all:
            return check_some(self.root, self.entries, where.run)
        with new_progress() as progress:
            bar = progress.add_task("entries", total=None)
            return check_all(
                self.root,
                where.run,
                lambda done, count: progress.update(bar, completed=done, total=count),
                before=self.before,
                old_times=not self.keep_times,
            )

    def _print_improvements(self, verified: Sequence[VerifiedEntry]) -> None:
        """Print which best known placements the entries improve, and write them if asked to."""
        for suite, better in improvements(verified).items():
            entries = ", ".join(sorted({each.entry for each in better.values()}))
            say(f"{suite}: {counted(len(better), 'task')} placed better than the best known, by {entries}.")
            if self.update_best_known:
                say(f"Written to {update_best_known(suite, better)}.", "dim")
            else:
                say("Write them with --update-best-known.", "dim")


def _on_every_cpu() -> Run:
    return JobOptions(usable_cpus()).run


@dataclass(frozen=True)
class Render:
    """Write the tables of the entries in README.md.

    Attributes:
        check: write nothing; the exit code is 1 if a table is out of date.
        root: folder of the leaderboards.
    """

    check: bool = False
    root: Path = ROOT

    def run(self) -> int:
        """Write the tables, or compare them."""
        warn("Reading all entries, which takes a minute or two ...", "dim")
        if not self.check:
            say(f"Written: {', '.join(map(str, write_pages(self.root, _on_every_cpu())))}.")
            return 0
        findings = outdated(self.root, _on_every_cpu())
        if findings:
            return _print_findings(findings, "The generated tables are out of date")
        say("The generated tables are up to date.", "green")
        return 0


@dataclass(frozen=True)
class Site:
    """Build the web page: rankings, and every placement device by device.

    Attributes:
        out: folder of the page; open its index.html.
        root: folder of the leaderboards.
    """

    out: Path = SITE
    root: Path = ROOT

    def run(self) -> int:
        """Write the files of the page."""
        written = write_site(load_leaderboards(self.root, _on_every_cpu()), self.out)
        say(f"Written: {counted(len(written), 'file')}. Open {self.out / 'index.html'}.")
        return 0


def leaderboard(command: Annotated[Submit | Verify | Render | Site, tyro.conf.arg(name="")]) -> int:
    """Submit to the leaderboards, verify entries, make the tables and the web page.

    docs/leaderboards.md describes the way from a policy to an entry.
    """
    return command.run()


def _replayed(
    verified: Iterable[VerifiedEntry], tasks: int, whole: Set[str]
) -> tuple[dict[str, ReplayRow], list[Finding]]:
    """Replay the entries that can be replayed, and print the times; returns the times and what differs.

    Args:
        verified: the entries.
        tasks: of each entry, with the seeds in turn; 0 for the `whole` ones alone.
        whole: ids of entries of which all tasks are replayed with all seeds.
    """
    findings: list[Finding] = []
    replays = {}
    for each in filter(can_replay, verified):
        if not tasks and each.folder.id not in whole:
            continue
        # Where answers may look ahead, a few that were replayed say nothing of the others.
        several = each.costs_ms.shape[1] if each.folder.rules.looks_ahead else tasks
        try:
            row, differences = replay(each, several, whole=each.folder.id in whole)
        except MissingExtraError as error:
            say(f"{each.folder.id}: not replayed. {error}", "yellow")
            continue
        findings += differences
        if row is not None:
            here, declared = format_seconds(row.seconds), format_seconds(each.entry.planning.seconds)
            times = f"{counted(row.tasks, 'task')} replayed, {here} per task here, {declared} declared."
            say(f"{each.folder.id}: {times}{'' if differences else f' {how_compared(each, row)}'}")
            replays[each.folder.id] = row
    return replays, findings


def _standing(verified: VerifiedEntry) -> str:
    """What an entry declares of its league, and what makers of the tables do with it."""
    planning, rules = verified.entry.planning, verified.folder.rules
    asked = f"{planning.queries:,.0f} evaluations of the scoring cost model for a task while it answers"
    sentences = [f"It declares {asked}{f': league {verified.league}' if verified.league else ''}."]
    if not rules.scored:
        sentences.append("A race of a maintainer measures the answers of seed 0; until then it is listed as not raced.")
    if rules.looks_ahead:
        when = (
            "until a maintainer replays it" if can_replay(verified) else "because its agent does not ship with ShardGym"
        )
        sentences.append(f"It is listed as not replayed, {when}.")
    return " ".join(sentences)


def _rank(verified: VerifiedEntry, board: Sequence[VerifiedEntry]) -> str:
    """What the answers of an entry cost, and its rank among the entries of its suite, and those of its league."""
    problem = load_scorer(verified.folder.suite).problem
    mean = f"Its mean is {problem.format_cost(float(verified.costs_ms.mean()))} {problem.unit}"
    if verified.failures:
        mean += f", with penalties for {counted(verified.failures, 'failure')}"
    if verified.entry.near:
        return (
            f"{mean}. It is listed below the ranked entries, as a {near_copy_of(verified)}: see docs/leaderboards.md."
        )
    ranked = [each for each in board if not each.entry.near]
    groups = {"the suite": ranked}
    if verified.league:
        groups[f"its league, {verified.league}"] = [each for each in ranked if each.league == verified.league]
    ranks = [
        f"rank {1 + sum(each.costs_ms.mean() < verified.costs_ms.mean() for each in group)} of {len(group)} in {name}"
        for name, group in groups.items()
    ]
    return f"{mean}: {' and '.join(ranks)}."


def _print_findings(findings: Sequence[Finding], headline: str) -> int:
    """Print every finding on a line of its own; returns the exit code."""
    for finding in findings:
        say(str(finding))
    say(f"\n{headline}: {counted(len(findings), 'finding')}.", FAILED)
    return NOT_VALID
