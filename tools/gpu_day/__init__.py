"""A day with a borrowed GPU: what to do with half an hour on a machine without a network, in calls of ten minutes.

docs/gpu-day.md is the checklist. `python -m tools.gpu_day SLICE` does a slice of the work there, and this works on a
machine where nothing but torch is installed; `packing` makes what travels there and `installing` puts what came back
into the checkout.
"""
