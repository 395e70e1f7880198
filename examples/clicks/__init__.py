"""Clicks and impressions: a stream program, traffic for it, and a check of its results.

`clicks` is the program, as a user would write it. `traffic` defines the events, `feed` sends them, `audit` computes the
expected results, `watch` reads the actual ones. `shoal demo` runs all of it.
"""
