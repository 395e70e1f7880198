"""A PostgreSQL that hangs and goes on: what the control planes say of it, and what a client is told."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from shoal.core.errors import UnavailableError
from tests.e2e.fleet.drill import insist, process, until, until_status
from tests.e2e.ha.planes import Planes

pytestmark = pytest.mark.e2e


def family(pid):
    """A process and its children."""
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                children.append(int(stat.parent.name))
    return [pid, *children]


@contextlib.contextmanager
def hanging(pid):
    held = family(pid)
    for each in held:
        os.kill(each, signal.SIGSTOP)
    try:
        yield
    finally:
        for each in reversed(held):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGCONT)


async def test_it_is_told_of_and_the_client_knows_that_it_may_have_been_stored(tmp_path, postgres_url, postgres_server):
    if postgres_server.pid is None:
        pytest.skip("the server is not of this test, so it cannot be stopped")
    planes = Planes(tmp_path, postgres_url)
    try:
        await planes.start_plane("one")
        await planes.start_plane("two")
        await planes.start_agent("node-1")
        await planes.leader()
        async with planes.client() as control:
            await insist(lambda: control.apply(process("before")))
            await until_status(control, "before", "Running")

            async def everybody(status):
                return {(await planes.health(name))["status"] for name in planes.addresses} == {status}

            with hanging(postgres_server.pid):
                with pytest.raises(UnavailableError) as told:
                    await control.apply(process("web"))
                assert "shoal workload get web" in told.value.hint
                assert told.value.facts["outcome"] == "unknown"
                assert await everybody("degraded")
                assert (await control.get_workload("before")).status == "Running"
            await until(lambda: everybody("ok"), what="both are well again")
            await insist(lambda: control.apply(process("web")))
            await until_status(control, "web", "Running")
    finally:
        await planes.close()
