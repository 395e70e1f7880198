"""Writes docs/reference from the code, or with --check says whether it is up to date.

Called by `make docs` and `make check`. One JSON Schema per kind of workload and one for groups, for editors and other
checkers, the commands, and the tables of the metrics, the states and the events.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from typer.main import get_command

from shoal.agent.metrics import AgentMetrics
from shoal.cli.main import build
from shoal.control.metrics import ControlMetrics
from shoal.control.state.lifecycle.phases import CONTRACT_STATUSES
from shoal.core.clock import SystemClock
from shoal.core.shape import field_kinds, plain_kind
from shoal.core.telemetry import MetricRegistry
from shoal.dataflow.execution.progress import FlowSeries
from shoal.model.documents import group_schema, workload_schema
from shoal.model.events import Event, EventKind
from shoal.model.jobs import JobState
from shoal.model.phases import ACCEPTED, GroupPhase, WorkloadPhase
from shoal.model.views import ClusterSummary, GroupView, NodeView, WorkloadView
from shoal.model.workloads import WorkloadSpec, WorkloadType
from shoal.serving.metrics import ServingMetrics
from shoal.tables.metrics import TableMetrics

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = ROOT / "docs" / "reference" / "schemas"
COMMANDS = ROOT / "docs" / "reference" / "cli.md"
METRICS = ROOT / "docs" / "reference" / "metrics.md"
EVENTS = ROOT / "docs" / "reference" / "events.md"

STATES = ROOT / "docs" / "reference" / "states.md"

STATES_PAGE = """# States

Written by `make docs` from the code.

## Workloads

`shoal` shows the state; in JSON it is `state`. `status` beside it has the names of the published contract, which are
coarser. `shoal workload list --status` takes either, and `Accepted` for everything that is stored and whose newest
generation has not been started: {accepted}.

| State | Meaning | `status` |
| --- | --- | --- |
{workloads}

## Groups

| State | Meaning |
| --- | --- |
{groups}

## Jobs

| State | Meaning |
| --- | --- |
{jobs}
"""

EVENTS_PAGE = """# Events

Written by `make docs` from the code. `shoal events` shows them, oldest first, with what each is about, a message and
its cause. Events that an earlier version stored are shown under these names ([upgrade.md](../upgrade.md) has both).

| Event | Happens when |
| --- | --- |
{events}
"""

METRICS_PAGE = """# Metrics

Written by `make docs` from the code. The control plane and the agents serve these series in Prometheus' text format
under `/metrics`, beside those of the process itself (`process_…`). Gauges are computed for each reader, so no label
keeps a stale value.

Series whose names begin with `shoal_` are Shoal's own. Those that begin with `persys_` have the names and labels that
dashboards for Persys use. They spell status codes as Go does (`NotFound`); ours spell them as gRPC does (`NOT_FOUND`).

## Control plane

{control}

Not served, because nothing here corresponds to them: `persys_scheduler_reconciliation_cycle_duration_seconds` and
`persys_scheduler_reconciliation_cycles_total`. There is no loop over all workloads: a workload is
reconciled when something about it has changed.

## Agent

{agent}

Not served, because nothing here corresponds to them: `persys_agent_workload_reconcile_total`,
`persys_agent_workload_reconcile_duration_seconds` and `persys_agent_garbage_collection_…`. The agent reacts to
events instead of polling, and removes nothing without a command.

## Serving agent

`shoal serve --http-port PORT` serves these.

{serving}

## Dataflows

`shoal run --metrics-port PORT` serves these. A `step` is the uid of a step, as `--explain` and checkpoints name it.

Of a job on a fleet, each agent serves those of the task hosts on it under its `/metrics`, with the labels `job` and
`host`: `host-0` and so on; `coordinator` has checkpoints and recoveries. The agent of the coordinator serves those of
all tasks together under `/jobs/JOB/metrics`; `shoal job get` shows that address. A process leaves its series in its
work directory each second; an agent takes the ones that are listed here out of it, and no others.

{dataflow}

## Tables

Processes that hold embedding tables serve these, for each table.

{tables}
"""


COMMANDS_PAGE = """# Commands

Written by `make docs` from the code. [command-line.md](../command-line.md) says what the commands have in common: how
they find the control plane, what they print, how they wait and their exit codes.

`-h` or `--help` after any command shows the same.

## Options of every client command

Commands that talk to a control plane also take these. They are marked with † below.

{shared}

{commands}

## JSON

Commands with `--json` print documents of these parts ([command-line.md](../command-line.md#json) has the document of
each command). `spec` has the fields of the [schemas](schemas).

{parts}
"""

#: The name of each part of a JSON document, and its type.
PARTS: Mapping[str, type] = {
    "NODE": NodeView,
    "WORKLOAD": WorkloadView,
    "GROUP": GroupView,
    "SUMMARY": ClusterSummary,
    "EVENT": Event,
}
_PANELS = ("Start here", "The fleet", "Models", "Streams", "Servers", "Other")
_SHARED = ("--control", "--insecure", "--ca", "--cert", "--key")
_HEADER = "| Argument or option | Means |\n| --- | --- |"


def pages() -> dict[Path, str]:
    """Every file of the reference with its content."""
    schemas = {
        SCHEMAS / f"{name}.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        for name, schema in (*((kind.value, workload_schema(kind)) for kind in WorkloadType), ("group", group_schema()))
    }
    events = "\n".join(f"| `{kind.value}` | {kind.description} |" for kind in EventKind)
    return {
        **schemas,
        COMMANDS: commands_page(),
        METRICS: metrics_page(),
        STATES: states_page(),
        EVENTS: EVENTS_PAGE.format(events=events),
    }


def states_page() -> str:
    """Every state of workloads and groups, as a page."""
    return STATES_PAGE.format(
        accepted=", ".join(f"`{phase}`" for phase in WorkloadPhase if phase in ACCEPTED),
        workloads="\n".join(
            f"| `{phase}` | {phase.description} | `{'`, `'.join(sorted(CONTRACT_STATUSES[phase]))}` |"
            for phase in WorkloadPhase
        ),
        groups="\n".join(f"| `{phase}` | {phase.description} |" for phase in GroupPhase),
        jobs="\n".join(f"| `{state}` | {state.description} |" for state in JobState),
    )


def metrics_page() -> str:
    """Every series, as a page."""
    agent = MetricRegistry()
    AgentMetrics(agent)
    serving = MetricRegistry()
    ServingMetrics(SystemClock(), serving)
    tables = MetricRegistry()
    TableMetrics(tables)
    dataflow = MetricRegistry()
    FlowSeries(dataflow)
    return METRICS_PAGE.format(
        control=_table(ControlMetrics().registry),
        agent=_table(agent),
        serving=_table(serving),
        dataflow=_table(dataflow),
        tables=_table(tables),
    )


def _table(registry: MetricRegistry) -> str:
    rows = ["| Series | Kind | Labels | Tells |", "| --- | --- | --- | --- |"]
    for each in sorted(registry.described(), key=lambda series: (not series.name.startswith("shoal_"), series.name)):
        labels = ", ".join(f"`{label}`" for label in each.labels)
        rows.append(f"| `{each.name}` | {each.kind} | {labels} | {each.help_text} |")
    return "\n".join(rows)


def commands_page() -> str:
    """Every command, and the keys behind `--json`, as a page."""
    tree: Any = get_command(build())
    shared = [each for each in tree.commands["apply"].params if each.opts[0] in _SHARED]
    by_panel: dict[str, list[str]] = {panel: [] for panel in _PANELS}
    for name, command in tree.commands.items():
        by_panel[str(command.rich_help_panel)] += _sections(f"shoal {name}", command)
    commands = [f"## {panel}\n\n" + "\n\n".join(sections) for panel, sections in by_panel.items()]
    parts = [f"{name}: {', '.join(_keys(kind))}." for name, kind in PARTS.items()]
    return COMMANDS_PAGE.format(
        shared="\n".join([_HEADER, *(_row(each) for each in shared)]),
        commands="\n\n".join(commands),
        parts="\n\n".join(parts),
    )


def _sections(path: str, command: Any) -> Iterator[str]:
    below: Mapping[str, Any] = getattr(command, "commands", {})
    for name, each in below.items():
        yield from _sections(f"{path} {name}", each)
    if below:
        return
    options = [each for each in command.params if not getattr(each, "hidden", False)]
    own = [each for each in options if each.opts[0] not in _SHARED or "SHOAL" not in str(each.envvar)]
    lines = [f"### `{path}`{' †' if len(own) < len(options) else ''}", "", _prose(command.help)]
    if own:
        lines += ["", _HEADER, *(_row(each) for each in own)]
    yield "\n".join(lines)


def _prose(text: str) -> str:
    """The help of a command: its paragraphs, each on one line."""
    return "\n\n".join(" ".join(each.split()) for each in text.split("\n\n"))


def _row(option: Any) -> str:
    names = sorted((*option.opts, *option.secondary_opts), key=lambda name: (not name.startswith("--"), name))
    if not names[0].startswith("-"):
        names = [option.metavar or names[0].upper()]
    elif option.metavar:
        names = [f"{names[0]} {option.metavar}", *names[1:]]
    words = option.help or ""
    default = option.default
    if default and not isinstance(default, bool) and not callable(default):
        words += f" [{default}]"
    if option.envvar:
        words += f" [env: {option.envvar}]"
    cells = (", ".join(f"`{name}`" for name in names), words)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _keys(kind: type) -> Iterator[str]:
    """The keys of a part, each with those below it."""
    for name, declared in field_kinds(kind).items():
        inner = plain_kind(declared)
        for argument in typing.get_args(inner):
            inner = argument if dataclasses.is_dataclass(argument) else inner
        named = next((part for part, each in PARTS.items() if each is inner), "")
        if named:
            yield f"`{name}` ({named}s)"
        elif dataclasses.is_dataclass(inner) and inner is not WorkloadSpec:
            yield f"`{name}` ({', '.join(_keys(typing.cast('type', inner)))})"
        else:
            yield f"`{name}`"


def main() -> None:
    """Write, or check."""
    fresh = pages()
    if "--check" in sys.argv:
        kept = set(SCHEMAS.glob("*.json")) | set(fresh)
        changed = sorted(
            str(path.relative_to(ROOT))
            for path in kept
            if path not in fresh or not path.exists() or path.read_text(encoding="utf-8") != fresh[path]
        )
        if changed:
            raise SystemExit(f"the reference is out of date, run `make docs`: {', '.join(changed)}")
        return
    SCHEMAS.mkdir(parents=True, exist_ok=True)
    for path in set(SCHEMAS.glob("*.json")) - set(fresh):
        path.unlink()
    for path, content in fresh.items():
        path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
