"""Where workloads go: pure filters and scores, and the placer, which is the one serial point that reserves room.

The scheduler takes requests and nodes and returns placements with reasons; only `placer` stores anything.
"""
