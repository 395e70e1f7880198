"""Every node is written under the path and with the bytes that Monolith's programs use, and read from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.errors import InvalidError
from shoal.discovery.documents import read_record, write_record
from shoal.discovery.mirror.records import AgentResource, PortalModel, PublishedModel, SchedulerPaths
from shoal.discovery.models.bindings import registrations
from shoal.discovery.models.paths import ModelPaths
from shoal.discovery.models.records import (
    Container,
    ContainerService,
    DeployConfig,
    SavedModel,
    container_cluster,
    parse_binding,
    parse_container,
    parse_saved_model,
)
from shoal.discovery.replicas.paths import (
    Location,
    Task,
    parse_location,
    parse_replica_name,
    parse_task_name,
    parse_task_path,
    replica_name,
    replica_path,
    service_root,
)
from shoal.discovery.replicas.records import AddressFamily, ModelState, Replica, ServerType

GOLDEN = Path(__file__).parents[2] / "golden" / "discovery" / "nodes.txt"
NODES = {
    name: (path, data.encode())
    for name, path, data in (line.split("\t") for line in GOLDEN.read_text().splitlines() if line[0] != "#")
}

ROOT = service_root("gip", "m")
SCHEDULER = SchedulerPaths("gip")
MODELS = ModelPaths("gip")
LOOPBACK = Replica(
    address="127.0.0.1:44059",
    address_ipv6="[::]:44059",
    archon_address="127.0.0.1:40279",
    archon_address_ipv6="[::]:40279",
    stat=ModelState.AVAILABLE,
)
STARTING = Replica(
    address="127.0.0.1:44059",
    address_ipv6="[::]:44059",
    archon_address="127.0.0.1:40279",
    archon_address_ipv6="[::]:40279",
)
SCHEDULED = Replica("10.0.0.5:8500", stat=ModelState.AVAILABLE, model_name="m", server_type="ps", task=0, replica=2)
PUBLISHED = PublishedModel(
    1,
    0,
    "m",
    4,
    2,
    {"entry": "/d/exported_models/entry/1600000000", "ps_1": "/d/exported_models/ps_1/1600000000"},
)
RESOURCE = AgentResource("10.0.0.5:1234", 2, 2, 12345, cpu=5.6)
CONTAINER = Container(container_cluster(psm="p.s.m", idc="lf", cluster="default"), "pod-1")
SERVICE = ContainerService(
    "192.0.2.2:58703",
    "192.0.2.2:53887",
    "192.0.2.2:33421",
    "192.0.2.2:50811",
    "lf",
    '{"layout_path": "/gip/layouts/prod", "layout_filters": ["entry;True", "ps_(?P<i>\\\\d+);i % 2 == 0"]}',
)
PS_0 = SavedModel("m", "ps_0")

RECORDS = {
    "replica-v1": (replica_path(ROOT, Task(ServerType.PS, 0), 352048498), LOOPBACK),
    "replica-v1-dc": (
        replica_path(ROOT, Task(ServerType.ENTRY, 0, Location("lf", "default")), 352048498),
        STARTING,
    ),
    "portal": (SCHEDULER.portal_model("m"), PortalModel("m", "/d/exported_models", "model.ckpt-100", 3)),
    "publish": (SCHEDULER.published(PUBLISHED), PUBLISHED),
    "resource": (SCHEDULER.agent_resource(RESOURCE), RESOURCE),
    "replica-v2": (SCHEDULER.replica(SCHEDULED), SCHEDULED),
    "saved-model": (
        MODELS.saved_model(SavedModel("m", "entry")),
        DeployConfig("/d/exported_models/entry", "latest"),
    ),
    "container": (MODELS.container(CONTAINER), SERVICE),
}
EMPTY = {
    "binding": MODELS.binding(PS_0, CONTAINER),
    "layout-member": f"{MODELS.layout('prod')}/{PS_0}",
}


def test_every_golden_node_is_checked():
    assert set(NODES) == {*RECORDS, *EMPTY}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_written_byte_for_byte_and_read_back(name):
    path, record = RECORDS[name]
    assert (path, write_record(record)) == NODES[name]
    assert read_record(type(record), NODES[name][1], at=path) == record


@pytest.mark.parametrize("name", EMPTY)
def test_a_node_that_is_only_a_name_has_this_path(name):
    assert (EMPTY[name], b"") == NODES[name]


def test_a_container_registers_its_addresses_before_its_bindings():
    found = registrations(MODELS, CONTAINER, SERVICE, [PS_0, PS_0])
    assert list(found.items()) == [NODES["container"], NODES["binding"]]


def test_text_is_written_in_ascii():
    assert write_record(DeployConfig("/d/é", None)) == b'{"model_base_path": "/d/\\u00e9", "version_policy": null}'
    assert b"/d/\\ud83d\\ude00" in write_record(DeployConfig("/d/\U0001f600", None))


def test_text_that_nobody_could_read_again_is_not_written():
    with pytest.raises(InvalidError, match=r"DeployConfig\.model_base_path: must be text that UTF-8 can write"):
        write_record(DeployConfig("/d/\udcff", None))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"{}", Replica()),
        (b'{"address": null, "zone": 7}', Replica()),
        (b'{"stat": 30, "address": "h:1"}', Replica("h:1", stat=ModelState.AVAILABLE)),
    ],
)
def test_unknown_keys_are_ignored_and_missing_ones_take_the_default(data, expected):
    assert read_record(Replica, data, at="/n") == expected


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b'{"task": "3"}', "/n.task"),
        (b'{"stat": 31}', "/n.stat"),
        (b'{"stat": "30"}', "/n.stat"),
        (b'{"address": 5}', "/n.address"),
        (b"[]", "/n"),
        (b"", "/n"),
        (b"\xff", "/n"),
        (b"{" * 9999, "/n"),
        (b'{"address": "\\ud800"}', "/n.address"),
        (b'{"address": "\xed\xa0\x80"}', "/n.address"),
    ],
)
def test_a_bad_value_names_the_node_and_the_field(data, field):
    with pytest.raises(InvalidError) as caught:
        read_record(Replica, data, at="/n")
    assert [each.field for each in caught.value.problems] == [field]


@pytest.mark.parametrize(
    ("server_type", "number", "name"),
    [
        (ServerType.ENTRY, 0, "00000000000"),
        (ServerType.ENTRY, 352048498, "00352048498"),
        (ServerType.ENTRY, 213158916079, "213158916079"),
        (ServerType.PS, 0, "0"),
        (ServerType.DENSE, 352048498, "352048498"),
    ],
)
def test_the_names_of_replicas(server_type, number, name):
    assert replica_name(server_type, number) == name
    assert parse_replica_name(name) == number


def test_a_negative_replica_id_has_no_name():
    with pytest.raises(InvalidError, match="replica_id"):
        replica_name(ServerType.PS, -1)


@pytest.mark.parametrize("text", ["lf:1", "ps:", "ps:x", "ps", "gpu:0", "ps:0:1", "PS:0", "ps:99999999999999999999"])
def test_other_names_are_no_tasks(text):
    assert parse_task_name(text) is None


@pytest.mark.parametrize(
    ("parts", "task"),
    [
        (("ps:3",), Task(ServerType.PS, 3)),
        (("lf:default", "ps:3"), Task(ServerType.PS, 3, Location("lf", "default"))),
        (("lf:1", "dense:0"), Task(ServerType.DENSE, 0, Location("lf", "1"))),
        (("data.center:a.b", "entry:0"), Task(ServerType.ENTRY, 0, Location("data.center", "a.b"))),
        (("lf", "ps:3"), None),
        (("lf:a:b", "ps:3"), None),
        ((), None),
        (("a:b", "c:d", "ps:3"), None),
    ],
)
def test_the_task_of_a_path(parts, task):
    assert parse_task_path(parts) == task


@pytest.mark.parametrize("text", ["", ":", "lf", "lf:", ":default", "a:b:c", "..:x"])
def test_other_names_are_no_locations(text):
    assert parse_location(text) is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\x00b"])
def test_a_bad_namespace_is_refused(name):
    for make in (
        ModelPaths,
        SchedulerPaths,
        lambda text: service_root(text, "m"),
        lambda text: service_root("b", text),
    ):
        with pytest.raises(InvalidError):
            make(name)


@pytest.mark.parametrize("text", ["m", "", ":", "m:", ":entry", "m:a:b", "m:..", "a/b:entry"])
def test_a_bad_name_of_a_saved_model_is_refused(text):
    with pytest.raises(InvalidError, match="member"):
        parse_saved_model(text, field="member")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ps_0:p;lf;default:pod-1", ("ps_0", Container("p;lf;default", "pod-1"))),
        ("ps_0:unknown;None;None:fd00::7", ("ps_0", Container("unknown;None;None", "fd00::7"))),
        ("ps_0:cluster", None),
        ("ps_0", None),
        ("", None),
    ],
)
def test_a_binding_names_its_container_in_full(text, expected):
    assert parse_binding(text) == expected


def test_an_unset_place_of_a_container_is_spelled_as_others_spell_it():
    assert container_cluster() == "unknown;None;None"
    assert parse_container("unknown;None;None:h") == Container("unknown;None;None", "h")


V4, V6 = "10.0.0.5:8500", "[fd00::7]:8500"


@pytest.mark.parametrize(
    ("replica", "family", "expected"),
    [
        (Replica(V4, V6), AddressFamily.IPV4, V4),
        (Replica(V4, V6), AddressFamily.IPV6, V6),
        (Replica(V4, "[::]:8500"), AddressFamily.IPV6, V4),
        (Replica("0.0.0.0:8500", V6), AddressFamily.IPV4, V6),
        (Replica(None, V6), AddressFamily.IPV4, V6),
        (Replica("10.0.0.5:None", None), AddressFamily.IPV4, None),
        (Replica("0.0.0.0:1", "[::]:1"), AddressFamily.IPV4, None),
        (Replica("[::1]:8500"), AddressFamily.IPV4, "[::1]:8500"),
        (Replica(), AddressFamily.IPV6, None),
    ],
)
def test_the_address_of_the_preferred_family_is_chosen(replica, family, expected):
    assert replica.chosen_address(family=family) == expected


def test_archon_addresses_are_chosen_on_request():
    replica = Replica(V4, V6, archon_address="10.0.0.5:9", archon_address_ipv6="[fd00::7]:9")
    assert replica.chosen_address(archon=True) == "10.0.0.5:9"
    assert replica.chosen_address(family=AddressFamily.IPV6, archon=True) == "[fd00::7]:9"
