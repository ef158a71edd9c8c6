"""Offline RL in small: record a heuristic as a Minari data set, clone it with torch, and score the clone on test tasks.

It needs the extras `minari` and `torch`. The data set stays in Minari's folder: `minari delete dlrm-20x4/example-v0`.
"""

import minari
import numpy as np
import torch
from torch.nn.functional import cross_entropy

from shard_gym import evaluate
from shard_gym.agents import PolicyAgent, make_agent
from shard_gym.agents.training.offline import recover_environment, write_dataset

SUITE, TEACHER, NAME = "dlrm-20x4", "cost-greedy", "dlrm-20x4/example-v0"


def load_or_write():
    try:
        return minari.load_dataset(NAME)
    except FileNotFoundError:
        return write_dataset(NAME, [evaluate(make_agent(TEACHER), SUITE, split="train")], SUITE)


def device_inputs(observation, num_devices):
    """(N, D, 31) float32: what a device holds, and the table to place, which is the same for all devices."""

    def rows(key):
        return np.asarray(observation[key]).reshape(-1, num_devices, np.shape(observation[key])[-1] // num_devices)

    table = np.concatenate([observation["current_table"], np.log1p(observation["current_table_costs"])], axis=-1)
    table = np.broadcast_to(table.reshape(-1, 1, 25), (*rows("device_memory").shape[:2], 25))
    return torch.tensor(np.concatenate([np.log1p(rows("device_costs")), rows("device_memory"), table], axis=-1))


def clone(dataset, num_devices, steps=300, seed=0):
    """A network that scores each device, fitted to the actions of the data set."""
    torch.manual_seed(seed)
    episodes = list(dataset)
    seen = {
        key: np.concatenate([each.observations[key][:-1] for each in episodes]) for key in dataset.observation_space
    }
    inputs, masks = device_inputs(seen, num_devices), torch.tensor(seen["action_mask"], dtype=torch.bool)
    actions = torch.tensor(np.concatenate([each.actions for each in episodes]))
    network = torch.nn.Sequential(torch.nn.Linear(31, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = torch.randint(len(actions), (256,))
        scores = network(inputs[batch]).squeeze(-1).masked_fill(~masks[batch], -torch.inf)
        optimizer.zero_grad()
        cross_entropy(scores, actions[batch]).backward()
        optimizer.step()
    return network


if __name__ == "__main__":
    dataset = load_or_write()
    env = recover_environment(dataset).unwrapped
    print(f"{dataset.id}: {dataset.total_episodes} episodes, {dataset.total_steps} steps of {TEACHER}")
    network = clone(dataset, env.max_devices)

    def policy(observation, mask):
        with torch.no_grad():
            scores = network(device_inputs(observation, env.max_devices))[0, :, 0]
        return int(scores.masked_fill(~torch.tensor(mask), -torch.inf).argmax())

    cloned = PolicyAgent("clone", policy, max_tables=env.max_tables, max_devices=env.max_devices, observation="compact")
    for agent in (make_agent("random"), cloned, make_agent(TEACHER)):
        result = evaluate(agent, SUITE)
        print(f"{result.agent}: {result.mean_cost_ms:.2f} ms on the test tasks, {result.failures} failures")
