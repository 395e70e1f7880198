"""Every parser of the package, with what it may be given and what it may raise. A new one gets its line here."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cryptography import x509
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import strategies as st

from shoal.agent.node.probes import parse_memory
from shoal.agent.server import ENV_NAMES as AGENT_ENV
from shoal.agent.server import AgentSettings
from shoal.agent.settings import parse_pool
from shoal.cli.commands.common.specs import parse_specs, read_specs
from shoal.cli.connection.session import read_addresses
from shoal.cli.local.children import read_json
from shoal.control.api.parsing import read_members, read_workload
from shoal.control.settings import ControlSettings
from shoal.control.state.fleet import parse_port
from shoal.control.store.codec import FORMAT, DocumentCodec
from shoal.core import faults
from shoal.core.clock import from_epoch_ms
from shoal.core.config import load_settings
from shoal.core.durations import parse_duration
from shoal.core.errors import InternalError, NotFoundError, PreconditionError, UnauthenticatedError, UnsupportedError
from shoal.core.errors import InvalidError as Invalid
from shoal.core.shape import build, read_value
from shoal.discovery import services
from shoal.discovery.embedded import messages as tree_messages
from shoal.model.documents import read_document
from shoal.model.events import Event
from shoal.model.identity import Identity, Role, parse_identity
from shoal.model.nodes import NodeRecord
from shoal.model.selectors import parse_selector
from shoal.model.trust import parse_token
from shoal.model.workloads import GroupRecord, Observation, ProcessSpec, WorkloadRecord, WorkloadSpec
from shoal.runtimes import cgroups
from shoal.runtimes import log_files as logs
from shoal.runtimes.keeper import procfs, protocol, records
from shoal.testing.fuzz import JSON_VALUES, ParserCase, changed_bytes, changed_text, changed_values
from shoal.testing.messages import messages
from shoal.wire import convert, serving, status
from shoal.wire.addresses import parse_address
from shoal.wire.calls import status_from_proto
from shoal.wire.convert import (
    agent_kinds,
    agent_specs,
    fields,
    nodes,
    options,
    parts,
    processes,
    statuses,
    usages,
    views,
)
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as agent
from shoal.wire.pb.persys.control.v1 import control_pb2 as control
from shoal.wire.pb.shoal.v1 import coordination_pb2 as coordination
from shoal.wire.pb.shoal.v1 import enrollment_pb2, jobs_pb2, secrets_pb2
from shoal.wire.pb.shoal.v1 import exec_pb2 as execution
from shoal.wire.pb.shoal.v1 import run_pb2 as run
from shoal.wire.trust import authority, certificates, credentials
from shoal.wire.trust.sealing import load_key, load_or_make_key, parse_key
from tests.fuzz.artifact_parsers import ARTIFACT_PARSERS
from tests.fuzz.codec_parsers import CODEC_PARSERS
from tests.fuzz.discovery_parsers import DISCOVERY_PARSERS
from tests.fuzz.exchange_parsers import EXCHANGE_PARSERS
from tests.fuzz.inputs import blobs, file_named, numbers, texts, with_folder
from tests.fuzz.job_parsers import JOB_PARSERS
from tests.fuzz.record_parsers import RECORD_PARSERS
from tests.fuzz.runtime_parsers import RUNTIME_PARSERS
from tests.fuzz.serving_parsers import SERVING_PARSERS
from tests.fuzz.stream_parsers import NO_STREAM_PARSERS, STREAM_PARSERS
from tests.fuzz.table_parsers import NO_TABLE_PARSERS, TABLE_PARSERS
from tests.strategies import workload_specs

NOW = datetime(2026, 1, 1, tzinfo=UTC)

SPEC = {"id": "web", "type": "process", "process": {"command": ["sleep", "1"], "env": {"A": "b"}}, "slots": 1}
YAML = "id: web\ntype: process\nprocess:\n  command: [sleep, '1']\n  env: {A: b}\nresources: {cpu_millicores: 100}\n"
SEALING_KEY = base64.b64encode(bytes(32)).decode()
TOML = 'data_dir = "/tmp/x"\nlease = "30s"\ninsecure = true\ngrpc_port = 1\n'


# ---------------------------------------------------------------------------------------------------------
# How to call what does not take one value


def _collecting(parse: Callable[..., object], *more: object) -> Callable[[Any], object]:
    """A converter that puts what is wrong into a list, and raises nothing."""
    return lambda given: parse(given, *more, "at", [])


def _message(
    parse: Callable[..., object], cls: type[Any], *, errors: tuple = (Invalid,), good: tuple = ()
) -> ParserCase:
    return ParserCase(parse, messages(cls), errors, good)


def _arm(text: str) -> None:
    try:
        faults.arm_from_environment(text)
    finally:
        faults.disarm_all()


def _read_alternatives(pem: bytes) -> object:
    return [certificates.read_alternatives(each) for each in certificates.read_certificates(pem)]


def _read_timestamp(stamp: Timestamp) -> object:
    return fields.read_timestamp(control.HeartbeatRequest(timestamp=stamp), "timestamp", "", [])


def _run_status(detail: run.RunDetail) -> object:
    known = {"workload_id": "w", "state": "Running", "failure": "", "message": "", "last_transition": None}
    return statuses.read_run_status(detail, "", [], **known, usage=None)


def _settings(cls: type, names: dict[str, Any]) -> Callable[[Any], object]:
    variables = [name for group in names.values() for name in group]

    def parse(values: list[str]) -> object:
        return load_settings(cls, env=dict(zip(variables, values, strict=False)), env_names=names)

    return parse


def _feed(chunks: list[bytes]) -> object:
    buffer = protocol.LineBuffer()
    return [buffer.feed(chunk) for chunk in chunks]


@functools.cache
def _pems() -> dict[str, bytes]:
    made = authority.make_authority("default", now=NOW)
    pair = authority.issue(made, Identity(Role.AGENT, "default", "n1"), now=NOW)
    request = authority.make_signing_request(Identity(Role.AGENT, "default", "n1"), hosts=["a.example"])
    return {"ca": made.pem, "ca_key": made.key_pem, "cert": pair.cert, "key": pair.key, "request": request.csr}


def _pem(name: str) -> st.SearchStrategy[bytes]:
    return blobs | st.deferred(lambda: changed_bytes(_pems()[name]))


def _fill_credentials(folder: Path, files: list[bytes]) -> None:
    for name, content in zip(("ca.pem", "cert.pem", "key.pem"), files, strict=True):
        file_named(name)(folder, content)


def _read_credentials(folder: Path) -> object:
    paths = credentials.CredentialPaths(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    return credentials.read_credentials(paths, now=NOW)


def _fill_authority(folder: Path, files: list[bytes]) -> None:
    for name, content in zip((credentials.CA_FILE, credentials.CA_KEY_FILE), files, strict=True):
        file_named(name)(folder, content)


def _row(parse: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda given: parse(SimpleNamespace(**given))


def _decode(codec: DocumentCodec[Any], given: tuple[str, int]) -> object:
    return codec.decode(given[0], written_as=given[1])


RECORD = {"run_id": "w.1", "workload_id": "w", "boot_id": "b", "pid": 1, "start_time": 2, "started_at_ms": 3,
          "cgroups": ["/a"], "exit": {"code": 0}}  # fmt: skip
START = {"run_id": "w.1", "workload_id": "w", "argv": ["a"], "env": {"A": "b"}, "working_dir": "/", "own_dir": True,
        "user": "", "stop_signal": 15, "grace": 1.0, "ports": {"http": 80}, "cpu_millicores": 1, "memory_mb": 1,
        "deadline": None}  # fmt: skip
STAT = "7 (a b) c) S 1 7 7 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 1 0 1234 1000 50 18446744073709551615"
MOUNTS = "30 23 0:26 / /sys/fs/cgroup/a\\040b rw,nosuid shared:9 - cgroup2 cgroup rw\n"
LOCK = json.dumps({"pid": 1, "start_time": 2, "boot_id": "b"})
DOCUMENTS = (NodeRecord, WorkloadRecord, GroupRecord, Observation, Event)

# ---------------------------------------------------------------------------------------------------------
# The registry

PARSERS: dict[str, ParserCase] = {
    # What people write.
    "shoal.core.durations.parse_duration": ParserCase(
        parse_duration, texts | changed_text("1.5h"), (ValueError,), ("10s", "500ms")
    ),
    "shoal.core.shape.build": ParserCase(
        lambda given: build(WorkloadSpec, given), JSON_VALUES | changed_values({**SPEC, "id": None})
    ),
    "shoal.core.shape.read_value": ParserCase(
        lambda given: read_value(ProcessSpec, given),
        JSON_VALUES | changed_values(SPEC["process"]),
        good=(SPEC["process"],),
    ),
    "shoal.core.config.load_settings": ParserCase(
        with_folder(file_named("a.toml"), lambda folder: load_settings(ControlSettings, file=str(folder / "a.toml"))),
        texts | blobs | changed_text(TOML),
    ),
    "shoal.core.config.load_settings of the environment": ParserCase(
        _settings(AgentSettings, AGENT_ENV), st.lists(texts | st.sampled_from(("1", "a=b", "1s")), max_size=60)
    ),
    "shoal.core.faults.arm_from_environment": ParserCase(
        _arm, texts | changed_text("agent.intent.before=kill@3"), good=("agent.intent.before=raise@2",)
    ),
    "shoal.model.documents.read_document": ParserCase(
        read_document,
        JSON_VALUES | changed_values(SPEC) | changed_values({"kind": "group", "id": "g", "members": [SPEC, SPEC]}),
        good=(SPEC,),
    ),
    "shoal.model.identity.parse_identity": ParserCase(
        parse_identity, texts | changed_text("shoal://default/workload/job/n1"), good=("shoal://default/agent/n1",)
    ),
    "shoal.model.trust.parse_token": ParserCase(parse_token, texts),
    "shoal.wire.addresses.parse_address": ParserCase(
        parse_address, texts | changed_text("[::1%eth0]:80") | changed_text("a.example:8085"), good=("a:1", "[::1]:2")
    ),
    "shoal.cli.connection.session.read_addresses": ParserCase(
        read_addresses, texts | changed_text("a:1,[::1]:2"), good=("a", "a:1,b:2")
    ),
    "shoal.cli.commands.common.specs.parse_specs": ParserCase(
        lambda text: parse_specs(text, source="x"), texts | changed_text(YAML), good=(YAML,)
    ),
    "shoal.cli.commands.common.specs.read_specs": ParserCase(
        with_folder(file_named("a.yaml"), lambda folder: read_specs([str(folder / "a.yaml")])),
        texts | blobs | changed_text(YAML),
        good=(YAML,),
    ),
    "shoal.agent.node.probes.parse_memory": ParserCase(
        parse_memory, texts | changed_text("4.5GB"), (ValueError,), ("4GB",)
    ),
    # Certificates.
    "shoal.wire.trust.authority.read_signing_request": ParserCase(authority.read_signing_request, _pem("request")),
    "shoal.wire.trust.authority.read_authority": ParserCase(
        lambda given: authority.read_authority(*given), st.tuples(_pem("ca"), _pem("ca_key"))
    ),
    "shoal.wire.trust.certificates.read_alternatives": ParserCase(
        _read_alternatives, _pem("cert"), (Invalid, ValueError, x509.DuplicateExtension)
    ),
    "shoal.wire.trust.certificates.read_certificates": ParserCase(certificates.read_certificates, _pem("cert")),
    "shoal.wire.trust.certificates.read_key": ParserCase(certificates.read_key, _pem("key")),
    "shoal.wire.trust.certificates.read_caller": ParserCase(
        certificates.read_caller, _pem("cert"), (UnauthenticatedError,)
    ),
    "shoal.wire.trust.credentials.load_authority": ParserCase(
        with_folder(_fill_authority, credentials.load_authority),
        st.tuples(_pem("ca"), _pem("ca_key")),
        (Invalid, NotFoundError),
    ),
    "shoal.wire.trust.credentials.read_credentials": ParserCase(
        with_folder(_fill_credentials, _read_credentials), st.tuples(_pem("ca"), _pem("cert"), _pem("key"))
    ),
    "shoal.wire.trust.sealing.parse_key": ParserCase(
        lambda text: parse_key(text, name="key"), texts | changed_text(SEALING_KEY), good=(SEALING_KEY,)
    ),
    "shoal.wire.trust.sealing.load_key": ParserCase(
        with_folder(file_named("key"), lambda folder: load_key(folder / "key")),
        blobs | changed_text(SEALING_KEY),
        good=(SEALING_KEY,),
    ),
    "shoal.wire.trust.sealing.load_or_make_key": ParserCase(
        with_folder(file_named("key"), lambda folder: load_or_make_key(folder / "key")),
        blobs | changed_text(SEALING_KEY),
        good=(SEALING_KEY,),
    ),
    # What arrives over the network.
    "shoal.wire.serving.unpack": ParserCase(
        lambda data: serving.unpack(control.ApplyWorkloadRequest, data, AgentControl.APPLY_WORKLOAD), blobs, good=(b"",)
    ),
    "shoal.wire.status.error_of": ParserCase(
        status.error_of,
        st.builds(
            status.Status,
            st.sampled_from(status.Code),
            texts,
            st.fixed_dictionaries({status.ERROR_TRAILER: blobs, status.INVALID_TRAILER: blobs}),
        ),
        (),
    ),
    "shoal.discovery.embedded.messages.error_from_proto": _message(
        tree_messages.error_from_proto, coordination.TreeAnswer, errors=()
    ),
    "shoal.discovery.embedded.messages.stat_from_proto": _message(
        tree_messages.stat_from_proto, coordination.TreeNode, errors=()
    ),
    "shoal.discovery.embedded.messages.value_from_proto": _message(
        tree_messages.value_from_proto, coordination.TreeNode, errors=()
    ),
    "shoal.discovery.services.read_endpoint": ParserCase(
        lambda data: services.read_endpoint("w", data),
        blobs | JSON_VALUES.map(lambda ports: json.dumps({"node": "n", "ports": ports}).encode()),
        (),
    ),
    "shoal.wire.calls.status_from_proto": _message(status_from_proto, control.CallStatus, errors=()),
    "shoal.wire.convert.agent_specs.agent_spec_from_control": ParserCase(
        lambda spec: agent_specs.agent_spec_from_control(spec, "w"), workload_specs(), (Invalid, UnsupportedError)
    ),
    "shoal.wire.convert.agent_specs.agent_spec_from_proto": ParserCase(
        lambda given: convert.agent_spec_from_proto(*given),
        st.tuples(messages(agent.WorkloadSpec), st.integers(0, 5) | st.just(100)),
    ),
    "shoal.wire.convert.agent_specs.control_spec_from_agent": ParserCase(
        lambda given: agent_specs.control_spec_from_agent(*given),
        st.tuples(
            blobs | messages(agent.WorkloadSpec).map(lambda spec: spec.SerializeToString()),
            st.integers(0, 5) | st.just(int(agent.WORKLOAD_TYPE_PROCESS)),
        ),
        (Invalid, UnsupportedError),
    ),
    "shoal.wire.convert.fields.desired_state_from_agent": ParserCase(convert.desired_state_from_agent, numbers),
    "shoal.wire.convert.fields.desired_state_from_text": ParserCase(convert.desired_state_from_text, texts),
    "shoal.wire.convert.execs.exec_command_from_proto": _message(
        convert.exec_command_from_proto, execution.ExecRequest
    ),
    "shoal.wire.convert.execs.exec_response_from_proto": _message(
        convert.exec_response_from_proto, execution.ExecResponse
    ),
    "shoal.wire.convert.execs.window_from_proto": _message(convert.window_from_proto, execution.WindowSize),
    "shoal.wire.convert.fields.failure_from_proto": ParserCase(convert.failure_from_proto, st.integers(-1, 20), ()),
    "shoal.wire.convert.fields.failure_from_text": ParserCase(fields.failure_from_text, texts, ()),
    "shoal.wire.convert.fields.problems_from_proto": _message(
        lambda given: convert.problems_from_proto(given.problems), run.InvalidRequest, errors=()
    ),
    "shoal.wire.convert.fields.read_count": ParserCase(_collecting(fields.read_count), numbers, ()),
    "shoal.wire.convert.fields.read_duration": ParserCase(
        lambda value: fields.read_duration(value, fields.MAX_DURATION, "at", []), numbers, ()
    ),
    "shoal.wire.convert.fields.read_millis": ParserCase(_collecting(fields.read_millis), numbers, ()),
    "shoal.wire.convert.fields.read_seconds": ParserCase(_collecting(fields.read_seconds), numbers, ()),
    "shoal.wire.convert.fields.read_timestamp": _message(_read_timestamp, Timestamp, errors=()),
    "shoal.wire.convert.fields.timestamp_from_proto": _message(convert.timestamp_from_proto, Timestamp),
    "shoal.wire.convert.fields.workload_type_from_agent": ParserCase(convert.workload_type_from_agent, numbers),
    "shoal.wire.convert.fields.workload_type_from_text": ParserCase(convert.workload_type_from_text, texts),
    "shoal.wire.convert.nodes.node_conditions_from_proto": _message(
        lambda message: convert.node_conditions_from_proto([message]), run.NodeCondition, errors=()
    ),
    "shoal.wire.convert.nodes.node_spec_from_proto": _message(
        convert.node_spec_from_proto, control.RegisterNodeRequest
    ),
    "shoal.wire.convert.nodes.node_usage_from_proto": _message(convert.node_usage_from_proto, control.NodeUsage),
    "shoal.wire.convert.nodes.read_node_usage": _message(
        _collecting(nodes.read_node_usage), control.NodeUsage, errors=()
    ),
    "shoal.agent.settings.parse_pool": ParserCase(
        parse_pool, texts | changed_text("fast=/srv/fast:200"), (ValueError,), good=("fast=/srv/fast:200",)
    ),
    "shoal.wire.convert.agent_kinds.compose_from_agent": _message(
        _collecting(agent_kinds.compose_from_agent), agent.ComposeSpec, errors=()
    ),
    "shoal.wire.convert.agent_kinds.container_from_agent": _message(
        lambda given: agent_kinds.container_from_agent(given, "at", [], foreign=True), agent.ContainerSpec, errors=()
    ),
    "shoal.wire.convert.agent_kinds.vm_from_agent": _message(
        lambda given: agent_kinds.vm_from_agent(given, "at", [], foreign=True), agent.VMSpec, errors=()
    ),
    "shoal.wire.convert.options.compose_options_from_proto": _message(
        _collecting(options.compose_options_from_proto), run.ComposeOptions, errors=()
    ),
    "shoal.wire.convert.options.container_options_from_proto": _message(
        _collecting(options.container_options_from_proto), run.ContainerOptions, errors=()
    ),
    "shoal.wire.convert.options.disk_options_from_proto": _message(
        options.disk_options_from_proto, run.VmDiskOptions, errors=()
    ),
    "shoal.wire.convert.options.network_options_from_proto": _message(
        options.network_options_from_proto, run.VmNetworkOptions, errors=()
    ),
    "shoal.wire.convert.options.vm_options_from_proto": _message(
        _collecting(options.vm_options_from_proto), run.VmOptions, errors=()
    ),
    "shoal.wire.convert.parts.file_from_proto": _message(parts.file_from_proto, run.File, errors=()),
    "shoal.wire.convert.parts.liveness_from_proto": _message(
        _collecting(parts.liveness_from_proto), run.Liveness, errors=()
    ),
    "shoal.wire.convert.parts.readiness_from_proto": _message(
        _collecting(parts.readiness_from_proto), run.Readiness, errors=()
    ),
    "shoal.wire.convert.parts.restart_from_proto": _message(
        _collecting(parts.restart_from_proto), run.RestartPolicy, errors=()
    ),
    "shoal.wire.convert.parts.stop_from_proto": _message(_collecting(parts.stop_from_proto), run.StopPolicy, errors=()),
    "shoal.wire.convert.processes.process_from_proto": _message(
        _collecting(processes.process_from_proto), run.ProcessSpec, errors=()
    ),
    "shoal.wire.convert.specs.decode_spec_bytes": ParserCase(
        convert.decode_spec_bytes, blobs | messages(control.WorkloadSpec).map(lambda spec: spec.SerializeToString())
    ),
    "shoal.wire.convert.specs.workload_spec_from_proto": _message(
        convert.workload_spec_from_proto, control.WorkloadSpec
    ),
    "shoal.wire.convert.statuses.read_run_status": _message(_run_status, run.RunDetail, errors=()),
    "shoal.wire.convert.statuses.reason_from_proto": _message(
        _collecting(statuses.reason_from_proto), control.ReasonDetail, errors=()
    ),
    "shoal.wire.convert.statuses.run_status_from_agent": _message(convert.run_status_from_agent, agent.WorkloadStatus),
    "shoal.wire.convert.statuses.run_status_from_control": _message(
        convert.run_status_from_control, control.WorkloadStatus
    ),
    "shoal.wire.convert.statuses.run_statuses_from_heartbeat": _message(
        lambda heartbeat: convert.run_statuses_from_heartbeat(heartbeat, {}), control.HeartbeatRequest, errors=()
    ),
    "shoal.wire.convert.statuses.state_from_text": ParserCase(convert.state_from_text, texts, ()),
    "shoal.wire.convert.usages.usage_from_agent": _message(
        _collecting(usages.usage_from_agent), agent.WorkloadUsageSnapshot, errors=()
    ),
    "shoal.wire.convert.usages.usage_from_control": _message(
        _collecting(usages.usage_from_control), control.WorkloadUsageSnapshot, errors=()
    ),
    "shoal.wire.convert.views.cluster_summary_from_proto": _message(
        convert.cluster_summary_from_proto, control.ClusterSummary
    ),
    "shoal.wire.convert.logs.log_piece_from_proto": _message(convert.log_piece_from_proto, control.LogChunk),
    "shoal.wire.convert.logs.log_query_from_proto": _message(
        lambda request: convert.log_query_from_proto(request, []), agent.ReadLogsRequest
    ),
    "shoal.wire.convert.jobs.job_from_proto": _message(convert.job_from_proto, jobs_pb2.JobView),
    "shoal.wire.convert.trust.join_token_from_proto": _message(
        convert.join_token_from_proto, enrollment_pb2.JoinTokenView
    ),
    "shoal.wire.convert.trust.secret_from_proto": _message(convert.secret_from_proto, secrets_pb2.SecretView),
    "shoal.wire.convert.views.event_from_proto": _message(convert.event_from_proto, control.Event),
    "shoal.wire.convert.views.group_view_from_proto": _message(convert.group_view_from_proto, control.GroupView),
    "shoal.wire.convert.views.node_view_from_proto": _message(convert.node_view_from_proto, control.NodeView),
    "shoal.wire.convert.views.planned_placement_from_proto": _message(
        convert.planned_placement_from_proto, control.PlannedPlacement
    ),
    "shoal.wire.convert.views.member_changes_from_proto": _message(
        views.member_changes_from_proto, run.MemberChanges, errors=()
    ),
    "shoal.wire.convert.views.rejection_from_proto": _message(views.rejection_from_proto, control.NodeRejection),
    "shoal.wire.convert.views.workload_view_from_proto": _message(
        convert.workload_view_from_proto, control.WorkloadView
    ),
    "shoal.control.api.parsing.read_members": _message(
        lambda given: read_members(given.members), control.ApplyGroupRequest
    ),
    "shoal.control.api.parsing.read_workload": _message(
        lambda given: read_workload(given.workload_id, given.spec, given.revision_id, given.desired_state),
        control.ApplyWorkloadRequest,
    ),
    # What lies on disk, and what the kernel says.
    "shoal.control.state.fleet.parse_port": ParserCase(
        parse_port, texts | changed_text("80/tcp"), (ValueError,), ("80/tcp",)
    ),
    "shoal.core.clock.from_epoch_ms": ParserCase(from_epoch_ms, numbers, (ValueError, OverflowError), (0,)),
    **{
        f"shoal.control.store.codec.DocumentCodec.decode of {cls.__name__}": ParserCase(
            functools.partial(_decode, DocumentCodec(cls)),
            st.tuples(texts | JSON_VALUES.map(json.dumps), st.sampled_from((FORMAT, FORMAT + 1))),
            (InternalError, PreconditionError),
        )
        for cls in DOCUMENTS
    },
    "shoal.runtimes.keeper.protocol.decode": ParserCase(
        protocol.decode, blobs | JSON_VALUES.map(lambda value: json.dumps(value).encode()), (protocol.ProtocolError,)
    ),
    "shoal.runtimes.keeper.protocol.LineBuffer.feed": ParserCase(
        _feed, st.lists(blobs, max_size=5), (protocol.ProtocolError,)
    ),
    "shoal.runtimes.keeper.protocol.start_from_json": ParserCase(
        protocol.start_from_json, JSON_VALUES | changed_values(START), (protocol.Refusal,), (START,)
    ),
    "shoal.runtimes.keeper.records.record_from_json": ParserCase(
        records.record_from_json, JSON_VALUES | changed_values(RECORD), (ValueError,), (RECORD,)
    ),
    "shoal.runtimes.keeper.records.load_records": ParserCase(
        with_folder(file_named("keeper/runs/r.json"), lambda folder: records.load_records(records.KeeperFiles(folder))),
        blobs | changed_values(RECORD).map(json.dumps),
        (),
        (json.dumps(RECORD),),
    ),
    "shoal.runtimes.keeper.records.read_run_records": ParserCase(
        with_folder(file_named("keeper/runs/r.json"), records.read_run_records),
        blobs | changed_text(json.dumps(RECORD)),
        (),
    ),
    "shoal.runtimes.keeper.records.read_keeper_pid": ParserCase(
        with_folder(file_named("keeper/lock"), records.read_keeper_pid),
        blobs | changed_text(LOCK) | JSON_VALUES.map(json.dumps),
        (),
    ),
    "shoal.runtimes.keeper.procfs.parse_stat": ParserCase(
        procfs.parse_stat, texts | changed_text(STAT), (ValueError, IndexError), (STAT,)
    ),
    "shoal.runtimes.log_files.parse_entry": ParserCase(
        logs.parse_entry, blobs | changed_bytes(b"2026-01-01T00:00:00.000Z stdout F hello"), ()
    ),
    "shoal.model.selectors.parse_selector": ParserCase(
        parse_selector, texts | changed_text("app=web,zone in (a,b),!gpu"), good=("", "app=web", "zone in (a, b)")
    ),
    "shoal.runtimes.log_files.read_position": ParserCase(
        logs.read_position, texts | changed_text("3:1024"), (), ("3:1024", "0:0")
    ),
    "shoal.runtimes.log_files.read_entries": ParserCase(
        with_folder(file_named("00000001.log"), lambda folder: logs.read_entries(folder, logs.OLDEST)),
        blobs | changed_bytes(b"2026-01-01T00:00:00.000Z stdout F hello\n"),
        (),
    ),
    "shoal.runtimes.cgroups.parse_mounts": ParserCase(
        cgroups.parse_mounts, texts | changed_text(MOUNTS), (), (MOUNTS,)
    ),
    "shoal.runtimes.cgroups.parse_membership": ParserCase(
        cgroups.parse_membership, texts | changed_text("4:cpu,cpuacct:/a\n0::/b\n"), ()
    ),
    "shoal.runtimes.cgroups.read_memberships": ParserCase(
        with_folder(file_named("proc/self/mountinfo"), cgroups.read_memberships), texts | changed_text(MOUNTS), ()
    ),
    "shoal.cli.local.children.read_json": ParserCase(
        with_folder(file_named("a.json"), lambda folder: read_json(folder / "a.json")),
        blobs | JSON_VALUES.map(json.dumps),
        (),
    ),
    **STREAM_PARSERS,
    **CODEC_PARSERS,
    **DISCOVERY_PARSERS,
    **SERVING_PARSERS,
    **RUNTIME_PARSERS,
    **RECORD_PARSERS,
    **TABLE_PARSERS,
    **ARTIFACT_PARSERS,
    **EXCHANGE_PARSERS,
    **JOB_PARSERS,
}

#: Read something, and parse nothing that somebody else wrote.
NO_PARSERS: dict[str, str] = {
    "shoal.cli.commands.common.specs.read_file": "the bytes of a file; what parses them is here",
    "shoal.cli.commands.jobs.specs.read_spec": "is read_specs with the parser of services; other engines parse bytes",
    "shoal.cli.commands.serving.models.load": "a command, which asks a scheduler to load a model",
    "shoal.serving.resources.read_cpus": "what the kernel says, read by shoal.core and psutil",
    "shoal.serving.resources.read_memory": "what the kernel says, read by shoal.core and psutil",
    "shoal.runtimes.work_files.read_file": "bytes as they are",
    "shoal.runtimes.log_reading.read_logs": "reads files with the parsers of the keeper's logs, which are here",
    "shoal.agent.store.intents.load_workloads": "rows of the agent's own database, checked as a whole when opened",
    "shoal.cli.servers.daemon.load": "is load_settings, and sets up the log",
    "shoal.dataflow.operators.aggregates.exact.from_arrow": "arrays of a checkpoint, whose bytes are checked by a hash",
    "shoal.control.store.rows.event_from_row": "columns have types; the document is the codec's",
    "shoal.control.store.rows.group_from_row": "columns have types; the document is the codec's",
    "shoal.control.store.rows.job_from_row": "columns have types; the document is the codec's",
    "shoal.control.store.rows.node_from_row": "columns have types; the document is the codec's",
    "shoal.control.store.rows.observation_from_row": "columns have types; the document is the codec's",
    "shoal.control.store.rows.workload_from_row": "columns have types; the document is the codec's",
    "shoal.control.store.rows.revocation_from_row": "columns have types; the document is the codec's",
    "shoal.control.store.rows.secret_from_row": "columns have types; the document is the codec's",
    "shoal.control.store.rows.token_from_row": "columns have types; the document is the codec's",
    "shoal.control.store.sql.load_secrets": "runs queries; rows are read by shoal.control.store.rows",
    "shoal.control.store.sql.load_tokens": "runs queries; rows are read by shoal.control.store.rows",
    "shoal.control.store.sql.load_snapshot": "runs queries; rows are read by shoal.control.store.rows",
    "shoal.control.store.sql.read_events": "runs queries; rows are read by shoal.control.store.rows",
    "shoal.core.files.read_bytes": "bytes as they are",
    "shoal.core.filesystems.read_object": "bytes as they are",
    "shoal.core.disk.private_files.read_regular": "bytes as they are",
    "shoal.core.disk.private_files.read_private": "bytes as they are",
    "shoal.runtimes.keeper.lives.children.read_report": "from a pipe to our own child, before it becomes the workload",
    "shoal.runtimes.keeper.procfs.read_environ": "bytes as they are",
    "shoal.runtimes.keeper.procfs.read_stat": "is parse_stat, of a process that may be gone",
    **NO_STREAM_PARSERS,
    **NO_TABLE_PARSERS,
}
