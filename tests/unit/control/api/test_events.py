"""Events by the labels that their workloads had when they happened, also after those are deleted."""

import contextlib
import time

import pytest

from shoal.client import ControlPlane
from shoal.core.errors import InvalidError
from shoal.core.tasks import running
from shoal.testing.control import CONTROL_ADDRESS, ControlKit

pytestmark = pytest.mark.looptime(start=time.monotonic)


@pytest.fixture
async def kit(tmp_path):
    async with ControlKit(tmp_path) as made:
        made.node("n1")
        await made.wait_node("n1", "Ready")
        yield made


@pytest.fixture
async def control(kit):
    async with ControlPlane([CONTROL_ADDRESS], kit.network.transport("client"), clock=kit.clock) as made:
        yield made


async def test_the_events_of_deleted_workloads_are_found_by_the_labels_that_they_had(kit, control):
    await kit.apply("web", labels={"app": "web"})
    await kit.apply("db", labels={"app": "db"})
    await kit.wait_status("web", "Running")
    await kit.delete("web")
    await kit.wait_gone("web")
    await kit.apply("web", labels={"app": "other"})
    page = await control.list_events(selector="app=web", newest=True)
    assert {event.subject_id for event in page.events} == {"web"}
    kinds = [event.kind for event in page.events]
    assert (kinds[0], kinds[-1]) == ("WorkloadCreated", "WorkloadDeleted")
    assert {tuple(event.labels.items()) for event in page.events} == {(("app", "web"),)}
    both = await control.list_events(selector="app in (web,other)", newest=True)
    assert both.events[: len(kinds)] == page.events
    assert both.events[len(kinds)].kind == "WorkloadCreated"


async def test_a_follower_hears_of_what_matches_only(kit, control):
    heard = []

    async def follow():
        async with contextlib.aclosing(control.watch_events(after=0, selector="app=web")) as events:
            async for event in events:
                heard.append((event.subject_id, event.kind))

    await kit.apply("early", labels={"app": "web"})
    async with running(follow(), name="follow"):
        await kit.apply("db", labels={"app": "db"})
        await kit.apply("late", labels={"app": "web"})
        await kit.wait(lambda: ("late", "WorkloadRunning") in heard)
        await kit.delete("late")
        await kit.wait(lambda: ("late", "WorkloadDeleted") in heard)
    assert {subject for subject, _kind in heard} == {"early", "late"}
    assert ("early", "WorkloadCreated") in heard


@pytest.mark.parametrize(
    ("query", "field"),
    [({"selector": "app in web"}, "selector"), ({"selector": "app=web", "subject_kind": "node"}, "selector")],
)
async def test_a_selector_that_cannot_be_is_refused(control, query, field):
    with pytest.raises(InvalidError, match=field):
        await control.list_events(**query)
