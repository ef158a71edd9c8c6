"""Training of AutoShard: V-trace on placements in the environment, and a cost network on what they measured."""

from __future__ import annotations

import copy
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.agents.autoshard.agent import (
    PRESETS,
    AutoShardAgent,
    AutoShardNetwork,
    AutoShardOptions,
    Played,
    play,
    scored,
)
from shard_gym.agents.base.presets import preset_options
from shard_gym.agents.training import Learner, Report
from shard_gym.agents.training.learner import TrueCost
from shard_gym.agents.training.modules import ModuleTraining, chosen_and_entropy, new_module, tensors_beside
from shard_gym.agents.training.torch_arrays import load_module_arrays, module_arrays
from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import InvalidCheckpointError
from shard_gym.common.io.arrays import Arrays, prefixed, require_arrays, under
from shard_gym.common.system import one_thread
from shard_gym.cost_models import CostModel, additive_estimate
from shard_gym.cost_models.base import COMPUTE
from shard_gym.cost_models.fitting.data.dataset import concatenate_tables
from shard_gym.tasks import TaskSuite

CAPACITY = 5_000


class MeasuredDevices:
    """Up to `CAPACITY` sets of tables on a device, by number, and its ms of forward and backward compute."""

    def __init__(self) -> None:
        self._sets: list[NDArray[np.int64]] = []
        self._costs_ms: list[float] = []

    def __len__(self) -> int:
        return len(self._sets)

    def add(self, tables: NDArray[np.int64], cost_ms: float) -> None:
        """Remember a device, and forget the oldest if there are too many."""
        self._sets.append(tables)
        self._costs_ms.append(cost_ms)
        del self._sets[:-CAPACITY], self._costs_ms[:-CAPACITY]

    def batch(
        self, size: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Drawn devices: the tables of all, one device after another; (B,) where each begins; (B,) ms."""
        drawn = rng.integers(len(self), size=size).tolist()
        sets = [self._sets[each] for each in drawn]
        starts = np.cumsum([0, *(len(tables) for tables in sets[:-1])])
        return np.concatenate(sets), starts, np.array([self._costs_ms[each] for each in drawn], np.float32)

    def to_arrays(self) -> Arrays:
        """All that is remembered."""
        return {
            "tables": np.concatenate([np.empty(0, np.int64), *self._sets]),
            "counts": np.array([len(tables) for tables in self._sets], np.int64),
            "costs_ms": np.array(self._costs_ms, np.float64),
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays, num_tables: int) -> MeasuredDevices:
        """What `to_arrays` returned, of `num_tables` tables; raises InvalidCheckpointError for other arrays."""
        try:
            tables, counts, costs_ms = (arrays[name] for name in ("tables", "counts", "costs_ms"))
        except KeyError as error:
            raise InvalidCheckpointError(f"The measured devices lack the array {error}.") from error
        expected = {
            "tables": np.zeros(tables.size, np.int64),
            "counts": np.zeros(costs_ms.size, np.int64),
            "costs_ms": np.zeros(costs_ms.size, np.float64),
        }
        require_arrays("The record of measured devices", arrays, expected)
        fit = len(counts) <= CAPACITY and (counts > 0).all() and counts.sum() == len(tables)
        if not fit or (len(tables) and not 0 <= tables.min() <= tables.max() < num_tables):
            raise InvalidCheckpointError("The record of measured devices is not of these tables.")
        made = cls()
        if len(counts):
            made._sets, made._costs_ms = np.split(tables, np.cumsum(counts)[:-1]), costs_ms.tolist()
        return made


WEIGHTS, TASKS, CHOICES, COSTS = range(4)  # purposes of random generators
ACTOR, DEVICES = "actor.", "devices."  # prefixes of the arrays of a state that are not those of the network in training

VALUE_WEIGHT, MAX_GRADIENT_NORM, COST_BATCH = 0.5, 40.0, 512
"""The numbers are those of daochenzha/autoshard (run_autoshard.py)."""


class AutoShardLearner(Learner):
    """AutoShard in training, with one of two presets (see `AutoShardPaperOptions` and `CostOptions`).

    In each step the policy of before the last step plays an episode of each of some drawn tasks, as if it played while
    the last step was made; V-trace corrects for that. Every complete placement is one evaluation of the true cost. The
    compute times of its devices train the cost network, whose predictions order the tables and describe the devices.

    Args:
        suite, cost_model, seed: see `Learner`.
        name: of the agent.
        preset: "cost" or "paper".
        changes: options of the preset that differ from its defaults.

    Raises:
        UnknownNameError: there is no such preset, option or reward.
        InvalidOptionError: an option has an impossible value.
    """

    presets = PRESETS

    options: AutoShardOptions

    def __init__(
        self,
        suite: TaskSuite,
        cost_model: CostModel,
        seed: int,
        *,
        name: str = "autoshard",
        preset: str = "cost",
        **changes: Any,
    ) -> None:
        super().__init__(suite, cost_model, seed)
        self.name, self.preset = name, preset
        self.options = preset_options(self.presets, preset, **changes)
        self.iterations = self.options.iterations
        self.planned_queries = self.iterations * self.options.episodes
        self._tables = concatenate_tables([task.tables for task in suite])
        self._first = np.cumsum([0, *(task.num_tables for task in suite)])
        estimate = additive_estimate(self.cost_model)
        self._bounds_ms = np.array(
            [estimate.bounds(estimate.loads(task.tables, task.topology), task.topology)[0] for task in suite]
        )
        self._network = new_module(lambda: AutoShardNetwork(self.options.standardized), self.rng(WEIGHTS))
        self._network.normalize(self._tables)
        self._actor = copy.deepcopy(self._network)
        rate = self.options.learning_rate
        # Weights that a loss does not depend on follow their averages, as in the authors' code.
        self._training = ModuleTraining(self._network, rate, MAX_GRADIENT_NORM, all_weights=True)
        self._devices = MeasuredDevices()

    @override
    def _move(self, device: str) -> None:
        self._training.move_to(device)
        self._actor.to(device)

    @override
    def iterate(self) -> Report:
        options, left = self.options, 1 - self.iteration / self.iterations
        self._training.set_learning_rate(options.learning_rate * left)
        numbers = self.rng(TASKS).integers(len(self.suite), size=options.episodes)
        tasks = [self.suite[each] for each in numbers.tolist()]
        with one_thread():
            played = play(
                self._actor,
                tasks,
                self.rng(CHOICES),
                masks=options.masks,
                reward=options.reward,
                true_cost=TrueCost(self),
                lower_bounds_ms=self._bounds_ms[numbers],
            )
            self._actor.load_state_dict(self._network.state_dict())
            report = self._step(played)
            self._remember(numbers, played)
            cost_loss = self._train_costs(self.rng(COSTS)) if len(self._devices) else {}
        complete = float(played.complete.mean())
        return Report(float(played.costs_ms.mean()), {**report, **cost_loss, "complete": complete})

    def _step(self, played: Played) -> dict[str, float]:
        """A step of V-trace; the sums over all steps are those of the authors."""
        ways, tensor = played.trajectories, tensors_beside(self._network)
        found = scored(self._network, ways)
        logs = found.logits.log_softmax(dim=-1)
        chosen, entropy = chosen_and_entropy(logs, ways.actions)
        taken = ways.taken.float()
        entropy = entropy * taken
        ratios = (chosen.detach() - ways.log_probability).exp().double().cpu().numpy()
        values = found.values.detach().double().cpu().numpy()
        targets, advantages = vtrace(ratios, ways.rewards, values, ways.taken.cpu().numpy().astype(np.float64))
        policy_loss = -(chosen * taken * tensor(advantages.astype(np.float32))).sum()
        value_loss = 0.5 * ((tensor(targets.astype(np.float32)) - found.values) ** 2 * taken).sum()
        self._training.step(policy_loss + VALUE_WEIGHT * value_loss - self.options.entropy * entropy.sum())
        mean_entropy = float((entropy.sum() / taken.sum()).detach())
        rewards = float((ways.rewards * ways.taken.cpu().numpy()).sum(axis=1).mean())
        return {"mean_return": rewards, "value_loss": float(value_loss.detach()), "entropy": mean_entropy}

    def _remember(self, numbers: NDArray[np.int64], played: Played) -> None:
        """Keep the compute times of the devices that have tables, of complete placements that could be measured."""
        for episode in np.flatnonzero(played.complete & played.measured):
            task = self.suite[int(numbers[episode])]
            placement = played.placements[episode, : task.num_tables]
            compute = played.phases_ms[episode][:, COMPUTE].sum(axis=-1)
            for device in np.unique(placement).tolist():
                held = np.flatnonzero(placement == device) + self._first[numbers[episode]]
                self._devices.add(held, float(compute[device]))

    def _train_costs(self, rng: np.random.Generator) -> dict[str, float]:
        """Train the cost network on batches of measured devices; the mean loss, ms squared."""
        inputs, losses, tensor = self._network.inputs(self._tables), [], tensors_beside(self._network)
        for _ in range(self.options.cost_updates):
            members, starts, costs_ms = self._devices.batch(COST_BATCH, rng)
            own, members = np.unique(members, return_inverse=True)
            predicted = self._network.costs_of_sets(inputs[tensor(own)], tensor(members), tensor(starts))
            loss = ((predicted - tensor(costs_ms)) ** 2).mean()
            self._training.step(loss)
            losses.append(float(loss.detach()))
        return {"cost_loss": float(np.mean(losses))} if losses else {}

    @override
    def state(self) -> Arrays:
        return {
            **self._training.state(),
            **prefixed(ACTOR, module_arrays(self._actor)),
            **prefixed(DEVICES, self._devices.to_arrays()),
        }

    @override
    def load_state(self, arrays: Arrays) -> None:
        load_module_arrays(self._actor, under(ACTOR, arrays), "The policy that plays")
        self._devices = MeasuredDevices.from_arrays(under(DEVICES, arrays), len(self._tables))
        own = {name: array for name, array in arrays.items() if not name.startswith((ACTOR, DEVICES))}
        self._training.load_state(own, "The network")

    @override
    def weights(self) -> Arrays:
        return self._training.weights()

    @override
    def about(self) -> dict[str, Any]:
        return {"preset": self.preset, "options": asdict(self.options)}

    @override
    def agent(self) -> AutoShardAgent:
        return AutoShardAgent(self.name, copy.deepcopy(self._network).cpu())


def vtrace(
    ratios: FloatArray, rewards: FloatArray, values: FloatArray, taken: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """(N, S) targets of the value and (N, S) advantages of the actions of N episodes that another policy played.

    V-trace (Espeholt et al., IMPALA, ICML 2018, section 4.1) for episodes without discount.

    With r_t = min(1, ratio_t) and V beyond the end 0, the target is v_t = V_t + sum over s >= t of
    (r_t ... r_{s-1}) r_s (reward_s + V_{s+1} - V_s), and the advantage r_t (reward_t + v_{t+1} - V_t).

    A ratio is the probability of the action under the policy in training, divided by that under the one that played.
    All arguments are (N, S); `taken` is 1 for the steps of an episode and 0 beyond its end, where the results are 0.
    """
    clipped, values = np.minimum(ratios, 1.0) * taken, values * taken
    end = np.zeros((len(values), 1))
    errors = clipped * (rewards + np.concatenate([values[:, 1:], end], axis=1) - values)
    targets, ahead = np.empty_like(values), end[:, 0]
    for step in reversed(range(values.shape[1])):
        ahead = errors[:, step] + clipped[:, step] * ahead
        targets[:, step] = values[:, step] + ahead
    advantages = clipped * (rewards + np.concatenate([targets[:, 1:], end], axis=1) - values)
    return targets, advantages
