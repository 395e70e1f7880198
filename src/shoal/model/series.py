"""Series that processes of jobs leave in their work directories, for their agent to serve. Pure.

A file has the id of the job in its first line, and Prometheus' text below it. A workload may write anything there, so
only known forms are taken out, and the labels that say whose series they are come from the reader. Written by
`shoal.dataflow.execution.remote`, read by `shoal.agent`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from shoal.core.ids import is_identifier

#: What this process has done, and what all processes of the job have done.
OWN_FILE = "metrics.prom"
JOB_FILE = "job-metrics.prom"
MOST_BYTES = 256 * 1024
MOST_LINES = 4000
#: Seconds after which what a process said is no longer true.
FRESH = 15.0

_HEAD = re.compile(r"# job ([^ ]{1,128})")
_TYPE = re.compile(r"# TYPE (shoal_dataflow_[a-z_]{1,64}) (counter|gauge)")
#: The labels that a process gives.
LABELS = ("dataflow", "step", "kind", "result", "interface")

_LABEL = rf'(?:{"|".join(LABELS)})="(?:[^"\\]|\\.){{0,1024}}+"'
_VALUE = r"[-+]?[0-9.]{1,32}(?:e[-+]?[0-9]{1,4})?|NaN|[-+]Inf"
_SAMPLE = re.compile(rf"(shoal_dataflow_[a-z_]{{1,64}})\{{({_LABEL}(?:,{_LABEL}){{0,3}}+)\}} ({_VALUE})")


def head_line(job_id: str) -> bytes:
    """The first line of a file."""
    return f"# job {job_id}\n".encode()


def merge_series(files: Iterable[tuple[str, bytes]]) -> bytes:
    """One text of the files of several workloads, by the id of each, with the labels `job` and `host`.

    What has another form, and the file of a workload that names a job which it is not of, is left out.
    """
    kinds: dict[str, str] = {}
    samples: dict[str, list[str]] = {}
    for workload_id, content in files:
        lines = content.decode(errors="replace").split("\n")[:MOST_LINES]
        head = _HEAD.fullmatch(lines[0])
        job = head[1] if head is not None else ""
        if not is_identifier(job) or not workload_id.startswith(f"{job}-"):
            continue
        own = _labels({"job": job, "host": workload_id.removeprefix(f"{job}-")})
        for line in lines[1:]:
            if (kind := _TYPE.fullmatch(line)) is not None:
                kinds.setdefault(kind[1], kind[2])
            elif (sample := _SAMPLE.fullmatch(line)) is not None:
                samples.setdefault(sample[1], []).append(f"{sample[1]}{{{own},{sample[2]}}} {sample[3]}")
    found = [
        line
        for name, each in sorted(samples.items())
        if name in kinds
        for line in (f"# TYPE {name} {kinds[name]}", *each)
    ]
    return "".join(f"{line}\n" for line in found).encode()


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in labels.items())
