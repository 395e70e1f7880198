"""The parsers of the container, compose and VM runtimes."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from shoal.core.errors import InvalidError as Invalid
from shoal.runtimes.compose.members import Member
from shoal.runtimes.compose.project import parse_project
from shoal.runtimes.compose.reading import read_yaml
from shoal.runtimes.compose.records import run_from_json as compose_run_from_json
from shoal.runtimes.compose.starting import read_run
from shoal.runtimes.container.creating import GRACE_LABEL, PORTS_LABEL, RUN_LABEL, WORKLOAD_LABEL, read_labels
from shoal.runtimes.container.records import run_from_json
from shoal.runtimes.vm.network_names import networks_from_json
from shoal.runtimes.volumes import records_from_json
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
COMPOSE_LABELS = {
    "shoal.compose-run": "web-1",
    WORKLOAD_LABEL: "web",
    PORTS_LABEL: '{"http": 80}',
    GRACE_LABEL: "10.0",
    "shoal.compose-waves": '[["web"]]',
    "shoal.generation": "1",
    "com.docker.compose.project": "shoal-n1-web",
}
MEMBERS = (Member("c1", "web", 1, 2, 3),)
COMPOSE_RUN = {
    "run_id": "web-1",
    "workload_id": "web",
    "project": "shoal-n1-web",
    "folder": "/p",
    "started_at_ms": 1,
    "stop_signal": "SIGTERM",
    "grace": 10.0,
    "ports": {"http": 80},
    "ended_by": "",
    "last_output": "",
    "members": [{"container_id": "c1", "service": "web", "number": 1, "pid": 2, "started_at_ms": 3}],
    "waves": [["web"]],
    "marks": {"web": {"digest": "d", "labels": {"a": "b"}, "environment": {}}},
    "services": {"web": "running"},
    "end": {"code": 1, "signal": 0, "unknown": False, "ended_at_ms": 3, "out_of_memory": False},
}
VOLUMES = {"data": {"driver": "local", "path": "/a", "delete": True}}
NETWORKS = [{"name": "eth0", "number": 0, "mac": "", "link": "br0", "address": "10.0.2.4/24"}]
PROJECT = "services:\n  web:\n    image: a\n"

RUNTIME_PARSERS: dict[str, ParserCase] = {
    "shoal.runtimes.container.records.run_from_json": ParserCase(
        run_from_json,
        blobs | changed_values(RUN).map(lambda value: json.dumps(value).encode()),
        (ValueError,),
        (json.dumps(RUN).encode(),),
    ),
    "shoal.runtimes.volumes.records_from_json": ParserCase(
        records_from_json,
        blobs | changed_values(VOLUMES).map(lambda value: json.dumps(value).encode()),
        (ValueError,),
        (json.dumps(VOLUMES).encode(),),
    ),
    "shoal.runtimes.vm.network_names.networks_from_json": ParserCase(
        networks_from_json,
        blobs | changed_values(NETWORKS).map(lambda value: json.dumps(value).encode()),
        (ValueError,),
        (json.dumps(NETWORKS).encode(),),
    ),
    "shoal.runtimes.container.creating.read_labels": ParserCase(
        read_labels,
        st.dictionaries(st.sampled_from(sorted(LABELS)), texts | JSON_VALUES.map(json.dumps)),
        (),
        (LABELS,),
    ),
    "shoal.runtimes.compose.project.parse_project": ParserCase(
        lambda text: parse_project(text, at="spec", variables={"A": "1"}, allow_privileged=False),
        texts | changed_text(PROJECT) | JSON_VALUES.map(json.dumps),
        (Invalid,),
        (PROJECT,),
    ),
    "shoal.runtimes.compose.reading.read_yaml": ParserCase(
        lambda text: read_yaml(text, at="spec"), texts | changed_text(PROJECT), (Invalid,), (PROJECT,)
    ),
    "shoal.runtimes.compose.records.run_from_json": ParserCase(
        compose_run_from_json,
        blobs | changed_values(COMPOSE_RUN).map(lambda value: json.dumps(value).encode()),
        (ValueError,),
        (json.dumps(COMPOSE_RUN).encode(),),
    ),
    "shoal.runtimes.compose.starting.read_run": ParserCase(
        lambda labels: read_run([labels], MEMBERS),
        st.dictionaries(st.sampled_from(sorted(COMPOSE_LABELS)), texts | JSON_VALUES.map(json.dumps)),
        (),
        (COMPOSE_LABELS,),
    ),
}
