"""The presets of AutoShard and their options."""

from __future__ import annotations

from dataclasses import dataclass

from shard_gym.checks import checked_count, checked_learning_rate, is_not_negative
from shard_gym.envs.core.reward import make_reward
from shard_gym.errors import InvalidOptionError, short_repr


@dataclass(frozen=True, kw_only=True)
class AutoShardOptions:
    """Options of both presets.

    Attributes:
        iterations: steps of V-trace; the learning rate falls linearly to zero over them.
        episodes: placements in each step, of as many drawn tasks.
        reward: of an environment, by name. Episodes see no cost before their end, so "dense" is "terminal".
        masks: whether a device without room for a table is never chosen. The trained agent always masks.
        standardized: whether all inputs are those of `Tables.features`, on a common scale.
        cost_updates: batches that the cost network is trained on after each step.
        learning_rate: of Adam, at the start.
        entropy: weight of the entropy of the choices.
    """

    iterations: int
    episodes: int
    reward: str
    masks: bool
    standardized: bool
    cost_updates: int = 20
    learning_rate: float = 1e-3
    entropy: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("iterations", "episodes"):
            checked_count(name, getattr(self, name))
        checked_count("cost_updates", self.cost_updates, least=0)
        checked_learning_rate(self.learning_rate)
        if not is_not_negative(self.entropy):
            raise InvalidOptionError(f"entropy must be a number of at least 0, not {short_repr(self.entropy)}.")
        for name in ("masks", "standardized"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidOptionError(f"{name} must be True or False, not {short_repr(getattr(self, name))}.")
        if not isinstance(self.reward, str):
            raise InvalidOptionError(f"reward must be the name of a reward, not {short_repr(self.reward)}.")
        make_reward(self.reward)


@dataclass(frozen=True, kw_only=True)
class PaperOptions(AutoShardOptions):
    """`paper`: the reward, sizes and rates of daochenzha/autoshard.

    Their step is 8 parts of episodes, 100 placed tables each, played by processes while another one learns; here it is
    10 whole episodes, as many at their 80 tables, played with the weights before the last step. Their 100,000 tables
    are 125 such steps.
    """

    iterations: int = 125
    episodes: int = 10
    reward: str = "balance"
    masks: bool = False
    standardized: bool = False


@dataclass(frozen=True, kw_only=True)
class CostOptions(AutoShardOptions):
    """`cost`: the same network, trained on minus the cost, with masks and inputs on a common scale.

    The cost is divided by the task's lower bound, because the tasks of a suite differ in size more than the placements
    of one task do, and the value cannot know the tables to come. The rate is lower and the entropy weighs more than in
    the authors' code, with whose numbers the policy collapsed on mixdim-8: it put all tables on one device.
    """

    iterations: int = 300
    episodes: int = 16
    reward: str = "normalized"
    masks: bool = True
    standardized: bool = True
    learning_rate: float = 3e-4
    entropy: float = 0.01


PRESETS: dict[str, type[AutoShardOptions]] = {"paper": PaperOptions, "cost": CostOptions}
"""The options of each preset; their defaults are the preset."""
