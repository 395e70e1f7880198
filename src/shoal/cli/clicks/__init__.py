"""Clicks and impressions: a stream program, traffic for it, and a check of its results.

`clicks` is the program, as a user would write it; `examples/clicks` shows the same file. `traffic` says what is sent,
`feed` sends it, `audit` says what must come of it, `watch` reads what does. Called by `shoal.cli.demo_stream`.
"""
