"""Options that several commands share. Called by the command modules.

`client_command` registers a command that talks to a control plane: it adds `--control` and the security options, opens
the client and closes it again. `tree_command` does the same for a coordination tree.
"""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from shoal.cli.connection import completion, session, trees
from shoal.core import durations
from shoal.core.errors import InvalidError, problem

C = TypeVar("C", bound=Callable[..., Any])
F = TypeVar("F", bound=Callable[..., Awaitable[int | None]])
S = TypeVar("S", bound=Callable[..., int | None])

CONNECTION = "Connection"
START = "Start here"
FLEET = "The fleet"
SERVERS = "Servers"
MODELS = "Models"
STREAMS = "Streams"
"""Panels of the help."""


def duration(text: str | timedelta) -> timedelta:
    """Read a duration given as an option."""
    if isinstance(text, timedelta):
        return text
    try:
        return durations.parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error} (got {text!r})") from None


def moment(text: str, now: datetime, *, field: str) -> datetime:
    """Read a moment given as an option: a duration before now, or a date and time. Without a zone it is local time."""
    with contextlib.suppress(ValueError):
        return now - durations.parse_duration(text)
    try:
        read = datetime.fromisoformat(text)
        return read.astimezone(UTC)
    except (ValueError, OverflowError):
        rule = "must be a duration such as 10m, or a time such as 2026-01-31T12:00:00Z"
        raise InvalidError([problem(field, text, rule)]) from None


class ShownDuration(timedelta):
    """A default that the help shows as `10s`."""

    def __str__(self) -> str:
        return durations.format_duration(self)


def _shown(default: Any) -> Any:
    return ShownDuration(seconds=default.total_seconds()) if isinstance(default, timedelta) else default


Json = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON to stdout instead of a table")]
Detach = Annotated[bool, typer.Option("--detach", metavar="", help="Return as soon as the request is stored")]
Timeout = Annotated[
    timedelta,
    typer.Option("--timeout", parser=duration, metavar="DURATION", help="How long to wait, such as 500ms, 10s or 5m"),
]
OptionalTimeout = Annotated[
    timedelta | None,
    typer.Option("--timeout", parser=duration, metavar="DURATION", help="How long to wait, such as 500ms, 10s or 5m"),
]
NodeName = Annotated[
    str, typer.Argument(metavar="NODE", help="The node's id", autocompletion=completion.complete_nodes)
]
WorkloadName = Annotated[
    str, typer.Argument(metavar="WORKLOAD", help="The workload's id", autocompletion=completion.complete_workloads)
]
WorkloadNames = Annotated[
    list[str], typer.Argument(metavar="WORKLOAD…", help="Ids", autocompletion=completion.complete_workloads)
]
OptionalWorkloadNames = Annotated[
    list[str] | None, typer.Argument(metavar="[WORKLOAD…]", help="Ids", autocompletion=completion.complete_workloads)
]
SelectorText = Annotated[
    str,
    typer.Option("--selector", "-l", metavar="SELECTOR", help="Only with these labels: app=web,tier!=db,zone in (a,b)"),
]
GroupFilter = Annotated[
    str,
    typer.Option(
        "--group", metavar="GROUP", help="Only members of this group", autocompletion=completion.complete_groups
    ),
]
Recursive = Annotated[
    bool, typer.Option("--recursive", "-R", metavar="", help="Of a folder given with -f, read the folders below it too")
]
Watch = Annotated[
    bool, typer.Option("--watch", "-w", metavar="", help="Go on: print each entry again when it changes, until Ctrl-C")
]
GroupName = Annotated[
    str, typer.Argument(metavar="GROUP", help="The group's id", autocompletion=completion.complete_groups)
]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="The job's id", autocompletion=completion.complete_jobs)]
ServiceName = Annotated[
    str, typer.Argument(metavar="SERVICE", help="The service's id", autocompletion=completion.complete_services)
]

Config = Annotated[
    str | None, typer.Option("--config", metavar="PATH", help="A TOML file with the same names; flags win over it")
]
ReadyFile = Annotated[
    str | None,
    typer.Option("--ready-file", metavar="PATH", help="Write the addresses to this file as JSON once it serves"),
]
LogLevel = Annotated[
    str | None,
    typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error [info, env: LOG_LEVEL]"),
]
LogFormat = Annotated[
    str | None, typer.Option("--log-format", metavar="FORMAT", help="text or json [text, env: LOG_FORMAT]")
]
Text = str | None
"""A flag as text: the settings check it, so that everything wrong is reported at once."""

_CONNECTION_OPTIONS: dict[str, tuple[Any, Any]] = {
    "addresses": (
        Annotated[
            str | None,
            typer.Option(
                "--control",
                envvar="SHOAL_CONTROL",
                metavar="HOST:PORT[,…]",
                help=f"The address of the control plane; several are tried in turn [{session.DEFAULT_CONTROL}]",
                rich_help_panel=CONNECTION,
            ),
        ],
        None,
    ),
    "insecure": (
        Annotated[
            bool,
            typer.Option(
                "--insecure",
                metavar="",
                envvar="SHOAL_INSECURE",
                help="No TLS, for a control plane that was started with --insecure",
                rich_help_panel=CONNECTION,
            ),
        ],
        False,
    ),
    **{
        name: (
            Annotated[
                str | None,
                typer.Option(
                    f"--{name}", envvar=f"SHOAL_{name.upper()}", metavar="PATH", help=text, rich_help_panel=CONNECTION
                ),
            ],
            None,
        )
        for name, text in (
            ("ca", "Certificate of the trusted authority [all three: of `shoal up` in this folder or above]"),
            ("cert", "Own certificate, of role operator"),
            ("key", "Its private key"),
        )
    },
}


Bzid = Annotated[str, typer.Option("--bzid", envvar="SHOAL_BZID", metavar="NAME", help="The business namespace")]
ZkServers = Annotated[
    str,
    typer.Option(
        "--zk-servers",
        envvar="SHOAL_ZK_SERVERS",
        metavar="HOST:PORT[,…]",
        help="The servers of ZooKeeper, with credentials from ZK_AUTH [none: the tree of the control plane]",
        rich_help_panel=CONNECTION,
    ),
]

_TREE_OPTIONS: dict[str, tuple[Any, Any]] = {"zk_servers": (ZkServers, ""), **_CONNECTION_OPTIONS}


class _Command(TyperCommand):
    """A command whose help shows flags without values."""

    def get_params(self, ctx: Any) -> Any:
        return _as_typed(super().get_params(ctx))


class _Group(TyperGroup):
    """A command with commands below it; the same."""

    def get_params(self, ctx: Any) -> Any:
        return _as_typed(super().get_params(ctx))


def _as_typed(parameters: Any) -> Any:
    for each in parameters:
        if getattr(each, "is_flag", False) and each.metavar is None:
            each.metavar = ""
    return parameters


def without_library_words(app: typer.Typer) -> None:
    """Let the help of everything below `app` show flags without values."""
    app.info.cls = _Group
    for command in app.registered_commands:
        command.cls = _Command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            without_library_words(group.typer_instance)


def _output_option(formats: Sequence[str]) -> inspect.Parameter:
    option = typer.Option("--output", "-o", metavar="FORMAT", help=f"Print {' or '.join(formats)} instead of a table")
    return inspect.Parameter(
        "output_format", inspect.Parameter.KEYWORD_ONLY, default="", annotation=Annotated[str, option]
    )


def _chosen_format(word: str, formats: Sequence[str]) -> dict[str, bool]:
    """`-o json` is `--json`; `-o yaml` is for commands that can print it."""
    if not word:
        return {}
    if word not in formats:
        raise InvalidError([problem("--output", word, f"must be {' or '.join(formats)}")])
    return {f"as_{word}": True}


def client_command(app: typer.Typer, name: str, *, panel: str | None = None) -> Callable[[F], F]:
    """Register `async def command(control, …)` under a name. It returns the exit code; None is 0.

    A command with `as_json` also takes `-o json`; one with `as_yaml` also takes `-o yaml`.
    """
    return _registering(
        app, name, panel, _CONNECTION_OPTIONS, lambda given, work: session.call(_connection(given), work)
    )


def tree_command(app: typer.Typer, name: str, *, panel: str | None = None) -> Callable[[F], F]:
    """The same for `async def command(store, …)`, which works on a coordination tree."""
    return _registering(app, name, panel, _TREE_OPTIONS, lambda given, work: _tree(given).call(work))


def control_tree_command(app: typer.Typer, name: str, *, panel: str | None = None) -> Callable[[F], F]:
    """The same for what only the tree of a control plane has."""
    return _registering(
        app, name, panel, _CONNECTION_OPTIONS, lambda given, work: trees.Tree("", _connection(given)).call(work)
    )


def lazy_tree_command(app: typer.Typer, name: str, *, panel: str | None = None) -> Callable[[S], S]:
    """The same for `def command(tree, …)`, which needs a tree for some of its work only."""
    return _registering(app, name, panel, _TREE_OPTIONS, lambda given, work: work(_tree(given)))


def _connection(given: dict[str, Any]) -> session.Connection:
    return session.Connection(**given)


def _tree(given: dict[str, Any]) -> trees.Tree:
    return trees.Tree(given.pop("zk_servers"), _connection(given))


def _registering(
    app: typer.Typer,
    name: str,
    panel: str | None,
    options: Mapping[str, tuple[Any, Any]],
    run: Callable[[dict[str, Any], Callable[[Any], Any]], int | None],
) -> Callable[[C], C]:
    """Register a command whose first argument `run` makes from the values of the shared options."""

    def register(function: C) -> C:
        # The type of the first argument is imported for the type checker only: importing it here would load gRPC.
        types = {"ControlPlane": object, "CoordinationStore": object, "Tree": object}
        hints = typing.get_type_hints(function, localns=types, include_extras=True)
        own = [
            parameter.replace(
                annotation=hints[parameter.name],
                kind=inspect.Parameter.KEYWORD_ONLY,
                default=_shown(parameter.default),
            )
            for parameter in list(inspect.signature(function).parameters.values())[1:]
        ]
        shared = [
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for option, (annotation, default) in options.items()
        ]

        formats = ["json"] if any(each.name == "as_json" for each in own) else []
        if any(each.name == "as_yaml" for each in own):
            own = [each for each in own if each.name != "as_yaml"]
            formats.append("yaml")
        if formats:
            own.append(_output_option(formats))

        def command(**given: Any) -> int | None:
            given |= _chosen_format(given.pop("output_format", ""), formats)
            common = {option: given.pop(option) for option in options}
            return run(common, lambda first: function(first, **given))

        command.__name__ = function.__name__
        command.__doc__ = function.__doc__
        command.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *shared]}
        app.command(name, rich_help_panel=panel)(command)
        return function

    return register
