(window.ShardGymData ??= {})["simulated/merlin-jumbo-x128/entries/rnn"] = {"task_costs_ms":[3368.7],"placements":[null]};
