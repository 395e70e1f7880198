"""The Python client of the control plane.

    async with ControlPlane(["127.0.0.1:8085"], GrpcTransport()) as control:
        await control.apply(document)
        await control.wait_for("web", lambda view: view is not None and view.status == "Running", timeout=30)

`control_plane` has one coroutine for each RPC: it takes and returns values, not protos, and raises typed errors.
`artifacts` has the calls about blobs, `jobs` those about jobs. `calls` finds the leader and repeats calls. `reconnect`
decides how long a broken stream is taken up again. Used by `shoal.cli`, by workloads that have an identity, and by
tests.
"""

from shoal.client.control_plane import LOOK_EVERY, ControlPlane
from shoal.client.values import ApplyOutcome, Condition, EventPage, GroupOutcome, NewJoinToken, PlacementPreview
from shoal.model.execs import ExecCommand, ExecEnd, ExecOutput, WindowSize
from shoal.model.logs import LogPiece

__all__ = [
    "LOOK_EVERY",
    "ApplyOutcome",
    "Condition",
    "ControlPlane",
    "EventPage",
    "ExecCommand",
    "ExecEnd",
    "ExecOutput",
    "GroupOutcome",
    "LogPiece",
    "NewJoinToken",
    "PlacementPreview",
    "WindowSize",
]
