"""Converts what a served tree says to messages and back. Called by `serving.py` and by `shoal.discovery.remote`."""

from __future__ import annotations

from shoal.core.errors import ShoalError
from shoal.discovery import errors
from shoal.discovery.store import NodeStat, NodeValue
from shoal.wire.calls import status_from_proto, status_to_proto
from shoal.wire.pb.persys.control.v1.control_pb2 import CallStatus
from shoal.wire.pb.shoal.v1 import coordination_pb2 as pb
from shoal.wire.status import error_of, status_of

_TYPES: dict[str, type[ShoalError]] = {
    each.__name__: each
    for each in (
        errors.NoNodeError,
        errors.NodeExistsError,
        errors.BadVersionError,
        errors.NotEmptyError,
        errors.SessionLostError,
    )
}


def node_to_proto(value: NodeValue) -> pb.TreeNode:
    """A node with its data."""
    node = stat_to_proto(value.stat)
    node.data = value.data
    return node


def stat_to_proto(stat: NodeStat) -> pb.TreeNode:
    """A node without its data."""
    return pb.TreeNode(version=stat.version, owner=stat.owner, created=stat.created, modified=stat.modified)


def stat_from_proto(node: pb.TreeNode) -> NodeStat:
    """The facts about a node."""
    return NodeStat(version=node.version, owner=node.owner, created=node.created, modified=node.modified)


def value_from_proto(node: pb.TreeNode) -> NodeValue:
    """A node with its data."""
    return NodeValue(node.data, stat_from_proto(node))


def refusal(call_id: int, error: BaseException) -> pb.TreeAnswer:
    """The answer to a call that was refused."""
    name = type(error).__name__
    status = pb.TreeError.FromString(status_to_proto(status_of(error)).SerializeToString())  # the same fields
    return pb.TreeAnswer(id=call_id, error=status, error_type=name if name in _TYPES else "")


def error_from_proto(answer: pb.TreeAnswer) -> ShoalError:
    """The error that the tree raised."""
    found = error_of(status_from_proto(CallStatus.FromString(answer.error.SerializeToString())))
    known = _TYPES.get(answer.error_type)
    if known is None:
        return found
    error = known.__new__(known)
    ShoalError.__init__(error, found.message, hint=found.hint, **found.facts)
    return error
