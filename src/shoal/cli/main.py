"""`shoal`: the one program. Builds the command tree, and turns errors into one line and an exit code.

Importing this module loads no heavy package: commands import what they need when they run, so that help, completion
and mistakes are answered at once. Called by the console script and by `python -m shoal`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from shoal.cli import (
    agent,
    apply,
    certs,
    control,
    events,
    groups,
    hints,
    logs,
    nodes,
    output,
    schema,
    secrets,
    session,
    status,
    tokens,
    top,
    up,
    workloads,
)
from shoal.cli.options import FLEET, SERVERS, START, without_library_words
from shoal.core.errors import InvalidError, ShoalError, problem

app = typer.Typer(
    name="shoal",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        schema.version()
        raise typer.Exit


@app.callback()
def root(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", callback=_print_version, is_eager=True, help="Print the version and exit"
        ),
    ] = False,
) -> None:
    """Run workloads on a fleet of node agents.

    Start here: `shoal up` runs a control plane and three agents on this machine, `shoal apply -f spec.yaml` puts
    workloads on them, `shoal status` shows how they are.

    Exit codes: 0 done, 1 error, 2 bad usage or a bad spec, 3 accepted but no node has room, 4 timed out.
    """


def demo() -> int:
    """Watch a fleet lose an agent and a whole machine, and put itself right; takes less than a minute."""
    from shoal.cli.demo import run_demo

    return run_demo()


up.register(app)
app.command("demo", rich_help_panel=START)(demo)
apply.register(app)
status.register(app)
top.register(app)
app.add_typer(workloads.app, rich_help_panel=FLEET)
app.add_typer(groups.app, rich_help_panel=FLEET)
app.add_typer(nodes.app, rich_help_panel=FLEET)
logs.register(app)
events.register(app)
control.register(app)
agent.register(app)
app.add_typer(certs.app, rich_help_panel=SERVERS)
app.add_typer(tokens.app, rich_help_panel=SERVERS)
app.add_typer(secrets.app, rich_help_panel=FLEET)
schema.register(app)
without_library_words(app)


def main() -> None:
    """The program."""
    sys.exit(run(sys.argv[1:], around=session.Surroundings(owns_process=True)))


def run(arguments: Sequence[str], *, around: session.Surroundings | None = None) -> int:
    """Run one command line and return its exit code."""
    token = session.surroundings.set(around or session.Surroundings())
    called = hints.command.set(_called(arguments))
    try:
        outcome = app(args=list(arguments), prog_name="shoal", standalone_mode=False)
    except ShoalError as error:
        output.fail(error)
        return session.exit_code_of(error)
    except KeyboardInterrupt:
        return session.INTERRUPTED
    except Exception as error:  # noqa: BLE001  whatever else it is, the person gets one line
        return _fail_otherwise(error)
    finally:
        session.surroundings.reset(token)
        hints.command.reset(called)
    return outcome if isinstance(outcome, int) else 0


def _called(arguments: Sequence[str]) -> str:
    """The command within a command line, such as `shoal node get`."""
    words, level = ["shoal"], app
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
    """What Typer says of a value that its rules refuse, in our words; None when it said something else."""
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
    # Typer's own: a flag, a value or a command that does not exist.
    bad_value = _bad_value(error)
    if bad_value is not None:
        output.fail(bad_value)
        return session.exit_code_of(bad_value)
    sentence = error.format_message().strip().rstrip(".")
    context = getattr(error, "ctx", None)
    if sentence:  # else the help was asked for by giving nothing, and has been printed
        path = context.command_path if context is not None else "shoal"
        output.fail(ShoalError(sentence[:1].lower() + sentence[1:], hint=f"`{path} --help` shows what can be given"))
    return int(getattr(error, "exit_code", 2))
