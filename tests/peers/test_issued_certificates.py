"""Foreign programs with certificates that the command line made, verified as such programs verify them.

Theirs is plain TLS 1.2 or newer: a client trusts one authority and looks for the host that it dialled among the names
in the certificate, a server wants a certificate of the same authority from every client. Neither knows the names that
our own programs look for. Both hold a certificate to its purpose and expect HTTP/2 to be agreed upon, which gRPC here
does not, and so `ssl` looks at each connection once more.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from collections.abc import Mapping

import grpc
import pytest

from shoal.wire.sockets.channel import GrpcTransport
from shoal.wire.trust.credentials import CredentialPaths
from shoal.wire.trust.security import MutualTls
from tests.peers.conftest import staged
from tests.peers.contract import CONTROL_RPCS, agent, control
from tests.peers.foreign import ForeignClient, container, until

pytestmark = pytest.mark.integration

HOST = "127.0.0.1"


def shoal(*words: str) -> None:
    """One command of ours, as people run it."""
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def issued(tmp_path_factory) -> Mapping[str, CredentialPaths]:
    folder = tmp_path_factory.mktemp("issued")
    authority = ("--dir", str(folder / "authority"))
    shoal("certs", "init", *authority)
    found = {}
    for name, words in {
        "control": ("--role", "control"),
        "agent": ("--role", "agent", "--node-id", "n1"),
        "client": ("--role", "operator"),
    }.items():
        shoal("certs", "issue", *words, "--host", HOST, "--out", str(folder / name), *authority)
        found[name] = CredentialPaths.within(folder / name)
    return found


def as_client(files: CredentialPaths) -> grpc.ChannelCredentials:
    """Verifies the dialled host, which no option replaces."""
    return grpc.ssl_channel_credentials(files.ca.read_bytes(), files.key.read_bytes(), files.cert.read_bytes())


def as_server(files: CredentialPaths) -> grpc.ServerCredentials:
    pair = (files.key.read_bytes(), files.cert.read_bytes())
    return grpc.ssl_server_credentials([pair], files.ca.read_bytes(), require_client_auth=True)


@pytest.fixture
async def secure(tmp_path, issued):
    """A control plane of ours and a foreign client, with what was issued to them."""
    files = issued["control"]
    access = {"ca": str(files.ca), "cert": str(files.cert), "key": str(files.key)}
    transport = GrpcTransport(security=MutualTls(files.ca, files.cert, files.key))
    async with staged(
        tmp_path / "data", transport, insecure=False, access=access, client=as_client(issued["client"])
    ) as stage:
        yield stage


async def test_an_agent_registers_sends_heartbeats_and_gets_work(secure, issued):
    files = issued["agent"]
    foreign = await secure.agent("n1", client=as_client(files), server=as_server(files))
    assert foreign.registrations[0].accepted
    assert (await secure.client.apply("web", container(), revision="r1")).success
    assert (await secure.client.wait_status("web", "Running")).assigned_node_id == "n1"
    assert [name for name, _request in foreign.calls if name == "ApplyWorkload"], "the command came over TLS"
    assert (await secure.client.delete("web")).success
    assert "not found" in await secure.client.wait_gone("web")
    await until(lambda: foreign.state_of("web") != agent.ACTUAL_STATE_RUNNING, "the agent to have let it go")


async def test_a_smoke_client_makes_every_call_that_is_for_people(secure, issued):
    files = issued["agent"]
    await secure.agent("n1", client=as_client(files), server=as_server(files))
    suggestion = control.AutomationSuggestion(
        suggestion_id="s", target_workload="w", action_type=control.SET_DESIRED_STATE, desired_state="Stopped"
    )
    applied = {"workload_id": "w", "spec": container(), "revision_id": "rev-1", "desired_state": "Running"}
    requests = {
        "ApplyWorkload": applied,
        "ListNodes": {},
        "GetNode": {"node_id": "n1"},
        "ListWorkloads": {},
        "GetWorkload": {"workload_id": "w"},
        "GetClusterSummary": {},
        "RetryWorkload": {"workload_id": "w"},
        "SubmitAutomationSuggestion": {"suggestion": suggestion},
        "DeleteWorkload": {"workload_id": "w"},
    }
    # Nodes speak for themselves: these two lines of a smoke client need the certificate of an agent.
    of_agents = {"RegisterNode": {"node_id": "n1"}, "Heartbeat": {"node_id": "n1"}}
    assert {*requests, *of_agents} == set(CONTROL_RPCS) - {"ControlStream"}
    for name, fields in requests.items():
        answer = await secure.client.call(name, **fields)
        assert all(getattr(answer, word, True) for word in ("success", "accepted")), f"{name}: {answer}"
    for name, fields in of_agents.items():
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await secure.client.call(name, **fields)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_an_end_to_end_run_begins_before_there_is_a_node(secure, issued):
    assert (await secure.client.apply("web", container(), revision="rev-1")).success
    assert (await secure.client.view("web")).status.lower() == "pending"
    files = issued["agent"]
    await secure.agent("n1", client=as_client(files), server=as_server(files))
    await secure.client.wait_status("web", "Running")
    assert (await secure.client.apply("web", container("nginx:2"), revision="rev-2")).success

    async def updated():
        view = await secure.client.view("web")
        return view.revision_id == "rev-2" and view.status == "Running"

    await until(updated, "the second revision")
    assert (await secure.client.delete("web")).success
    assert "not found" in await secure.client.wait_gone("web")


async def test_a_certificate_of_another_authority_is_refused(secure, issued, tmp_path):
    authority = ("--dir", str(tmp_path / "other"))
    shoal("certs", "init", *authority)
    shoal("certs", "issue", "--role", "operator", "--host", HOST, "--out", str(tmp_path / "stranger"), *authority)
    stranger = CredentialPaths.within(tmp_path / "stranger")
    ours = issued["client"]
    pair = stranger.key.read_bytes(), stranger.cert.read_bytes()
    for credentials in (as_client(stranger), grpc.ssl_channel_credentials(ours.ca.read_bytes(), *pair)):
        client = ForeignClient(secure.plane.address, credentials)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.call("ListNodes")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await client.close()


# ---------------------------------------------------------------------------------------------------------
# Purposes, names and protocols


def context(files: CredentialPaths, side: int) -> ssl.SSLContext:
    """One authority, TLS 1.2 or newer, HTTP/2; a server wants a certificate, a client the host that it dialled."""
    made = ssl.SSLContext(side)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    made.load_verify_locations(files.ca)
    made.load_cert_chain(files.cert, files.key)
    made.set_alpn_protocols(["h2"])
    return made


@pytest.mark.parametrize("who", ["client", "agent"])
async def test_the_control_plane_stands_up_to_a_client_that_dials_its_host(secure, issued, who):
    host, _, port = secure.plane.address.rpartition(":")
    assert host == HOST
    client = context(issued[who], ssl.PROTOCOL_TLS_CLIENT)
    assert client.check_hostname
    async with asyncio.timeout(30):
        _reader, writer = await asyncio.open_connection(host, int(port), ssl=client, server_hostname=HOST)
    secured = writer.get_extra_info("ssl_object")
    assert secured.selected_alpn_protocol() == "h2"
    assert ("IP Address", HOST) in secured.getpeercert()["subjectAltName"]
    writer.close()
    # Closing says nothing about what was asked here; the other end may have hung up first.
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)


@pytest.mark.parametrize(("server", "client"), [("agent", "control"), ("control", "agent"), ("control", "client")])
def test_each_stands_up_to_the_other_by_host_purpose_and_authority(issued, server, client):
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    served = context(issued[server], ssl.PROTOCOL_TLS_SERVER).wrap_bio(to_server, to_client, server_side=True)
    calling = context(issued[client], ssl.PROTOCOL_TLS_CLIENT).wrap_bio(to_client, to_server, server_hostname=HOST)
    sides = [calling, served]
    for _turn in range(10):
        for side in list(sides):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            sides.remove(side)
    assert not sides
    assert ("IP Address", HOST) in calling.getpeercert()["subjectAltName"]
    assert served.getpeercert()
    assert calling.selected_alpn_protocol() == served.selected_alpn_protocol() == "h2"


def test_files_are_for_their_owner_alone(issued):
    for files in issued.values():
        for path in (files.ca, files.cert, files.key):
            assert path.stat().st_mode & 0o077 == 0
