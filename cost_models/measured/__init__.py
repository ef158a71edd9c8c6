"""Costs that are measured: FBGEMM's embedding operator timed on real devices."""
