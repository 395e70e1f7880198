"""Gets an agent its first certificate, with a join token.

The token holds the SHA-256 of the authority's certificate. The agent fetches that certificate over an unverified
connection and compares the hash. All further calls go over connections that this authority verifies. The key is made
here and never leaves the machine. It is stored before it is used: after a crash or a lost answer the agent asks again
with the same key, and the token is not used twice.

An agent with valid files does not use its token again. With another token than the one it joined with, it joins again:
its certificate may have been revoked because its node was removed.

Called by `shoal agent` before the agent is made; calls `shoal.v1.Enrollment`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import Message

from shoal.agent.settings import AgentSettings
from shoal.core.clock import Clock, SystemClock
from shoal.core.disk.private_files import make_data_directory, make_private_directory, read_private, write_private
from shoal.core.entropy import Entropy, SystemEntropy
from shoal.core.errors import (
    DeniedError,
    ExhaustedError,
    InvalidError,
    NotFoundError,
    NotLeaderError,
    ShoalError,
    UnauthenticatedError,
    UnavailableError,
)
from shoal.core.retry import Backoff
from shoal.model.identity import CONTROL_PLANE, Identity, Role, own_server_name
from shoal.model.trust import TokenText, parse_token
from shoal.wire.addresses import parse_address
from shoal.wire.methods import Enrollment
from shoal.wire.pb.shoal.v1 import enrollment_pb2 as pb
from shoal.wire.sockets.channel import GrpcTransport
from shoal.wire.transport import Method
from shoal.wire.trust.authority import OwnRequest, Pair, make_signing_request
from shoal.wire.trust.certificates import authority_cluster, describe, identity_of, matches, read_certificates, to_pem
from shoal.wire.trust.credentials import CredentialPaths, read_credentials, write_credentials
from shoal.wire.trust.security import AnonymousTls

log = logging.getLogger(__name__)

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

#: Large jitter: agents that were refused because many came at once should not return together.
_RETRY = Backoff(first=1.0, cap=30.0, jitter=0.5)
_CONNECT_SECONDS = 10.0
_OWN_KEY = "joining-key.pem"
#: Holds the id of the token that the node joined with.
_TOKEN_ID = "token-id"  # noqa: S105 - a file name


@dataclass(frozen=True, slots=True)
class _Trust:
    """The authority that the token names."""

    pem: bytes
    cluster: str


async def join(
    settings: AgentSettings,
    *,
    node_id: Callable[[], str],
    clock: Clock | None = None,
    entropy: Entropy | None = None,
) -> None:
    """Get a certificate, unless there is a good one.

    Waits for a control plane that is away, for one that leads, and for one that has other nodes to let in first. A
    token that expires meanwhile is refused. What is waited for is logged when
    it begins, not with every try.

    Raises, with every address that was tried:
        DeniedError: the token is invalid, or not for this node.
        UnauthenticatedError: the server is not the control plane that made the token.
    """
    clock, entropy = clock or SystemClock(), entropy or SystemEntropy()
    directory = settings.credentials_dir
    addresses = settings.join_addresses
    if _has_valid_files(directory, clock):
        await _join_again(settings, addresses, directory, settings.node_id or node_id(), clock)
        return
    token = parse_token(settings.join, name="--join")
    failures = 0
    told: dict[str, str] = {}
    while True:
        news = False
        for index, address in enumerate(addresses):
            try:
                await _join_at(address, token, settings.node_id or node_id(), directory, clock)
            except ShoalError as error:
                # A follower is no reason to end: the leader is another one of the list, or is being elected. What a
                # follower says of the leader is not where that one lets nodes join, so the list is gone through.
                if not error.retryable and not isinstance(error, NotLeaderError):
                    raise _naming(error, addresses if failures else addresses[: index + 1]) from error.__cause__
                if told.get(address) != error.message:
                    news, told[address] = True, error.message
                    log.warning("joining at %s: %s", address, error.message)
            else:
                return
        failures += 1
        seconds = _RETRY.delay(failures, entropy)
        level = logging.WARNING if news else logging.DEBUG
        log.log(level, "could not join yet at any of %s; trying again in %.0f s", ", ".join(addresses), seconds)
        await clock.sleep(seconds)


def _naming(error: ShoalError, tried: Sequence[str]) -> ShoalError:
    """The same error, with every address that was tried in its message."""
    if not all(address in error.message for address in tried):
        error.message = f"{error.message}; tried to join at {', '.join(tried)}"
    error.args = (error.message,)
    return error


async def _join_again(
    settings: AgentSettings, addresses: Sequence[str], directory: Path, node_id: str, clock: Clock
) -> None:
    """Join with a new token, if it is one. The files that are there stay in use until new ones replace them."""
    try:
        token = parse_token(settings.join, name="--join")
    except InvalidError as error:
        log.warning("this node has joined already; its token cannot be read: %s", error.message)
        return
    if _last_token(directory) == token.token_id:
        log.info("this node has joined already; the token is not needed")
        return
    for address in addresses:
        try:
            await _join_at(address, token, node_id, directory, clock)
        except DeniedError as error:
            log.warning("this node has joined already; %s refuses the new token: %s", address, error.message)
            await asyncio.to_thread(write_private, directory / _TOKEN_ID, token.token_id.encode())
            return
        except ShoalError as error:
            log.warning("joining again at %s: %s", address, error.message)
        else:
            return
    log.warning("this node goes on with the certificate it has; the new token was not used")


def _last_token(directory: Path) -> str:
    """The id of the token that this node joined with, or that was refused; empty if that is not known."""
    try:
        return read_private(directory / _TOKEN_ID).decode("ascii", "replace").strip()
    except NotFoundError:
        return ""


def _has_valid_files(directory: Path, clock: Clock) -> bool:
    try:
        read_credentials(CredentialPaths.within(directory), now=clock.wall())
    except InvalidError:
        return False
    return True


async def _join_at(address: str, token: TokenText, node_id: str, directory: Path, clock: Clock) -> None:
    trust = await _recognize(address, token)
    identity = Identity(Role.AGENT, trust.cluster, node_id)
    own = await asyncio.to_thread(_own_request, directory, identity)
    security = AnonymousTls(trust.pem, CONTROL_PLANE.server_name(trust.cluster))
    answer = await _ask(address, security, Enrollment.JOIN, pb.JoinRequest(token=str(token), csr=own.csr))
    leaf = read_certificates(answer.certificate)[0]
    if identity_of(leaf) != identity or not matches(leaf, own.key):
        raise UnauthenticatedError(f"{address} has issued a certificate for another identity")
    pair = Pair(answer.certificate, own.key)
    await asyncio.to_thread(write_credentials, directory, ca=answer.ca, pair=pair)
    await asyncio.to_thread(_note_token, directory, token)
    log.info("joined cluster %s as %s; certificate until %s", trust.cluster, identity, leaf.not_valid_after_utc)


def _note_token(directory: Path, token: TokenText) -> None:
    (directory / _OWN_KEY).unlink(missing_ok=True)
    write_private(directory / _TOKEN_ID, token.token_id.encode())


async def _recognize(address: str, token: TokenText) -> _Trust:
    """The authority of the server, if it is the one that the token names."""
    presented = await _presented(address)
    try:
        name = own_server_name(identity_of(read_certificates(presented)[0]))
    except (InvalidError, UnauthenticatedError):
        name = None
    if name is None:
        raise UnauthenticatedError(f"{address} is no control plane", hint="check --join-address", address=address)
    # The server's own certificate is the only root: nothing is verified here, but the answer is, by its hash.
    answer = await _ask(address, AnonymousTls(presented, name), Enrollment.GET_AUTHORITY, pb.GetAuthorityRequest())
    for certificate in read_certificates(answer.ca):
        cluster = authority_cluster(certificate)
        if describe(certificate).sha256 == token.ca_sha256 and cluster is not None:
            return _Trust(to_pem(certificate), cluster)
    raise UnauthenticatedError(
        f"{address} is not the control plane that made this join token",
        hint="make a token at the control plane that the agent is to join, and check --join-address",
        address=address,
    )


async def _presented(address: str) -> bytes:
    """The certificate that a server shows, unverified."""
    where = parse_address(address)
    try:
        pem = await asyncio.to_thread(ssl.get_server_certificate, (where.host, where.port), timeout=_CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        raise UnavailableError(
            f"{address} cannot be reached: {getattr(error, 'strerror', None) or error}", address=address
        ) from error
    return pem.encode()


async def _ask(
    address: str, security: AnonymousTls, method: Method[RequestT, ResponseT], request: RequestT
) -> ResponseT:
    channel = GrpcTransport(security=security).connect(address)
    try:
        return await channel.call(method, request)
    except ExhaustedError as error:
        # Its door lets in so many in a second. A bound of this machine, such as a full disk, is another matter.
        raise UnavailableError(error.message, hint=error.hint, address=address) from error
    finally:
        await channel.close()


def _own_request(directory: Path, identity: Identity) -> OwnRequest:
    """A request with the key of an earlier try, if there was one."""
    make_data_directory(directory.parent)
    make_private_directory(directory)
    path = directory / _OWN_KEY
    try:
        return make_signing_request(identity, own_key=read_private(path))
    except (NotFoundError, InvalidError):
        own = make_signing_request(identity)
        write_private(path, own.key)
        return own
