"""The RNN baseline: device placement with a recurrent network and REINFORCE. Needs torch."""

from shard_gym.agents.rnn.agent import RnnAgent, load_rnn
from shard_gym.agents.rnn.learner import RnnLearner

__all__ = ["RnnAgent", "RnnLearner", "load_rnn"]
