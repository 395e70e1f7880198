"""`shoal run`: runs a stream program on this machine until it ends or Ctrl-C.

Finds the app with `shoal.cli.programs.loading` and runs it as `app.run()` does. Options override the program.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli import output
from shoal.cli.connection.options import START, LogFormat, duration
from shoal.core.errors import InvalidError, Problem, ShoalError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.dataflow.api.apps.app import Dataflow
    from shoal.dataflow.api.left_out import LeftOut


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run", rich_help_panel=START)(run)


def run(
    program: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="my_app:app, my_app.py, my_app.py:app or package.module:app")
    ],
    *,
    dataflow: Annotated[
        list[str] | None,
        typer.Option("--dataflow", metavar="NAME", help="Run only this one, or this agent; repeatable [all]"),
    ] = None,
    parallelism: Annotated[
        int | None,
        typer.Option("--parallelism", min=1, max=1024, metavar="N", help="Tasks of each step [1, or as --processes]"),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            "--processes", min=0, max=128, metavar="N", help="Child processes to run the tasks in; 0 for none"
        ),
    ] = 0,
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", metavar="PATH", help="Where checkpoints and the local log lie")
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option("--broker", metavar="HOST:PORT[,…]|PATH", help="Kafka, or the folder of a local log"),
    ] = None,
    exactly_once: Annotated[
        bool | None,
        typer.Option(
            "--exactly-once/--at-least-once", metavar="", help="Whether rows reach sinks once, with a checkpoint"
        ),
    ] = None,
    checkpoint_interval: Annotated[
        timedelta | None,
        typer.Option("--checkpoint-interval", parser=duration, metavar="DURATION", help="Such as 200ms, 1s or 1m"),
    ] = None,
    from_checkpoint: Annotated[
        str | None,
        typer.Option(
            "--from-checkpoint",
            metavar="N|NAME",
            help="Go on from this one, or from this savepoint; 0 is the beginning [newest]",
        ),
    ] = None,
    savepoint: Annotated[
        str | None,
        typer.Option(
            "--savepoint", metavar="NAME", help="Keep the last checkpoint of this run as a savepoint of this name"
        ),
    ] = None,
    accept_duplicates: Annotated[
        bool,
        typer.Option(
            "--accept-duplicates", metavar="", help="Start although output that sinks have committed comes again"
        ),
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port", min=0, max=65535, metavar="PORT", help="Serve metrics of each step at /metrics [off]"
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", metavar="HOST", help="The address that --metrics-port listens on")
    ] = "127.0.0.1",
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print a JSON line for each step to stdout every second")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", metavar="", help="Print the plans, and run and connect to nothing")
    ] = False,
    log_level: Annotated[
        str | None,
        typer.Option(
            "--log-level", envvar="LOG_LEVEL", metavar="LEVEL", help="debug, info, warning or error [warning]"
        ),
    ] = None,
    log_format: LogFormat = None,
) -> None:
    """Run the dataflows of a program on this machine.

    They run until they end, one fails, or Ctrl-C or SIGTERM asks: then what is under way comes through and the last
    checkpoint is made. A second signal ends at once. What has no end goes on where it was when it is run again.

    On a terminal a live table shows each step: rows per second in and out, how far its watermark is behind, its state,
    what waits in front of it, and the age of the last checkpoint.
    """
    from shoal.cli.programs.live import live_lines, serving_metrics
    from shoal.cli.programs.loading import failure_of, is_of_user, load_program
    from shoal.cli.programs.savepoint import checkpoint_of, savepoints_of
    from shoal.core.telemetry import setup_logging
    from shoal.dataflow.api.context import Launch
    from shoal.dataflow.connectors.topics.brokers import find_kafka_interface
    from shoal.dataflow.language.logical import walk
    from shoal.dataflow.plan.explain import plan_text

    setup_logging(level=log_level or "warning", style=log_format)
    width = parallelism or max(1, processes)
    launch = Launch(
        broker=broker,
        data_dir=data_dir,
        exactly_once=exactly_once,
        checkpoint_interval=checkpoint_interval,
        from_checkpoint=checkpoint_of(from_checkpoint),
        accept_duplicates=accept_duplicates,
    )
    try:
        found = load_program(program, launch)
        names = tuple(dataflow or ()) or found.dataflows
        if explain:
            for flow in found.app.choose(names):
                plan = flow.plan()
                output.data(f"dataflow {flow.name}\n\n{plan_text(plan, parallelism=width)}")
                kafka = find_kafka_interface(walk(*plan))
                if kafka:
                    output.data(f"kafka: {kafka}")
        else:
            flows = found.app.choose(names)
            kept = [] if savepoint is None else savepoints_of(found.app, flows)
            for each in kept:
                each.check(savepoint or "")
            with serving_metrics(flows, metrics_host, metrics_port), live_lines(as_json=as_json) as show:
                found.app.run(width, processes=processes, only=names, told=_words(found.app.id, show))
            for each in savepoints_of(found.app, flows) if kept else ():
                if each.has_job:  # what has an end may run without checkpoints
                    taken = each.take(savepoint or "")
                    output.words(f"{each.job}: savepoint {taken.name} is checkpoint {taken.checkpoint}")
    except InvalidError as error:
        raise _located(error) from error
    except Exception as error:
        if not is_of_user(error):
            raise
        raise failure_of(program, error) from error


def _located(error: InvalidError) -> ShoalError:
    """The same with the user's line in front of each problem: the command line shows those one by one."""
    at = getattr(error, "at", None)
    if at is None:
        return error
    problems = [Problem(f"{at}: {each.field}", each.value, each.rule) for each in error.problems]
    return InvalidError(problems, hint=error.hint or "`shoal run --explain` shows the plan")


def _words(app: str, show: Callable[[Sequence[Any]], None]) -> Any:
    """What happens, for the person at the terminal."""
    from shoal.dataflow.api.apps.lifetime import Told, left_out_of
    from shoal.dataflow.api.left_out import find_left_out

    class Words(Told):
        """Says it on stderr."""

        def started(self, flow: Dataflow) -> None:  # type: ignore[override]
            restored = getattr(flow.running, "restored", None)
            since = "" if restored is None else f", from checkpoint {restored}"
            output.words(f"{app}: {flow.name} runs{since}")

        def left_out(self, flow: Dataflow, begun: Sequence[LeftOut]) -> None:  # type: ignore[override]
            for each in begun:
                output.words(f"{app}: {flow.name} begins to leave rows out: {each}")

        def looked(self, flows: Sequence[Dataflow]) -> None:  # type: ignore[override]
            show(flows)

        def ended(self, flow: Dataflow, report: Any) -> None:  # type: ignore[override]
            output.words(f"{app}: {flow.name} ended after {report.seconds:.1f} s")
            self._total(flow, find_left_out(report.steps))

        def failed(self, flow: Dataflow) -> None:  # type: ignore[override]
            self._total(flow, left_out_of(flow))

        def _total(self, flow: Dataflow, found: Sequence[LeftOut]) -> None:
            if found:
                output.words(f"{app}: {flow.name} left out {', '.join(map(str, found))}")

        def asked(self) -> None:
            output.words(f"{app}: stopping; once more ends at once")

    return Words()
