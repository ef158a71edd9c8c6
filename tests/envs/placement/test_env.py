"""`EmbeddingPlacementEnv`: whole episodes against the cost model, the mask, failures, snapshots, padding."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models import make_cost_model
from shard_gym.envs.core.episode_state import Status
from shard_gym.envs.core.reward import REWARDS
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.evaluation.evaluations import penalty_ms
from shard_gym.plans.placement import check_placement
from shard_gym.tasks import Task, load_suite

MODEL = make_cost_model("analytical")
SEEDS = st.integers(0, 2**32 - 1)


@given(seed=SEEDS)
def test_a_whole_episode_costs_what_the_cost_model_says(
    random_task: Any, env_of: Any, play: Any, random_actions: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    task = random_task(rng, int(rng.integers(1, 12)), int(rng.integers(1, 6)), devices_per_host=int(rng.integers(1, 6)))
    env = env_of(task, max_tables=12, max_devices=7)
    env.reset(seed=0)
    total, info = play(env, random_actions(env, rng))
    placement = check_placement(info["placement"][: task.num_tables], task.tables, task.topology)
    estimate = MODEL.estimate(placement, task.tables, task.topology)
    assert info["cost_ms"] == pytest.approx(estimate.total_ms, rel=1e-9)
    assert total == -info["cost_ms"]
    assert info["phase_costs_ms"][: task.num_devices] == pytest.approx(estimate.phases_ms, rel=1e-9)
    assert not info["phase_costs_ms"][task.num_devices :].any()
    assert (info["placement"][task.num_tables :] == -1).all()
    assert (info["placement"].dtype, info["phase_costs_ms"].shape) == (np.int64, (7, 4))


@pytest.mark.parametrize("seed", range(12))
def test_the_best_return_is_minus_the_least_cost_of_all_valid_placements(
    random_task: Any, valid_placements: Any, env_of: Any, seed: int
) -> None:
    """Every sequence of actions against every placement that fits, found without environment or mask."""
    rng = np.random.default_rng(seed)
    task = random_task(rng, int(rng.integers(2, 6)), int(rng.integers(2, 4)), slack=None if seed % 3 == 0 else 1.05)
    env = env_of(task)
    env.reset(seed=0)
    reached: dict[tuple[int, ...], float] = {}

    def explore(snapshot: Any) -> None:
        for device in range(task.num_devices):
            env.set_state(snapshot)
            _, reward, terminated, _, info = env.step(device)
            if not terminated:
                explore(env.get_state())
            elif not info["failure"]:
                reached[tuple(info["placement"].tolist())] = reward

    explore(env.get_state())
    valid = valid_placements(task)
    assert set(reached) == {tuple(placement) for placement in valid.tolist()}
    costs = [MODEL.estimate(placement, task.tables, task.topology).total_ms for placement in valid]
    assert max(reached.values()) == pytest.approx(-min(costs), rel=1e-12)
    assert min(reached.values()) > -penalty_ms(task, MODEL)


@pytest.mark.parametrize("reward", ["terminal", "dense"])
@pytest.mark.parametrize(
    ("actions", "reason", "table", "mib_needed", "mib_free", "says"),
    [
        ([0, 0, 0], "illegal_action", "a", 40, 80, "does not exist or has too little memory free"),
        ([3], "illegal_action", "b", 60, 80, "does not exist"),  # padding
        ([0, 1, 1], "dead_end", "c", 40, 20, "fits no device"),  # 60 on the first, 20 + 40 on the second
    ],
)
def test_a_failure_ends_the_episode_and_says_why(
    packing_task: Any, env_of: Any, play: Any, reward: str, actions: list[int], reason: str, table: str,
    mib_needed: int, mib_free: int, says: str,
) -> None:  # fmt: skip
    """Tables a to d of 40, 60, 40 and 20 MiB, placed in the order b, d, a, c, on two devices that hold 80 each."""
    task = packing_task((40, 60, 40, 20), (80, 80), (20.0, 80.0, 10.0, 40.0))
    env = env_of(task, reward=reward, max_devices=5)
    env.reset(seed=0)
    total, info = play(env, actions)
    assert total == pytest.approx(-penalty_ms(task, MODEL))
    needed, free = mib_needed * 2**20, mib_free * 2**20
    failure = env.failure()
    message = failure.pop("message")
    assert failure == {"reason": reason, "table": table, "bytes_needed": needed, "bytes_free": free}
    assert info["failure"] == {"illegal_action": 1, "dead_end": 2}[reason]
    for part in (says, f"Table {table}", str(needed), str(free), "2 devices"):
        assert part in message
    assert (info["placement"] == -1).all()
    assert env.state.status[0] == Status[reason.upper()]
    assert env.state.step[0] == len(actions) - (reason == "illegal_action")
    view = env.view()
    assert view.failure == message
    assert (view.placement >= 0).sum() == env.state.step[0]
    assert view.phases_ms.max(axis=0).sum() == pytest.approx(view.cost_ms)
    placed = np.flatnonzero(view.placement >= 0)
    so_far = (
        MODEL.estimate(view.placement[placed], task.tables.select(placed), task.topology).total_ms if len(placed) else 0
    )
    assert info["cost_ms"] == pytest.approx(so_far) != pytest.approx(penalty_ms(task, MODEL))
    assert task.tables.names[view.next_table] == table
    assert env.reset(seed=0)[1]["failure"] == 0
    assert env.failure() is None
    assert play(env, [0, 0, 1, 1])[1]["placement"].tolist() == [1, 0, 1, 0]
    assert env.failure() is None


def plainly(task: Task, order: list[int], actions: list[int]) -> tuple[list[int], list[bool]]:
    """The devices that receive the tables, and which of the actions were illegal: in plain integers, as documented."""
    needed, caps = task.tables.memory_bytes.tolist(), task.topology.memory_cap_bytes.tolist()
    used, devices, illegal = [0] * task.num_devices, [], []
    for table, action in zip(order, actions, strict=True):
        legal = [d for d in range(task.num_devices) if used[d] + needed[table] <= caps[d]]
        if not legal:
            break
        illegal.append(action not in legal)
        devices.append(min(legal, key=lambda d: used[d]) if illegal[-1] else action)
        used[devices[-1]] += needed[table]
    return devices, illegal


@given(seed=SEEDS)
def test_a_redirected_table_goes_to_the_legal_device_with_the_least_memory_in_use(
    random_task: Any, env_of: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    reward = list(REWARDS)[seed % 3]
    task = random_task(rng, int(rng.integers(2, 10)), int(rng.integers(1, 5)), slack=1.3)
    env, plain = (env_of(task, max_devices=6, reward=reward, illegal=each) for each in ("redirect", "terminate"))
    env.reset(seed=0)
    plain.reset(seed=0)
    actions = rng.integers(6, size=task.num_tables).tolist()
    devices, illegal = plainly(task, env.problem.order[0, : task.num_tables].tolist(), actions)
    unit = 1.0 if reward == "normalized" else float(env.problem.lower_bound_ms[0])
    for number, (action, device) in enumerate(zip(actions, devices, strict=False)):
        seen, gained, over, _, info = env.step(action)
        other, expected, ended, _, without = plain.step(device)
        assert gained == pytest.approx(expected - 0.05 * unit * illegal[number], rel=1e-12)
        assert over == ended == (number == len(devices) - 1)
        assert all(np.array_equal(seen[key], other[key]) for key in other)
        assert info["redirected"] == sum(illegal[: number + 1])
        assert info["failure"] == without["failure"] != 1
        assert info["cost_ms"] == without["cost_ms"]
        assert info["placement"].tolist() == without["placement"].tolist()
    assert env.reset()[1]["redirected"] == 0


def whole_future(env: EmbeddingPlacementEnv, seed: int = 0) -> list[Any]:
    """What 60 steps from here give, resets (unseeded) included."""
    rng, seen = np.random.default_rng(seed), []
    for _ in range(60):
        obs, reward, terminated, _, info = env.step(int(rng.integers(6)))
        numbers = {key: np.asarray(value).tolist() for key, value in info.items() if key != "task_index"}
        seen.append((env.task.name, reward, numbers, {key: value.tolist() for key, value in obs.items()}))
        if terminated:
            env.reset()
            seen.append(env.task.name)
    return seen


def started(steps: int, seed: int = 3) -> EmbeddingPlacementEnv:
    env = EmbeddingPlacementEnv("dlrm-20x4", max_devices=6, illegal="redirect", reward="dense")
    env.reset(seed=seed)
    for number in range(steps):
        env.step(5 if number % 4 == 3 else int(env.action_masks().argmax()))  # 5 is redirected, which is counted
    return env


@pytest.mark.parametrize("steps", [0, 1, 12])
def test_a_snapshot_brings_back_the_episode_and_the_generator(steps: int) -> None:
    env = started(steps)
    snapshot = env.get_state()
    future = whole_future(env)
    for _ in range(2):  # it can be used more than once
        env.set_state(snapshot)
        assert whole_future(env) == future
    assert snapshot.redirected == steps // 4
    other = started(3, seed=99)
    other.set_state(pickle.loads(pickle.dumps(snapshot)))
    assert whole_future(other) == future
    small = EmbeddingPlacementEnv("dlrm-120x8")
    small.reset(seed=0)
    for wrong, message in (
        ({"task": 1}, "snapshot must be what get_state"),
        (small.get_state(), "was taken from one with another padding or cost model"),
    ):
        with pytest.raises(InvalidOptionError, match=message):
            env.set_state(wrong)  # type: ignore[arg-type]


def test_a_clone_goes_its_own_way() -> None:
    env, reference = started(5), started(5)
    env.action_space.seed(0)
    twin = env.clone()
    assert twin.task is env.task
    assert [twin.action_space.sample() for _ in range(20)] == [env.action_space.sample() for _ in range(20)]
    future = whole_future(reference)
    assert whole_future(twin) == future
    twin.reset(seed=8, options={"task": load_suite("dlrm-20x4", "test")[3]})
    assert whole_future(env) == future
