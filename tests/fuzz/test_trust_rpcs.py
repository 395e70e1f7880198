"""Whatever arrives at the RPCs of tokens, certificates and secrets is answered, or refused with its reason."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.control.api.enrollment_service import CredentialService, EnrollmentService
from shoal.control.api.secret_service import SecretService
from shoal.control.trust import enrollment as issuing
from shoal.control.trust.join_tokens import JoinTokens
from shoal.control.trust.signing import Signer
from shoal.core.entropy import SeededEntropy
from shoal.model.identity import Identity, Role
from shoal.testing.control import START, ControlKit
from shoal.testing.fuzz import check_typed, send, wrong_requests
from shoal.testing.threads import InlineThreads
from shoal.wire.methods import Credentials, Enrollment, Secrets, methods_of
from shoal.wire.pb.shoal.v1 import enrollment_pb2, secrets_pb2
from shoal.wire.transport import Service
from shoal.wire.trust.authority import make_authority, make_signing_request
from shoal.wire.trust.credentials import CA_FILE, CA_KEY_FILE, write_authority
from tests.fuzz.worlds import in_virtual_time

AGENT = Identity(Role.AGENT, "default", "n1")
CSR = make_signing_request(AGENT).csr
ADDRESS = "trust:1"

GOOD = {
    "GetAuthority": enrollment_pb2.GetAuthorityRequest(),
    "Join": enrollment_pb2.JoinRequest(token=f"shoal1.{'a' * 10}.{'b' * 40}.{'0' * 64}", csr=CSR),
    "CreateJoinToken": enrollment_pb2.CreateJoinTokenRequest(ttl_ms=60_000, role="agent", node_id="n7", uses=1),
    "ListJoinTokens": enrollment_pb2.ListJoinTokensRequest(),
    "RevokeJoinToken": enrollment_pb2.RevokeJoinTokenRequest(token_id="a" * 10),
    "RenewCertificate": enrollment_pb2.RenewCertificateRequest(csr=CSR),
    "IssueWorkloadCertificate": enrollment_pb2.IssueWorkloadCertificateRequest(workload_id="web", csr=CSR),
    "SetSecret": secrets_pb2.SetSecretRequest(name="db", value=b"x"),
    "ListSecrets": secrets_pb2.ListSecretsRequest(),
    "DeleteSecret": secrets_pb2.DeleteSecretRequest(name="db"),
}
METHODS = [method for service in (Enrollment, Credentials, Secrets) for method in methods_of(service)]


def test_every_rpc_has_a_request_to_start_from():
    assert set(GOOD) == {method.name for method in METHODS}


@asynccontextmanager
async def world(folder):
    """The services as an agent sees them, with a signing key, on the working set of a control plane with a node."""
    write_authority(folder / "certs", make_authority("default", now=START))
    async with ControlKit(folder / "control") as kit:
        kit.node("n1")
        await kit.apply("web")
        leadership = kit.plane.leadership
        files = folder / "certs"
        signer = Signer(files / CA_FILE, files / CA_KEY_FILE, cluster="default", threads=InlineThreads())
        tokens = JoinTokens(leadership.ledger, signer, clock=kit.clock, entropy=SeededEntropy(1))
        issuer = issuing.Enrollment(
            leadership.fleet, signer, tokens, leadership.revocations, cluster_id="default", clock=kit.clock
        )
        listener = issuing.JoinListener(issuing.RateLimit(per_second=1e6, burst=1000, monotonic=kit.clock.monotonic))
        services = [
            Service(methods_of(Enrollment), EnrollmentService(issuer, listener)),
            Service(methods_of(Credentials), _AsAgent(CredentialService(issuer, tokens, listener))),
            Service(methods_of(Secrets), SecretService(leadership.cluster_secrets)),
        ]
        server = await kit.network.transport("trust").serve(ADDRESS, services)
        channel = kit.network.transport("caller").connect(ADDRESS)
        yield kit, channel
        await channel.close()
        await server.stop(0)


class _AsAgent:
    """Calls with the identity of an agent: which role may call what is tested elsewhere."""

    def __init__(self, service) -> None:
        self._service = service

    def __getattr__(self, name):
        handler = getattr(self._service, name)
        return lambda request, call: handler(request, replace(call, identity=AGENT))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@settings(max_examples=3)
@given(data=st.data())
def test_an_rpc_survives_anything(method, data):
    async def work(folder) -> None:
        async with world(folder) as (kit, channel):
            for wrong in data.draw(st.lists(wrong_requests(GOOD[method.name]), min_size=5, max_size=15)):
                before = await kit.store.tokens(), await kit.store.secrets()
                outcome = await send(channel, method, [wrong])
                check_typed(outcome, f"{method.name} with {wrong!r}: {outcome.error}")
                if outcome.error is not None:
                    assert (await kit.store.tokens(), await kit.store.secrets()) == before

    in_virtual_time(work)
