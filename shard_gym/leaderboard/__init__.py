"""Leaderboards: entries, their verification, their scores, and the page that shows them.

store.py       the folder, read without trusting it       schema.py   what the files of an entry say
grid.py        placements by seed and task                judge.py    what they cost
overlap.py     training data against test tables          verify.py   all of it, with a list of findings (findings.py)
scores.py      means, intervals, profiles                 boards.py   ranks
best.py        best known placements                      replay.py   shipped agents run again
replays.py     the times that took, kept                  timing.py   raw timings, taken at submission
write.py       an entry as files                          submit.py   an entry from an agent or an evaluation
sources.py     what agents and evaluations say of themselves
data.py        the boards as plain data                   render.py   tables and page;  site/  the page
"""
