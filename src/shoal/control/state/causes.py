"""What a change follows from, in words for the list of events: whose call, or what an agent saw. Never a value of it.

Called by the services of the control plane for what somebody asks for, and by `shoal.control.workloads.status_reports`
for what agents report.
"""

from __future__ import annotations

import signal

from shoal.control.state.lifecycle.phases import has_crashed
from shoal.model.workloads import Exit, FailureReason, RunState, RunStatus
from shoal.wire.transport import Call

#: The caller on a transport without certificates.
INSECURE_CALLER = "insecure caller"


def caller_of(call: Call) -> str:
    """Who calls: `operator alice`."""
    return str(call.identity) if call.identity is not None else INSECURE_CALLER


def cause_of_call(call: Call) -> str:
    """Which call, and whose: `ApplyWorkload by operator alice`."""
    return f"{call.method.rpartition('/')[2]} by {caller_of(call)}"


def cause_of_status(status: RunStatus, before: RunStatus | None) -> str:
    """What brought a workload into the state that its agent reports. `before` is what it reported last."""
    known = before if before is not None and before.generation == status.generation else None
    if status.exit is not None and (known is None or known.exit != status.exit):
        return _words_of_exit(status.exit)
    if status.failure is not FailureReason.NONE:
        return str(status.failure.value)
    if status.deleting:
        return "it is being deleted"
    if known is None:
        return f"command of generation {status.generation}" if status.generation else "command of the control plane"
    if status.state is RunState.RUNNING:
        return "its readiness probe passed" if known.pid == status.pid != 0 else "it was started"
    if status.state is RunState.PENDING and known.state is RunState.RUNNING and known.pid == status.pid != 0:
        return "its readiness probe failed"
    if status.state is RunState.UNKNOWN:
        return "its agent cannot tell"
    return f"it {_words_of_state(known)}"


def _words_of_state(status: RunStatus) -> str:
    if status.state is RunState.PENDING:
        return "had crashed" if has_crashed(status) else "was starting"
    return f"was {status.state.value}"


def _words_of_exit(ended: Exit) -> str:
    if ended.unknown:
        return "it ended, and how is not known"
    if ended.out_of_memory:
        return "killed: out of memory"
    if ended.signal:
        try:
            return f"ended by {signal.Signals(ended.signal).name}"
        except ValueError:
            return f"ended by signal {ended.signal}"
    return f"exit {ended.code}"
