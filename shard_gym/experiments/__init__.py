"""Experiments: those of the DreamShard paper on the shipped suites, and the page with the results.

study.py       the methods, the sections of the page, and the runs that each needs
runs.py        one run and its record; many runs in parallel processes
results.py     numbers computed from records
report.py      the page and its figure
"""
