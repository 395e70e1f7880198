"""The certificates of task hosts are renewed while rows go between machines by Flight: no row waits for a recovery."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.model.identity import workload_identity
from shoal.wire.trust.authority import issue
from shoal.wire.trust.credentials import load_authority, write_credentials
from tests.e2e.jobs.world import LONG
from tests.long.jobs.test_partitions import kafka_broker, world

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

__all__ = ["kafka_broker", "world"]


async def renew(world, part):
    """Give a process new files, as its agent does."""
    view = await world.workload(part)
    pairs = (pair.partition(b"=") for pair in Path(f"/proc/{view.run.pid}/environ").read_bytes().split(b"\0"))
    environ = {name.decode(): value.decode() for name, _, value in pairs}
    authority, trusted = load_authority(world.fleet.base_dir / "certs")
    identity = workload_identity("default", job=world.job_id, node=view.assigned_node_id)
    pair = issue(authority, identity, now=SystemClock().wall())
    write_credentials(Path(environ["SHOAL_CERT"]).parent, ca=trusted, pair=pair)


async def took_new_streams(world, part, times):
    async with asyncio.timeout(LONG):
        while log_of(world, part).count("takes new streams with a new certificate") < times:
            await asyncio.sleep(0.1)


def log_of(world, part):
    logs = world.fleet.base_dir.rglob(f"workloads/{world.job_id}-{part}/logs/*.log")
    return "".join(path.read_text(errors="replace") for path in logs)


async def test_streams_move_to_new_certificates_without_a_recovery(world):
    epoch = await world.epoch()
    async with world.under_load():
        for times in (1, 2):
            for part in ("host-0", "host-1"):
                await renew(world, part)
                await took_new_streams(world, part, times)
                await world.wait_output(await world.wait_output())
    await world.check()
    assert await world.epoch() == epoch
    assert "stays where it is" not in log_of(world, "host-0") + log_of(world, "host-1")
