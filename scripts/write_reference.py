"""Writes docs/reference from the code, or with --check says whether it is up to date.

Called by `make docs` and `make check`. One JSON Schema per kind of workload and one for groups, for editors and other
checkers, and the tables of the metrics, the states and the events.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from shoal.agent.metrics import AgentMetrics
from shoal.control.metrics import ControlMetrics
from shoal.control.state.lifecycle.phases import CONTRACT_STATUSES
from shoal.core.telemetry import MetricRegistry
from shoal.model.documents import group_schema, workload_schema
from shoal.model.events import EventKind
from shoal.model.phases import ACCEPTED, GroupPhase, WorkloadPhase
from shoal.model.workloads import WorkloadType

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = ROOT / "docs" / "reference" / "schemas"
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
"""


def pages() -> dict[Path, str]:
    """Every file of the reference with its content."""
    schemas = {
        SCHEMAS / f"{name}.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        for name, schema in (*((kind.value, workload_schema(kind)) for kind in WorkloadType), ("group", group_schema()))
    }
    events = "\n".join(f"| `{kind.value}` | {kind.description} |" for kind in EventKind)
    return {**schemas, METRICS: metrics_page(), STATES: states_page(), EVENTS: EVENTS_PAGE.format(events=events)}


def states_page() -> str:
    """Every state of workloads and groups, as a page."""
    return STATES_PAGE.format(
        accepted=", ".join(f"`{phase}`" for phase in WorkloadPhase if phase in ACCEPTED),
        workloads="\n".join(
            f"| `{phase}` | {phase.description} | `{'`, `'.join(sorted(CONTRACT_STATUSES[phase]))}` |"
            for phase in WorkloadPhase
        ),
        groups="\n".join(f"| `{phase}` | {phase.description} |" for phase in GroupPhase),
    )


def metrics_page() -> str:
    """Every series, as a page."""
    agent = MetricRegistry()
    AgentMetrics(agent)
    return METRICS_PAGE.format(control=_table(ControlMetrics().registry), agent=_table(agent))


def _table(registry: MetricRegistry) -> str:
    rows = ["| Series | Kind | Labels | Tells |", "| --- | --- | --- | --- |"]
    for each in sorted(registry.described(), key=lambda series: (not series.name.startswith("shoal_"), series.name)):
        labels = ", ".join(f"`{label}`" for label in each.labels)
        rows.append(f"| `{each.name}` | {each.kind} | {labels} | {each.help_text} |")
    return "\n".join(rows)


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
