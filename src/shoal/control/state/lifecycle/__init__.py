"""The lifecycle of workloads, groups and nodes: their states, what moves them, and every raise of a generation. Pure.

`changes` holds the stored record of a workload, `phases` the state that people see, `groups` and `nodes` theirs.
"""
