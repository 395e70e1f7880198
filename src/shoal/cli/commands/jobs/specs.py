"""Reads the file that `shoal job upgrade` is given, in the form of the job's engine."""

from __future__ import annotations

from shoal.cli.commands.common.specs import read_file, read_specs
from shoal.core.errors import InvalidError, problem
from shoal.model.jobs import MAX_SPEC_BYTES, JobView
from shoal.services import spec as services


def read_spec(job: JobView, path: str) -> bytes:
    """The spec for a job of this engine. Raises `InvalidError` with every problem of the file."""
    if job.engine == services.ENGINE:
        found = read_specs([path], read=services.read_service_document)
        if len(found) > 1 or found[0].document.id != job.job_id:
            names = ", ".join(each.document.id for each in found)
            raise InvalidError([problem("-f", path, f"must hold the service {job.job_id!r} alone; it has {names}")])
        return services.encode(found[0].document.spec)
    content = read_file(path)
    if len(content) > MAX_SPEC_BYTES:
        raise InvalidError([problem("-f", path, f"must have at most {MAX_SPEC_BYTES:,} bytes")])
    return content
