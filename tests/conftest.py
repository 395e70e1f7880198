"""What every test has: fault points disarmed afterwards, one hypothesis profile, real services when they are there."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from shoal.core import faults
from tests.services.kafka import kafka_broker, stop_broker
from tests.services.leftovers import Run, begin_run, run_id, watch_over
from tests.services.postgres import postgres_server, postgres_url
from tests.services.zookeeper import stop_zookeeper, zookeeper

__all__ = ["kafka_broker", "postgres_server", "postgres_url", "zookeeper"]

# The suites live in the package; this makes their assertions tell what they compared.
pytest.register_assert_rewrite("shoal.testing.suites")

# No deadline: a busy machine is no failure. In CI the examples are the same each time; at a desk they are not.
settings.register_profile(
    "shoal",
    deadline=None,
    derandomize=os.environ.get("CI") == "true",
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
# `make test-long` takes this one: new examples each time, and many.
settings.register_profile("long", settings.get_profile("shoal"), derandomize=False, max_examples=1000)
settings.load_profile("shoal")


#: Folders whose tests run real processes and services, whose pace this machine decides.
REAL_THINGS = frozenset({"e2e", "integration", "peers"})


#: Whether a process leads a run of the tests: it is no worker of another.
LEADS = pytest.StashKey[bool]()
#: What ends the processes of this one if it is killed.
WATCHER = pytest.StashKey[Any]()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Start alike everywhere: without an event loop, and with Ctrl-C."""
    session.config.stash[LEADS] = begin_run()
    base = session.config._tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ or not session.config.getoption("numprocesses", None):
        session.config.stash[WATCHER] = watch_over(base)
    # Else the first plug-in that asks for a loop makes one and forgets it.
    asyncio.set_event_loop(None)
    # Agents of tests run processes, whatever this machine has; the tests of other runtimes ask for them.
    os.environ.setdefault("SHOAL_AGENT_RUNTIMES", "process")
    # A shell without job control starts background jobs with SIGINT ignored. Programs inherit that, and tests send it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In CI a test of real processes and services gets a second try; the end of the run lists each that needed it."""
    if os.environ.get("CI") != "true" or not config.pluginmanager.hasplugin("rerunfailures"):
        return
    for item in items:
        if REAL_THINGS & set(item.path.relative_to(config.rootpath).parts):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """When all workers are done: stop what they shared, and fail a run that leaves a process or a mount behind."""
    yield
    watcher = session.config.stash.get(WATCHER, None)
    if watcher is not None:
        watcher.kill()
        watcher.wait()
    if not session.config.stash.get(LEADS, False):
        return
    base = session.config._tmp_path_factory.getbasetemp()
    stop_broker(base)
    stop_zookeeper(base)
    run = Run(run_id(), base, has_engines=True)
    if left := run.left():
        report = session.config.pluginmanager.get_plugin("terminalreporter")
        for each in ("Left behind by this run, and removed now:", *left):
            report.write_line(each, red=True)
        run.remove()
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def disarmed_faults() -> Iterator[None]:
    """No fault point stays armed after the test that armed it."""
    yield
    faults.disarm_all()
