"""Specs cross the wire unharmed, and nothing but InvalidError comes of a bad one."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from shoal.core.errors import InvalidError
from shoal.core.ids import IDENTIFIER
from shoal.core.shape import find_problems
from shoal.model import workloads as model
from shoal.model.resources import Resources
from shoal.model.workloads import DesiredState, ProcessSpec, WorkloadSpec, WorkloadType
from shoal.testing.messages import messages
from shoal.wire import convert
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as agent
from shoal.wire.pb.persys.control.v1 import control_pb2 as control
from shoal.wire.pb.shoal.v1 import run_pb2 as run
from tests.strategies import workload_specs

slow = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)

# ---------------------------------------------------------------------------------------------------------
# Specs as they may be: every value that the rules allow, in the form that the wire can tell from "not given"

text = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=12)
identifiers = st.from_regex(IDENTIFIER, fullmatch=True).filter(lambda each: ".." not in each and each.isascii())
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(str.isascii)
port_names = st.from_regex(r"[a-z]([a-z0-9-]{0,6}[a-z0-9])?", fullmatch=True)
keys = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,8}[A-Za-z0-9])?", fullmatch=True).filter(
    lambda each: ".." not in each
)
durations = st.integers(1, 10**9).map(lambda millis: timedelta(milliseconds=millis))
labels = st.dictionaries(keys, text, max_size=3)
env = st.dictionaries(names, text, max_size=3)
words = st.lists(text, max_size=3).map(tuple)
counts = st.integers(0, 1_000_000)
absolute = text.map(lambda each: f"/{each}")


def tuples(each, most=3):
    return st.lists(each, max_size=most).map(tuple)


volumes = st.builds(
    model.ManagedVolume,
    name=identifiers,
    driver=text.filter(bool),
    size_gb=counts,
    access_mode=text,
    fs_type=text,
    mount_path=absolute,
    read_only=st.booleans(),
    retain_policy=st.sampled_from(("", "Delete", "Retain")),
)


@st.composite
def processes(draw):
    ports = draw(
        st.lists(
            st.builds(model.NamedPort, port_names, st.integers(0, 65535)),
            max_size=3,
            unique_by=(lambda port: port.name, lambda port: port.port or port.name),
        )
    )
    references = st.integers(1, 65535).map(str)
    if ports:
        references |= st.sampled_from([port.name for port in ports])
    probes = st.one_of(
        references.map(lambda each: {"tcp_port": each}),
        st.builds(model.HttpProbe, references, absolute).map(lambda each: {"http": each}),
        st.builds(model.CommandProbe, words.filter(bool)).map(lambda each: {"command": each}),
    )
    readiness = None
    if draw(st.booleans()):
        readiness = model.Readiness(
            **draw(probes), interval=draw(durations), timeout=draw(durations), deadline=draw(durations)
        )
    restart = st.builds(
        model.RestartPolicy,
        policy=st.sampled_from(("always", "on-failure", "no", "unless-stopped")),
        max_retries=counts,
        delay=durations,
        max_delay=durations,
        healthy_after=durations,
    )
    stop = st.builds(model.StopPolicy, signal=st.sampled_from(("TERM", "INT", "KILL")), grace=durations)
    return ProcessSpec(
        command=("run", *draw(words)),
        args=draw(words),
        env=draw(env),
        working_dir=draw(st.just("") | absolute),
        user=draw(st.sampled_from(("", "nobody", "1000"))),
        restart=draw(restart),
        readiness=readiness,
        stop=draw(stop),
        ports=tuple(ports),
        clear_env=draw(st.booleans()),
    )


containers = st.builds(
    model.ContainerSpec,
    image=text.filter(bool),
    command=words,
    env=env,
    volumes=tuples(st.builds(model.VolumeMount, absolute, absolute, st.booleans())),
    ports=st.lists(
        st.builds(model.PortMapping, st.integers(1, 65535), st.integers(0, 65535), st.sampled_from(("tcp", "udp"))),
        max_size=3,
        unique_by=lambda port: (port.host_port or id(port), port.protocol),
    ).map(tuple),
    restart_policy=st.sampled_from(("", "always", "no")),
    privileged=st.booleans(),
    managed_volumes=tuples(volumes),
)
composes = st.builds(
    model.ComposeSpec, source_type=st.just("inline"), inline_yaml=text.map(lambda each: f"services:{each}"), env=env
) | st.builds(model.ComposeSpec, source_type=st.just("git"), git_repo=text.filter(bool), git_ref=text, env=env)
vms = st.builds(
    model.VmSpec,
    vcpus=st.integers(1, 1024),
    memory_mb=st.integers(1, 1_000_000),
    disks=tuples(st.builds(model.VmDisk, text, counts, text)),
    networks=tuples(st.builds(model.VmNetwork, text, st.booleans(), text)),
    cloud_init=st.none() | st.builds(model.CloudInit, text, text, text, text),
    os_image=text,
    managed_volumes=tuples(volumes),
)
constraints = st.builds(
    model.Constraint, keys, st.sampled_from(("in", "not_in")), st.lists(text, min_size=1, max_size=3).map(tuple)
) | st.builds(model.Constraint, keys, st.sampled_from(("exists", "not_exists")))
affinities = st.builds(
    model.Affinity,
    workloads=st.dictionaries(keys, text, min_size=1, max_size=2),
    scope=text.filter(bool),
    direction=st.sampled_from(("near", "apart")),
    required=st.booleans(),
    weight=st.integers(1, 100),
)


@st.composite
def specs(draw, kinds=tuple(WorkloadType)):
    kind = draw(st.sampled_from(kinds))
    bodies = {
        WorkloadType.PROCESS: processes(),
        WorkloadType.CONTAINER: containers,
        WorkloadType.COMPOSE: composes,
        WorkloadType.VM: vms,
    }
    at_most_one = draw(st.booleans())
    return WorkloadSpec(
        type=kind,
        resources=draw(st.builds(model.ResourceRequest, counts, counts, counts)),
        **{kind.value: draw(bodies[kind])},
        metadata=draw(st.dictionaries(text.filter(bool), text, max_size=3)),
        placement=draw(
            st.builds(model.PlacementRules, tuples(constraints), tuples(affinities), tuples(text.filter(bool)))
        ),
        slots=draw(st.integers(0, 100_000)),
        at_most_one=at_most_one,
        labels=draw(labels),
        failover=draw(failovers(at_most_one=at_most_one)),
    )


def failovers(*, at_most_one):
    millis = st.integers(1, 10**9).map(lambda count: timedelta(milliseconds=count))
    migrate = st.sampled_from(("", "after") if at_most_one else ("", "before", "after"))
    kinds = [
        st.builds(model.Failover, st.just("replace"), millis | st.just(timedelta(0)), migrate),
        st.builds(model.Failover, st.just("keep"), migrate=migrate),
    ]
    if not at_most_one:
        kinds.append(st.builds(model.Failover, st.just("stop"), millis, migrate))
    return st.one_of(kinds)


def _read(function, *arguments):
    try:
        return function(*arguments), ()
    except InvalidError as error:
        return None, error.problems


# ---------------------------------------------------------------------------------------------------------
# Control specs


@slow
@given(specs())
def test_a_spec_comes_back_as_it_went(spec):
    assert find_problems(spec) == []
    pb = convert.workload_spec_to_proto(spec)
    data = convert.spec_bytes(pb)
    assert convert.workload_spec_from_proto(control.WorkloadSpec.FromString(data)) == spec
    assert convert.decode_spec_bytes(data) == spec
    assert convert.spec_bytes(control.WorkloadSpec.FromString(data)) == data
    assert convert.spec_sha256(data) == hashlib.sha256(data).digest()


@slow
@given(messages(control.WorkloadSpec))
def test_any_message_is_a_good_spec_or_invalid(pb):
    spec, problems = _read(convert.workload_spec_from_proto, pb)
    if spec is None:
        assert problems
        assert all(each.field.startswith("spec") for each in problems)
        return
    assert find_problems(spec) == []
    again = convert.workload_spec_from_proto(convert.workload_spec_to_proto(spec))
    assert again == spec
    convert.agent_spec_from_control(spec, "web")


@slow
@given(messages(control.WorkloadSpec).map(lambda pb: pb.SerializeToString()) | st.binary())
def test_stored_bytes_are_read_or_invalid(data):
    try:
        spec = convert.decode_spec_bytes(data)
    except InvalidError:
        return
    assert isinstance(spec, WorkloadSpec)


def test_what_was_accepted_by_older_rules_can_still_be_read():
    pb = control.WorkloadSpec(type="process", process=run.ProcessSpec(command=[]), slots=-1)
    with pytest.raises(InvalidError):
        convert.workload_spec_from_proto(pb)
    assert convert.decode_spec_bytes(pb.SerializeToString()).slots == -1


def test_nothing_given_means_the_defaults():
    pb = control.WorkloadSpec(type="process", process=run.ProcessSpec(command=["true"]))
    assert convert.workload_spec_from_proto(pb) == WorkloadSpec(WorkloadType.PROCESS, process=ProcessSpec(("true",)))
    pb.process.readiness.http.port = "80"
    readiness = convert.workload_spec_from_proto(pb).process.readiness
    assert readiness == model.Readiness(http=model.HttpProbe("80", "/"))
    vm = convert.workload_spec_from_proto(control.WorkloadSpec(type="vm", vm=control.VMSpec())).vm
    assert vm == model.VmSpec()
    compose = control.WorkloadSpec(type="compose", compose=control.ComposeSpec(inline_yaml="services: {}"))
    assert convert.workload_spec_from_proto(compose).compose.source_type == "inline"
    container = control.WorkloadSpec(
        type="container", container=control.ContainerSpec(image="a", ports=[control.Port(container_port=80)])
    )
    assert convert.workload_spec_from_proto(container).container.ports == (model.PortMapping(80, 0, "tcp"),)


def _fields(pb, **arguments):
    with pytest.raises(InvalidError) as caught:
        convert.workload_spec_from_proto(pb, **arguments)
    return {each.field: each.rule for each in caught.value.problems}


def test_a_type_is_required_and_known():
    assert "is required" in _fields(control.WorkloadSpec())["spec.type"]
    assert "must be one of container, compose, vm, process" in _fields(control.WorkloadSpec(type="job"))["spec.type"]


def test_every_problem_is_named_with_its_path():
    found = _fields(
        control.WorkloadSpec(
            type="wat",
            process=run.ProcessSpec(
                env={"BAD NAME": "x"},
                working_dir="relative",
                restart=run.RestartPolicy(policy="sometimes", delay_ms=-1, max_delay_ms=2**62),
                stop=run.StopPolicy(grace_ms=-5, signal="WINCH"),
                readiness=run.Readiness(tcp_port="web", interval_ms=-2),
                ports=[run.NamedPort(name="a", port=70000), run.NamedPort(name="a")],
            ),
            resources=control.ResourceRequirements(cpu_millicores=-1, memory_mb=2**60),
            slots=-3,
            labels={"..": "x"},
            placement=run.Placement(constraints=[run.Constraint(key="zone", operator="near")]),
        )
    )
    assert set(found) >= {
        "spec.type",
        "spec.process.command",
        "spec.process.env.BAD NAME",
        "spec.process.working_dir",
        "spec.process.restart.policy",
        "spec.process.restart.delay_ms",
        "spec.process.restart.max_delay_ms",
        "spec.process.stop.grace_ms",
        "spec.process.stop.signal",
        "spec.process.readiness",
        "spec.process.readiness.interval_ms",
        "spec.process.ports[0].port",
        "spec.process.ports[1]",
        "spec.resources.cpu_millicores",
        "spec.resources.memory_mb",
        "spec.slots",
        "spec.labels...",
        "spec.placement.constraints[0].operator",
    }


def test_a_oneof_that_contradicts_the_type_is_refused():
    found = _fields(
        control.WorkloadSpec(type="container", process=run.ProcessSpec(command=["a"])), at="members[2].spec"
    )
    assert "members[2].spec.container" in found
    assert "members[2].spec.process" in found


def test_a_spec_that_cannot_be_written_is_invalid():
    spec = WorkloadSpec(WorkloadType.PROCESS, process=ProcessSpec(("\ud800",)))
    with pytest.raises(InvalidError, match="cannot be sent"):
        convert.workload_spec_to_proto(spec)


def test_no_time_at_all_is_a_millisecond_not_the_default():
    stop = model.StopPolicy(grace=timedelta(0))
    spec = WorkloadSpec(WorkloadType.PROCESS, process=ProcessSpec(("a",), stop=stop))
    again = convert.workload_spec_from_proto(convert.workload_spec_to_proto(spec))
    assert again.process.stop.grace == timedelta(milliseconds=1)


def test_equal_specs_have_equal_bytes():
    one, other = control.WorkloadSpec(type="vm"), control.WorkloadSpec(type="vm")
    for key in "abcdefgh":
        one.metadata[key] = key
    for key in "hgfedcba":
        other.metadata[key] = key
    assert convert.spec_bytes(one) == convert.spec_bytes(other)


# ---------------------------------------------------------------------------------------------------------
# What reaches an agent


@slow
@given(specs(), identifiers)
def test_an_agent_gets_everything_it_needs(spec, workload_id):
    pb = convert.agent_spec_from_control(spec, workload_id)
    assert pb.WhichOneof("spec") == spec.type.value
    read = convert.agent_spec_from_proto(pb, convert.workload_type_to_agent(spec.type))
    stop_after = spec.failover.after if spec.failover.policy == "stop" else timedelta(0)
    bodies = {spec.type.value: _as_an_agent_has_it(spec)}
    reserved = dataclasses.replace(spec.request, pools=())  # the body says which
    assert read == model.AgentSpec(
        spec.type, **bodies, request=reserved, at_most_one=spec.at_most_one, stop_after=stop_after
    )


@slow
@given(workload_specs())
def test_every_field_of_every_kind_reaches_the_agent(drawn):
    spec = convert.workload_spec_from_proto(convert.workload_spec_to_proto(drawn))
    pb = convert.agent_spec_from_control(spec, "w")
    read = convert.agent_spec_from_proto(pb, convert.workload_type_to_agent(spec.type))
    assert read.body == _as_an_agent_has_it(spec)


def _as_an_agent_has_it(spec):
    """Nothing is lost; but a container has the labels of its workload too, and one source of a project counts."""
    if spec.container is not None:
        word = spec.container.restart_policy or (spec.container.restart.policy if spec.container.restart else "")
        labels = {**spec.labels, **spec.container.labels}
        return dataclasses.replace(spec.container, labels=labels, restart_policy=word)
    if spec.compose is not None and spec.compose.source_type == "inline":
        return dataclasses.replace(spec.compose, git_repo="", git_ref="")
    if spec.compose is not None:
        return dataclasses.replace(spec.compose, inline_yaml="")
    return spec.body


@slow
@given(specs(), identifiers)
def test_what_is_taken_over_from_an_agent_is_told_to_it_to_the_byte(spec, workload_id):
    data = convert.spec_bytes(convert.agent_spec_from_control(spec, workload_id))
    kind = convert.workload_type_to_agent(spec.type)
    taken = convert.workload_spec_from_proto(convert.control_spec_from_agent(data, kind))
    assert convert.spec_bytes(convert.agent_spec_from_control(taken, workload_id)) == data
    assert (taken.request, taken.at_most_one) == (spec.request, spec.at_most_one)
    assert taken.body == _as_an_agent_has_it(spec)


def test_rubbish_from_an_agent_is_refused():
    with pytest.raises(InvalidError):
        convert.control_spec_from_agent(b"\xff\xff", convert.workload_type_to_agent(WorkloadType.PROCESS))


@slow
@given(messages(agent.WorkloadSpec), st.sampled_from((0, 1, 2, 3, 100, 7, -1)))
def test_any_message_to_an_agent_is_good_or_invalid(pb, kind):
    spec, problems = _read(convert.agent_spec_from_proto, pb, kind)
    if spec is None:
        assert problems
        return
    assert find_problems(spec) == []
    assert getattr(spec, spec.type.value) is spec.body


def test_a_container_loses_nothing():
    spec = WorkloadSpec(
        type=WorkloadType.CONTAINER,
        resources=model.ResourceRequest(cpu_millicores=1500, memory_mb=512, disk_gb=9),
        container=model.ContainerSpec(
            image="nginx",
            command=("a", "b"),
            env={"K": "v"},
            volumes=(model.VolumeMount("/a", "/b", True),),
            ports=(model.PortMapping(80, 8080, "udp"),),
            restart_policy="on-failure",
            privileged=True,
            managed_volumes=(model.ManagedVolume("vol", "nfs", 3, "rwo", "ext4", "/m", True, "Retain"),),
        ),
        slots=2,
        at_most_one=True,
        labels={"app": "web"},
    )
    assert convert.agent_spec_from_control(spec, "web") == agent.WorkloadSpec(
        container=agent.ContainerSpec(
            image="nginx",
            command=["a", "b"],
            env={"K": "v"},
            volumes=[agent.VolumeMount(host_path="/a", container_path="/b", read_only=True)],
            ports=[agent.PortMapping(host_port=8080, container_port=80, protocol="udp")],
            resources=agent.ResourceLimits(cpu_shares=1500, memory_bytes=512 * 1024 * 1024),
            restart_policy=agent.RestartPolicy(policy="on-failure"),
            labels={"app": "web"},
            managed_volumes=[
                agent.ManagedVolumeSpec(
                    name="vol",
                    driver="nfs",
                    size_gb=3,
                    access_mode="rwo",
                    fs_type="ext4",
                    mount_path="/m",
                    read_only=True,
                    retain_policy="Retain",
                )
            ],
            privileged=True,
        ),
        reservation=agent.Reservation(cpu_millicores=1500, memory_mb=512, disk_gb=9, slots=2),
        at_most_one=True,
    )


def test_a_compose_project_loses_nothing():
    inline = WorkloadSpec(WorkloadType.COMPOSE, compose=model.ComposeSpec(inline_yaml="services: {}", env={"A": "1"}))
    pb = convert.agent_spec_from_control(inline, "shop").compose
    assert base64.b64decode(pb.compose_yaml) == b"services: {}"
    assert (pb.project_name, dict(pb.env), pb.git_repo) == ("shop", {"A": "1"}, "")
    git = WorkloadSpec(
        WorkloadType.COMPOSE, compose=model.ComposeSpec(source_type="git", git_repo="https://x/y", git_ref="main")
    )
    pb = convert.agent_spec_from_control(git, "shop").compose
    assert (pb.compose_yaml, pb.git_repo, pb.git_ref) == ("", "https://x/y", "main")


@given(identifiers, identifiers)
def test_project_names_are_legal_and_stay_apart(one, other):
    for workload_id in (one, other):
        name = convert.compose_project(workload_id)
        assert 0 < len(name) <= 63
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-")
        assert name[0].isalnum()
    assume(one != other)
    assert convert.compose_project(one) != convert.compose_project(other)


def test_a_vm_loses_nothing():
    vm = model.VmSpec(
        vcpus=2,
        memory_mb=1024,
        disks=(model.VmDisk("fast", 30, "/data"), *(model.VmDisk() for _ in range(27))),
        networks=(model.VmNetwork("br0", True, "10.0.0.5"),),
        cloud_init=model.CloudInit("user", "meta", "net", "vendor"),
        os_image="debian-12",
        managed_volumes=(model.ManagedVolume("vol"),),
    )
    spec = WorkloadSpec(WorkloadType.VM, vm=vm, metadata={"owner": "me"})
    pb = convert.agent_spec_from_control(spec, "box").vm
    assert (pb.name, pb.vcpus, pb.memory_mb, pb.os_image) == ("box", 2, 1024, "debian-12")
    assert pb.disks[0] == agent.DiskConfig(
        path="/var/lib/libvirt/images/box-vda.qcow2",
        device="vda",
        format="qcow2",
        size_gb=30,
        type="disk",
        boot=True,
        pool_name="fast",
        mount_point="/data",
        exact_size_gb=30,
    )
    assert [disk.device for disk in pb.disks[1:]] == [*(f"vd{c}" for c in "bcdefghijklmnopqrstuvwxyz"), "vdaa", "vdab"]
    assert [disk.boot for disk in pb.disks[1:]] == [False] * 27
    assert pb.networks[0] == agent.NetworkConfig(network="br0", ip_address="10.0.0.5", bridge="br0", dhcp=True)
    assert pb.cloud_init == "user"
    assert pb.cloud_init_config == agent.CloudInitConfig(
        user_data="user", meta_data="meta", network_config="net", vendor_data="vendor"
    )
    assert dict(pb.metadata) == {"owner": "me"}
    assert [volume.name for volume in pb.managed_volumes] == ["vol"]


def test_a_foreign_scheduler_reserves_by_what_the_workload_asks():
    container = agent.ContainerSpec(
        image="a", resources=agent.ResourceLimits(cpu_shares=500, memory_bytes=100 * 1024 * 1024 + 1)
    )
    read = convert.agent_spec_from_proto(agent.WorkloadSpec(container=container), agent.WORKLOAD_TYPE_CONTAINER)
    assert read.request == Resources(0, 101)
    assert read.container.cpu_shares == 500
    vm = agent.WorkloadSpec(vm=agent.VMSpec(vcpus=2, memory_mb=64))
    assert convert.agent_spec_from_proto(vm, agent.WORKLOAD_TYPE_VM).request == Resources(2000, 64)


def test_a_container_of_a_foreign_scheduler():
    pb = agent.ContainerSpec(
        image="nginx",
        command=["a"],
        args=["b"],
        ports=[agent.PortMapping(host_port=8080, container_port=80)],
        restart_policy=agent.RestartPolicy(policy="on-failure", max_retry_count=4),
        labels={"app": "web"},
    )
    read = convert.agent_spec_from_proto(agent.WorkloadSpec(container=pb), agent.WORKLOAD_TYPE_CONTAINER).container
    assert (read.image, read.command, read.args, read.labels) == ("nginx", ("a",), ("b",), {"app": "web"})
    assert read.ports == (model.PortMapping(80, 8080, "tcp"),)
    assert read.restart_rules == model.RestartPolicy(policy="on-failure", max_retries=4)


@pytest.mark.parametrize("text", ["services: {}\n", "c2VydmljZXM6IHt9Cg=="])
def test_a_project_of_a_foreign_scheduler_is_text_or_base64(text):
    pb = agent.WorkloadSpec(compose=agent.ComposeSpec(project_name="x", compose_yaml=text))
    read = convert.agent_spec_from_proto(pb, agent.WORKLOAD_TYPE_COMPOSE).compose
    assert (read.source_type, read.inline_yaml) == ("inline", "services: {}\n")


def test_a_vm_of_a_foreign_scheduler():
    pb = agent.VMSpec(
        vcpus=2,
        memory_mb=512,
        disks=[
            agent.DiskConfig(path="/x/seed.iso", device="hdb", format="iso", type="cdrom"),
            agent.DiskConfig(path="/x/a.qcow2", device="vda", format="qcow2", size_gb=20, type="disk", boot=True),
        ],
        networks=[
            agent.NetworkConfig(network="default", mac_address="52:54:00:AA:00:01"),
            agent.NetworkConfig(network="br0", ip_address="10.0.0.5"),
        ],
        cloud_init="#cloud-config",
    )
    read = convert.agent_spec_from_proto(agent.WorkloadSpec(vm=pb), agent.WORKLOAD_TYPE_VM).vm
    assert read.disks == (
        model.VmDisk(size_gb=20, format="qcow2", path="/x/a.qcow2"),
        model.VmDisk(image="/x/seed.iso", format="iso", read_only=True),
    )
    assert read.networks == (
        model.VmNetwork(dhcp=True, mac="52:54:00:aa:00:01"),
        model.VmNetwork("br0", static_ip="10.0.0.5"),
    )
    assert read.cloud_init == model.CloudInit(user_data="#cloud-config")


def test_an_agent_names_what_is_wrong():
    pb = agent.WorkloadSpec(process=run.ProcessSpec(), reservation=agent.Reservation(memory_mb=-1))
    with pytest.raises(InvalidError) as caught:
        convert.agent_spec_from_proto(pb, agent.WORKLOAD_TYPE_PROCESS)
    assert {each.field for each in caught.value.problems} == {"spec.process.command", "spec.reservation.memory_mb"}
    with pytest.raises(InvalidError, match=r"spec\.vm: is required when type is vm; found process"):
        convert.agent_spec_from_proto(pb, agent.WORKLOAD_TYPE_VM)
    with pytest.raises(InvalidError, match="type: is required"):
        convert.agent_spec_from_proto(pb, agent.WORKLOAD_TYPE_UNSPECIFIED)


# ---------------------------------------------------------------------------------------------------------
# Words and numbers


@pytest.mark.parametrize("desired", [DesiredState.RUNNING, DesiredState.STOPPED])
def test_a_desired_state_goes_there_and_back(desired):
    assert convert.desired_state_from_text(convert.desired_state_to_text(desired)) is desired
    assert convert.desired_state_from_agent(convert.desired_state_to_agent(desired)) is desired


@pytest.mark.parametrize("word", ["", "running", "RUNNING", " Running"])
def test_words_for_running(word):
    assert convert.desired_state_from_text(word) is DesiredState.RUNNING


def test_desired_states_of_agents():
    assert convert.desired_state_from_agent(0) is DesiredState.RUNNING
    assert convert.desired_state_to_agent(DesiredState.DELETED) == agent.DESIRED_STATE_STOPPED


@pytest.mark.parametrize("word", ["Deleted", "wat"])
def test_a_wrong_word_for_a_desired_state_is_refused(word):
    with pytest.raises(InvalidError, match="desired_state"):
        convert.desired_state_from_text(word)


@pytest.mark.parametrize("number", [3, -1, 100])
def test_a_wrong_number_for_a_desired_state_is_refused(number):
    with pytest.raises(InvalidError, match="desired_state"):
        convert.desired_state_from_agent(number)


@pytest.mark.parametrize("kind", WorkloadType)
def test_a_type_goes_there_and_back(kind):
    assert convert.workload_type_from_agent(convert.workload_type_to_agent(kind)) is kind
    assert convert.workload_type_from_text(kind.value) is kind


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("docker-container", WorkloadType.CONTAINER),
        ("Container", WorkloadType.CONTAINER),
        (" container ", WorkloadType.CONTAINER),
        ("docker-compose", WorkloadType.COMPOSE),
        ("git-compose", WorkloadType.COMPOSE),
    ],
)
def test_other_words_for_types(word, kind):
    assert convert.workload_type_from_text(word) is kind


@pytest.mark.parametrize("word", ["", "docker", "job"])
def test_a_wrong_word_for_a_type_is_refused(word):
    with pytest.raises(InvalidError, match="type"):
        convert.workload_type_from_text(word)


@pytest.mark.parametrize("reason", model.FailureReason)
def test_a_failure_goes_there_and_back(reason):
    assert convert.failure_from_proto(convert.failure_to_proto(reason)) is reason


def test_a_failure_of_a_newer_program_is_one_of_the_runtime():
    assert convert.failure_from_proto(99) is model.FailureReason.RUNTIME_ERROR
