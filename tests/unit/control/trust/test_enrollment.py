"""Join tokens and certificates: who gets one, and who does not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from shoal.control.api.enrollment_service import CredentialService
from shoal.control.state.fleet import Fleet
from shoal.control.state.ledger import Ledger
from shoal.control.store.base import Batch, EventQuery
from shoal.control.store.sqlite import SqliteStore
from shoal.control.trust import join_tokens, signing
from shoal.control.trust.enrollment import Enrollment, JoinListener, RateLimit
from shoal.control.trust.join_tokens import JoinTokens
from shoal.control.trust.revocations import Revocations
from shoal.control.trust.signing import Signer
from shoal.core.disk.private_files import write_private
from shoal.core.entropy import SeededEntropy
from shoal.core.errors import (
    DeniedError,
    ExhaustedError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    UnauthenticatedError,
)
from shoal.core.ids import GroupId, NodeId, WorkloadId
from shoal.model.identity import Identity, Role, workload_identity
from shoal.model.trust import TokenText, parse_token
from shoal.testing.clock import LoopClock
from shoal.testing.control import START
from shoal.testing.suites.store_records import decode_spec, node, workload
from shoal.testing.threads import InlineThreads
from shoal.wire.pb.shoal.v1 import enrollment_pb2 as pb
from shoal.wire.transport import Call
from shoal.wire.trust.authority import make_authority, make_signing_request, read_authority
from shoal.wire.trust.certificates import describe, identity_of, matches, read_caller, read_certificates
from shoal.wire.trust.credentials import CA_FILE, CA_KEY_FILE, write_authority

pytestmark = pytest.mark.looptime

N1 = Identity(Role.AGENT, "blue", "n1")


class Desk:
    """An enrollment on a store of its own."""

    def __init__(self, folder, store) -> None:
        self.folder = folder
        self.clock = LoopClock(START)
        self.store = store
        self.ledger = Ledger(store, Fleet())
        self.authority = make_authority("blue", now=START)
        write_authority(folder, self.authority)
        limit = RateLimit(per_second=1.0, burst=1, monotonic=self.clock.monotonic)
        self.listener = JoinListener(limit, port=9876)
        self.revocations = Revocations(self.ledger.fleet)
        self.use(folder / CA_KEY_FILE)

    def use(self, key, *, cluster="blue"):
        """Sign with this key from now on."""
        signer = Signer(self.folder / CA_FILE, key, cluster=cluster, threads=InlineThreads())
        self.tokens = JoinTokens(self.ledger, signer, clock=self.clock, entropy=SeededEntropy(3))
        self.enrollment = Enrollment(
            self.ledger.fleet, signer, self.tokens, self.revocations, cluster_id=cluster, clock=self.clock
        )

    async def token(self, **given) -> TokenText:
        fields = {"ttl": timedelta(minutes=10), "role": Role.AGENT, "node_id": "", "uses": 1, "by": "operator ada"}
        return (await self.tokens.create(**{**fields, **given}))[0]

    async def remove(self, node_id: str) -> None:
        """Remove a node, as an operator does."""
        revocation, _dropped = self.revocations.revoke(NodeId(node_id), "the node was removed", at=self.clock.wall())
        await self.ledger.commit(Batch(removed_nodes={NodeId(node_id): 1}, revocations=(revocation,)))

    async def events(self):
        return [(event.kind, event.subject_id) for event in (await self.store.events(EventQuery())).events]


@pytest.fixture
async def desk(tmp_path):
    store = SqliteStore(":memory:", decode_spec=decode_spec)
    await store.open()
    yield Desk(tmp_path / "certs", store)
    await store.close()


async def test_a_token_gets_a_new_node_its_certificate(desk):
    token = await desk.token()
    own = make_signing_request(N1, hosts=["control.example"])
    issued = await desk.enrollment.join(parse_token(str(token)), own.csr)
    [leaf] = read_certificates(issued.certificate)
    facts = describe(leaf)
    assert identity_of(leaf) == N1
    assert matches(leaf, own.key)
    assert "control.example" not in facts.hosts, "a node that chooses its hosts could pass for any"
    assert facts.not_after - START == timedelta(days=30)
    assert issued.ca == desk.authority.pem
    leaf.verify_directly_issued_by(desk.authority.certificate)
    assert await desk.events() == [("JoinTokenCreated", token.token_id), ("NodeJoined", "n1")]


async def test_the_secret_is_not_stored(desk):
    token = await desk.token()
    [stored] = await desk.store.tokens()
    assert token.secret not in repr(stored)
    assert stored.secret_sha256 == token.secret_sha256
    assert token.secret not in repr(token)
    events = (await desk.store.events(EventQuery())).events
    assert token.secret not in repr(events)


async def test_an_answer_that_was_lost_is_given_again_to_the_same_key_only(desk):
    token = await desk.token()
    own = make_signing_request(N1)
    first = await desk.enrollment.join(token, own.csr)
    again = await desk.enrollment.join(token, make_signing_request(N1, own_key=own.key).csr)
    assert identity_of(read_certificates(again.certificate)[0]) == N1
    assert again.certificate != first.certificate
    with pytest.raises(DeniedError, match="used up"):
        await desk.enrollment.join(token, make_signing_request(N1).csr)
    with pytest.raises(DeniedError, match="used up"):
        await desk.enrollment.join(token, make_signing_request(replace(N1, name="n2"), own_key=own.key).csr)


async def test_a_token_is_good_for_so_many_nodes(desk):
    token = await desk.token(uses=2)
    for name in ("n1", "n2"):
        await desk.enrollment.join(token, make_signing_request(replace(N1, name=name)).csr)
    with pytest.raises(DeniedError, match="used up"):
        await desk.enrollment.join(token, make_signing_request(replace(N1, name="n3")).csr)
    [listed] = await desk.tokens.valid()
    assert [use.node_id for use in listed.used] == ["n1", "n2"]


async def test_many_at_once_are_still_no_more_than_allowed(desk):
    token = await desk.token(uses=3)
    requests = [make_signing_request(replace(N1, name=f"n{number}")).csr for number in range(6)]
    outcomes = await asyncio.gather(*(desk.enrollment.join(token, csr) for csr in requests), return_exceptions=True)
    assert sum(not isinstance(outcome, BaseException) for outcome in outcomes) <= 3
    [listed] = await desk.tokens.valid()
    assert len(listed.used) == sum(not isinstance(outcome, BaseException) for outcome in outcomes)


@pytest.mark.parametrize("wrong", ["id", "secret", "late", "revoked"])
async def test_every_token_that_is_no_good_is_refused_with_the_same_words(desk, wrong):
    token = await desk.token()
    csr = make_signing_request(N1).csr
    if wrong == "id":
        token = replace(token, token_id="a" * 10)
    elif wrong == "secret":
        token = replace(token, secret="a" * 40)
    elif wrong == "late":
        await asyncio.sleep(600)
    else:
        await desk.tokens.revoke(token.token_id, by="operator ada")
    with pytest.raises(DeniedError, match=r"^the join token is not known, or it has expired$"):
        await desk.enrollment.join(token, csr)
    assert await desk.tokens.valid() == () or wrong in ("id", "secret")


async def test_a_node_that_there_is_cannot_be_taken_over_by_a_token_for_new_ones(desk):
    await desk.ledger.commit(Batch(nodes=(node("n1"),)))
    with pytest.raises(DeniedError, match="for new ones"):
        await desk.enrollment.join(await desk.token(), make_signing_request(N1).csr)
    named = await desk.token(node_id="n1")
    with pytest.raises(DeniedError, match="for node 'n1', not for 'n2'"):
        await desk.enrollment.join(named, make_signing_request(replace(N1, name="n2")).csr)
    assert (await desk.enrollment.join(named, make_signing_request(N1).csr)).certificate
    double = await desk.token(uses=5)
    n5 = replace(N1, name="n5")
    await desk.enrollment.join(double, make_signing_request(n5).csr)
    with pytest.raises(DeniedError, match="another agent has a certificate for node 'n5' already"):
        await desk.enrollment.join(double, make_signing_request(n5).csr)


async def test_two_tokens_do_not_give_one_id_to_two_agents(desk):
    first, second = await desk.token(), await desk.token()
    own = make_signing_request(N1)
    await desk.enrollment.join(first, own.csr)
    with pytest.raises(DeniedError, match="another agent has a certificate for node 'n1' already") as caught:
        await desk.enrollment.join(second, make_signing_request(N1).csr)
    assert "--node-id n1" in caught.value.hint
    again = await desk.enrollment.join(first, make_signing_request(N1, own_key=own.key).csr)
    assert identity_of(read_certificates(again.certificate)[0]) == N1
    # The same agent, which lost its answer and was given another token because the first ran out.
    again = await desk.enrollment.join(second, make_signing_request(N1, own_key=own.key).csr)
    assert identity_of(read_certificates(again.certificate)[0]) == N1


async def test_two_tokens_at_once_do_not_either(desk):
    tokens = [await desk.token() for _ in range(4)]
    requests = [make_signing_request(N1).csr for _ in tokens]
    outcomes = await asyncio.gather(
        *(desk.enrollment.join(token, csr) for token, csr in zip(tokens, requests, strict=True)), return_exceptions=True
    )
    assert [type(each) for each in outcomes if isinstance(each, BaseException)] == [DeniedError] * 3


@pytest.mark.parametrize("end", ["late", "revoked"])
async def test_an_id_stays_given_when_its_token_is_over(desk, end):
    first = await desk.token()
    await desk.enrollment.join(first, make_signing_request(N1).csr)
    if end == "late":
        await asyncio.sleep(601)
    else:
        await desk.tokens.revoke(first.token_id, by="operator ada")
        with pytest.raises(NotFoundError):
            await desk.tokens.revoke(first.token_id, by="operator ada")
    assert await desk.tokens.valid() == ()
    with pytest.raises(DeniedError, match="not known, or it has expired"):
        await desk.enrollment.join(first, make_signing_request(N1).csr)
    with pytest.raises(DeniedError, match="another agent has a certificate"):
        await desk.enrollment.join(await desk.token(), make_signing_request(N1).csr)
    assert (await desk.enrollment.join(await desk.token(node_id="n1"), make_signing_request(N1).csr)).certificate


async def test_an_id_is_free_again_when_its_certificate_is_over_and_nothing_is_kept_of_it(desk):
    await desk.enrollment.join(await desk.token(), make_signing_request(N1).csr)
    await asyncio.sleep(timedelta(days=30).total_seconds())
    fresh = await desk.token()
    assert (await desk.enrollment.join(fresh, make_signing_request(N1).csr)).certificate
    assert [token.token_id for token in await desk.store.tokens()] == [fresh.token_id]


async def test_of_a_token_that_is_over_only_ids_that_have_not_registered_are_kept(desk):
    token = await desk.token(uses=2)
    for name in ("n1", "n2"):
        await desk.enrollment.join(token, make_signing_request(replace(N1, name=name)).csr)
    await desk.ledger.commit(Batch(nodes=(node("n1"),)))
    await asyncio.sleep(601)
    await desk.token()
    kept = {each.token_id: each for each in await desk.store.tokens()}[token.token_id]
    assert [use.node_id for use in kept.used] == ["n2"]
    await desk.ledger.commit(Batch(nodes=(node("n2"),)))
    await desk.token()
    assert token.token_id not in {each.token_id for each in await desk.store.tokens()}


async def test_the_id_of_a_node_that_was_removed_is_free_again(desk):
    await desk.enrollment.join(await desk.token(), make_signing_request(N1).csr)
    await desk.ledger.commit(Batch(nodes=(node("n1"),)))
    await asyncio.sleep(1)
    await desk.remove("n1")
    assert (await desk.enrollment.join(await desk.token(), make_signing_request(N1).csr)).certificate


async def test_a_node_that_joins_again_has_a_certificate_that_no_revocation_covers(desk):
    first = await desk.enrollment.join(await desk.token(), make_signing_request(N1).csr)
    await desk.ledger.commit(Batch(nodes=(node("n1"),)))
    await desk.remove("n1")
    with pytest.raises(UnauthenticatedError, match=r"was revoked at 20.* UTC: the node was removed"):
        desk.revocations.check(read_caller(first.certificate))
    again = await desk.enrollment.join(await desk.token(), make_signing_request(N1).csr)
    desk.revocations.check(read_caller(again.certificate))


@pytest.mark.parametrize(
    ("known", "words"),
    [((), "is not registered"), ((replace(node("n1"), dead=True),), "was declared dead")],
    ids=["removed", "dead"],
)
async def test_a_node_that_is_gone_gets_no_new_certificate(desk, known, words):
    await desk.ledger.commit(Batch(nodes=known))
    csr = make_signing_request(N1).csr
    with pytest.raises(DeniedError, match=f"node 'n1' {words}, so it gets no certificate"):
        await desk.enrollment.renew(N1, csr)
    with pytest.raises(DeniedError, match=words):
        await desk.enrollment.issue_for_workload(N1, WorkloadId("w"), csr)


async def test_a_node_that_has_joined_and_not_registered_yet_can_renew(desk):
    await desk.enrollment.join(await desk.token(), make_signing_request(N1).csr)
    assert (await desk.enrollment.renew(N1, make_signing_request(N1).csr)).certificate
    await asyncio.sleep(timedelta(days=31).total_seconds())
    with pytest.raises(DeniedError, match="is not registered"):
        await desk.enrollment.renew(N1, make_signing_request(N1).csr)


async def test_the_signing_key_is_parsed_once_for_each_content_of_its_files(desk, monkeypatch):
    parsed = []
    monkeypatch.setattr(signing, "read_authority", lambda *given: parsed.append(given) or read_authority(*given))
    for _ in range(3):
        await desk.token()
    assert len(parsed) == 1
    other = make_authority("blue", now=START)
    for file, content in ((CA_FILE, other.pem), (CA_KEY_FILE, other.key_pem)):
        write_private(desk.folder / file, content)
    token = await desk.token()
    assert token.ca_sha256 == describe(other.certificate).sha256
    assert len(parsed) == 2


async def test_a_signing_key_that_was_removed_signs_nothing(desk):
    await desk.token()
    (desk.folder / CA_KEY_FILE).unlink()
    with pytest.raises(NotFoundError):
        await desk.token()


async def test_keys_are_parsed_and_certificates_signed_in_a_thread(desk, monkeypatch):
    threads = InlineThreads()
    work = []
    monkeypatch.setattr(threads, "submit", lambda *given: work.append(given) or InlineThreads.submit(threads, *given))
    signer = Signer(desk.folder / CA_FILE, desk.folder / CA_KEY_FILE, cluster="blue", threads=threads)
    request = await signer.read_request(make_signing_request(N1).csr)
    await signer.sign(request.public_key, N1, now=START)
    assert len(work) == 2


@pytest.mark.parametrize(
    ("identity", "error"),
    [
        (Identity(Role.OPERATOR, "blue", "eve"), DeniedError),
        (Identity(Role.CONTROL, "blue", "eve"), DeniedError),
        (workload_identity("blue", job="j", node="n1"), DeniedError),
        (replace(N1, cluster="red"), InvalidError),
    ],
)
async def test_a_token_makes_nobody_anything_but_an_agent_of_this_cluster(desk, identity, error):
    with pytest.raises(error):
        await desk.enrollment.join(await desk.token(), make_signing_request(identity).csr)
    assert (await desk.tokens.valid())[0].used == ()


@pytest.mark.parametrize("csr", [b"", b"-----BEGIN CERTIFICATE REQUEST-----\n", b"x" * 20_000])
async def test_what_is_no_request_is_refused(desk, csr):
    with pytest.raises(InvalidError, match="csr"):
        await desk.enrollment.join(await desk.token(), csr)


async def test_there_is_an_end_to_tokens_and_expired_ones_make_room(desk, monkeypatch):
    monkeypatch.setattr(join_tokens, "MOST_TOKENS", 5)
    for _ in range(5):
        await desk.token(ttl=timedelta(minutes=5))
    with pytest.raises(ExhaustedError):
        await desk.token()
    await asyncio.sleep(301)
    await desk.token()
    assert len(await desk.store.tokens()) == 1
    with pytest.raises(NotFoundError):
        await desk.tokens.revoke("a" * 10, by="x")


@pytest.mark.parametrize("ttl_ms", [0, 1, 999, -1, -600_000, 7 * 86_400_000 + 1])
async def test_a_length_of_time_that_no_token_can_have_is_refused(desk, ttl_ms):
    service = CredentialService(desk.enrollment, desk.tokens, desk.listener)
    with pytest.raises(InvalidError) as caught:
        await service.create_join_token(pb.CreateJoinTokenRequest(ttl_ms=ttl_ms), Call("x", "y"))
    assert str(caught.value) == f"ttl_ms: must be between 1s and 7d (got '{ttl_ms} ms')"
    assert await desk.store.tokens() == ()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, timedelta(minutes=10)),
        ({"ttl_ms": 1000}, timedelta(seconds=1)),
        ({"ttl_ms": 604_800_000}, timedelta(days=7)),
    ],
)
async def test_a_token_is_good_for_as_long_as_was_asked_for_or_ten_minutes(desk, given, expected):
    service = CredentialService(desk.enrollment, desk.tokens, desk.listener)
    await service.create_join_token(pb.CreateJoinTokenRequest(**given), Call("x", "y"))
    [stored] = await desk.store.tokens()
    assert stored.expires_at - stored.created_at == expected
    listed = await service.list_join_tokens(pb.ListJoinTokensRequest(), Call("x", "y"))
    assert listed.join_port == desk.listener.port == 9876


async def test_without_a_signing_key_it_says_so(desk):
    desk.use(None)
    with pytest.raises(PreconditionError, match="no signing key") as caught:
        await desk.token()
    assert "--ca-key" in caught.value.hint


async def test_an_agent_renews_for_itself_alone(desk):
    await desk.ledger.commit(Batch(nodes=(node("n1"), node("n2"))))
    own = make_signing_request(N1)
    issued = await desk.enrollment.renew(N1, own.csr)
    assert identity_of(read_certificates(issued.certificate)[0]) == N1
    with pytest.raises(DeniedError, match="not for agent n2"):
        await desk.enrollment.renew(N1, make_signing_request(replace(N1, name="n2")).csr)


async def test_a_workload_gets_an_hour_bound_to_its_group_and_node(desk):
    record = replace(workload("w"), node_id=NodeId("n1"), group_id=GroupId("clicks"))
    process = replace(record.spec.process, identity=True)
    record = replace(record, spec=replace(record.spec, process=process))
    await desk.ledger.commit(Batch(nodes=(node("n1"), node("n2")), workloads=(record, workload("alone"))))
    wanted = workload_identity("blue", job="anything", node="n9")
    issued = await desk.enrollment.issue_for_workload(N1, WorkloadId("w"), make_signing_request(wanted).csr)
    [leaf] = read_certificates(issued.certificate)
    assert identity_of(leaf) == workload_identity("blue", job="clicks", node="n1"), "what it asks for does not count"
    assert describe(leaf).not_after - START == timedelta(hours=1)
    csr = make_signing_request(wanted).csr
    with pytest.raises(DeniedError, match="does not belong to node 'n2'"):
        await desk.enrollment.issue_for_workload(replace(N1, name="n2"), WorkloadId("w"), csr)
    await desk.ledger.commit(Batch(workloads=(replace(workload("alone", version=1), node_id=NodeId("n1")),)))
    with pytest.raises(PreconditionError, match="in no group"):
        await desk.enrollment.issue_for_workload(N1, WorkloadId("alone"), csr)
    with pytest.raises(NotFoundError):
        await desk.enrollment.issue_for_workload(N1, WorkloadId("gone"), csr)


@pytest.mark.parametrize("text", ["", "shoal1", "shoal1.a.b.c", "x" * 10_000, "shoal2." + "a" * 10, "ß"])
def test_a_text_that_is_no_token_is_not_repeated(text):
    with pytest.raises(InvalidError, match="must be a token") as caught:
        parse_token(text)
    assert len(str(caught.value)) < 200


async def test_calls_without_a_certificate_are_limited(desk):
    limit = RateLimit(per_second=2.0, burst=3, monotonic=desk.clock.monotonic)
    for _ in range(3):
        limit.take()
    with pytest.raises(ExhaustedError):
        limit.take()
    await asyncio.sleep(0.6)
    limit.take()
    with pytest.raises(ExhaustedError):
        limit.take()
