"""A whole fleet on this machine: `shoal up`, `shoal demo`, and `LocalFleet`, which both use.

Tests and benchmarks use `LocalFleet` too. It runs `shoal control` and `shoal agent` as child processes.
"""
