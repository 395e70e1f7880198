"""Which parts of a job the others do not reach, from what its processes say. Pure.

Three things are said: the coordinator tells which task hosts are not connected to it, and which of them do not reach
each other; a task host tells that it misses the coordinator. Between two nodes that do not reach each other both sides
complain: the coordinator's word counts, unless most of its task hosts miss it or it says nothing itself. Called by
`shoal.dataflow.fleet.decisions`.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping

from shoal.core.errors import InvalidError
from shoal.core.ids import JobId, NodeId
from shoal.dataflow.fleet.progress import COORDINATOR, Move, workload_of
from shoal.dataflow.fleet.reports import CoordinatorReport, HostReport, decode_coordinator, decode_host
from shoal.jobs.engine import Facts, WorkloadFacts, WorkloadReport
from shoal.model.phases import WorkloadPhase

SILENCE = 3.0
"""Seconds without a part after which it is placed anew."""
STARTING = 10.0
"""Seconds that a part may take to start after it was placed: it is not silent before."""
MOST_DOUBLED = 3
"""How often those seconds are doubled for a part that was moved again and again: its machines may be slow."""
FRESH = 5.0
"""Seconds after which what a process said is no longer true."""
NEVER_HEARD = 30.0
"""Seconds without a word of a coordinator of which this leader has heard nothing yet: it starts, or the leader does."""
SPEAKING = 2.0
"""Seconds within which a coordinator has said something when it lives and reaches the control plane."""

_WITHOUT_NODE = frozenset({WorkloadPhase.PENDING, WorkloadPhase.UNPLACEABLE})
_STARTED = frozenset({WorkloadPhase.RUNNING, WorkloadPhase.UNKNOWN})


class Parts:
    """The coordinator and the task hosts of a job, and what they say."""

    def __init__(
        self, job_id: JobId, width: int, facts: Facts, *, moves: Mapping[str, Move], is_deployed: bool
    ) -> None:
        self._job_id = job_id
        self._moves = moves
        self._facts = facts
        self._hosts = [str(number) for number in range(width)]
        #: What the coordinator that is deployed now has said lately.
        self.report = self._read_report() if is_deployed else None

    @property
    def _said(self) -> WorkloadReport | None:
        return self._facts.reports.get(workload_of(self._job_id, COORDINATOR))

    @property
    def _speaks(self) -> bool:
        return self.report is not None and self._said is not None and self._said.age <= SPEAKING

    def _read_report(self) -> CoordinatorReport | None:
        said = self._said
        if said is None or said.age > FRESH:
            return None
        try:
            return decode_coordinator(said.content)
        except InvalidError:
            return None

    # -- where they are -------------------------------------------------------------------------------------------

    def facts_of(self, part: str) -> WorkloadFacts | None:
        """What is known about the workload of a part."""
        return self._facts.workloads.get(workload_of(self._job_id, part))

    def node_of(self, part: str) -> NodeId | None:
        """The node of a part."""
        found = self.facts_of(part)
        return None if found is None else found.node_id

    def is_there(self, part: str, revision: str) -> bool:
        """Whether a part is stored with this revision."""
        found = self.facts_of(part)
        return found is not None and found.phase is not WorkloadPhase.DELETING and found.revision == revision

    def has_node(self, part: str) -> bool:
        """Whether a part has a node."""
        found = self.facts_of(part)
        return found is not None and found.phase not in _WITHOUT_NODE

    @property
    def have_nodes(self) -> bool:
        """Whether every part has a node."""
        return all(self.has_node(part) for part in (COORDINATOR, *self._hosts))

    # -- who is silent --------------------------------------------------------------------------------------------

    @property
    def is_unheard(self) -> bool:
        """Whether the coordinator has begun to run and says nothing any more."""
        found, said = self.facts_of(COORDINATOR), self._said
        if self.report is not None or found is None or found.phase not in _STARTED:
            return False
        return _lasted(found) >= (NEVER_HEARD if said is None else self._starting(COORDINATOR))

    def silent(self) -> Mapping[str, str]:
        """The parts to place anew, and why."""
        report = self.report
        complaints = [each for each in self._complaints() if report is None or each.term >= report.term]
        if complaints and (not self._speaks or 2 * len(complaints) > len(self._hosts)):
            worst = max(each.misses for each in complaints)
            return {COORDINATOR: f"the coordinator was silent for {worst:.0f} s", **self.gone_with_coordinator()}
        if report is None:
            return {}
        away = [part for part, seconds in report.missing.items() if seconds >= SILENCE and self._is_settled(part)]
        if away:
            return dict.fromkeys(away, f"task host {', '.join(away)} was silent for {SILENCE:g} s")
        # To begin again on the same nodes would change nothing.
        return {} if self._facts.waits else self._cut_off(report)

    def gone_with_coordinator(self) -> Mapping[str, str]:
        """The task hosts on the node of a coordinator that is silent, when that node has no contact either.

        The next coordinator would miss them only when it has started, and has waited for them.
        """
        found = self.facts_of(COORDINATOR)
        if found is None or found.node_answers:
            return {}
        gone = [part for part in self._hosts if self.node_of(part) == found.node_id]
        return dict.fromkeys(gone, f"so was node {found.node_id}, with task host {', '.join(gone)}")

    def _cut_off(self, report: CoordinatorReport) -> Mapping[str, str]:
        """The task hosts of one node, when it and another one reach the coordinator and not each other."""
        ends: collections.Counter[NodeId] = collections.Counter()
        for pair in report.unreachable:
            nodes = {self.node_of(part) for part in pair if part in self._hosts}
            if len(nodes) == 2 and all(self._is_settled(part) for part in pair):
                ends.update(node for node in nodes if node is not None)
        if not ends:
            return {}
        # The coordinator's node stays where two are equal: its job would have to be claimed anew.
        own = self.node_of(COORDINATOR)
        worst = max(ends, key=lambda node: (ends[node], node != own, node))
        return {
            part: f"task hosts on node {worst} and on others do not reach each other"
            for part in self._hosts
            if self.node_of(part) == worst
        }

    def _is_settled(self, part: str) -> bool:
        """Whether a task host has had the time to start where it is."""
        found = self.facts_of(part) if part in self._hosts and self.has_node(part) else None
        return found is not None and _lasted(found) >= self._starting(part)

    def _starting(self, part: str) -> float:
        """Seconds that a part may take to start where it is now."""
        again = self._moves[part].count - 1 if part in self._moves else 0
        return STARTING * 2.0 ** min(again, MOST_DOUBLED)

    def _complaints(self) -> list[HostReport]:
        """What task hosts say about the coordinator that is there now."""
        coordinator = self.facts_of(COORDINATOR)
        found = []
        for part in self._hosts:
            said = self._facts.reports.get(workload_of(self._job_id, part))
            if said is None or said.age > FRESH or coordinator is None:
                continue
            try:
                report = decode_host(said.content)
            except InvalidError:
                continue
            if report.misses >= SILENCE and report.term == coordinator.generation:
                found.append(report)
        return found


def _lasted(found: WorkloadFacts) -> float:
    """For how many seconds a workload has been as it is."""
    return max(found.ready_for or 0.0, found.unready_for)
