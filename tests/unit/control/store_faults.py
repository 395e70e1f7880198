"""What the matrix of store failures is made of: every write of the API, and every loop of the control plane.

An entry prepares a world, does one thing while the store fails, and says how to see that it was done in the end.
`test_store_faults` uses some pairs of an entry and a failure, `tests/long` all of them. What needs certificates is in
`trust_faults`.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import hashlib
import json
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from shoal.artifacts.store import StoreLimits
from shoal.control.artifacts.service import FOLDER
from shoal.control.leadership.routing import READS
from shoal.control.state.fleet import Fleet
from shoal.control.store.base import Batch
from shoal.control.store.errors import StoreOutcome
from shoal.core.errors import ShoalError
from shoal.core.ids import GroupId, JobId, WorkloadId
from shoal.core.tasks import running as running_task
from shoal.jobs.engine import Engines
from shoal.model.jobs import JobState
from shoal.model.nodes import DesiredNodeState, NodeState
from shoal.model.workloads import DesiredState
from shoal.services import ServiceEngine
from shoal.testing.control import ControlKit, process_spec
from shoal.testing.hollow import HollowNode
from shoal.testing.stores import Fault, error_of
from shoal.wire.methods import AgentControl, Artifacts, Credentials, Enrollment, Jobs, Secrets, methods_of
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.pb.shoal.v1 import artifacts_pb2, jobs_pb2, secrets_pb2
from shoal.wire.trust.sealing import Sealer
from tests.unit.control.operating import cordon, drain, ready, wait_event

#: How often a loop may say the same while the store fails.
MOST_REPEATED = 20

Step = Callable[[ControlKit], Awaitable[Any]]

#: After these the change may be stored all the same.
UNCERTAIN = {Fault.UNKNOWN_APPLIED, Fault.UNKNOWN_NOT_APPLIED, Fault.HANGS, Fault.HANGS_THEN_FAILS}
#: Of one call these are made up for before the caller hears of them.
HIDDEN = {Fault.CONFLICT}


def some_pairs(rows: Sequence[Any]) -> list[tuple[Any, Fault]]:
    """A quarter of all pairs: every row meets some failures, and every failure some rows. `tests/long` has the rest."""
    return [(row, fault) for at, row in enumerate(rows) for number, fault in enumerate(Fault) if (at + number) % 4 == 0]


def name_of(value: Any) -> str:
    """How a row or a failure is called in the name of a test."""
    return value.name.replace(" ", "-")


@asynccontextmanager
async def checked_kit(folder: Path) -> Any:
    """A control plane that must not fail as a whole, with hollow nodes."""
    made = ControlKit(
        folder,
        lease=timedelta(seconds=30),
        heartbeat_interval=timedelta(seconds=10),
        streams=True,
        engines=Engines({"service": ServiceEngine()}),
    )
    async with made as kit, running_task(kit.plane.failed(), name="failed") as failed:
        yield kit
        assert not failed.done(), failed.exception()


async def nothing(_kit: ControlKit) -> None:
    """No preparation."""


@dataclass(frozen=True)
class Write:
    """One RPC that changes something."""

    method: Any
    request: Any
    #: Whether what it asks for is so, by what the control plane knows.
    holds: Callable[[Fleet], bool]
    prepare: Step = nothing

    @property
    def name(self) -> str:
        return self.method.name

    async def call(self, kit: ControlKit) -> Any:
        """Call it once."""
        return await kit.channel.call(self.method, self.request)

    async def is_done(self, kit: ControlKit) -> bool:
        """Whether what it asks for is so."""
        return self.holds(kit.plane.leadership.fleet)


@dataclass(frozen=True)
class SecretWrite(Write):
    """One RPC that changes what is only in the store."""

    async def is_done(self, kit: ControlKit) -> bool:
        return ("s" in {each.name for each in await kit.store.secrets()}) == (self.method is Secrets.SET_SECRET)


def registration(node_id: str) -> pb.RegisterNodeRequest:
    return pb.RegisterNodeRequest(
        node_id=node_id,
        capabilities=pb.NodeCapabilities(
            cpu_total_millicores=4000, memory_total_mb=4096, supported_workload_types=["process"]
        ),
        grpc_endpoint="nowhere:1",
        features=["sessions", "generations"],
    )


async def running(kit: ControlKit, *, group: bool = False) -> None:
    """A workload, or a group of two, that runs on one of two nodes."""
    await ready(kit, "n1", "n2")
    if group:
        await kit.apply_group("g", {"a": {}, "b": {}})
    else:
        await kit.apply("web")
    for name in ("a", "b") if group else ("web",):
        await kit.wait_status(name, "Running")


async def lost(kit: ControlKit) -> None:
    """A node that went silent long ago."""
    (node,) = await ready(kit, "n1")
    node.silent = True
    await kit.wait_node("n1", "NotReady", seconds=120)
    await kit.clock.sleep(30)


async def orphaned(kit: ControlKit) -> None:
    """A node that runs something which is not known here."""
    (node,) = await ready(kit, "n1")
    await kit.apply("web")
    await kit.wait_status("web", "Running")
    _stray(node)
    await kit.clock.sleep(15)


def _stray(node: HollowNode) -> None:
    """Let a node run something that nobody asked it to."""
    run = copy.deepcopy(node.runs["web"])
    run.request.id = "stray"
    node.runs["stray"] = run
    node.changed.set()


async def cordoned(kit: ControlKit) -> None:
    await ready(kit, "n1")
    await cordon(kit, "n1")


async def with_secret(kit: ControlKit) -> None:
    await kit.channel.call(Secrets.SET_SECRET, SET_SECRET)


async def failed(kit: ControlKit) -> None:
    """A workload that failed and is not tried again by itself."""
    (node,) = await ready(kit, "n1")
    await kit.apply("web", restart="no")
    await kit.wait_status("web", "Running")
    node.fail("web")
    await kit.wait_status("web", "Failed")


SET_SECRET = secrets_pb2.SetSecretRequest(name="s", value=b"1")


def is_to_be(fleet: Fleet, name: str, desired: DesiredState) -> bool:
    record = fleet.workloads.get(WorkloadId(name))
    return record.desired is desired if record is not None else desired is DesiredState.DELETED


def node_is(fleet: Fleet, *desired: DesiredNodeState) -> bool:
    return fleet.nodes["n1"].desired in desired  # type: ignore[index]


_STOPPED = DesiredState.STOPPED.value
_SUGGESTION = pb.AutomationSuggestion(
    target_workload="web", action_type=pb.SET_DESIRED_STATE, desired_state=_STOPPED, reason="test"
)
WRITES = [
    Write(AgentControl.REGISTER_NODE, registration("new"), lambda fleet: "new" in fleet.nodes),
    Write(
        AgentControl.APPLY_WORKLOAD,
        pb.ApplyWorkloadRequest(workload_id="web", spec=process_spec()),
        lambda fleet: "web" in fleet.workloads,
    ),
    Write(
        AgentControl.DELETE_WORKLOAD,
        pb.DeleteWorkloadRequest(workload_id="web"),
        lambda fleet: is_to_be(fleet, "web", DesiredState.DELETED),
        running,
    ),
    Write(
        AgentControl.SET_DESIRED_STATE,
        pb.SetDesiredStateRequest(workload_id="web", desired_state=_STOPPED),
        lambda fleet: is_to_be(fleet, "web", DesiredState.STOPPED),
        running,
    ),
    Write(
        AgentControl.SUBMIT_AUTOMATION_SUGGESTION,
        pb.SubmitAutomationSuggestionRequest(suggestion=_SUGGESTION),
        lambda fleet: is_to_be(fleet, "web", DesiredState.STOPPED),
        running,
    ),
    Write(
        AgentControl.APPLY_GROUP,
        pb.ApplyGroupRequest(group_id="g", members=[pb.GroupMember(workload_id="a", spec=process_spec())]),
        lambda fleet: "g" in fleet.groups,
        lambda kit: ready(kit, "n1"),
    ),
    Write(
        AgentControl.DELETE_GROUP,
        pb.DeleteGroupRequest(group_id="g"),
        lambda fleet: "g" not in fleet.groups or fleet.groups[GroupId("g")].desired is DesiredState.DELETED,
        lambda kit: running(kit, group=True),
    ),
    Write(AgentControl.REMOVE_NODE, pb.RemoveNodeRequest(node_id="n1"), lambda fleet: "n1" not in fleet.nodes, lost),
    Write(
        AgentControl.MARK_NODE_DEAD,
        pb.MarkNodeDeadRequest(node_id="n1"),
        lambda fleet: fleet.nodes["n1"].dead,  # type: ignore[index]
        lost,
    ),
    Write(
        AgentControl.CORDON_NODE,
        pb.CordonNodeRequest(node_id="n1"),
        lambda fleet: node_is(fleet, DesiredNodeState.CORDONED),
        lambda kit: ready(kit, "n1"),
    ),
    Write(
        AgentControl.UNCORDON_NODE,
        pb.UncordonNodeRequest(node_id="n1"),
        lambda fleet: node_is(fleet, DesiredNodeState.NONE),
        cordoned,
    ),
    Write(
        AgentControl.LABEL_NODE,
        pb.LabelNodeRequest(node_id="n1", set={"zone": "a"}),
        lambda fleet: "zone" in fleet.nodes["n1"].operator_labels,  # type: ignore[index]
        lambda kit: ready(kit, "n1"),
    ),
    Write(
        AgentControl.DRAIN_NODE,
        pb.DrainNodeRequest(node_id="n1"),
        lambda fleet: node_is(fleet, DesiredNodeState.DRAINING, DesiredNodeState.DRAINED),
        running,
    ),
    Write(
        AgentControl.ADOPT_WORKLOAD,
        pb.AdoptWorkloadRequest(node_id="n1", workload_id="stray"),
        lambda fleet: "stray" in fleet.workloads,
        orphaned,
    ),
    Write(
        AgentControl.RETRY_WORKLOAD,
        pb.RetryWorkloadRequest(workload_id="web"),
        lambda fleet: fleet.workloads[WorkloadId("web")].generation > 1,
        failed,
    ),
    SecretWrite(Secrets.SET_SECRET, SET_SECRET, lambda _fleet: True),
    SecretWrite(Secrets.DELETE_SECRET, secrets_pb2.DeleteSecretRequest(name="s"), lambda _fleet: True, with_secret),
]
#: The loops have these: every node sends its heartbeats, on a stream.
IN_LOOPS = {AgentControl.HEARTBEAT.path, AgentControl.CONTROL_STREAM.path}


def every_write() -> set[str]:
    """The paths of all RPCs that may change something."""
    services = (AgentControl, Credentials, Enrollment, Secrets)
    return {each.path for service in services for each in methods_of(service) if each.attribute not in READS}


async def answer_of(write: Any, kit: ControlKit) -> ShoalError | None:
    """What a call came to: its error, or None when it says that it succeeded."""
    try:
        answer = await write.call(kit)
    except ShoalError as error:
        return error
    refused = getattr(answer, "error_message", "") or ("" if getattr(answer, "accepted", True) else answer.reason)
    return ShoalError(refused) if refused else None


async def check_write(kit: ControlKit, write: Any, fault: Fault) -> None:
    """A write that fails is told so, and can be repeated."""
    await write.prepare(kit)
    assert not await write.is_done(kit)
    failing = kit.store.fail(fault, "commit", times=1)
    error = await answer_of(write, kit)
    kit.store.heal()
    assert failing.met == 1
    await kit.clock.sleep(3)
    done = await write.is_done(kit)
    if error is None:
        assert fault in HIDDEN | {Fault.HANGS}
        assert done
    elif fault not in UNCERTAIN:
        assert type(error).__mro__[-4:] == type(error_of(fault)).__mro__[-4:] or "outcome" in error.facts
        assert not done
    elif error.facts.get("outcome") == StoreOutcome.UNKNOWN.value:
        assert done == (fault in {Fault.UNKNOWN_APPLIED, Fault.HANGS})
    if not done:
        assert await answer_of(write, kit) is None
    assert await write.is_done(kit)
    await kit.clock.sleep(3)
    assert await is_consistent(kit)


# ---------------------------------------------------------------------------------------------------------
# Loops


async def at_once(_kit: ControlKit, fail: Callable[[], None]) -> None:
    """The store fails from now on."""
    fail()


@dataclass(frozen=True)
class Work:
    """Something that the control plane does by itself."""

    name: str
    #: The loop that does it, by the name of its task.
    loop: str
    prepare: Step
    #: While the store fails.
    during: Step
    #: Raises unless it is done in the end.
    done: Step
    #: Lets the store begin to fail.
    begin: Callable[[ControlKit, Callable[[], None]], Awaitable[None]] = at_once


async def fail_after(kit: ControlKit, fail: Callable[[], None], stores: Callable[[Batch], Any]) -> None:
    """The store fails as soon as it has stored a certain change: before a loop can act on that."""
    begun = asyncio.Event()

    def stored(batch: Batch) -> None:
        if stores(batch) and not begun.is_set():
            begun.set()
            fail()

    kit.plane.leadership.ledger.on_batch(stored)
    async with asyncio.timeout(60):
        await begun.wait()


async def _silence(kit: ControlKit) -> None:
    next(node for node in kit.agents.nodes.values() if "web" in node.runs).silent = True


async def _moved(kit: ControlKit) -> None:
    await kit.wait(
        lambda: any("web" in node.runs and not node.silent for node in kit.agents.nodes.values()), seconds=200
    )


async def _end_run(kit: ControlKit) -> None:
    next(node for node in kit.agents.nodes.values() if "web" in node.runs).complete("web")


async def _completed(kit: ControlKit) -> None:
    await kit.wait_status("web", "Completed", seconds=15)


async def _two_pending(kit: ControlKit) -> None:
    for name in ("a", "b"):
        await kit.apply(name)


async def _join(kit: ControlKit) -> None:
    kit.node("n1")


async def _both_run(kit: ControlKit) -> None:
    for name in ("a", "b"):
        await kit.wait_status(name, "Running", seconds=120)


async def _begin_drain(kit: ControlKit) -> None:
    await running(kit)
    here = next(node.node_id for node in kit.agents.nodes.values() if "web" in node.runs)
    await drain(kit, here)


async def _drained(kit: ControlKit) -> None:
    def emptied() -> bool:
        states = {node.state for node in kit.plane.leadership.fleet.nodes.values()}
        return NodeState.DRAINED in states

    await kit.wait(emptied, seconds=180, what="drained")
    await kit.wait_status("web", "Running")


async def _apply_group(kit: ControlKit) -> None:
    await ready(kit, "n1", "n2")
    await kit.apply_group("g", {"a": {}, "b": {}})


async def _settled(kit: ControlKit) -> None:
    await kit.wait(lambda: not kit.plane.leadership.fleet.groups[GroupId("g")].before, seconds=120)
    await _both_run(kit)


async def _leads(kit: ControlKit) -> None:
    await kit.wait(lambda: kit.plane.leads and kit.plane.is_ready(), seconds=20)
    assert (await kit.apply("later")).success


async def _add_stray(kit: ControlKit) -> None:
    _stray(next(node for node in kit.agents.nodes.values() if "web" in node.runs))


async def _told(kit: ControlKit) -> None:
    await wait_event(kit, "OrphanFound", seconds=30)


async def _wait(kit: ControlKit) -> None:
    await kit.clock.sleep(1)


async def _placed_then_fails(kit: ControlKit, fail: Callable[[], None]) -> None:
    async with running_task(kit.apply("web"), name="apply"):
        await fail_after(kit, fail, lambda batch: any(each.node_id for each in batch.workloads))


async def _runs(kit: ControlKit) -> None:
    await kit.wait_status("web", "Running", seconds=120)


async def _ready_then_fails(kit: ControlKit, fail: Callable[[], None]) -> None:
    async with running_task(kit.apply("web", port=8001, labels={"service": "shop"}), name="apply"):
        await fail_after(kit, fail, lambda batch: any(each.status.ports for each in batch.observations))


async def _announced(kit: ControlKit) -> None:
    await kit.wait(
        lambda: kit.plane.leadership.tree.tree.find_children("/service/shop") == ("web",), seconds=30, what="announced"
    )


_SERVICE = json.dumps({"count": 2, "workload": {"type": "process", "process": {"command": ["serve"]}}}).encode()


async def _submitted_then_fails(kit: ControlKit, fail: Callable[[], None]) -> None:
    request = jobs_pb2.SubmitJobRequest(job_id="shop", engine="service", spec=_SERVICE)
    async with running_task(kit.channel.call(Jobs.SUBMIT, request), name="submit"):
        await fail_after(kit, fail, lambda batch: batch.jobs)


async def _half_applied_then_fails(kit: ControlKit, fail: Callable[[], None]) -> None:
    request = jobs_pb2.SubmitJobRequest(job_id="shop", engine="service", spec=_SERVICE)
    async with running_task(kit.channel.call(Jobs.SUBMIT, request), name="submit"):
        await fail_after(kit, fail, lambda batch: batch.workloads)


async def _service_runs(kit: ControlKit) -> None:
    def is_running() -> bool:
        job = kit.plane.leadership.fleet.jobs[JobId("shop")]
        return job.state is JobState.RUNNING and set(job.workloads) == {"shop-0", "shop-1"}

    await kit.wait(is_running, seconds=120, what="the service runs")


def _keep_shortly(kit: ControlKit) -> None:
    """Blobs that nothing needs are removed by the second look; the store of blobs is opened again for that."""
    service = kit.plane.leadership.artifacts
    service._limits, service._store = StoreLimits(keep_unreferenced=1.0), None


def _blobs(kit: ControlKit) -> list[Path]:
    return list((Path(kit.settings.data_dir) / FOLDER).iterdir())


async def _upload(kit: ControlKit) -> None:
    async def content() -> AsyncIterator[artifacts_pb2.UploadArtifactRequest]:
        start = artifacts_pb2.ArtifactStart(sha256=hashlib.sha256(b"x").hexdigest(), size=1)
        yield artifacts_pb2.UploadArtifactRequest(start=start)
        yield artifacts_pb2.UploadArtifactRequest(data=b"x")

    _keep_shortly(kit)
    assert [answer.stored async for answer in kit.channel.converse(Artifacts.UPLOAD, content())] == [False, True]
    assert len(_blobs(kit)) == 1


async def _removed(kit: ControlKit) -> None:
    _keep_shortly(kit)
    await kit.wait(lambda: not _blobs(kit), seconds=200, what="the blob is removed")


async def _other_key(kit: ControlKit) -> None:
    """Another control plane has set a secret with a key that this one does not have."""
    (known,) = await kit.store._inner.secrets()
    sealed = Sealer(b"o" * 32).seal(b"2", purpose="secret 's'")
    await kit.store._inner.commit(Batch(secrets=(dataclasses.replace(known, sealed=sealed),)))
    await kit.clock.sleep(60)


async def _key_trouble_told(kit: ControlKit) -> None:
    await kit.wait(lambda: "another key" in kit.plane.health()[1]["secrets"], seconds=70, what="trouble with the key")


WORKS = [
    Work("leases", "leadership/leases", running, _silence, _moved),
    Work("heartbeats", "", running, _end_run, _completed),
    Work("placement", "leadership/placer", _two_pending, _join, _both_run),
    Work("drains", "leadership/drains", _begin_drain, _wait, _drained),
    Work("groups", "leadership/dispatch", _apply_group, _wait, _settled),
    Work("leadership", "control/election", running, _wait, _leads),
    Work("health", "control/store", running, _wait, _leads),
    Work("orphans", "", running, _add_stray, _told),
    Work("answers of agents", "leadership/reports", lambda kit: ready(kit, "n1"), _wait, _runs, _placed_then_fails),
    Work(
        "announcements",
        "leadership/announcements",
        lambda kit: ready(kit, "n1"),
        _wait,
        _announced,
        _ready_then_fails,
    ),
    Work("jobs", "leadership/jobs", lambda kit: ready(kit, "n1"), _wait, _service_runs, _submitted_then_fails),
    Work("steps of jobs", "", lambda kit: ready(kit, "n1"), _wait, _service_runs, _half_applied_then_fails),
    Work("removal of artifacts", "leadership/artifacts", _upload, _wait, _removed),
    Work("check of the key", "control/key", with_secret, _other_key, _key_trouble_told),
]
#: The loop that only a follower has, which `check_following` is about, and a task that waits for the end of a term.
OTHER_LOOPS = {"control/follow", "control/term"}


async def stored_fleet(kit: ControlKit) -> Fleet:
    """What a control plane would know that starts now."""
    fleet = Fleet()
    fleet.load(await kit.store.load())
    return fleet


async def is_consistent(kit: ControlKit) -> bool:
    """Whether memory is what is stored, once nothing is under way."""
    await asyncio.sleep(0)
    known, stored = kit.plane.leadership.fleet, await stored_fleet(kit)
    return (known.workloads, known.groups) == (stored.workloads, stored.groups) and {
        name: node.version for name, node in known.nodes.items()
    } == {name: node.version for name, node in stored.nodes.items()}


@contextlib.contextmanager
def _logged() -> Iterator[list[logging.LogRecord]]:
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("shoal.control")
    logger.addHandler(handler)
    try:
        yield records
    finally:
        logger.removeHandler(handler)


async def loops_of(kit: ControlKit) -> set[str]:
    """The background tasks that a control plane has all the time, by their names."""

    def under_way() -> set[asyncio.Task[Any]]:
        return {task for task in asyncio.all_tasks() if task.get_name().startswith(("control/", "leadership/"))}

    before = under_way()
    await kit.clock.sleep(200)
    return {task.get_name().rstrip("-0123456789") for task in before & under_way()}


async def check_work(kit: ControlKit, work: Work, fault: Fault) -> None:
    """A loop survives a store that fails, and has done its work once the store is back."""
    await work.prepare(kit)
    with _logged() as records:
        await work.begin(kit, lambda: kit.store.fail(fault, times=math.inf))
        await work.during(kit)
        await kit.clock.sleep(45)
        kit.store.heal()
        await work.done(kit)
    told = Counter(record.getMessage() for record in records if record.levelno >= logging.WARNING)
    assert not [message for message, times in told.items() if times > MOST_REPEATED], told
    await kit.wait(kit.plane.is_ready, seconds=20)
    await kit.clock.sleep(5)
    assert await is_consistent(kit)
    await asyncio.sleep(0)
