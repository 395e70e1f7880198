"""Every command to a foreign agent of every behavior, with every restart in between."""

from __future__ import annotations

import pytest

from tests.peers.conftest import staged
from tests.peers.foreign import BEHAVIORS
from tests.peers.lives import COMMANDS, RESTARTS, live


@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("behavior", BEHAVIORS)
@pytest.mark.parametrize("command", COMMANDS)
async def test_a_command_comes_to_its_end(tmp_path, command, behavior, restart):
    async with staged(tmp_path) as stage:
        await live(stage, command, behavior, restart)
