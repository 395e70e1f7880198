"""Secrets in the control plane: set and named, never read back, opened only for a command."""

from __future__ import annotations

import asyncio
import base64
import threading

import pytest

from shoal.control.trust import secrets
from shoal.control.trust.secrets import ClusterSecrets
from shoal.core.disk.private_files import read_private
from shoal.core.errors import (
    ExhaustedError,
    InternalError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
)
from shoal.testing.control import ControlKit
from shoal.testing.threads import WatchedThreads
from shoal.wire.methods import AgentControl, Secrets
from shoal.wire.pb.persys.control.v1 import control_pb2
from shoal.wire.pb.shoal.v1 import secrets_pb2 as pb
from shoal.wire.trust import sealing
from shoal.wire.trust.sealing import Sealer, load_key, load_or_make_key, parse_key

pytestmark = pytest.mark.looptime

VALUE = b"correct-horse-battery-staple"


@pytest.fixture
async def kit(tmp_path):
    async with ControlKit(tmp_path) as kit:
        yield kit


async def set_secret(kit, name="db-password", value=VALUE):
    return (await kit.channel.call(Secrets.SET_SECRET, pb.SetSecretRequest(name=name, value=value))).secret


async def apply(kit, workload_id="web", **named):
    spec = control_pb2.WorkloadSpec(type="process", resources={"cpu_millicores": 100, "memory_mb": 64})
    spec.process.command.extend(["sleep", "60"])
    spec.process.env_from_secrets.update(named or {"PASSWORD": "db-password"})
    request = control_pb2.ApplyWorkloadRequest(workload_id=workload_id, spec=spec)
    answer = await kit.channel.call(AgentControl.APPLY_WORKLOAD, request)
    assert answer.success, answer


async def view_of(kit, workload_id="web"):
    request = control_pb2.GetWorkloadRequest(workload_id=workload_id)
    return (await kit.channel.call(AgentControl.GET_WORKLOAD, request)).workload


async def test_a_value_goes_with_the_command_and_nowhere_else(kit):
    node = kit.node("n1")
    assert (await set_secret(kit)).revision == 1
    await apply(kit)
    await kit.wait_status("web", "Running")
    command = node.runs["web"].request
    assert dict(command.secrets) == {"db-password": VALUE}
    assert VALUE not in command.spec.SerializeToString()
    answers = [
        await view_of(kit),
        await kit.channel.call(AgentControl.LIST_EVENTS, control_pb2.ListEventsRequest(limit=1000)),
        await kit.channel.call(Secrets.LIST_SECRETS, pb.ListSecretsRequest()),
    ]
    encoded = base64.b64encode(VALUE)
    for answer in answers:
        data = answer.SerializeToString()
        assert VALUE not in data
        assert encoded not in data
    [stored] = await kit.store.secrets()
    assert VALUE not in stored.sealed
    assert VALUE.decode() not in repr(stored)


async def test_a_workload_waits_for_a_secret_that_is_not_there_and_goes_on_at_once(kit):
    node = kit.node("n1")
    await apply(kit)
    await asyncio.sleep(120)
    assert "web" not in node.runs
    view = await view_of(kit)
    assert view.assigned_node_id == "n1", "that is no fault of the node"
    assert "secret 'db-password' not found" in view.reason.message
    await set_secret(kit)
    await asyncio.sleep(0.5)
    assert dict(node.runs["web"].request.secrets) == {"db-password": VALUE}


async def test_a_new_value_is_for_the_next_command(kit):
    node = kit.node("n1")
    await set_secret(kit)
    await apply(kit)
    await kit.wait_status("web", "Running")
    assert (await set_secret(kit, value=b"another")).revision == 2
    await asyncio.sleep(60)
    assert dict(node.runs["web"].request.secrets) == {"db-password": VALUE}
    await apply(kit, PASSWORD="db-password", ALSO="db-password")
    await asyncio.sleep(5)
    assert dict(node.runs["web"].request.secrets) == {"db-password": b"another"}


async def run_with_file(kit):
    """Run a workload with a file that holds the secret."""
    await set_secret(kit)
    spec = control_pb2.WorkloadSpec(type="process")
    spec.process.command.extend(["sleep", "60"])
    spec.process.files.add(path="key", secret="db-password")
    await kit.channel.call(AgentControl.APPLY_WORKLOAD, control_pb2.ApplyWorkloadRequest(workload_id="web", spec=spec))
    await kit.wait_status("web", "Running")


async def test_a_new_value_is_sent_at_once_where_a_file_holds_it(kit):
    node = kit.node("n1")
    await run_with_file(kit)
    before = (await view_of(kit)).generation
    await set_secret(kit, value=b"another")
    await asyncio.sleep(5)
    assert dict(node.runs["web"].request.secrets) == {"db-password": b"another"}
    view = await view_of(kit)
    assert (view.generation, view.status) == (before, "Running")


async def test_a_new_value_reaches_a_file_although_the_control_plane_restarts_before_it_is_sent(kit):
    node = kit.node("n1")
    await run_with_file(kit)
    address = (await kit.node_view("n1")).grpc_endpoint
    kit.network.fail(address, UnavailableError("on its way"))
    await set_secret(kit, value=b"another")
    await asyncio.sleep(1)
    await kit.stop_control()
    kit.network.fail(address, None)
    await kit.start_control()
    await kit.wait(lambda: dict(node.runs["web"].request.secrets) == {"db-password": b"another"})


async def test_a_value_that_changes_while_another_is_on_its_way_is_sent_too(kit):
    node = kit.node("n1")
    await run_with_file(kit)
    kit.network.delay((await kit.node_view("n1")).grpc_endpoint, 2.0)
    await set_secret(kit, value=b"another")
    await asyncio.sleep(1)
    await set_secret(kit, value=b"the last")
    await kit.wait(lambda: dict(node.runs["web"].request.secrets) == {"db-password": b"the last"})


async def test_a_command_to_stop_carries_nothing(kit):
    node = kit.node("n1")
    await set_secret(kit)
    await apply(kit)
    await kit.wait_status("web", "Running")
    request = control_pb2.SetDesiredStateRequest(workload_id="web", desired_state="Stopped")
    await kit.channel.call(AgentControl.SET_DESIRED_STATE, request)
    await kit.wait_status("web", "Stopped")
    assert dict(node.runs["web"].request.secrets) == {}


async def test_a_node_whose_agent_keeps_no_secrets_gets_none(kit):
    kit.node("old", features=("generations", "sessions", "push"))
    await set_secret(kit)
    await apply(kit)
    await asyncio.sleep(5)
    view = await view_of(kit)
    assert view.status == "Pending"
    assert [each.code for each in view.rejections] == ["secrets"]


async def test_a_secret_that_is_named_is_not_deleted(kit):
    kit.node("n1")
    await set_secret(kit)
    await apply(kit)
    with pytest.raises(PreconditionError, match="is used by web"):
        await kit.channel.call(Secrets.DELETE_SECRET, pb.DeleteSecretRequest(name="db-password"))
    await kit.delete("web")
    await asyncio.sleep(10)
    await kit.channel.call(Secrets.DELETE_SECRET, pb.DeleteSecretRequest(name="db-password"))
    assert await kit.store.secrets() == ()
    with pytest.raises(NotFoundError):
        await kit.channel.call(Secrets.DELETE_SECRET, pb.DeleteSecretRequest(name="db-password"))


async def test_secrets_outlive_the_control_plane(kit):
    node = kit.node("n1")
    await set_secret(kit)
    await kit.stop_control()
    await kit.start_control()
    await apply(kit)
    await kit.wait_status("web", "Running")
    assert dict(node.runs["web"].request.secrets) == {"db-password": VALUE}


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("", b"secret", "name"),
        ("../x", b"secret", "name"),
        ("ok", b"", "value"),
        ("ok", b"sec\x00ret", "value"),
        ("ok", b"secret\xff", "value"),
        ("ok", b"secret" * 10_000, "value"),
    ],
)
async def test_what_cannot_be_a_secret_is_refused_and_not_repeated(kit, name, value, field):
    with pytest.raises(InvalidError) as caught:
        await set_secret(kit, name, value)
    assert [(each.field, "secret" in each.value) for each in caught.value.problems] == [(field, False)]
    assert await kit.store.secrets() == ()


async def test_there_is_an_end_to_secrets(kit, monkeypatch):
    monkeypatch.setattr(secrets, "MOST_SECRETS", 5)
    book: ClusterSecrets = kit.plane.leadership.cluster_secrets
    for number in range(5):
        await book.set(f"s{number}", b"x", by="test")
    with pytest.raises(ExhaustedError):
        await book.set("one-more", b"x", by="test")
    await book.set("s1", b"y", by="test")


async def test_another_key_is_told_from_damage(kit, tmp_path):
    sealer = Sealer(load_or_make_key(tmp_path / "k1" / "secret.key"))
    sealed = sealer.seal(VALUE, purpose="secret 'a'")
    assert sealer.open(sealed, purpose="secret 'a'") == VALUE
    assert sealer.seal(VALUE, purpose="secret 'a'") != sealed, "the same value is sealed differently each time"
    again = Sealer(load_or_make_key(tmp_path / "k1" / "secret.key"))
    assert again.open(sealed, purpose="secret 'a'") == VALUE
    with pytest.raises(PreconditionError, match="sealed with another key"):
        Sealer(bytes(32)).open(sealed, purpose="secret 'a'")
    with pytest.raises(InternalError, match="damaged"):
        sealer.open(sealed, purpose="secret 'b'")
    with pytest.raises(InternalError, match="damaged"):
        sealer.open(sealed[:-1] + bytes([sealed[-1] ^ 1]), purpose="secret 'a'")
    with pytest.raises(InternalError):
        sealer.open(b"", purpose="secret 'a'")
    assert (tmp_path / "k1" / "secret.key").stat().st_mode & 0o777 == 0o600


def test_threads_that_ask_for_a_first_key_at_once_get_the_same(tmp_path, monkeypatch):
    path, keys = tmp_path / "secret.key", []
    write = sealing.write_private

    def write_late(*given):
        if not second.ident:
            second.start()
            second.join(0.2)  # without a lock it makes a key of its own meanwhile
        write(*given)

    second = threading.Thread(target=lambda: keys.append(load_or_make_key(path)))
    monkeypatch.setattr(sealing, "write_private", write_late)
    keys.append(load_or_make_key(path))
    second.join()
    assert set(keys) == {load_key(path)}
    assert len(keys) == 2


async def test_the_key_is_read_and_made_in_a_thread(kit, monkeypatch):
    book, threads, at_work = kit.plane.leadership.cluster_secrets, WatchedThreads(), []
    monkeypatch.setattr(book, "_threads", threads)

    def read(path):
        at_work.append(threads.at_work)
        return read_private(path)

    monkeypatch.setattr(sealing, "read_private", read)
    await set_secret(kit)
    monkeypatch.setattr(book, "_sealer", None)
    assert await book.key_trouble() == ""
    assert at_work == [True, True]


@pytest.mark.parametrize("text", ["", "hunter2", base64.b64encode(b"h" * 31).decode(), "ß" * 44])
def test_what_is_no_key_is_not_repeated(text):
    with pytest.raises(InvalidError, match="must be the base64 of 32 bytes") as caught:
        parse_key(text, name="SHOAL_SECRET_KEY")
    assert caught.value.problems[0].value == ""


async def test_a_command_reads_the_secrets_that_it_names_and_no_others(kit, monkeypatch):
    read = []
    find = kit.store.secrets

    async def listen(names=None):
        read.append(names)
        return await find(names)

    for name in ("db-password", "other", "third"):
        await set_secret(kit, name)
    monkeypatch.setattr(kit.store, "secrets", listen)
    kit.node("n1")
    await apply(kit)
    await kit.wait_status("web", "Running")
    assert read == [frozenset({"db-password"})]
