"""Plans built table after table by weights of what each step changes, which an evolution strategy learns.

A policy that is searched for directly, as in Salimans et al. (Evolution Strategies as a Scalable Alternative to
Reinforcement Learning, 2017), with the CMA-ES of Hansen (The CMA Evolution Strategy: A Tutorial, 2016).
"""
