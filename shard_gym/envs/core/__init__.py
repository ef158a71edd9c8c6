"""What all environments share: prepared tasks, the state and its one step, masks, rewards, episodes."""
