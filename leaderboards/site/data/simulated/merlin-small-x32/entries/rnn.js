(window.ShardGymData ??= {})["simulated/merlin-small-x32/entries/rnn"] = {"task_costs_ms":[51.843],"placements":[null]};
