"""The environment of re-placement: when to make a new plan, and for which period."""
