"""The disk for checkpoints of a job on a fleet is full for a while, and a task host is killed meanwhile; exact."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.jobs.conftest import fleet, lease, world
from tests.e2e.jobs.world import LONG, World
from tests.services.disks import fill, small_disk

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

__all__ = ["fleet", "lease", "world"]


async def said(world: World, words: str) -> None:
    """Wait until the message of the job, which runs, has these words."""
    async with asyncio.timeout(LONG):
        while words not in (job := await world.get()).message:
            assert job.state in ("Running", "Recovering"), job
            await asyncio.sleep(0.1)


async def test_the_job_goes_on_and_says_so(world, tmp_path):
    with small_disk(tmp_path / "disk", megabytes=16) as disk:
        world.feed(400)
        await world.submit(checkpoints=str(disk / "checkpoints"))
        await world.wait_state("Running")
        await world.wait_output()
        async with world.under_load():
            await asyncio.to_thread(fill, disk / "rest")
            await said(world, "checkpoints failed")
            epoch = await world.epoch()
            await world.kill("host-1")
            await world.wait_recovered(epoch)
            (disk / "rest").unlink()
            await said(world, "checkpoints are made again")
            await world.wait_output(await world.wait_output())
        await world.check()
