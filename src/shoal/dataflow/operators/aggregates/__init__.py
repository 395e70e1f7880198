"""Aggregates as arrays over cells: what windows, sessions and running totals share.

A cell is one group whose result is being made: a key within a pane, a session, a key. A `Store` has one accumulator for
each thing that is kept for every cell; `Sparse` is some of its cells taken out: to be merged, put out or written down.
"""
