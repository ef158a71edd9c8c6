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
from pathlib import Path

import numpy as np
import tyro

from shard_gym.agents import load_agent, make_agent
from shard_gym.agents.base import Agent
from shard_gym.agents.dreamshard.pretrained import CHECKPOINTS, DEVICES, OPTIMIZERS, PRETRAINED, Pretrained
from shard_gym.agents.registry import AGENT
from shard_gym.agents.training import TrainingRun, make_learner
from shard_gym.common.errors import InvalidTaskError
from shard_gym.common.io.arrays import load_arrays, save_arrays
from shard_gym.common.io.files import write_atomically
from shard_gym.common.io.markdown import table
from shard_gym.common.jobs import run_jobs
from shard_gym.common.text import format_ms
from shard_gym.cost_models import AdditiveCostModel, make_cost_model
from shard_gym.evaluation import evaluate
from shard_gym.evaluation.evaluations import score
from shard_gym.hardware import hardware_profile
from shard_gym.tables import Tables, load_pool
from shard_gym.tasks import Task, TaskSuite, load_suite, suite_names
from shard_gym.tasks.suites.drawing import evenly_capped, halves

PAGE = CHECKPOINTS / "README.md"

TASKS, SEED = 400, 20_260_923  # tasks drawn for a checkpoint, and the seed of the draw
TESTED = 10  # test tasks of each suite on the page
OPTIONS = {"iterations": 10, "measurements": 100, "cost_updates": 1_000, "cost_batch": 32}

POOLS, DTYPES = ("dlrm-2021", "dlrm-2022"), ("fp16", "fp32")
SHARES_OF_BATCH = (1, 1, 2, 8)  # of the batch that the pool describes, one over these
DIMS = tuple(4 << power for power in range(8))
MOST_DEVICES, MANY = 24, 0.04  # of most tasks, and the share of those with more of them
TABLES, TABLES_OF_DEVICE = (8, 250), 60  # tables of a task, and of a device at most
HOSTS = (2, 4, 8, 8, 16)  # devices of a host; the last host may have fewer
SLACK, UNEVEN = (1.1, 2.0), (0.6, 1.4)
"""Caps as multiples of an even share of the tables; those of a quarter of the tasks differ by the second range."""

HEADER = ("suite", "cost", "failures", "error, random", "error, greedy", "error, own")

INTRODUCTION = """# Agents that come with the package

`make_agent("dreamshard")` and `--agent dreamshard` place a task with the checkpoint trained for its hardware. All are
DreamShard with the preset `dream-search`: a surrogate, trained on costs of placements and plans, and a search under the
surrogate when a task is answered; the cost model is not evaluated then. The surrogates learned from the cost model
`analytical`, so they are as far from real hardware as that model is (docs/cost-model.md).

Costs are means over the first ten test tasks of each suite in ms, and errors are means of |estimate - cost| / cost over
placements of three kinds: random ones, those of `size-lookup-greedy`, and the agent's own. The last are the hardest to
estimate, because the search prefers placements whose estimate is too low. How far they are from the best known
ones, beside those of all agents, is in leaderboards/README.md."""


def training_tasks(profile: str) -> TaskSuite:
    """Tasks of tables that no suite tests, half of which may be split: as varied as an agent for everybody should see.

    The tables are a random number of those of a pool, trained in one of several ways, with random dims; 2 to 24
    devices in most tasks, in hosts that may differ in size; and memory caps that may differ, too.
    """
    rng = np.random.default_rng([SEED, sorted(PRETRAINED).index(profile)])
    pools: dict[tuple[str, str, str, int], Tables] = {}
    tasks: list[Task] = []
    while len(tasks) < TASKS:
        key = (*(str(rng.choice(names)) for names in (POOLS, DTYPES, OPTIMIZERS)), int(rng.choice(SHARES_OF_BATCH)))
        if key not in pools:
            pools[key] = training_half(*key)
        with suppress(InvalidTaskError):  # more than the memory of the devices
            tasks.append(drawn(f"drawn {len(tasks)}", profile, pools[key], len(tasks) % 2 == 1, rng))
    return TaskSuite(f"pool/{POOLS[0]}", tuple(tasks), "train", 1)


def training_half(pool: str, dtype: str, optimizer: str, share: int) -> Tables:
    """The tables of a pool that train agents, with a workload."""
    tables = load_pool(pool).tables
    own = tables.select(halves(pool, len(tables))["train"]).with_training(weight_dtype=dtype, optimizer=optimizer)
    return own.at_batch_size(own.workload.batch_size // share)


def drawn(name: str, profile: str, pool: Tables, splittable: bool, rng: np.random.Generator) -> Task:
    """A random task; raises InvalidTaskError if its tables are too large for the devices."""
    hardware = hardware_profile(profile)
    most = DEVICES[1] if rng.random() < MANY else MOST_DEVICES
    devices = int(rng.integers(DEVICES[0], most + 1))
    count = round(float(np.exp(rng.uniform(*np.log(TABLES)))))
    count = min(max(count, devices), devices * TABLES_OF_DEVICE, len(pool))
    dims = rng.choice(DIMS, rng.integers(1, len(DIMS) + 1), replace=False)
    tables = pool.select(rng.choice(len(pool), count, replace=False)).with_dims(rng.choice(dims, count))
    caps = np.full(devices, evenly_capped(tables, devices, rng.uniform(*SLACK)))
    if rng.random() < 0.25:
        caps = (caps * rng.uniform(*UNEVEN, devices)).astype(np.int64)
    if not splittable:
        caps = np.maximum(caps, int(tables.memory_bytes.max()))
    caps = np.minimum(caps, hardware.device.memory_bytes)
    topology = hardware.topology(devices, devices_per_host=int(rng.choice(HOSTS)), memory_cap_bytes=caps)
    return Task(name, tables, topology, splittable=splittable)


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


def rows(profile: str, checkpoint: Pretrained) -> Iterator[list[str]]:
    agent, model = load_agent(checkpoint.path), make_cost_model("analytical", additive=True)
    for name in suite_names("simulated"):
        suite = load_suite(name)
        if suite[0].topology.device.name == hardware_profile(profile).device.name:
            suite = replace(suite, tasks=suite.tasks[:TESTED])
            evaluation = evaluate(agent, suite, model)
            errors = surrogate_errors(agent, suite, model)
            yield [suite.name, format_ms(evaluation.mean_cost_ms), str(evaluation.failures), *errors]


def surrogate_errors(agent: Agent, suite: TaskSuite, model: AdditiveCostModel) -> Iterator[str]:
    """The mean over the tasks of |estimate - cost| / cost on placements of random, of a greedy agent, and its own."""
    for each in (make_agent("random"), make_agent("size-lookup-greedy"), agent):
        shares = [
            abs(score(suite.task(result.task), np.array(result.placement), agent.cost_model) / result.cost_ms - 1.0)
            for result in evaluate(each, suite, model).tasks
            if result.valid
        ]
        yield f"{100 * float(np.mean(shares)):.1f}%" if shares else ""


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
