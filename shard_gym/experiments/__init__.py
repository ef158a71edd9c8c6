"""Experiments: the questions of the DreamShard paper asked of the shipped suites, run by run, and the page of answers.

runs.py        a run and its record
workers.py     many runs in processes of their own
methods.py     what is compared
parts.py       the questions, and the runs that answer each
answers.py     numbers of a table from records
report.py      the page
figures.py     its pictures
"""
