"""Experiments: DreamShard's on the shipped suites, and learning from measured costs; each with its page of results.

study.py             DreamShard: the methods, the sections of the page, and the runs that each needs
runs.py              one run and its record; many runs in parallel processes
results.py           numbers computed from records
report.py            the page and its figure
hardware.py          measured costs: what learns, what places, and the race
hardware_report.py   the page and its figure
"""
