"""What `describe` and `workload get` say of containers, compose projects and VMs."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.cli.commands.common.parts import parts_of
from shoal.model.documents import read_document
from shoal.model.workloads import RunState, RunStatus
from tests.unit.cli.scripted import run_cli, workload

CONTAINER = {
    "image": "registry.example/web:4",
    "command": ["serve"],
    "args": ["--port", "80"],
    "ports": [
        {"name": "http", "container_port": 80},
        {"container_port": 53, "host_port": 5353, "protocol": "udp"},
        {"container_port": 90},
    ],
    "volumes": [{"host_path": "/srv/www", "container_path": "/www", "read_only": True}],
    "managed_volumes": [{"name": "data", "mount_path": "/data", "retain_policy": "Delete", "pool_name": "fast"}],
}
COMPOSE = {"source_type": "git", "git_repo": "/srv/shop.git", "git_ref": "v2"}
VM = {
    "vcpus": 2,
    "memory_mb": 2048,
    "os_image": "/images/debian.qcow2",
    "disks": [{}, {"pool_name": "fast", "size_gb": 100, "mount_point": "/data"}, {}],
    "networks": [{"dhcp": True, "ports": [{"name": "ssh", "container_port": 22}]}, {"bridge": "br0"}],
}


def view_of(kind, body, name="web", **status):
    spec = read_document({"id": name, "type": kind, kind: body}).spec
    run = RunStatus(name, RunState.RUNNING, generation=1, **status)
    return dataclasses.replace(workload(name), type=kind, spec=spec, run=run)


def test_a_container_has_an_image_a_name_ports_and_volumes():
    assert list(parts_of(view_of("container", CONTAINER, ports={"http": 31002}))) == [
        ("image", "registry.example/web:4"),
        ("name", "shoal-node-1-web"),
        ("command", "serve --port 80"),
        ("port", "http: 80/tcp, host port 31002"),
        ("port", "53/udp, host port 5353"),
        ("port", "90/tcp, host port chosen by the engine"),
        ("volume", "/www is /srv/www, read-only"),
        ("volume", "/data is data (local in pool fast, Delete)"),
    ]


def test_a_compose_project_has_a_source_and_services():
    view = view_of("compose", COMPOSE, name="Shop", services={"web": "running", "db": "exited (0)"})
    parts = list(parts_of(view))
    assert parts[0] == ("source", "/srv/shop.git at v2")
    assert parts[1][1].startswith("shoal-node-1-shop-"), "in the letters that compose commands accept"
    assert parts[2:] == [("service db", "exited (0)"), ("service web", "running")]


def test_a_vm_has_disks_networks_and_a_console():
    assert list(parts_of(view_of("vm", VM, ports={"ssh": 31004}))) == [
        ("image", "/images/debian.qcow2"),
        ("kernel", ""),
        ("size", "2 vCPU, 2048 MB"),
        ("disk", "as large as its image"),
        ("disk", "100 GB, in pool fast, mounted at /data"),
        ("disk", "20 GB"),
        ("network", "user-mode, dhcp"),
        ("network", "bridge br0"),
        ("port", "ssh: 22/tcp, host port 31004"),
        ("console", "shoal logs web"),
    ]


def test_a_port_that_is_not_chosen_yet_says_who_chooses_it():
    parts = dict(parts_of(view_of("vm", VM)))
    assert parts["port"] == "ssh: 22/tcp, host port chosen by the agent"


@pytest.mark.parametrize("change", [{"assigned_node_id": ""}, {"run": None}], ids=["placed nowhere", "never reported"])
def test_a_container_that_no_engine_has_yet_has_no_name_there(change):
    view = dataclasses.replace(view_of("container", {"image": "i"}), **change)
    assert dict(parts_of(view))["name"] == ""


def test_the_container_of_a_foreign_agent_is_named_by_that_agent():
    view = view_of("container", {"image": "i"})
    foreign = dataclasses.replace(view, run=dataclasses.replace(view.run, generation=0))
    assert dict(parts_of(foreign))["name"] == ""


@pytest.mark.parametrize("command", [["describe"], ["workload", "get"]], ids=" ".join)
def test_they_are_shown_under_the_name_of_their_kind(control, capsys, command):
    control.workloads["shop"] = view_of("compose", COMPOSE, name="shop", services={"web": "running"})
    outcome = run_cli(control, [*command, "shop"], capsys)
    assert outcome.code == 0
    assert (
        "\ncompose\n  source       /srv/shop.git at v2\n  project      shoal-node-1-shop\n  service web  running\n"
        in outcome.stdout
    )


@pytest.mark.parametrize("command", [["describe"], ["workload", "get"]], ids=" ".join)
def test_a_process_has_no_parts(control, capsys, command):
    assert "\nprocess\n" not in run_cli(control, [*command, "web"], capsys).stdout
