(window.ShardGymData ??= {})["simulated/merlin-large-x128/entries/rnn"] = {"task_costs_ms":[993.54],"placements":[null]};
