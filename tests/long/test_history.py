"""Many more random lives than a quick run has time for."""

import time

import pytest

from shoal.testing.history import History

pytestmark = pytest.mark.looptime(start=time.monotonic)


@pytest.mark.parametrize("seed", range(1000, 1200))
async def test_a_random_life_keeps_every_promise(seed, tmp_path):
    await History(tmp_path, seed).run(steps=120)
