"""Filters, labels, samples and weighs rows before they are learned from: Monolith's operators, on whole columns.

An operator is a frozen value with `apply(batch, rng)`, which returns another batch. `Compose` runs several in turn.
"""
