(window.ShardGymData ??= {})["simulated/merlin-medium-x128/entries/rnn"] = {"task_costs_ms":[445.72],"placements":[null]};
