"""Replicas: which address serves which task of a model, in which state (Monolith's `agent_version` 1).

`records` is what a node of the tree holds, `paths` where it lies, `table` what is known with the lookups over it,
`watcher` follows the tree, `registrations` decides what an agent registers, and `updater` keeps that up to date.
"""
