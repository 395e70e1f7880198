"""A dataflow job on three agents gets another width and another bundle under load: output stays exact."""

import asyncio
import re

import pytest

from shoal.core.errors import InvalidError, PreconditionError
from shoal.dataflow.fleet.spec import encode
from shoal.wire.methods import Jobs

pytestmark = pytest.mark.e2e


async def rescale(world, width, operator=""):
    before = await world.epoch()
    await world.ask(Jobs.RESCALE, width=width, operator=operator)
    await world.wait_recovered(before)
    job = await world.wait_state("Running")
    await world.wait_output(await world.wait_output())
    return job


async def widths(world):
    async with asyncio.timeout(60):
        while not (steps := (await world.report()).steps):
            await asyncio.sleep(0.1)
    return {step.uid: step.width for step in steps}


def copies_read(world):
    """Of how many state files a task host found copies, each time that it began with a checkpoint."""
    logs = [path.read_text(errors="replace") for path in world.fleet.base_dir.rglob("*.log") if "-host-" in str(path)]
    return [int(each) for each in re.findall(r"copies of (\d+) are here", "".join(logs))]


async def test_it_is_rescaled_under_load(world):
    world.feed(400)
    await world.submit(1, checkpoints=f"file://{world.folder}/checkpoints")
    await world.wait_state("Running")
    await world.wait_output()
    async with world.under_load():
        for width in (2, 4, 1):
            job = await rescale(world, width)
            assert len(job.workload_ids) == width + 1
        job = await rescale(world, 3, "sums")
        assert len(job.workload_ids) == 2
        assert (await widths(world))["sums"] == 3
        for nonsense in (0, 1000):
            with pytest.raises(InvalidError, match="width"):
                await world.ask(Jobs.RESCALE, width=nonsense)
        with pytest.raises(InvalidError, match=r"its steps are .*sums"):
            await world.ask(Jobs.RESCALE, width=2, operator="sum")
        await world.ask(Jobs.RESCALE, width=2)
        with pytest.raises(PreconditionError, match="under way"):
            await world.ask(Jobs.RESCALE, width=3)
        await world.wait_state("Running")
        await world.wait_output(await world.wait_output())
    await world.check()
    assert any(copies_read(world))


async def test_it_is_upgraded_what_does_not_fit_is_refused_first_and_a_savepoint_of_before_is_kept(world):
    world.feed(400)
    await world.submit()
    await world.wait_state("Running")
    await world.wait_output()
    async with world.under_load():
        await world.ask(Jobs.SAVEPOINT)
        async with asyncio.timeout(60):
            while "savepoint" not in (await world.get()).message:
                await asyncio.sleep(0.1)
        other = await asyncio.to_thread(world.pack, uid="other")
        with pytest.raises(InvalidError, match="sums"):
            await world.ask(Jobs.UPGRADE, spec=encode(other.spec))
        assert (await world.get()).state == "Running"
        before = await world.epoch()
        package = await asyncio.to_thread(world.pack, files={"more.py": b"VERSION = 2\n"})
        await world.client.upload_artifact(package.plan)
        await world.client.upload_artifact(package.bundle)
        await world.ask(Jobs.UPGRADE, spec=encode(package.spec))
        await world.wait_recovered(before)
        await world.wait_state("Running")
        count = await world.wait_output(await world.wait_output())
        await world.wait_output(count + 100)
    kept = [path for path in (world.folder / "checkpoints" / world.job_id).iterdir() if (path / "savepoint").exists()]
    assert len(kept) == 1
    assert (kept[0] / "manifest.json").exists()
    await world.check()
