"""Random lives of a control plane: nothing that must never happen happens, and what was promised comes true."""

import time

import pytest

from shoal.testing.history import History

pytestmark = pytest.mark.looptime(start=time.monotonic)


@pytest.mark.parametrize("seed", range(5))
async def test_a_random_life_keeps_every_promise(seed, tmp_path):
    await History(tmp_path, seed).run(steps=40)
