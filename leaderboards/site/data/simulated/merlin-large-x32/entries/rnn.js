(window.ShardGymData ??= {})["simulated/merlin-large-x32/entries/rnn"] = {"task_costs_ms":[828.6],"placements":[null]};
