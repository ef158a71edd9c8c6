"""AutoShard (Zha et al., KDD 2022): an LSTM policy trained with V-trace, and a cost network that shares its latents."""
