"""Benchmarks: what Shoal promises in numbers, measured."""
