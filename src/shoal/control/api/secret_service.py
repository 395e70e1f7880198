"""`shoal.v1.Secrets`: convert, call, convert. Answers, errors and events never contain a value."""

from __future__ import annotations

from shoal.control.state.causes import caller_of
from shoal.control.trust.secrets import LARGEST_VALUE, ClusterSecrets
from shoal.core.errors import InvalidError, problem
from shoal.core.ids import IDENTIFIER_RULE, is_identifier
from shoal.wire import convert
from shoal.wire.pb.shoal.v1 import secrets_pb2 as pb
from shoal.wire.transport import Call


class SecretService:
    """The handlers."""

    def __init__(self, secrets: ClusterSecrets) -> None:
        self._secrets = secrets

    async def set_secret(self, request: pb.SetSecretRequest, call: Call) -> pb.SetSecretResponse:
        """Store a value."""
        problems = [] if is_identifier(request.name) else [problem("name", request.name, IDENTIFIER_RULE)]
        if not _is_value(request.value):
            rule = f"must be UTF-8 text of 1 to {LARGEST_VALUE:,} bytes without NUL: it becomes an environment variable"
            problems.append(problem("value", None, rule))
        if problems:
            raise InvalidError(problems)
        record = await self._secrets.set(request.name, request.value, by=_name(call))
        return pb.SetSecretResponse(secret=convert.secret_to_proto(record))

    async def list_secrets(self, _request: pb.ListSecretsRequest, _call: Call) -> pb.ListSecretsResponse:
        """The names of all secrets."""
        return pb.ListSecretsResponse(secrets=[convert.secret_to_proto(each) for each in await self._secrets.records()])

    async def delete_secret(self, request: pb.DeleteSecretRequest, call: Call) -> pb.DeleteSecretResponse:
        """Delete a secret."""
        if not is_identifier(request.name):
            raise InvalidError([problem("name", request.name, IDENTIFIER_RULE)])
        await self._secrets.delete(request.name, by=_name(call))
        return pb.DeleteSecretResponse()


def _is_value(value: bytes) -> bool:
    if not 0 < len(value) <= LARGEST_VALUE or b"\x00" in value:
        return False
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _name(call: Call) -> str:
    return caller_of(call)
