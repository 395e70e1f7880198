"""Serves `shoal.v1.Enrollment` and `shoal.v1.Credentials`: converts requests and answers; `control.trust` decides."""

from __future__ import annotations

from datetime import timedelta

from shoal.control.state.causes import caller_of
from shoal.control.trust.enrollment import Enrollment, JoinListener
from shoal.control.trust.join_tokens import DEFAULT_TTL, MOST_USES, JoinTokens
from shoal.core.errors import InvalidError, Problem, UnauthenticatedError, problem
from shoal.core.ids import IDENTIFIER_RULE, TokenId, WorkloadId, is_identifier
from shoal.model.identity import Identity, Role
from shoal.model.trust import LONGEST_TTL, SHORTEST_TTL, TTL_RULE, parse_token
from shoal.wire import convert
from shoal.wire.pb.shoal.v1 import enrollment_pb2 as pb
from shoal.wire.transport import Call


class EnrollmentService:
    """The handlers for callers that have no certificate."""

    def __init__(self, enrollment: Enrollment, listener: JoinListener) -> None:
        self._enrollment = enrollment
        self._limit = listener.limit

    async def get_authority(self, _request: pb.GetAuthorityRequest, _call: Call) -> pb.GetAuthorityResponse:
        """The authorities' certificates."""
        self._limit.take()
        return pb.GetAuthorityResponse(ca=await self._enrollment.trusted())

    async def join(self, request: pb.JoinRequest, _call: Call) -> pb.JoinResponse:
        """A first certificate."""
        self._limit.take()
        issued = await self._enrollment.join(parse_token(request.token), request.csr)
        return pb.JoinResponse(certificate=issued.certificate, ca=issued.ca)


class CredentialService:
    """The handlers for callers that have one."""

    def __init__(self, enrollment: Enrollment, tokens: JoinTokens, listener: JoinListener) -> None:
        self._enrollment = enrollment
        self._tokens = tokens
        self._listener = listener

    async def create_join_token(self, request: pb.CreateJoinTokenRequest, call: Call) -> pb.CreateJoinTokenResponse:
        """Create a token."""
        problems = list(_token_problems(request))
        if problems:
            raise InvalidError(problems)
        text, token = await self._tokens.create(
            ttl=timedelta(milliseconds=request.ttl_ms) if request.HasField("ttl_ms") else DEFAULT_TTL,
            role=Role.AGENT,
            node_id=request.node_id,
            uses=request.uses or 1,
            by=_name(call),
        )
        return pb.CreateJoinTokenResponse(
            token=str(text), view=convert.join_token_to_proto(token), join_port=self._listener.port
        )

    async def list_join_tokens(self, _request: pb.ListJoinTokensRequest, _call: Call) -> pb.ListJoinTokensResponse:
        """The valid tokens, without their secrets, and the port at which nodes join."""
        return pb.ListJoinTokensResponse(
            tokens=[convert.join_token_to_proto(token) for token in await self._tokens.valid()],
            join_port=self._listener.port,
        )

    async def revoke_join_token(self, request: pb.RevokeJoinTokenRequest, call: Call) -> pb.RevokeJoinTokenResponse:
        """Revoke a token."""
        _check_id("token_id", request.token_id)
        await self._tokens.revoke(TokenId(request.token_id), by=_name(call))
        return pb.RevokeJoinTokenResponse()

    async def renew_certificate(self, request: pb.RenewCertificateRequest, call: Call) -> pb.RenewCertificateResponse:
        """A new certificate for the caller."""
        issued = await self._enrollment.renew(_known(call), request.csr)
        return pb.RenewCertificateResponse(certificate=issued.certificate, ca=issued.ca)

    async def issue_workload_certificate(
        self, request: pb.IssueWorkloadCertificateRequest, call: Call
    ) -> pb.IssueWorkloadCertificateResponse:
        """A certificate for a workload on the caller's node."""
        _check_id("workload_id", request.workload_id)
        issued = await self._enrollment.issue_for_workload(_known(call), WorkloadId(request.workload_id), request.csr)
        return pb.IssueWorkloadCertificateResponse(certificate=issued.certificate, ca=issued.ca)


def _token_problems(request: pb.CreateJoinTokenRequest) -> list[Problem]:
    problems = []
    least, most = (limit // timedelta(milliseconds=1) for limit in (SHORTEST_TTL, LONGEST_TTL))
    if request.HasField("ttl_ms") and not least <= request.ttl_ms <= most:
        problems.append(problem("ttl_ms", f"{request.ttl_ms} ms", TTL_RULE))
    if request.role not in ("", Role.AGENT):
        problems.append(problem("role", request.role, "must be agent: others get their certificates from people"))
    if request.node_id and not is_identifier(request.node_id):
        problems.append(problem("node_id", request.node_id, IDENTIFIER_RULE))
    if not 0 <= request.uses <= MOST_USES:
        problems.append(problem("uses", request.uses, f"must be between 1 and {MOST_USES}"))
    elif request.node_id and request.uses > 1:
        problems.append(problem("uses", request.uses, "must be 1 for a token that is for one node"))
    return problems


def _check_id(name: str, text: str) -> None:
    if not is_identifier(text):
        raise InvalidError([problem(name, text, IDENTIFIER_RULE)])


def _known(call: Call) -> Identity:
    if call.identity is None:
        raise UnauthenticatedError(
            "only a caller with a certificate can get another",
            hint="this control plane was started with --insecure, and knows nobody",
        )
    return call.identity


def _name(call: Call) -> str:
    return caller_of(call)
