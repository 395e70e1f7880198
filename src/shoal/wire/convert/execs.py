"""Commands inside workloads, between the model and the wire."""

from __future__ import annotations

from shoal.core.errors import InvalidError, problem
from shoal.core.shape import check
from shoal.model.execs import ExecCommand, ExecEnd, ExecOutput, WindowSize
from shoal.wire.pb.shoal.v1 import exec_pb2 as pb


def exec_start_to_proto(workload_id: str, wanted: ExecCommand) -> pb.ExecRequest:
    """The first message of a call."""
    return pb.ExecRequest(
        start=pb.ExecStart(
            workload_id=workload_id,
            command=wanted.command,
            service=wanted.service,
            terminal=wanted.terminal,
            interactive=wanted.interactive,
            window=window_to_proto(wanted.window),
            term=wanted.term,
        )
    )


def exec_command_from_proto(message: pb.ExecRequest) -> ExecCommand:
    """The command that the first message of a call starts. Raises `InvalidError`."""
    if message.WhichOneof("message") != "start":
        raise InvalidError([problem("start", None, "must be in the first message")])
    start = message.start
    wanted = ExecCommand(
        command=tuple(start.command),
        service=start.service,
        terminal=start.terminal,
        interactive=start.interactive,
        window=_window(start.window) if start.HasField("window") else WindowSize(),
        term=start.term or "xterm",
    )
    check(wanted)
    return wanted


def window_to_proto(window: WindowSize) -> pb.WindowSize:
    """The size of a terminal."""
    return pb.WindowSize(rows=window.rows, columns=window.columns)


def window_from_proto(message: pb.WindowSize) -> WindowSize:
    """The size of a terminal. Raises `InvalidError`."""
    window = _window(message)
    check(window)
    return window


def exec_response_from_proto(message: pb.ExecResponse) -> ExecOutput | ExecEnd | None:
    """What an answer says; None when it is only that the command runs."""
    match message.WhichOneof("message"):
        case "stdout":
            return ExecOutput("stdout", message.stdout)
        case "stderr":
            return ExecOutput("stderr", message.stderr)
        case "ended":
            return ExecEnd(message.ended.exit_code, message.ended.signal)
        case _:
            return None


def _window(message: pb.WindowSize) -> WindowSize:
    return WindowSize(rows=message.rows, columns=message.columns)
