"""Placements to look at: as text, and with matplotlib as a figure or an array of pixels."""
