"""Trains the agents that come with the package and writes their page: `python tools/pretrained.py`.

    agents/dreamshard/checkpoints/<hardware>.safetensors
    agents/dreamshard/checkpoints/README.md

Each learns from tasks that are drawn here, of training tables alone, as varied as `COVERED` says. `--render` makes the
page from the checkpoints without training.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import tyro
from numpy.typing import NDArray

from shard_gym.agents import load_agent, make_agent
from shard_gym.agents.dreamshard.pretrained import CHECKPOINTS, DEVICES, OPTIMIZERS, PRETRAINED, QUERIES, Pretrained
from shard_gym.agents.registry import AGENT
from shard_gym.agents.training import TrainingRun, make_learner
from shard_gym.common.errors import InvalidConstraintsError, InvalidPlacementError, InvalidTaskError
from shard_gym.common.io.arrays import load_arrays, save_arrays
from shard_gym.common.io.files import write_atomically
from shard_gym.common.io.markdown import table
from shard_gym.common.jobs import run_jobs
from shard_gym.common.text import format_ms
from shard_gym.cost_models import AdditiveCostModel, make_cost_model
from shard_gym.evaluation import Evaluation, evaluate
from shard_gym.evaluation.evaluations import score
from shard_gym.hardware import hardware_profile
from shard_gym.plans.caps import most_state_bytes
from shard_gym.plans.needs import GROUPS, HOST_MEMORY, MIXED, SEQUENCES, SERVING, TRAINING, WEIGHTED
from shard_gym.plans.placement import pack_by_memory
from shard_gym.tables import Tables, Workload, load_pool
from shard_gym.tasks import Task, TaskSuite, load_suite, problem_of, suite_names
from shard_gym.tasks.suites.best_known import best_known_costs
from shard_gym.tasks.suites.drawing import evenly_capped, halves, with_constraints
from shard_gym.tasks.suites.info import SHARDING, SIMULATED
from shard_gym.tasks.task import cost_model_for

PAGE = CHECKPOINTS / "README.md"

TASKS, SEED = 400, 20_260_923  # tasks drawn for a checkpoint, and the seed of the draw
TESTED = 5  # test tasks of each suite on the page
OPTIONS = {"iterations": 10, "measurements": 100, "cost_updates": 1_000, "cost_batch": 32, "queries": QUERIES}

POOLS, DTYPES = ("dlrm-2021", "dlrm-2022"), ("fp16", "fp32")
USUAL, MOST_USED = 0.6, 2  # the share of workloads with one of the first optimizers, and how many these are
SHARES_OF_BATCH = (1, 1, 2, 8, 32)  # of the batch that the pool describes, one over these
DIMS = tuple(4 << power for power in range(8))
MOST_DEVICES, MANY = 24, 0.1  # of most tasks, and the share of those with more of them
TABLES, TABLES_OF_DEVICE = (8, 250), 60  # tables of a task, and of a device at most
HOSTS = (2, 4, 8, 8, 16)  # devices of a host; the last host may have fewer
OF_SEQUENCES, OF_HOST_MEMORY, OF_MIXED, OF_WEIGHTED = 0.35, 0.3, 0.2, 0.15  # shares of the tasks with each
SHARE_OF_SEQUENCES, SHARE_OF_HBM = (0.05, 0.6), (0.03, 0.6)  # of the tables; of what a device would hold of them
SLACK, UNEVEN = (1.1, 2.0), (0.6, 1.4)
"""Caps as multiples of an even share of the tables; those of a quarter of the tasks differ by the second range."""

TESTED_PLANS, FRESH = 3, 20  # test tasks of each suite of plans on the page, and fresh tasks of a checkpoint
SERVED, GROUPED, CONSTRAINED, SYNC_EVERY = 0.2, 0.15, 0.15, (10, 100)  # shares of the fresh tasks with each
KINDS = ("all", SEQUENCES, HOST_MEMORY, MIXED, WEIGHTED, SERVING, GROUPS, "constraints")
HEADER_OF_PLANS = ("suite", "tasks", "cost", "failures", "above the best known", "error, own")
OF_FRESH = ("failures", "above plan-search", "median", "at most")
HEADER_OF_FRESH = ("fresh tasks", "number", *OF_FRESH, *(f"moldable: {column}" for column in OF_FRESH))
HEADER = ("suite", "cost", "failures", "error, random", "error, greedy", "error, own")

INTRODUCTION = """# Agents that come with the package

`make_agent("dreamshard")` and `--agent dreamshard` answer a task with the checkpoint trained for its hardware. All are
DreamShard with the preset `dream-search`: a surrogate, trained on costs of placements and plans, and a search under the
surrogate when a task is answered; the cost model is not evaluated then. The surrogates learned from the cost model
`analytical`, so they are as far from real hardware as that model is (docs/cost-model.md).

Costs are means over the first test tasks of each suite in ms, and errors are means of |estimate - cost| / cost over
placements of three kinds: random ones, those of `size-lookup-greedy`, and the agent's own. The last are the hardest to
estimate, because the search prefers placements whose estimate is too low. How far they are from the best known
ones, beside those of all agents, is in leaderboards/README.md. Then come suites whose tables may be split, and fresh
tasks of all kinds that no suite contains, of tables that no agent was trained with: what plans cost above those of
`plan-search`, which evaluates the cost model hundreds of thousands of times for each."""


def training_tasks(profile: str) -> TaskSuite:
    """Tasks of tables that no suite tests, half of which may be split: as varied as an agent for everybody should see.

    The tables are a random number of those of a pool, trained in one of several ways or in several, with random dims,
    and some of them sequences; 2 to 24 devices in most tasks, in hosts that may differ in size; memory caps that may
    differ, too, and in some tasks so little HBM that rows are in host memory.
    """
    rng = np.random.default_rng([SEED, sorted(PRETRAINED).index(profile)])
    tasks: list[Task] = []
    while len(tasks) < TASKS:
        pool = half_of(str(rng.choice(POOLS)), int(rng.choice(SHARES_OF_BATCH)), "train")
        with suppress(InvalidTaskError):  # more than the memory of the devices
            tasks.append(drawn(f"drawn {len(tasks)}", profile, pool, len(tasks) % 2 == 1, rng))
    return TaskSuite(f"pool/{POOLS[0]}", tuple(tasks), "train", 1)


@lru_cache
def half_of(pool: str, share: int, split: str) -> Tables:
    """The tables of a pool that train agents, or test them, in batches that are one over `share` of its own."""
    tables = load_pool(pool).tables
    own = tables.select(halves(pool, len(tables))[split])
    return own.at_batch_size(own.workload.batch_size // share)


def drawn(name: str, profile: str, pool: Tables, splittable: bool, rng: np.random.Generator) -> Task:
    """A random task; raises InvalidTaskError if its tables are too large for the devices."""
    hardware = hardware_profile(profile)
    devices = drawn_devices(rng)
    count = round(float(np.exp(rng.uniform(*np.log(TABLES)))))
    count = min(max(count, devices), devices * TABLES_OF_DEVICE, len(pool))
    dims = rng.choice(DIMS, rng.integers(1, len(DIMS) + 1), replace=False)
    tables = pool.select(rng.choice(len(pool), count, replace=False)).with_dims(rng.choice(dims, count))
    tables = replace(tables, workload=drawn_workload(tables.workload, count, rng))
    if rng.random() < OF_SEQUENCES:
        pooled = rng.random(count) >= rng.uniform(*SHARE_OF_SEQUENCES)
        tables = replace(tables, pooled=pooled | (np.asarray(tables.workload.lookup_weight_bytes) > 0))
    caps = np.full(devices, evenly_capped(tables, devices, rng.uniform(*SLACK)))
    if rng.random() < 0.25:
        caps = (caps * rng.uniform(*UNEVEN, devices)).astype(np.int64)
    if not splittable:
        caps = np.maximum(caps, int(tables.memory_bytes.max()))
    host = None
    if rng.random() < OF_HOST_MEMORY:
        share = float(np.exp(rng.uniform(*np.log(SHARE_OF_HBM))))
        least = 2 * most_state_bytes(tables, int(caps.max()))  # they are in HBM, and column shards have more of them
        if least > hardware.device.memory_bytes:
            raise InvalidTaskError(f"The states of rows of task {name!r} do not fit the HBM. Draw another task.")
        hbm = max(int(share * tables.memory_bytes.sum() / devices), least)
        host = hardware.host_memory(min(hbm, hardware.device.memory_bytes))
        caps = np.maximum(caps, host.hbm_bytes)
    else:
        caps = np.minimum(caps, hardware.device.memory_bytes)
    topology = hardware.topology(devices, devices_per_host=int(rng.choice(HOSTS)), memory_cap_bytes=caps)
    return Task(name, tables, replace(topology, host=host), splittable=splittable)


def drawn_devices(rng: np.random.Generator) -> int:
    """2 to `MOST_DEVICES` in most tasks; in some up to the most of all, evenly in the logarithm."""
    least, most = DEVICES
    if rng.random() < MANY:
        return round(float(np.exp(rng.uniform(np.log(MOST_DEVICES), np.log(most)))))
    return int(rng.integers(least, MOST_DEVICES + 1))


def drawn_workload(of_pool: Workload, count: int, rng: np.random.Generator) -> Workload:
    """One of the ways to train tables; in some tasks several, of which each table has one."""

    def one() -> Workload:
        known = OPTIMIZERS[:MOST_USED] if rng.random() < USUAL else OPTIMIZERS
        dtype, optimizer = str(rng.choice(DTYPES)), str(rng.choice(known))
        return replace(of_pool, weight_dtype=dtype, optimizer=optimizer, weighted=bool(rng.random() < OF_WEIGHTED))

    if rng.random() >= OF_MIXED:
        return one()
    several = [one() for _ in range(int(rng.integers(2, 4)))]
    return Workload.mixed(several, rng.integers(len(several), size=count))


def train(profile: str) -> None:
    """Train the checkpoint of a profile."""
    suite = training_tasks(profile)
    learner = make_learner("dreamshard", suite, seed=0, **OPTIONS)
    with tempfile.TemporaryDirectory() as folder:
        TrainingRun(learner, Path(folder), OPTIONS).run()
        arrays, about = load_arrays(Path(folder) / AGENT, "agent")
    save_arrays(PRETRAINED[profile].path, "agent", arrays, {**about, "more_data": [f"pool/{POOLS[1]}/train"]})


def page() -> str:
    blocks = ["<!-- Generated by `python tools/pretrained.py`; do not edit. -->", INTRODUCTION]
    for profile, checkpoint in PRETRAINED.items():
        blocks += [f"## {profile}: `{checkpoint.path.name}`", training_of(checkpoint)]
        if found := list(rows(profile, checkpoint)):
            blocks.append(table(HEADER, found))
        if plans := list(rows_of_plans(profile, checkpoint)):
            blocks.append(table(HEADER_OF_PLANS, plans))
        blocks.append(table(HEADER_OF_FRESH, list(rows_of_fresh(profile))))
    return "\n\n".join(blocks) + "\n"


def training_of(checkpoint: Pretrained) -> str:
    """What the checkpoint was trained on, its evaluation budget and its size."""
    arrays, about = load_arrays(checkpoint.path, "agent")
    trained = about["trained"]
    return (
        f"Trained on {TASKS} drawn tasks with {trained['true_cost_queries']:,} evaluations of "
        f"`{trained['cost_model']}`, seed {trained['seed']}; "
        f"{sum(array.size for array in arrays.values()):,} numbers, {checkpoint.path.stat().st_size / 1024:.0f} KiB. "
        "MIT, as the package."
    )


def suites_on(profile: str, track: str) -> Iterator[TaskSuite]:
    """The first tasks on the hardware of a profile of each suite that has some."""
    device = hardware_profile(profile).device
    for name in suite_names(track):
        suite = load_suite(name)
        tasks = tuple(task for task in suite if task.topology.device.name == device.name)
        if tasks:
            yield replace(suite, tasks=tasks[: TESTED if track == SIMULATED else TESTED_PLANS])


def rows(profile: str, checkpoint: Pretrained) -> Iterator[list[str]]:
    """Of the suites of whole tables whose rows are all in HBM."""
    agent, model = load_agent(checkpoint.path), make_cost_model("analytical", additive=True)
    for suite in suites_on(profile, SIMULATED):
        others = (evaluate(make_agent(name), suite, model) for name in ("random", "size-lookup-greedy"))
        own = evaluate(agent, suite, model)
        errors = surrogate_errors(agent.cost_model, suite, (*others, own))
        yield [suite.name, format_ms(own.mean_cost_ms), str(own.failures), *errors]


def surrogate_errors(
    network: AdditiveCostModel, suite: TaskSuite, evaluations: tuple[Evaluation, ...]
) -> Iterator[str]:
    """The mean over the tasks of |estimate - cost| / cost on the placements of each agent."""
    for each in evaluations:
        shares = [
            abs(score(suite.task(result.task), np.array(result.placement), network) / result.cost_ms - 1.0)
            for result in each.tasks
            if result.valid
        ]
        yield f"{100 * float(np.mean(shares)):.1f}%" if shares else ""


def rows_of_plans(profile: str, checkpoint: Pretrained) -> Iterator[list[str]]:
    """Of the suites whose tables may be split."""
    network = load_agent(checkpoint.path).cost_model
    for suite in suites_on(profile, SHARDING):
        model = make_cost_model(suite.cost_model, additive=True, splits=True)
        evaluation, best = (
            evaluate(make_agent("dreamshard"), suite, model),
            best_known_costs(load_suite(suite.name), model),
        )
        gaps: list[float] = []
        errors: list[float] = []
        for result in evaluation.tasks:
            if result.valid:
                task, problem = suite.task(result.task), problem_of(suite[0])
                plan = problem.from_json(result.plan, task)
                of_task = network if TRAINING in task.needs else network.forward_alone()
                gaps.append(result.cost_ms / best[task.name] - 1.0)
                errors.append(abs(problem.cost_ms(plan, task, of_task) / result.cost_ms - 1.0))
        own = [f"{100 * float(np.mean(shares)):.1f}%" if shares else "" for shares in (gaps, errors)]
        yield [suite.name, str(len(suite)), format_ms(evaluation.mean_cost_ms), str(evaluation.failures), *own]


def rows_of_fresh(profile: str) -> Iterator[list[str]]:
    """Of tasks of all kinds that no suite contains, of tables that no agent was trained with, by kind."""
    kinds_of, gaps_of = [], []  # what each task has; what answers cost above that of plan-search, inf if one failed
    for task in fresh_tasks(profile):
        suite = TaskSuite(task.name, (task,))
        model = make_cost_model(cost_model_for(suite, "analytical"), additive=True, splits=True)
        agents = make_agent("plan-search", cost_model=model), make_agent("dreamshard"), make_agent("moldable")
        searched, *answers = (evaluate(agent, suite, model).tasks[0] for agent in agents)
        kinds_of.append({"all", *task.needs, *(["constraints"] if task.constraints else [])})
        least_ms = searched.cost_ms if searched.valid else np.nan
        gaps_of.append([answer.cost_ms / least_ms - 1.0 if answer.valid else np.inf for answer in answers])
    for kind in KINDS:
        gaps = np.array([gap for kinds, gap in zip(kinds_of, gaps_of, strict=True) if kind in kinds])
        if len(gaps):
            yield [kind, str(len(gaps)), *(shown for each in gaps.T for shown in distribution(each))]


def distribution(gaps: NDArray[np.float64]) -> tuple[str, ...]:
    """`OF_FRESH` of the gaps of one agent, inf where it failed, NaN where plan-search did."""
    costed = gaps[np.isfinite(gaps)]
    shares = (costed.mean(), np.median(costed), costed.max()) if len(costed) else ()
    return str(int(np.isinf(gaps).sum())), *(f"{100 * share:.1f}%" for share in shares), *[""] * (3 - len(shares))


def fresh_tasks(profile: str) -> list[Task]:
    """`FRESH` tasks as they are drawn for training, of test tables, all of which may be split.

    Some are served, some may have groups of devices, and some have constraints.
    """
    rng = np.random.default_rng([SEED, sorted(PRETRAINED).index(profile), FRESH])
    found: list[Task] = []
    while len(found) < FRESH:
        pool, share = str(rng.choice(POOLS)), int(rng.choice(SHARES_OF_BATCH))
        with suppress(InvalidTaskError, InvalidPlacementError, InvalidConstraintsError):
            task = drawn(f"fresh {profile} {len(found)}", profile, half_of(pool, share, "test"), True, rng)
            kind = rng.random()
            if kind < SERVED:
                task = replace(task, tables=task.tables.with_training(training=False))
            elif kind < SERVED + GROUPED and task.topology.host is None:
                whole = task.topology.with_caps(np.full(task.num_devices, task.topology.device.memory_bytes))
                task = replace(task, topology=whole, sync_every=int(rng.choice(SYNC_EVERY)))
            elif kind < SERVED + GROUPED + CONSTRAINED and task.topology.host is None:
                known = pack_by_memory(task.tables, task.num_devices)
                task = with_constraints(replace(task, known_placement=known), rng)
            found.append(task)
    return found


def main(render: bool = False, jobs: int = 2) -> None:
    """Train, unless told otherwise, and write the page.

    Args:
        render: make the page from the checkpoints; train nothing
        jobs: processes
    """
    if not render:
        list(run_jobs(train, list(PRETRAINED), jobs_at_once=jobs))
    write_atomically(PAGE, page().encode())
    print(f"Written: {PAGE}")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
