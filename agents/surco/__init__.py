"""SurCo (Ferber et al., ICML 2023): linear costs, learned so that a linear solver's placements are cheap.

Departures: the gradient is that of a perturbed solver instead of blackbox differentiation, and sizes and rates are
ours, because the authors' code of this problem is not published.
"""
