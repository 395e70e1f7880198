"""`shoal`: builds the command tree, runs one command line, and turns errors into one line and an exit code.

Importing this module loads no heavy package: commands import what they need when they run, so that help, completion
and mistakes are answered at once. `run`, `migrate`, `savepoint` and `topic` are loaded alone. Called by the console
script and by `python -m shoal`.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from shoal.cli import output
from shoal.cli.connection import session
from shoal.cli.connection.options import FLEET, MODELS, SERVERS, START, STREAMS, without_library_words
from shoal.cli.output import hints
from shoal.core.errors import InvalidError, ShoalError, problem

#: Every command in the order of the help: its module, and the panel of one that has commands below it. A module has
#: `register(tree)`, or an `app` of its own for a panel.
_MODULES: dict[str, tuple[str, str]] = {
    "up": ("local.up", ""),
    "demo": ("local.demo", ""),
    "run": ("programs.run", ""),
    "apply": ("commands.apply", ""),
    "status": ("commands.status", ""),
    "describe": ("commands.describe", ""),
    "top": ("commands.top", ""),
    "workload": ("commands.workloads", FLEET),
    "group": ("commands.groups", FLEET),
    "service": ("commands.services", FLEET),
    "job": ("commands.jobs", FLEET),
    "node": ("commands.nodes", FLEET),
    "delete": ("commands.delete", ""),
    "logs": ("commands.logs", ""),
    "exec": ("commands.exec", ""),
    "events": ("commands.events", ""),
    "model": ("commands.serving.models", MODELS),
    "replicas": ("commands.serving.replicas", ""),
    "control": ("servers.control", ""),
    "agent": ("servers.agent", ""),
    "serve": ("servers.serve", ""),
    "serving-client": ("commands.serving.client", FLEET),
    "certs": ("servers.certs", SERVERS),
    "token": ("commands.tokens", SERVERS),
    "grant": ("commands.grants", SERVERS),
    "secret": ("commands.secrets", FLEET),
    "topic": ("programs.topic", STREAMS),
    "savepoint": ("programs.savepoint", STREAMS),
    "migrate": ("programs.migrate", ""),
    "warmup": ("programs.warmup", ""),
    "schema": ("commands.schema", ""),
}
#: Commands that load alone, so that they start quickly.
_ALONE = ("run", "migrate", "savepoint", "topic")


def _print_version(wanted: bool) -> None:
    if wanted:
        from shoal.cli.commands import schema

        schema.version()
        raise typer.Exit


def root(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", callback=_print_version, is_eager=True, help="Print the version and exit"
        ),
    ] = False,
) -> None:
    """Run workloads on a fleet of node agents, and stream programs.

    Start here: `shoal up` runs a control plane and three agents on this machine, `shoal apply -f spec.yaml` puts
    workloads on them, `shoal status` shows how they are. `shoal run my_app:app` runs a stream program.

    Exit codes: 0 done, 1 error, 2 bad usage or a bad spec, 3 accepted but no node has room, 4 timed out.

    Environment variables begin with SHOAL_. `shoal agent` also reads the PERSYS_ names of Persys agents, and metrics
    also have persys_ names, so that deployments and dashboards made for Persys work unchanged.
    """


def demo() -> int:
    """Run a fleet and a live stream here, kill parts of them, and check that they recover; takes under a minute."""
    from shoal.cli.local.demo import run_demo

    return run_demo()


def build(modules: Sequence[str] = tuple(_MODULES)) -> typer.Typer:
    """The command tree, or a part of it."""
    tree = typer.Typer(
        name="shoal",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    tree.callback()(root)
    for name in modules:
        if name == "demo":
            tree.command("demo", rich_help_panel=START)(demo)
            continue
        path, panel = _MODULES[name]
        module = importlib.import_module(f"shoal.cli.{path}")
        if panel:
            tree.add_typer(module.app, rich_help_panel=panel)
        else:
            module.register(tree)
    without_library_words(tree)
    return tree


def __getattr__(name: str) -> Any:
    """`app` is the whole tree, built on first use."""
    if name == "app":
        globals()["app"] = build()
        return globals()["app"]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _tree_for(arguments: Sequence[str]) -> typer.Typer:
    """The part of the tree that a command line needs: a command that loads alone, else everything."""
    if arguments and arguments[0] in _ALONE and "app" not in globals():
        return _alone(arguments[0])
    tree: typer.Typer = sys.modules[__name__].app
    return tree


@functools.cache
def _alone(name: str) -> typer.Typer:
    return build([name])


def main() -> None:
    """The program."""
    sys.exit(run(sys.argv[1:], around=session.Surroundings(owns_process=True)))


def run(arguments: Sequence[str], *, around: session.Surroundings | None = None) -> int:
    """Run one command line and return its exit code."""
    token = session.surroundings.set(around or session.Surroundings())
    called = hints.command.set(_called(arguments))
    try:
        outcome = _tree_for(arguments)(args=list(arguments), prog_name="shoal", standalone_mode=False)
    except ShoalError as error:
        output.fail(error)
        return session.exit_code_of(error)
    except KeyboardInterrupt:
        return session.INTERRUPTED
    except Exception as error:  # noqa: BLE001  any other error is one line too
        return _fail_otherwise(error)
    finally:
        session.surroundings.reset(token)
        hints.command.reset(called)
    return outcome if isinstance(outcome, int) else 0


def _called(arguments: Sequence[str]) -> str:
    """The command of a command line, such as `shoal node get`."""
    words, level = ["shoal"], _tree_for(arguments)
    for word in arguments:
        instances = [each.typer_instance for each in level.registered_groups]
        below = {each.info.name: each for each in instances if each is not None}
        if word in below:
            words.append(word)
            level = below[word]
            continue
        if word in {each.name for each in level.registered_commands}:
            words.append(word)
        break
    return " ".join(words)


def _bad_value(error: Exception) -> InvalidError | None:
    """Typer's error about a bad value as our own; None for its other errors."""
    parameter, find = getattr(error, "param", None), getattr(error.__cause__, "errors", None)
    if parameter is None or find is None:
        return None
    found = find()[0]
    facts = found.get("ctx", {})
    rules = {
        "greater_than_equal": f"must be at least {facts.get('ge')}",
        "less_than_equal": f"must be at most {facts.get('le')}",
        "int_parsing": "must be a whole number",
        "float_parsing": "must be a number",
        "bool_parsing": "must be true or false",
    }
    choices = re.search(r"is not one of (.*?)\.?$", str(facts.get("error", "")))
    rule = f"must be one of {choices[1].replace(chr(39), '')}" if choices else rules.get(found["type"])
    if rule is None:
        return None
    name = max(parameter.opts, key=len)
    return InvalidError([problem(name if name.startswith("-") else name.upper(), found.get("input"), rule)])


def _fail_otherwise(error: Exception) -> int:
    if not hasattr(error, "format_message"):
        return output.fail_by_bug(error)
    # Typer's own error: a flag, a value or a command that does not exist.
    bad_value = _bad_value(error)
    if bad_value is not None:
        output.fail(bad_value)
        return session.exit_code_of(bad_value)
    sentence = error.format_message().strip().rstrip(".")
    context = getattr(error, "ctx", None)
    if sentence:  # without one, help was printed because nothing was given
        path = context.command_path if context is not None else "shoal"
        hint = _suggestion(sentence, context) or f"`{path} --help` shows what can be given"
        sentence = sentence.partition(" Did you mean")[0].partition(" (Possible")[0].rstrip(".")
        output.fail(ShoalError(sentence[:1].lower() + sentence[1:], hint=hint))
    return int(getattr(error, "exit_code", 2))


_UNKNOWN = re.compile(r"No such (?P<kind>command|option):? '?(?P<word>[^\s'.]+)'?", re.IGNORECASE)
#: Words of other programs, and the command here.
_ELSEWHERE = {
    "ls": "workload list",
    "ps": "workload list",
    "jobs": "job list",
    "services": "service status",
    "pods": "workload list",
    "pod": "workload",
    "run-job": "apply",
    "scale": "service scale",
    "rollout": "service status",
    "inspect": "describe",
    "rm": "delete",
    "log": "logs",
    "edit": "workload get -o yaml",
}


def _suggestion(sentence: str, context: Any) -> str:
    """`did you mean …?` for a mistyped command or option; empty when nothing is close."""
    found = _UNKNOWN.match(sentence)
    if found is None or context is None:
        return ""
    word = found["word"]
    if found["kind"].lower() == "option":
        options = [name for each in context.command.get_params(context) for name in (*each.opts, *each.secondary_opts)]
        known = {name.lstrip("-"): name for name in options}  # the dashes are always alike
        close = difflib.get_close_matches(word.lstrip("-"), known, n=1)
        return f"did you mean {known[close[0]]}?" if close else ""
    nested = _nested(word)
    if nested or word in _ELSEWHERE:
        return f"did you mean `shoal {nested or _ELSEWHERE[word]}`?"
    close = difflib.get_close_matches(word, list(getattr(context.command, "commands", {})), n=1)
    return f"did you mean `{context.command_path} {close[0]}`?" if close else ""


def _nested(word: str) -> str:
    """A command below another one that has this name, such as `node drain` for `drain`."""
    groups = [each.typer_instance for each in sys.modules[__name__].app.registered_groups]
    for group in groups:
        if group is not None and word in {each.name for each in group.registered_commands}:
            return f"{group.info.name} {word}"
    return ""
