"""Experiments: those of the DreamShard paper on the shipped suites, and the page with the results.

methods.py     the agents that are compared, with their options
study.py       the sections of the page, and the runs that each needs
runs.py        one run and its record
processes.py   many runs in parallel processes
results.py     numbers computed from records
report.py      the page
figure.py      its figure
"""
