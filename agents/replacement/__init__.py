"""Agents of re-placement: rules, change detectors, forecasters, and the best sequence with hindsight."""
