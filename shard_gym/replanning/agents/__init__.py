"""Agents of replanning: rules, change detectors, forecasters, and the best sequence with hindsight."""
