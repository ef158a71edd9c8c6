(window.ShardGymData ??= {})["simulated/merlin-medium-x32/entries/rnn"] = {"task_costs_ms":[367.87],"placements":[null]};
