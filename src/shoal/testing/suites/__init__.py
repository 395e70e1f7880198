"""Conformance suites: what every backend of a seam has to do, as test classes to be derived from.

Each suite has `__test__ = False` and fixtures to override; a subclass sets `__test__ = True`.
"""
