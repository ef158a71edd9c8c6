"""The networks over sets of devices and the policies under Stable-Baselines3: nothing illegal is ever chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from shard_gym.agents.sb3.dqn import MaskedDQN
from shard_gym.agents.sb3.learner import Sb3Learner
from shard_gym.agents.sb3.network import (
    ILLEGAL,
    INPUTS,
    MAX_SHARDS,
    SPLIT_TYPES,
    DeviceScorer,
    SetCritic,
    device_set,
    observation_of,
)
from shard_gym.agents.sb3.policies import DeviceFeatures, SetDQNPolicy
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.envs.sharding.vector import EmbeddingShardingVectorEnv
from shard_gym.tasks import Task, TaskSuite

Observations = dict[str, torch.Tensor]
PER_DEVICE = {
    **{"device_costs": 4, "device_shares": 5, "device_width": 1},
    **{"device_memory": 2, "device_mask": 1, "action_mask": 1},
}


@pytest.fixture(scope="session", params=INPUTS)
def observed(random_task: Callable[..., Task], request: pytest.FixtureRequest) -> Observations:
    """Observations from the middle of 16 episodes on two to five devices, where some tables do not fit any more."""
    rng = np.random.default_rng(1)
    tasks = [random_task(rng, 14, 2 + number % 4, slack=1.1, name=f"task/{number}") for number in range(16)]
    suite = TaskSuite("some", tuple(tasks))
    envs: EmbeddingPlacementVectorEnv
    if request.param == "splits":
        splits = {"sharding_types": SPLIT_TYPES, "max_shards": MAX_SHARDS}
        envs = EmbeddingShardingVectorEnv(16, suite, observation="compact", **splits)
    else:
        envs = EmbeddingPlacementVectorEnv(16, suite, observation=request.param)
    observation, _ = envs.reset(seed=0, options={"tasks": list(range(16))})
    for _ in range(9):
        legal = envs.action_masks()
        observation, *_ = envs.step(np.where(legal, rng.random(legal.shape), -1).argmax(axis=1))
    real = observation["device_mask"] > 0
    fits = observation["action_mask"][:, : real.shape[1]] > 0
    assert (real & ~fits).any()
    assert (~real).any()
    return {key: torch.from_numpy(array) for key, array in observation.items()}


@pytest.fixture(autouse=True)
def _seeded() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        yield


def scorer(observed: Observations) -> DeviceScorer:
    """One whose scores differ; the last layer begins close to zero."""
    made = DeviceScorer(24, observation_of(observed))
    torch.nn.init.normal_(made.score.weight)
    if INPUTS[made.observation].splits:
        torch.nn.init.normal_(made.split_score.weight)
    return made


def by_device(observed: Observations, change: Any) -> Observations:
    """The observations with every (N, D, k) array changed; the mask of the splits stays."""
    count, devices = observed["device_mask"].shape
    sizes = {key: size for key, size in PER_DEVICE.items() if key in observed}
    arrays = {key: observed[key][:, : devices * size].reshape(count, devices, size) for key, size in sizes.items()}
    changed = {key: change(array).reshape(count, -1) for key, array in arrays.items()}
    changed["action_mask"] = torch.cat([changed["action_mask"], observed["action_mask"][:, devices:]], dim=1)
    return {**observed, **changed}


def test_permuting_the_devices_permutes_the_scores_and_leaves_the_value(observed: Observations) -> None:
    score, critic = scorer(observed), SetCritic(24, observation_of(observed))
    order = torch.from_numpy(np.random.default_rng(0).permutation(5))
    permuted = device_set(by_device(observed, lambda array: array[:, order]))
    one, other = score(device_set(observed)), score(permuted)
    assert torch.allclose(one[:, order], other[:, :5], atol=1e-5)
    assert torch.allclose(one[:, 5:], other[:, 5:], atol=1e-5)
    assert one[one > ILLEGAL].std() > 0.1
    assert torch.allclose(critic(device_set(observed)), critic(permuted), atol=1e-5)


def test_padding_the_devices_changes_nothing(observed: Observations) -> None:
    score, critic = scorer(observed), SetCritic(24, observation_of(observed))
    padded = by_device(observed, lambda array: torch.nn.functional.pad(array, (0, 0, 0, 7)))
    wide = score(device_set(padded))
    narrow = score(device_set(observed))
    assert torch.allclose(narrow[:, :5], wide[:, :5], atol=1e-5)
    assert (wide[:, 5:12] == ILLEGAL).all()
    assert torch.allclose(narrow[:, 5:], wide[:, 12:], atol=1e-5)
    assert torch.allclose(critic(device_set(observed)), critic(device_set(padded)), atol=1e-5)


def test_hardware_that_takes_a_hundred_times_as_long_gets_the_same_scores(observed: Observations) -> None:
    slow = {key: array * 100 if key.endswith("_costs") else array for key, array in observed.items()}
    score = scorer(observed)
    assert torch.allclose(score(device_set(observed)), score(device_set(slow)), atol=1e-4)


def test_illegal_devices_have_probability_zero_and_nothing_is_nan(observed: Observations) -> None:
    score = scorer(observed)
    illegal = observed["action_mask"] == 0
    logits = score(device_set(observed))
    policy = torch.distributions.Categorical(logits=logits)
    assert (policy.probs[illegal] == 0).all()
    assert (policy.probs[~illegal] > 0).all()
    policy.entropy().mean().backward()
    assert all(torch.isfinite(weight.grad).all() for weight in score.parameters())


def test_an_empty_system_has_features_too(observed: Observations) -> None:
    """After the last table of an episode without costs there is neither a table nor a cost."""
    nothing = {
        key: array * 0 if key.endswith(("_costs", "_table", "_shares", "_width")) else array
        for key, array in observed.items()
    }
    assert torch.isfinite(scorer(observed)(device_set(nothing))).all()


def learner(name: str, suite: TaskSuite, seen: Any) -> Sb3Learner:
    """One for observations like those."""
    observation = observation_of(seen)
    return Sb3Learner(suite, AnalyticalCostModel(), 0, name=name, num_envs=2, width=8, observation=observation)


def cropped(observed: Observations, devices: int) -> Observations:
    """The observations of the episodes on at most so many devices, with that padding."""
    few = observed["device_mask"].sum(1) <= devices
    kept = {key: array[few] for key, array in observed.items()}
    splits = kept["action_mask"][:, 5:]
    kept["action_mask"] = kept["action_mask"][:, :5]
    for key in [key for key in kept if key.startswith("device_") or key == "action_mask"]:
        kept[key] = kept[key].reshape(int(few.sum()), 5, -1)[:, :devices].reshape(int(few.sum()), -1)
    kept["action_mask"] = torch.cat([kept["action_mask"], splits], dim=1)
    return kept


@pytest.mark.parametrize("name", ["ppo", "a2c", "maskable-ppo"])
def test_the_policy_masks_itself(name: str, small_suite: TaskSuite, observed: Observations) -> None:
    seen = cropped(observed, 3)
    policy = learner(name, small_suite, seen)._model.policy
    probabilities = policy.get_distribution(seen).distribution.probs
    assert (probabilities[seen["action_mask"] == 0] == 0).all()
    assert torch.allclose(probabilities.sum(1), torch.ones(len(probabilities)))
    actions, values, _ = policy(seen)
    assert (seen["action_mask"].gather(1, actions[:, None]) == 1).all()
    assert torch.equal(values, policy.predict_values(seen))
    if name == "maskable-ppo":
        first = np.eye(seen["action_mask"].shape[1])[seen["action_mask"].argmax(1)]
        given = policy.get_distribution(seen, first > 0).distribution.probs.detach().numpy()
        assert np.array_equal(given, first)


def test_dqn_neither_chooses_nor_draws_nor_expects_illegal_devices(
    small_suite: TaskSuite, observed: Observations
) -> None:
    seen = {key: array.numpy() for key, array in cropped(observed, 3).items()}
    legal = seen["action_mask"] > 0
    rows = np.arange(len(legal))
    dqn_learner = learner("dqn", small_suite, seen)
    dqn = dqn_learner._model
    drawn = np.stack([dqn.predict(seen)[0] for _ in range(50)])  # the first iteration draws all of them
    assert all(legal[rows, actions].all() for actions in drawn)
    assert all(len(set(drawn[:, row])) == legal[row].sum() for row in rows)
    dqn_learner.iteration = dqn_learner.iterations
    best, _ = dqn.predict(seen, deterministic=True)
    assert legal[rows, best].all()
    assert np.mean([dqn.predict(seen)[0] == best for _ in range(50)]) > 0.9
    values = dqn.q_net({key: torch.from_numpy(array) for key, array in seen.items()})
    assert (values.max(1).values > -100).all()
    assert (values[torch.from_numpy(~legal)] < -1e7).all()


def test_each_environment_explores_by_itself(small_suite: TaskSuite) -> None:
    env = Sb3Learner(small_suite, AnalyticalCostModel(), 0, num_envs=64)._env
    half = MaskedDQN(
        SetDQNPolicy,
        env,
        exploration=lambda: 0.5,
        policy_kwargs={"net_arch": [8], "features_extractor_class": DeviceFeatures},
        buffer_size=64,
        target_update_interval=64,
        seed=0,
    )
    seen = env.reset()
    best, _ = half.predict(seen, deterministic=True)
    shares = [float((half.predict(seen)[0] != best).mean()) for _ in range(20)]
    assert min(shares) > 0  # one number for all of them would leave out every second call
