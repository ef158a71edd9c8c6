"""A command that damages every kind of file and counts how reading it ends; see `__main__`."""
