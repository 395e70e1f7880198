"""Stream programs: `shoal run` and `shoal migrate`. Both work without a control plane.

Nothing here imports the fleet: the time until the first row counts.
"""
