"""SurCo (Ferber et al., ICML 2023): linear costs, learned so that a linear solver's placements are cheap."""
