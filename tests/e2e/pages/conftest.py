"""Processes that end with the test."""

import pytest

from tests.e2e.pages.terminal import Stage


@pytest.fixture
async def stage(tmp_path):
    stage = Stage(tmp_path)
    try:
        yield stage
    finally:
        await stage.end()
