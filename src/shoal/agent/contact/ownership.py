"""Asks the leader which node owns a workload. Called by the actors of at-most-one workloads before they start a run."""

from __future__ import annotations

from shoal.agent.contact.control_client import ControlClient
from shoal.agent.workloads.contact import Contact, Ownership
from shoal.core.errors import UnavailableError
from shoal.core.ids import WorkloadId
from shoal.model.workloads import DesiredState


class OwnershipDesk:
    """Asks over the connection that is there for heartbeats; None stands for an agent without a control plane."""

    def __init__(self, client: ControlClient | None, contact: Contact) -> None:
        self._client = client
        self._contact = contact

    async def ask(self, workload_id: WorkloadId) -> Ownership:
        """Which node owns a workload. Raises `UnavailableError` when nobody can tell."""
        if self._client is None:
            raise UnavailableError("there is no control plane to ask")
        if self._client.address != self._contact.leader:
            # A control plane that has not acknowledged a heartbeat may not lead, and its records may be old.
            raise UnavailableError("the control plane at this address is not known to lead")
        view = await self._client.get_workload(workload_id)
        wanted = view.desired_state == DesiredState.RUNNING.value
        return Ownership(node_id=view.assigned_node_id, generation=view.generation, wanted=wanted)
