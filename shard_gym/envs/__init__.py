"""The environments, and the table that registers them."""
