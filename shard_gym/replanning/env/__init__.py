"""The environment of replanning: when to make a new plan, and for which period."""
