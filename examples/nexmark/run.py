"""Runs one Nexmark query over a folder of events.

    python examples/nexmark/run.py --query q5 --input events/ --output q5.parquet

The result is a Parquet file, which appears when it is complete. The last line on stdout is a JSON object with the rows
and batches read, the rows that were late, and the seconds it took.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from events import LATE_STEPS, MERGED, Events, InputError, Result, late_rows
from queries import QUERIES
from schemas import LATE, SCHEMAS

from shoal import App, FlowSettings, ShoalError, Stream

_BATCH_ROWS = 65_536
_LATENESS_MS = 4_000


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """What to run."""

    query: str
    folder: Path
    output: Path
    late_output: Path | None
    batch_rows: int
    parallelism: int
    processes: int
    lateness_ms: int


def main(arguments: list[str] | None = None) -> int:
    """Run a query. The exit status."""
    options = _parse(arguments)
    drafts = {path: _draft(path) for path in (options.output, options.late_output) if path is not None}
    try:
        summary = _run(options, drafts)
        # The result is the last to appear: who finds it finds the late rows, too.
        for path in reversed(drafts):
            drafts[path].replace(path)
    except (InputError, ShoalError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)
    sys.stdout.write(f"{json.dumps(summary)}\n")
    return 0


def _run(options: QueryOptions, drafts: dict[Path, Path]) -> dict[str, Any]:
    app = App("nexmark", settings=FlowSettings(batch_rows=options.batch_rows))

    @app.dataflow(options.query)
    def flow() -> list[Any]:
        result = QUERIES[options.query](Events(options.folder, options.lateness_ms))
        # A file has one writer; all steps before it are as wide as was asked for.
        outputs = [result.rows.to_parquet(str(drafts[options.output])).with_parallelism(1)]
        if options.late_output is not None:
            outputs.append(_late(result).to_parquet(str(drafts[options.late_output])).with_parallelism(1))
        return outputs

    return _summary(flow.run(parallelism=options.parallelism, processes=options.processes))


def _late(result: Result) -> Stream:
    """The rows that were late for a query, of all of its inputs. A query without windows has none."""
    streams = [late_rows(windows, name) for name, windows in result.windows.items()]
    if not streams:
        return Stream.from_table(LATE.empty_table())
    return streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]


def _summary(report: Any) -> dict[str, Any]:
    read = [step for step in report.steps if step.uid in SCHEMAS]
    merged = [step for step in report.steps if step.uid == MERGED]
    return {
        "events": sum(step.rows for step in read),
        "batches": sum(step.batches for step in merged or read),
        "late": sum(step.statistics.get("late", 0) for step in report.steps if step.uid.startswith(LATE_STEPS)),
        "seconds": round(report.seconds, 3),
    }


def _draft(path: Path) -> Path:
    """Where a file lies while it is being written: beside its place, so that it can be renamed."""
    return path.with_name(f".{path.name}.{os.getpid()}.parquet")


def _parse(arguments: list[str] | None) -> QueryOptions:
    parser = argparse.ArgumentParser(description="Run a Nexmark query over a folder of events.")
    parser.add_argument("--query", required=True, choices=sorted(QUERIES))
    parser.add_argument("--input", type=Path, required=True, help="a folder with the three Parquet files")
    parser.add_argument("--output", type=Path, required=True, help="the Parquet file to write")
    parser.add_argument("--batch-rows", type=_at_least(1), default=_BATCH_ROWS, help="rows of a batch at most")
    parser.add_argument("--parallelism", type=_at_least(1), default=1, help="tasks of each step")
    parser.add_argument("--processes", type=_at_least(0), default=0, help="child processes to run them in; 0 for none")
    parser.add_argument("--lateness-ms", type=_at_least(0), default=_LATENESS_MS, help="how far rows may be behind")
    parser.add_argument("--late-output", type=Path, help="a Parquet file for the rows that were late")
    said = parser.parse_args(arguments)
    for path in (said.output, said.late_output):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            parser.error(f"{path} cannot be written: it must be a file in a folder that is there")
    if said.late_output is not None and said.late_output.absolute() == said.output.absolute():
        parser.error("--output and --late-output must be two files")
    return QueryOptions(
        query=said.query,
        folder=said.input,
        output=said.output,
        late_output=said.late_output,
        batch_rows=said.batch_rows,
        parallelism=said.parallelism,
        processes=said.processes,
        lateness_ms=said.lateness_ms,
    )


def _at_least(least: int) -> Any:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise ValueError
        return value

    number.__name__ = f"whole number from {least} on"
    return number


if __name__ == "__main__":
    sys.exit(main())
