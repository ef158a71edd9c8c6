"""Makes the entries of ShardGym's own agents, and the tables of them: `make leaderboard`.

    leaderboards/<track>/<suite>/<entry>/       the entries; valid ones are kept
    leaderboards/replayed.json, README.md, and the README of the repository
    runs/trainings/                             trained agents; none is trained twice

Agents that need no training have an entry on every suite. Learned agents are trained five times, once for each seed,
on the training tasks of the suite they are ranked on. They have entries on the core suites; those of
Stable-Baselines3, which train for minutes on small tasks and for hours on large ones, on two small suites.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import tyro
from training_runs import RUNS, Option, Run, train_all

from shard_gym.agents.base.presets import preset_options
from shard_gym.agents.dreamshard import PRESETS
from shard_gym.agents.dreamshard.pretrained import QUERIES
from shard_gym.agents.training.jobs import Files, files_of, write_files
from shard_gym.cli.console import new_progress
from shard_gym.cli.job_options import JobOptions
from shard_gym.cli.leaderboard import Render, Verify
from shard_gym.common.errors import unknown_name
from shard_gym.common.system import cpu_model, current_commit, instruction_set, usable_cpus
from shard_gym.leaderboard.entry import SEEDS
from shard_gym.leaderboard.evaluations import EvaluatedAgent, evaluate_agent
from shard_gym.leaderboard.store import EntryFolder
from shard_gym.leaderboard.submission import EntryInfo, submit
from shard_gym.leaderboard.verify import verify_entry
from shard_gym.tasks import suite_info, suite_names
from shard_gym.tasks.suites.info import CORE_SUITES, REPLANNING, SHARDING, SIMULATED

ROOT = Path(__file__).parent.parent
LEADERBOARDS = ROOT / "leaderboards"
AUTHORS = ("The ShardGym authors",)
REPLAYED_TASKS = 5

SMALL = ("dlrm-20x4", "mixdim-4")  # suites with entries of the agents that train slowly
BOTH = (SIMULATED, SHARDING)  # the tracks of placements and plans that the cost model scores
DRIFTING = ("drift-strong-600", "spot-600")  # suites of replanning with entries

SPLIT = ("shard-4", "shard-8")
"""Suites of the track of plans with entries of learned agents that split tables; of slow ones on the first."""

TUNED = (*SPLIT, "shard-generalize", "shard-mlperf-x8", "shard-merlin-small-x16", "shard-merlin-medium-x32")
"""Suites with entries of TorchRec's tuned planner; on larger tasks it takes minutes."""

TIERED_PLACEMENT = ("tier-4", "tier-8")
TIERED = tuple(name for name in suite_names() if name.startswith("tier-"))  # suites with host memory
SEQUENCES, GROUPS, SERVED = ("sequence-16", "sequence-128"), ("groups-256",), ("inference-8",)
GENERATIVE = ("shard-kuairand-x8", "inference-dlrm-v3-x8")  # whole models of sequences, without training tasks
CONSTRAINED = ("constrained-8", "shard-constrained-8")
MANY_DEVICES = ("shard-128", "shard-512")  # on which TorchRec's planner takes minutes for a task

LONG_TO_LEARN = (*GROUPS, SEQUENCES[1], *MANY_DEVICES)
LEARNED = tuple(
    name for name in suite_names(SHARDING) if suite_info(name).tasks.get("train") and name not in LONG_TO_LEARN
)
"""Suites of plans with entries of DreamShard trained on their tasks; its trainings on more devices are long."""

PLANNED_BY_TORCHREC = tuple(
    name
    for name in suite_names(SHARDING)
    if name not in (*TIERED, SEQUENCES[1], *GROUPS, *SERVED, *CONSTRAINED, *MANY_DEVICES)
)
"""Suites with entries of TorchRec's planner as it ships; with host memory it is the one that scales up caches."""

KNOWN_TO_ALL = tuple(name for name in suite_names(SHARDING) if name not in (*CONSTRAINED, MANY_DEVICES[1]))
"""Suites with entries of HugeCTR's planner, which knows no constraints; on 512 devices its plans have too many shards
for an entry."""

ONE_ANSWER = (SEQUENCES[1], *GROUPS, *GENERATIVE, MANY_DEVICES[1])
IN_BALANCE = tuple(name for track in BOTH for name in suite_names(track) if name not in ONE_ANSWER)
"""Suites with entries of local search; on the others no move of a whole table or two helps, so seeds change nothing."""

WITHIN = tuple(name for track in BOTH for name in suite_names(track) if name not in (*GENERATIVE, MANY_DEVICES[1]))
"""Suites with entries of DreamShard as it ships; the others have smaller batches or more devices than it learned."""

MIXED = ("mixdim-4", "mixdim-8", "generalize", *SPLIT)  # suites whose training tasks one attention policy learns from


STEPWISE: dict[str, tuple[str, ...]] = {
    "tier-generalize": ("tier-8", *(name for name in TIERED if name.startswith("tier-merlin"))),
    SEQUENCES[0]: SEQUENCES[1:],
    SERVED[0]: GENERATIVE[1:],
    **dict.fromkeys(("shard-4", "shard-8", CONSTRAINED[0], "mixdim-8"), ()),
}
STEPWISE["shard-generalize"] = tuple(
    name
    for name in suite_names(SHARDING)
    if name not in ("shard-generalize", MANY_DEVICES[1], *STEPWISE, *chain(*STEPWISE.values()))
)
"""Suites whose training tasks a `stepwise` agent learns from, and others that it plans, too.

Those are larger, or like them, or have no training tasks. On `shard-512` a plan takes minutes.
"""


@dataclass(frozen=True)
class Entrant:
    """An agent with an entry on some suites."""

    slug: str  # name of its folders; for an agent that is not trained here, the agent's name
    name: str  # shown in the tables
    learner: str = ""  # name of the learner that trains it; empty if it is not trained
    suites: tuple[str, ...] | None = None  # where it has entries; None for every suite of its tracks
    tracks: tuple[str, ...] = (SIMULATED,)
    options: Mapping[str, Option] = field(default_factory=dict)  # of the learner
    placing: Mapping[str, Option] = field(default_factory=dict)  # options that the trained agent is loaded with
    trained_on: str = ""  # the suite whose training tasks it learns from; empty for that of the entry

    def runs(self, suite: str) -> tuple[Run, ...]:
        """The trainings behind the entry on `suite`, one for each seed; none if it is not trained."""
        options, source = tuple(sorted(self.options.items())), self.trained_on or suite
        return tuple(Run(self.learner, source, seed, options) for seed in SEEDS) if self.learner else ()


def dreamshard(preset: str, **changes: Option) -> dict[str, Option]:
    """All options of DreamShard with `preset` and `changes`, so a preset that changes makes another training."""
    return {"preset": preset, **asdict(preset_options(PRESETS, preset, **changes))}


ALSO = {"also": ",".join(MIXED[1:])}
SEARCH = "dream-search"

ENTRANTS = (
    Entrant("random", "Random", tracks=BOTH),
    Entrant("size-greedy", "Greedy by size"),
    Entrant("dim-greedy", "Greedy by dim"),
    Entrant("lookup-greedy", "Greedy by lookups", tracks=BOTH),
    Entrant("size-lookup-greedy", "Greedy by size and lookups"),
    Entrant("lane-greedy", "Greedy by lanes", tracks=BOTH),
    Entrant("cost-greedy", "Greedy by cost", tracks=BOTH),
    Entrant("local-search", "Local search", suites=IN_BALANCE, tracks=BOTH),
    Entrant("moldable", "Moldable tables", tracks=BOTH),
    Entrant("dreamshard", "DreamShard (dream-search), as it ships", suites=WITHIN, tracks=BOTH),
    Entrant("plan-search", "Local search over plans", tracks=(SHARDING,)),
    Entrant("hugectr", "HugeCTR's planner", suites=KNOWN_TO_ALL, tracks=(SHARDING,)),
    Entrant("torchrec", "TorchRec's planner", suites=PLANNED_BY_TORCHREC, tracks=(SHARDING,)),
    Entrant(
        "blind-search", "Local search, blind to host memory", suites=(*TIERED, *SERVED, GENERATIVE[1]), tracks=BOTH
    ),
    Entrant("recshard", "RecShard", suites=TIERED_PLACEMENT),
    Entrant(
        "torchrec-offload",
        "TorchRec's planner, scaling up caches",
        suites=(*TIERED, *SERVED, GENERATIVE[1]),
        tracks=(SHARDING,),
    ),
    Entrant("torchrec-tuned", "TorchRec's planner, tuned", suites=TUNED, tracks=(SHARDING,)),
    Entrant("never", "Never", suites=DRIFTING[:1], tracks=(REPLANNING,)),
    Entrant("ski-last-day", "Ski-rental, last day", suites=DRIFTING, tracks=(REPLANNING,)),
    Entrant("ridge", "Ridge forecast", suites=DRIFTING, tracks=(REPLANNING,)),
    *(
        Entrant(
            "dreamshard-search", "DreamShard (dream-search)", "dreamshard", suites, BOTH, dreamshard(SEARCH), placing
        )
        for suites, placing in (
            (CORE_SUITES, {}),
            (TIERED_PLACEMENT, {}),
            (LEARNED, {"queries": QUERIES}),  # as many as the one that ships
        )
    ),
    Entrant("dreamshard-paper", "DreamShard (paper)", "dreamshard", CORE_SUITES, options=dreamshard("paper")),
    Entrant("rnn", "RNN policy", "rnn", CORE_SUITES),
    Entrant("surco-zero", "SurCo (zero)", "surco", MIXED[:1], options={"preset": "zero", "measurements": 20}),
    Entrant("autoshard", "AutoShard (cost)", "autoshard", MIXED[:2], options={"preset": "cost"}),
    *(
        Entrant(slug, name, "attention", MIXED, BOTH, ALSO, placing, MIXED[0])
        for slug, name, placing in (
            ("attention", "Attention policy, 128 samples", {}),
            ("attention-greedy", "Attention policy", {"samples": 1}),
        )
    ),
    *(
        Entrant(slug, f"{name} (Stable-Baselines3, set policy)", slug, SMALL)
        for slug, name in (("ppo", "PPO"), ("maskable-ppo", "MaskablePPO"), ("a2c", "A2C"), ("dqn", "DQN"))
    ),
    *(
        Entrant("stepwise", "Stepwise", "stepwise", (suite, *others), BOTH, trained_on=suite)
        for suite, others in STEPWISE.items()
    ),
    *(
        Entrant(
            f"maskable-ppo-{observation}",
            f"MaskablePPO (Stable-Baselines3, set policy), {note}",
            "maskable-ppo",
            suites,
            (track,),
            {"observation": observation},
        )
        for observation, note, suites, track in (
            ("features", "sees no costs", SMALL, SIMULATED),
            ("splits", "splits tables", SPLIT[:1], SHARDING),
        )
    ),
    Entrant("neuroshard-paper", "NeuroShard (paper)", "neuroshard", SPLIT[:1], BOTH, {"preset": "paper"}),
)


def places() -> dict[EntryFolder, Entrant]:
    return {
        EntryFolder(LEADERBOARDS, track, suite, entrant.slug): entrant
        for track in (*BOTH, REPLANNING)
        for suite in suite_names(track)
        for entrant in ENTRANTS
        if track in entrant.tracks and (entrant.suites is None or suite in entrant.suites)
    }


def wanted(suites: Sequence[str], entries: Sequence[str], force: bool) -> Iterator[tuple[EntryFolder, Entrant]]:
    """The chosen entries that are missing or no longer valid."""
    for folder, entrant in places().items():
        chosen = (not suites or folder.suite in suites) and (not entries or folder.slug in entries)
        if chosen and (force or not folder.path.exists() or verify_entry(folder)[0] is None):
            yield folder, entrant


Evaluating = tuple[str, str, dict[str, Option], tuple[Files, ...]]
"""A job: the name of an agent, a suite, options, and of a trained agent the files of its trainings."""


def job_of(folder: EntryFolder, entrant: Entrant, runs: Path) -> Evaluating:
    files = tuple(files_of(run.folder(runs)) for run in entrant.runs(folder.suite))
    return entrant.slug, folder.suite, dict(entrant.placing), files


def evaluated(job: Evaluating) -> tuple[EvaluatedAgent, str, str]:
    """The evaluations of an agent, and the CPU and the instructions that made them."""
    name, suite, placing, trainings = job
    with TemporaryDirectory() as folder:
        runs = [Path(folder, str(number)) for number in range(len(trainings))]
        for run, files in zip(runs, trainings, strict=True):
            write_files(run, files)
        return evaluate_agent([str(run) for run in runs] or [name], suite, placing), cpu_model(), instruction_set()


def make(
    folder: EntryFolder, entrant: Entrant, agent: EvaluatedAgent, machine: str, instructions: str, commit: str
) -> None:
    """Make one entry; it replaces the existing one, which git keeps."""
    info = EntryInfo(entrant.name, AUTHORS, "MIT", "", machine, commit, instructions)
    shutil.rmtree(folder.path, ignore_errors=True)
    if findings := submit(folder, agent, info):
        raise SystemExit(f"{folder.id} is not valid: {findings[0]}")


def main(
    suites: tuple[str, ...] = (),
    entries: tuple[str, ...] = (),
    force: bool = False,
    jobs: int | None = None,
    cluster: str | None = None,
    runs: Path = RUNS,
) -> int:
    """Train the agents that need it, make the entries, then the tables.

    Args:
        suites: names of suites; all if left out
        entries: folder names of entries; all if left out
        force: replace valid entries, too
        jobs: processes at a time; one for each CPU if not given
        cluster: train and evaluate on a Ray cluster: auto or ray://HOST:PORT; its nodes have the same checkout
        runs: folder of trained agents
    """
    for kind, names, known in (
        ("suite", suites, [*suite_names(SIMULATED), *suite_names(SHARDING), *suite_names(REPLANNING)]),
        ("entry", entries, [entrant.slug for entrant in ENTRANTS]),
    ):
        for name in names:
            if name not in known:
                raise unknown_name(kind, name, known)
    where = JobOptions(jobs or (1 if cluster else usable_cpus()), cluster)
    todo, commit = list(wanted(suites, entries, force)), current_commit()
    trainings = dict.fromkeys(run for folder, entrant in todo for run in entrant.runs(folder.suite))
    with new_progress() as progress:
        bar = progress.add_task("training", total=len(trainings))
        train_all(trainings, runs, where, lambda: progress.advance(bar))
        bar = progress.add_task("placing", total=len(todo))
        for index, found in where.run(evaluated, [job_of(*each, runs) for each in todo]):
            make(*todo[index], *found, commit)
            progress.advance(bar)
    verify = Verify(all=True, replay=REPLAYED_TASKS, keep_times=True, update_best_known=True, root=LEADERBOARDS)
    return verify.run() or Render(root=LEADERBOARDS).run()


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main, description=__doc__))
