"""Leaderboards: entries are answers to test tasks; their costs are recomputed, and the valid ones are ranked.

tracks.py         the tracks: what is answered, scored, ranked  schema.py         the files of an entry
store.py          folders of entries, read safely               training_data.py  overlap with the tested tables
scorer.py         costs of many answers at once                 leagues.py        what an entry may ask while it answers
rows.py           checks rows of answers and their claims       competitors.py    agents across the core suites
verify.py         recomputes every claim of an entry            replay.py         runs the agents of ShardGym again
statistics.py     intervals, IQM, performance profiles          ranking.py        leaderboards, best known answers
evaluations.py    evaluations that become an entry              submit.py         writes an entry if it is valid
markdown.py       the generated tables                          site.py, static/  the web page
race*.py          races on a machine                            measured_track.py races that rank entries
"""
