"""An autoregressive policy with attention over the tables, trained by REINFORCE with a baseline shared by rollouts.

As in Kool et al. (ICLR 2019) and POMO (Kwon et al., NeurIPS 2020). Departures: devices are a set that shows what it
holds, rollouts differ in their samples instead of their first step, and the gradient is that of the cheapest and the
costliest rollouts alone.
"""
