"""The parsers of the container, compose and VM runtimes."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from shoal.core.errors import InvalidError as Invalid
from shoal.runtimes.compose.project import parse_project
from shoal.runtimes.container.creating import GRACE_LABEL, PORTS_LABEL, RUN_LABEL, WORKLOAD_LABEL, read_labels
from shoal.runtimes.container.records import run_from_json
from shoal.runtimes.vm.images import parse_image_name
from shoal.testing.fuzz import JSON_VALUES, ParserCase, changed_text, changed_values
from tests.fuzz.inputs import blobs, texts

RUN = {
    "run_id": "web-1",
    "workload_id": "web",
    "container_id": "c1",
    "started_at_ms": 1,
    "pid": 2,
    "stop_signal": "SIGTERM",
    "grace": 10.0,
    "ports": {"http": 80},
    "ended_by": "",
    "last_output": "",
    "end": {"code": 1, "signal": 0, "unknown": False, "ended_at_ms": 3, "out_of_memory": False},
}
LABELS = {RUN_LABEL: "web-1", WORKLOAD_LABEL: "web", PORTS_LABEL: '{"http": 80}', GRACE_LABEL: "10.0"}
IMAGE_URL = f"https://images.example/a.qcow2#sha256={64 * 'a'}"
PROJECT = "services:\n  web:\n    image: a\n"

RUNTIME_PARSERS: dict[str, ParserCase] = {
    "shoal.runtimes.container.records.run_from_json": ParserCase(
        run_from_json,
        blobs | changed_values(RUN).map(lambda value: json.dumps(value).encode()),
        (ValueError,),
        (json.dumps(RUN).encode(),),
    ),
    "shoal.runtimes.container.creating.read_labels": ParserCase(
        read_labels,
        st.dictionaries(st.sampled_from(sorted(LABELS)), texts | JSON_VALUES.map(json.dumps)),
        (),
        (LABELS,),
    ),
    "shoal.runtimes.compose.project.parse_project": ParserCase(
        lambda text: parse_project(text, at="spec", allow_privileged=False),
        texts | changed_text(PROJECT) | JSON_VALUES.map(json.dumps),
        (Invalid,),
        (PROJECT,),
    ),
    "shoal.runtimes.vm.images.parse_image_name": ParserCase(
        parse_image_name, texts | changed_text(IMAGE_URL), (ValueError,), (IMAGE_URL, "/images/a.qcow2")
    ),
}
