"""Leaderboards: entries are placements; their costs are recomputed, and the valid ones are ranked.

store.py          folders of entries, read safely           schema.py         the files of an entry, parsed and written
scorer.py         costs of many placements at once          training_data.py  overlap with the test tables of a suite
verify.py         recomputes every claim of an entry        replay.py         runs the agents of ShardGym again
statistics.py     intervals, IQM, performance profiles      ranking.py        leaderboards, best known, competitors
evaluations.py    evaluations that become an entry          submit.py         writes an entry if it is valid
markdown.py       the generated tables                      site.py, static/  the web page

Entries of the track "replanning" are actions: sequence_files.py reads them, sequences.py plays them again,
sequence_entries.py makes them, and sequence_tables.py ranks them.
"""
