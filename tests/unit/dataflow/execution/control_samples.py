"""One control message of every type, with every command and report. For tests of their bytes and for fuzzing."""

from __future__ import annotations

from typing import Any

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.checkpoint.handles import FileHandle, Link, TaskPart
from shoal.dataflow.checkpoint.messages import (
    Acknowledged,
    AddSplits,
    AlignTime,
    Commit,
    Committed,
    Declined,
    Drained,
    Finish,
    Pause,
    Resume,
    SourceTime,
    StopReading,
    TaskId,
    Trigger,
    Waiting,
)
from shoal.dataflow.connectors.base import Split
from shoal.dataflow.errors import OperatorFailedError, StepInput
from shoal.dataflow.execution.chain import StepCounts
from shoal.dataflow.execution.hosts.control_messages import (
    BrokerSettings,
    BuildTasks,
    CommandTask,
    ConnectTasks,
    EndTasks,
    HostBuilt,
    HostCounts,
    HostEnded,
    HostFailed,
    HostHello,
    HostListens,
    HostLost,
    HostShare,
    JoinEpoch,
    Ping,
    RunTasks,
    TaskReport,
)
from shoal.dataflow.execution.hosts.error_texts import CauseText, ErrorText, Line, describe_error
from shoal.dataflow.settings import CheckpointSettings, FlowSettings

TASK = TaskId(1, 0)
COUNTS = HostCounts(
    (
        StepCounts(
            "sums",
            "sum",
            0,
            10,
            2,
            0,
            -(2**63),
            {"late": 1},
            received=12,
            waiting_bytes=7,
            received_bytes=90,
            busy_seconds=1.5,
            backpressured_seconds=0.25,
            emitted_bytes=80,
            step_busy_seconds=1.25,
            step_backpressured_seconds=0.125,
            state_bytes=4096,
            snapshot_seconds=0.5,
        ),
    ),
    {"1.0": 7},
)
SHARE = HostShare(
    job="job",
    tasks=(TASK, TaskId(2, 0)),
    settings=FlowSettings(checkpoint=CheckpointSettings(directory="/checkpoints")),
    splits={"events": ((Split("0"), Split("2")), (Split("1"),))},
    checkpoint=7,
    incarnation=3,
    epoch=2,
)
PART = TaskPart(
    subtask=0,
    file="7-2-1.0.state",
    files=(FileHandle("7-2-1.0.state", 100, 2**32 - 1),),
    chains={"sums": (Link("7-2-1.0.state", 0, 64),)},
    written=100,
    pause=0.25,
    outputs={"files": b"ahead"},
)
WORKED_ON = StepInput("a: int64", ("{'a': 1}", "{'a': 2}"), 64, True, "topic t, split 0, offsets 3 to 66")
FAILED = ErrorText(
    (
        *describe_error(InvalidError([problem("a", 1, "must be 2")], what="it", hint="write 2")).chain,
        *describe_error(OperatorFailedError("sum", ValueError("no"), given=WORKED_ON)).chain,
        CauseText("ValueError", "no", "", {}, (), Line("app.py", 7, "main"), None, "Traceback …", False),
    )
)
_COMMANDS = (
    Trigger(7),
    Commit(7),
    StopReading(True),
    Finish(),
    Pause(),
    Resume(),
    AddSplits(("3",)),
    AlignTime(17),
)
_REPORTS = (
    Acknowledged(TASK, 7, PART),
    Declined(TASK, 7, "the disk is full"),
    Committed(TASK, 7),
    Drained(TASK),
    Waiting(TASK, "files", 123),
    SourceTime(TASK, 17),
)

SAMPLES: dict[str, Any] = {
    "BuildTasks": BuildTasks(
        share=SHARE,
        document=b'{"format":1}',
        blobs={"function-1": b"\x80\x05blob"},
        search_path=("/app", "/lib"),
        directory="/app",
        brokers={"kafka://a@h:1": BrokerSettings({"brokers": "h:1", "native": True}, {"sasl.password": "secret"})},
    ),
    "ConnectTasks": ConnectTasks({TASK: "unix:/a.sock", TaskId(12, 345): "unix:/b.sock"}),
    "RunTasks": RunTasks(),
    "EndTasks": EndTasks(),
    "JoinEpoch": JoinEpoch(term=4, epoch=2, key=b"secret", proof="ab12", is_spread=True),
    "Ping": Ping(),
    **{f"command {type(each).__name__}": CommandTask(TASK, each) for each in _COMMANDS},
    "HostHello": HostHello(number=1, generation=4, node="n1", host_id="h1", pid=77),
    "HostListens": HostListens("unix:/a.sock"),
    "HostBuilt": HostBuilt(),
    "HostCounts": COUNTS,
    "HostFailed": HostFailed(FAILED),
    "HostLost": HostLost("it is gone", "0:1.0>2.1"),
    "HostEnded": HostEnded(COUNTS),
    **{f"report {type(each).__name__}": TaskReport(each) for each in _REPORTS},
}
