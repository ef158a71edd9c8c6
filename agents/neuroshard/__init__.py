"""NeuroShard (Zha et al., MLSys 2023): cost networks that are trained before, and a search for plans under them."""
