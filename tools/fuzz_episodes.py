"""Tasks and actions that tools/fuzz.py makes from a seed, and what must hold of them whatever they are.

A case is played in a scalar and in a vector environment, which must agree in every bit. All observations are in their
space, all rewards are finite, and what the episode says of its costs is computed anew in another way. Values that are
none are among the actions and the parameters of drift: they must be refused in words.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from shard_gym.common.errors import InvalidActionError, ShardGymError
from shard_gym.cost_models import AnalyticalShardingModel
from shard_gym.envs.core.plans import plan_of
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.envs.sharding.env import EmbeddingShardingEnv
from shard_gym.envs.sharding.vector import EmbeddingShardingVectorEnv
from shard_gym.hardware import HostMemory, Topology, hardware_profile
from shard_gym.interop.torchrec_json import from_torchrec_json, torchrec_json
from shard_gym.plans import check_plan, plan_from_json, plan_of_placement, plan_to_json
from shard_gym.plans.placement import check_placement
from shard_gym.replanning import DriftSuite, DriftTask, EmbeddingReplanningEnv
from shard_gym.replanning.drift.levels import GROWING, SPOT, STRONG, DriftLevel
from shard_gym.replanning.drift.load_grid import drifted_tables
from shard_gym.replanning.drift.tasks import HISTORY_DAYS
from shard_gym.replanning.env.play import history_of
from shard_gym.replanning.env.vector import EmbeddingReplanningVectorEnv
from shard_gym.tables import NUM_BINS, RowPopularity, Tables, Workload
from shard_gym.tasks import Task, TaskSuite

Rng = np.random.Generator

NO_ACTIONS: list[Any] = [True, np.True_, None, 1.0, "1", -1, 10**9, 10**30, [0], np.array([0]), np.timedelta64(1), {}]

NO_PARAMETERS: list[Any] = [True, None, "1", -1e-9, 1e300, float("nan"), float("inf"), 10**400, (1.0,), (9.0, 1.0)]

MOST_STEPS = 100
"""Where most episodes of replanning end, which have 336 steps; those of tables are shorter."""

GRID = 0.02
"""What a cost between the nodes of a `LoadGrid` may differ from that of the tables themselves."""


class Made:
    """A kind of cases; `check` makes one from a generator and returns what is wrong with it, nothing if all is well."""

    def __init__(self, name: str, check: Callable[[Rng], list[str]]) -> None:
        self.name, self.expected, self._check, self._seed = name, "[]", check, 0

    def make(self, seed: int) -> None:
        self._seed = seed

    def read(self) -> list[str]:
        return self._check(np.random.default_rng(self._seed))


def made() -> list[Made]:
    """All kinds."""
    kinds = (placement_episode, sharding_episode, replanning_episode, drift_level)
    return [Made(each.__name__.replace("_", " "), each) for each in kinds]


def random_tables(rng: Rng, *, sequences: bool = True) -> Tables:
    count, batch = int(rng.integers(1, 9)), int(rng.choice([1, 64, 2048, 65536]))
    rows = np.exp(rng.uniform(0, np.log(10 ** rng.choice([2, 6, 9])), count)).astype(np.int64) + 1
    dims = 4 * rng.choice([1, 2, 3, 4, 16, 32, 100], count)
    pooling = np.exp(rng.uniform(-5, 5, count)) * (rng.random(count) > 0.1)
    lookups = pooling * batch
    shares = rng.dirichlet(np.full(NUM_BINS, 0.3), (2, count)) * (lookups > 0)[:, None]
    workload = Workload(
        batch, str(rng.choice(["bf16", "fp16", "fp32"])), str(rng.choice(["adam", "sgd", "rowwise_adagrad"]))
    )
    return Tables(
        num_embeddings=rows,
        embedding_dim=dims,
        pooling_factor=pooling,
        distinct_rows=np.minimum(rows, lookups) * rng.uniform(0.01, 1.0, count),
        reuse_histogram=shares[0],
        access_histogram=shares[1],
        workload=workload,
        num_features=rng.integers(1, 4, count),
        pooled=(rng.random(count) > 0.2) | (not sequences),
    )


def random_topology(rng: Rng, tables: Tables, *, host: bool) -> Topology:
    """Devices, in hosts of any size, with caps from too small for some tables to far too large."""
    size, needed = int(rng.integers(1, 10)), tables.memory_bytes
    even = np.maximum(needed.sum() / size, needed.max() * rng.choice([0.5, 1.0], p=[0.1, 0.9]))
    caps = np.ceil(even * np.exp(rng.uniform(0, 1.5, size if rng.integers(2) else 1))).astype(np.int64)
    profile = hardware_profile(str(rng.choice(["a100-dgx", "rtx2080ti-pcie", "cpu"])))
    topology = profile.topology(
        size,
        devices_per_host=int(rng.choice([1, 2, 3, 8, 16])),
        memory_cap_bytes=np.broadcast_to(caps, size).copy(),
    )
    if host and rng.random() < 0.25:
        hbm = int(max(needed.sum() * rng.uniform(0.05, 1.0) / size, 1.0))
        topology = replace(topology, host=HostMemory(hbm, read_gb_per_s=16.0, update_gb_per_s=20.0))
    return topology


def placement_episode(rng: Rng) -> list[str]:
    tables = random_tables(rng)
    task = Task("made", tables, random_topology(rng, tables, host=True))
    env, wrong = _played(rng, EmbeddingPlacementEnv, EmbeddingPlacementVectorEnv, TaskSuite("made", [task]), {})
    placement = env.unwrapped._info()["placement"][: task.num_tables]
    if (placement >= 0).all():
        check_placement(placement, task.tables, task.topology)
        wrong += _costs_of(env, plan_of_placement(placement, task.tables), task)
    return wrong


def sharding_episode(rng: Rng) -> list[str]:
    tables = random_tables(rng)
    task = Task("made", tables, random_topology(rng, tables, host=True), splittable=bool(rng.integers(2)))
    options = {"max_shards": int(rng.choice([1, 2, 8]))}
    suite = TaskSuite("made", [task])
    env, wrong = _played(rng, EmbeddingShardingEnv, EmbeddingShardingVectorEnv, suite, options)
    placement = env._info()["placement"]
    if not (placement >= 0).any():
        return wrong
    plan = plan_of(task, placement, env.rules)
    if plan != check_plan(env.plan, task.tables, task.topology):
        wrong.append(f"the plan {env.plan} is {plan} by its actions")
    wrong += _costs_of(env, plan, task)
    written = json.loads(json.dumps(plan_to_json(plan, task.tables, task.topology)))
    if plan_from_json(written, task.tables, task.topology) != plan:
        wrong.append("the plan is another in JSON")
    if task.topology.host is None:
        written = json.loads(json.dumps(torchrec_json(plan, task.tables, task.topology, "m")))
        if from_torchrec_json(written, task.tables, task.topology) != plan:
            wrong.append("the plan is another in the JSON of TorchRec")
    return wrong


def replanning_episode(rng: Rng) -> list[str]:
    tables = random_tables(rng, sequences=bool(rng.integers(2)))
    topology = random_topology(rng, tables, host=False)
    task = Task("made", tables, topology, splittable=bool(rng.integers(2)))
    laws = RowPopularity(rng.choice([0.0, 1.0, 500.0], len(tables)), rng.choice([0.0, 0.5, 1.0, 2.0], len(tables)))
    levels = (STRONG, GROWING, SPOT, replace(GROWING, departures=3.0))
    level = levels[rng.integers(2 if topology.num_hosts > 1 else 4)]
    drifts = DriftTask("made", task, laws, level, int(rng.integers(10**6)), float(np.exp(rng.uniform(-3, 9))))
    suite, options = DriftSuite("made", [drifts]), {"reward": str(rng.choice(["time", "excess"]))}
    env, wrong = _played(rng, EmbeddingReplanningEnv, EmbeddingReplanningVectorEnv, suite, options)
    history, model = env.history(), env.cost_model
    actions = history.kinds + 1
    again = history_of(drifts, actions.astype(np.int64), model)
    for field in history._fields:
        if not np.allclose(getattr(history, field), getattr(again, field), rtol=1e-9, atol=1e-9):
            wrong.append(f"{field} of the history is another when it is computed from its actions")
    return wrong + _hour_of(env)


def drift_level(rng: Rng) -> list[str]:
    """A level with one parameter that is none, or with all at random within their limits."""
    names = [field.name for field in fields(DriftLevel)]
    name = str(rng.choice(names))
    if rng.random() < 0.5:
        value = NO_PARAMETERS[rng.integers(len(NO_PARAMETERS))]
        try:
            made = DriftLevel(**{name: value})
        except ShardGymError as error:
            return [] if str(error).startswith(f"{name} of a DriftLevel must be") else [str(error)]
        return [f"{name} may be {value!r}: {made}"]
    tables = random_tables(rng)
    topology = hardware_profile("a100-dgx").topology(int(rng.integers(1, 5)))
    level = DriftLevel(
        **{each: float(rng.choice([0.0, 0.5, 10.0])) for each in ("daily", "weekend", "shift", "incident", "walk")},
        shifts=float(rng.choice([0.0, 96.0])),
        incidents=float(rng.choice([0.0, 96.0])),
        walk_hours=float(rng.choice([0.0, 1e-9, 1e5])),
        growth=float(rng.choice([0.0, 0.5, 2.0])),
        age_days=(float(rng.choice([0.1, 3.0])), float(rng.choice([3.0, 1e5]))),
        pruned=float(rng.choice([0.0, 1.0])),
        arrivals=float(rng.choice([0.0, 1.0])),
        skew=float(rng.choice([0.0, 0.1, 10.0])),
        departures=float(rng.choice([0.0, 24.0])),
        leaving=(int(rng.integers(3)), int(rng.choice([2, 4096]))),
        away_hours=(0.0, float(rng.choice([0.0, 1e5]))),
    )
    laws = RowPopularity.zipf(rng.choice([0.0, 1.0, 3.0], len(tables)))
    drifts = DriftTask("made", Task("made", tables, topology), laws, level, int(rng.integers(100)), 60.0)
    arrays = [drifts.drift.lookups, drifts.drift.rows, drifts.drift.exponent, drifts.noise]
    wrong = [] if all(np.isfinite(each).all() for each in arrays) else ["the drift is not finite"]
    if drifts.available.sum(axis=1).min() < topology.num_devices // 2:
        wrong.append("more than half of the devices are away")
    env = EmbeddingReplanningEnv(DriftSuite("made", [drifts]))
    return wrong + _outside(env, env.reset(seed=0)[0])


def _played(rng: Rng, scalar: Any, vector: Any, suite: Any, options: dict[str, Any]) -> tuple[Any, list[str]]:
    """A scalar environment after an episode that a vector environment played, too; and what was wrong."""
    options |= {"illegal": str(rng.choice(["terminate", "redirect"])), "info_text": bool(rng.integers(2))}
    if scalar is not EmbeddingReplanningEnv:
        options["observation"] = str(rng.choice(["full", "compact", "features", "set"]))
        options["reward"] = str(rng.choice(["terminal", "dense", "normalized", "balance"]))
    one, seed, legal_only = scalar(suite, **options), int(rng.integers(10**6)), rng.random() < 0.7
    two = vector(2, suite, autoreset_mode=AutoresetMode.DISABLED, **options)
    obs, info = one.reset(seed=seed)
    wrong = _outside(one, obs) + _differ((obs, info), two.reset(seed=[seed, seed]))
    over, left = False, MOST_STEPS if rng.random() < 0.95 else 10**6
    while not over and not wrong and left:
        left -= 1
        action = int(rng.choice(np.flatnonzero(one.action_masks())))
        if scalar is EmbeddingReplanningEnv and rng.random() < 0.8:
            action = 0
        if not legal_only and rng.random() < 0.1:
            action = int(rng.integers(one.action_space.n))
            wrong += _taken(one, two, NO_ACTIONS[rng.integers(len(NO_ACTIONS))])
        obs, reward, over, cut, info = one.step(action)
        wrong += _outside(one, obs) + _differ((obs, reward, over, cut, info), two.step(np.array([action, action])))
        if not np.isfinite(reward) or not np.isfinite(info["cost_ms"]):
            wrong.append(f"a reward of {reward}, and a cost of {info['cost_ms']}")
    return one, wrong


def _outside(env: Any, obs: dict[str, Any]) -> list[str]:
    outside = [key for key, space in env.observation_space.items() if not space.contains(obs[key])]
    return [f"the observation's {key} is outside of its space: {obs[key]}" for key in outside]


def _differ(one: Any, two: Any) -> list[str]:
    """Where the results of a scalar environment are not those of each of two in a vector."""
    found = []
    for position, (alone, both) in enumerate(zip(one, two, strict=True)):
        pairs = alone if isinstance(alone, dict) else {position: alone}
        for key, value in pairs.items():
            beside = both[key] if isinstance(alone, dict) else both
            if not all(np.array_equal(value, beside[env]) for env in range(2)):
                found.append(f"scalar and vector differ in {key}: {value} and {beside}")
    return found


def _taken(one: Any, two: Any, value: Any) -> list[str]:
    found = []
    for env, action in ((one, value), (two, [value, value])):
        try:
            env.step(action)
        except InvalidActionError:
            continue
        found.append(f"{type(env).__name__} took the action {action!r}")
    return found


def _costs_of(env: Any, plan: Any, task: Task) -> list[str]:
    """The costs of a complete episode, which were added up step by step, against those of the plan as a whole."""
    info, again = env._info(), AnalyticalShardingModel().estimate(plan, task.tables, task.topology)
    same = np.isclose(info["cost_ms"], again.total_ms, rtol=1e-9) and np.allclose(
        info["phase_costs_ms"][: task.num_devices], again.phases_ms, rtol=1e-9, atol=1e-12
    )
    return [] if same else [f"the episode cost {info['cost_ms']} ms, and its plan {again.total_ms} ms"]


def _hour_of(env: Any) -> list[str]:
    """The mean cost of the last hour against that of its tables themselves, if the plan is for all devices."""
    history, task = env.history(), env.task
    hours = len(history.hourly_ms)
    hour = hours - 1  # the last one, in which the plan of the infos was in action
    if not hours or task.task.splittable or len(env._episodes.made(0).plan.devices) < task.num_devices:
        return []
    placement = env._info()["placement"][: task.num_tables]
    first, day = (HISTORY_DAYS * 24 + hour) * 4, HISTORY_DAYS + hour // 24
    costs = []
    for lookups in task.drift.lookups[first : first + 4]:
        tables = drifted_tables(
            task.task.tables, task.popularity, lookups, task.drift.rows[day], task.drift.exponent[day]
        )
        loads = env.cost_model.loads(tables, task.topology)
        on_devices = env.cost_model.reduce(loads, placement, task.num_devices)
        costs.append(float(env.cost_model.costs(on_devices, task.topology.cluster())[1]))
    told = float(history.hourly_ms[-1])
    same = abs(told - np.mean(costs)) <= GRID * np.mean(costs)
    return [] if same else [f"hour {hour} cost {told} ms, and its tables {np.mean(costs)} ms"]
