"""The same stage as in tests/e2e/partition."""

from tests.e2e.partition.conftest import stage

__all__ = ["stage"]
