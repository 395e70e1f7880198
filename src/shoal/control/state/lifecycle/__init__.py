"""The lifecycle of workloads, groups and nodes: their states, what moves them, and every raise of a generation. Pure.

`changes` has the tables of workloads and groups, `nodes` that of nodes, `phases` the states that people see.
"""
