"""An autoregressive policy with attention over the tables, trained by REINFORCE with a baseline shared by rollouts."""
