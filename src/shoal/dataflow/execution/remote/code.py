"""The plan and the users' code of a job, from the artifacts in the working directory of a process.

Called by `coordinator` and `task_host` when they start.
"""

from __future__ import annotations

import json
from pathlib import Path

from shoal.artifacts.bundles import Bundle
from shoal.artifacts.opening import open_bundle
from shoal.core.errors import InvalidError, problem
from shoal.dataflow.fleet.spec import DataflowSpec
from shoal.dataflow.fleet.workloads import BUNDLE_FILE, PLAN_FILE
from shoal.dataflow.language.functions import add_blobs
from shoal.dataflow.plan.documents import PlanDocument
from shoal.dataflow.plan.physical import plan as plan_physically
from shoal.dataflow.plan.prepare import Prepared
from shoal.dataflow.plan.prepared import PreparedPlan, read_prepared, write_prepared

_FOLDER = "code"


def open_code(directory: Path) -> Bundle:
    """Make users' modules importable and their functions known. Raises `PreconditionError` for other versions."""
    bundle = open_bundle(directory / BUNDLE_FILE, directory / _FOLDER)
    add_blobs(bundle.blobs)
    return bundle


def plan_at_width(directory: Path, bundle: Bundle, spec: DataflowSpec) -> tuple[PreparedPlan, PlanDocument]:
    """The plan at the widths of a job, and the document that tasks are built from."""
    try:
        body = json.loads((directory / PLAN_FILE).read_bytes())
    except (ValueError, RecursionError):
        raise InvalidError([problem("plan", None, "must be JSON")]) from None
    written = read_prepared(PlanDocument(body, dict(bundle.blobs)))
    prepared = Prepared(written.sinks, written.facts)
    physical = plan_physically(
        prepared.sinks, parallelism=spec.parallelism, key_groups=spec.key_groups, widths=spec.widths
    )
    document = write_prepared(prepared, physical)
    document = PlanDocument(document.body, {**bundle.blobs, **document.blobs})
    return read_prepared(document), document
