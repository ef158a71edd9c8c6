"""Drift: tables whose lookups, rows and popularity change over days, by seeded processes."""
