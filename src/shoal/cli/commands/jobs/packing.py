"""The options of commands that take a stream program, and the program packed as jobs. Called by `submit`, `upgrade`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.connection.options import duration
from shoal.core.errors import InvalidError, problem

if TYPE_CHECKING:
    from shoal.dataflow.api.apps.app import Dataflow
    from shoal.dataflow.api.context import Launch
    from shoal.dataflow.execution.remote.submitting import CollectedJob

JobOption = Annotated[str, typer.Option("--name", metavar="JOB", help="The id of the job, if it is one [app.dataflow]")]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", metavar="PATH", help="Where checkpoints and the local log lie")
]
Broker = Annotated[
    str | None, typer.Option("--broker", metavar="HOST:PORT[,…]|PATH", help="Kafka, or the folder of a local log")
]
ExactlyOnce = Annotated[
    bool | None,
    typer.Option("--exactly-once/--at-least-once", metavar="", help="Whether rows reach sinks once, with a checkpoint"),
]
CheckpointInterval = Annotated[
    timedelta | None,
    typer.Option("--checkpoint-interval", parser=duration, metavar="DURATION", help="Such as 200ms, 1s or 1m"),
]


async def pack(
    program: str,
    dataflows: list[str] | None,
    launch: Launch,
    *,
    name: str,
    width: Callable[[Dataflow], Awaitable[int]],
) -> list[CollectedJob]:
    """Load a program, and check and pack each of its dataflows, or of these, before anything is asked for.

    `name`: the id of the job, where there is to be one alone. `width`: how wide each is to be.
    """
    from shoal.cli.programs.loading import failure_of, is_of_user, load_program

    try:
        found = load_program(program, launch)
        flows = found.app.choose(tuple(dataflows or ()) or found.dataflows)
        if name and len(flows) > 1:
            names = ", ".join(each.job for each in flows)
            raise InvalidError([problem("--name", name, f"needs one dataflow; the program has {names}")])
        return [await flow.pack(await width(flow)) for flow in flows]
    except InvalidError:
        raise
    except Exception as error:
        if not is_of_user(error):
            raise
        raise failure_of(program, error) from error
