"""What is here runs with `make test-long`, and so does every test elsewhere that is marked as long."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test in this directory."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.long)
