"""AutoShard (Zha et al., KDD 2022): an LSTM policy trained with V-trace, and a cost network that shares its latents.

Departures: the actors are a vector environment whose policy is one step old; the preset `cost` is trained on the cost,
with masks. docs/results/parity.md has it beside the authors' code.
"""
