"""Views of join tokens and secrets, without their values."""

from __future__ import annotations

from shoal.core.ids import TokenId
from shoal.model.trust import JoinToken, JoinTokenView, SecretRecord, SecretView
from shoal.wire.convert.fields import timestamp_from_proto, timestamp_to_proto
from shoal.wire.pb.shoal.v1 import enrollment_pb2, secrets_pb2


def join_token_to_proto(token: JoinToken) -> enrollment_pb2.JoinTokenView:
    """What may be shown of a token."""
    return enrollment_pb2.JoinTokenView(
        token_id=token.token_id,
        role=token.role.value,
        node_id=token.node_id,
        created_at=timestamp_to_proto(token.created_at),
        expires_at=timestamp_to_proto(token.expires_at),
        created_by=token.created_by,
        uses=token.uses,
        used_by=[use.node_id for use in token.used],
    )


def join_token_from_proto(pb: enrollment_pb2.JoinTokenView) -> JoinTokenView:
    """The same for a client."""
    return JoinTokenView(
        token_id=TokenId(pb.token_id),
        role=pb.role,
        node_id=pb.node_id,
        created_at=timestamp_from_proto(pb.created_at) if pb.HasField("created_at") else None,
        expires_at=timestamp_from_proto(pb.expires_at) if pb.HasField("expires_at") else None,
        created_by=pb.created_by,
        uses=pb.uses,
        used_by=tuple(pb.used_by),
    )


def secret_to_proto(secret: SecretRecord) -> secrets_pb2.SecretView:
    """What may be shown of a secret."""
    return secrets_pb2.SecretView(
        name=secret.name,
        created_at=timestamp_to_proto(secret.created_at),
        updated_at=timestamp_to_proto(secret.updated_at),
        revision=secret.revision,
    )


def secret_from_proto(pb: secrets_pb2.SecretView) -> SecretView:
    """The same for a client."""
    return SecretView(
        name=pb.name,
        created_at=timestamp_from_proto(pb.created_at) if pb.HasField("created_at") else None,
        updated_at=timestamp_from_proto(pb.updated_at) if pb.HasField("updated_at") else None,
        revision=pb.revision,
    )
