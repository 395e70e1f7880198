"""The rules of compose projects, and what is added to them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import InvalidError
from shoal.model.resources import Resources
from shoal.runtimes.compose.project import Additions, parse_project, project_name, render
from shoal.runtimes.compose.rules import Place

SERVICE = {"image": "a:1"}


def parse(content: object, *, allow_privileged: bool = False, **variables: str) -> Any:
    text = content if isinstance(content, str) else json.dumps(content)
    return parse_project(text, at="compose", variables=variables, allow_privileged=allow_privileged)


def with_service(**keys: object) -> dict[str, object]:
    return {"services": {"web": {**SERVICE, **keys}}}


def complete(content: object, **variables: str) -> dict[str, Any]:
    project = parse(content, **variables)
    added = Additions(
        labels={"shoal.run": "web-1"},
        shared_labels={"shoal.workload": "web"},
        environment={"SHOAL_RUN_ID": "web-$1"},
        limits=Resources(cpu_millicores=1500, memory_mb=64),
        ulimits={"nofile": (10, 20)},
    )
    return render(project, dict.fromkeys(project.services, added))


@pytest.mark.parametrize(
    ("content", "field", "rule"),
    [
        ("- a", "compose", "must be a mapping"),
        ("a: [", "compose", "must be YAML"),
        ({}, "compose.services", "at least one service"),
        ({"services": {"web": SERVICE}, "servces": {}}, "compose.servces", "did you mean services?"),
        ({"services": {"web": SERVICE}, "include": ["b"]}, "compose.include", "is not supported"),
        ({"services": {"web": 1}}, "compose.services.web", "must be a mapping"),
        ({"services": {"we b": SERVICE}}, "compose.services.we b", "must be letters"),
        ({"services": {"web": {}}}, "compose.services.web", "must have an image or a build"),
        ({"services": {f"s{number}": SERVICE for number in range(101)}}, "compose.services", "more than 100"),
        (with_service(imag="x"), "compose.services.web.imag", "did you mean image?"),
        (with_service(ports="80"), "compose.services.web.ports", "must be a list"),
        (with_service(depends_on=5), "compose.services.web.depends_on", "must be a list or a mapping"),
        (with_service(networks=5), "compose.services.web.networks", "must be a list or a mapping"),
        (with_service(volumes=5), "compose.services.web.volumes", "must be a list"),
        (with_service(links=5), "compose.services.web.links", "must be a list"),
        (with_service(secrets=5), "compose.services.web.secrets", "must be a list"),
        (with_service(environment="A"), "compose.services.web.environment", "must be a list or a mapping"),
        (with_service(init="perhaps"), "compose.services.web.init", "must be true or false"),
        (with_service(depends_on=["db"]), "compose.services.web.depends_on", "must name a service"),
        (with_service(extends={"file": "b", "service": "x"}), "compose.services.web.extends.file", "not checked"),
        (with_service(extends="x"), "compose.services.web.extends", "must name a service"),
        (with_service(extends={"service": "x"}), "compose.services.web.extends", "must name a service"),
        (with_service(links=["db:it"]), "compose.services.web.links", "must name a service"),
        (with_service(volumes_from=["db:ro"]), "compose.services.web.volumes_from", "must name a service"),
        (with_service(network_mode="service:db"), "compose.services.web.network_mode", "must name a service"),
        (with_service(networks=["inner"]), "compose.services.web.networks", "one of the networks of this project"),
        (with_service(networks={"inner": {}}), "compose.services.web.networks", "one of the networks"),
        (with_service(secrets=["key"]), "compose.services.web.secrets", "one of the secrets of this project"),
        (with_service(configs=[{"source": "c"}]), "compose.services.web.configs", "one of the configs"),
        (with_service(volumes=["data:/data"]), "compose.services.web.volumes[0]", "one of the volumes"),
        (
            with_service(volumes=["/a", {"type": "volume", "source": "data", "target": "/data"}]),
            "compose.services.web.volumes[1]",
            "one of the volumes of this project",
        ),
        (
            {"services": {"web": {**SERVICE, "depends_on": ["db"]}, "db": {**SERVICE, "profiles": ["p"]}}},
            "compose.services.web.depends_on",
            "without a profile",
        ),
        (with_service(scale=1000), "compose.services.web.scale", "up to 100"),
        (with_service(profiles=["p"]), "compose.services", "a service without a profile"),
        (with_service(image="${A:?no image}"), "compose.services.web.image", "no image"),
        (with_service(image="${A"), "compose.services.web.image", "without its }"),
        (with_service(image="a$"), "compose.services.web.image", "$$ stands for a dollar sign"),
        ({"services": {"web": SERVICE}, "volumes": [1]}, "compose.volumes", "must be a mapping"),
    ],
)
def test_a_project_that_is_none_is_refused(content: object, field: str, rule: str) -> None:
    with pytest.raises(InvalidError) as raised:
        parse(content)
    assert [(each.field, rule in each.rule) for each in raised.value.problems] == [(field, True)]


@pytest.mark.parametrize(
    "keys",
    [
        {"privileged": True},
        {"privileged": "$YES"},
        {"cap_add": ["SYS_ADMIN"]},
        {"devices": ["/dev/kvm"]},
        {"security_opt": ["seccomp=unconfined"]},
        {"pid": "host"},
        {"ipc": "container:other"},
        {"network_mode": "host"},
        {"userns_mode": "host"},
        {"cgroup_parent": "/"},
        {"runtime": "other"},
        {"volumes": ["/:/host"]},
        {"volumes": ["//:/host"]},
        {"volumes": ["/tmp/../proc:/host"]},
        {"volumes": ["/run/podman/podman.sock:/sock"]},
        {"volumes": [{"type": "bind", "source": "/proc", "target": "/p"}]},
        {"volumes": ["//dev:/x"]},
        {"volumes": ["//var/run/docker.sock:/s"]},
        {"volumes": ["/var:/x"]},
        {"volumes": ["/etc/:/x"]},
        {"volumes": ["/var/lib/../lib:/x"]},
        {"volumes": ["/srv/a,source=/dev:/x"]},
        {"volumes": [" /dev:/x"]},
        {"volumes": [{"type": "bind", "source": "///dev", "target": "/x"}]},
        {"volumes": [{"type": "bind", "source": "/srv", "target": "/x,source=/dev"}]},
        {"volumes": [{"type": "volume", "source": "/dev", "target": "/x"}]},
        {"volumes": [{"source": "/dev", "target": "/x"}]},
        {"volumes": [{"type": "glob", "source": "/dev", "target": "/x"}]},
        {"volumes": [{"type": "volume", "source": "a", "target": "/x", "_vol": {"name": "/dev"}}]},
        {"image": "--volume=/:/host"},
        {"volumes": ["${HOST}:/host"]},
        {"volumes": ["../other:/x"]},
        {"volumes": ["~/x:/x"]},
        {"volumes_from": ["container:other"]},
        {"env_file": "/etc/environment"},
        {"env_file": [{"path": "../x"}]},
        {"build": "/"},
        {"build": {"context": ".", "dockerfile": "/etc/passwd"}},
    ],
    ids=str,
)
def test_reaching_the_host_needs_the_agents_permission(keys: dict[str, object]) -> None:
    variables = {"YES": "true", "HOST": "/var/run"}
    content = {**with_service(**keys), "volumes": {"a": None}}
    with pytest.raises(InvalidError) as raised:
        parse(content, **variables)
    assert all("--allow-privileged" in each.rule for each in raised.value.problems)
    parse(content, allow_privileged=True, **variables)


@pytest.mark.parametrize(
    "content",
    [
        {"services": {"web": SERVICE}, "volumes": {"d": {"driver_opts": {"type": "none", "device": "/"}}}},
        {"services": {"web": SERVICE}, "volumes": {"d": {"driver_opts": {"type": "none", "device": "//dev"}}}},
        {"services": {"web": SERVICE}, "volumes": {"d": {"driver_opts": {"type": "overlay", "o": "lowerdir=/"}}}},
        {
            "services": {"web": SERVICE},
            "volumes": {"d": {"driver_opts": {"device": "etc", "type": "nfs", "o": "bind"}}},
        },
        {"services": {"web": SERVICE}, "volumes": {"d": {"driver": "other", "driver_opts": {}}}},
        {"services": {"web": SERVICE}, "volumes": {"d": {"external": True, "name": "/dev"}}},
        {"services": {"web": SERVICE}, "secrets": {"s": {"file": "/etc/shadow"}}},
    ],
    ids=["volume", "slashes", "overlay", "bind", "driver", "name", "secret"],
)
def test_volumes_and_secrets_reach_no_file_of_the_host(content: dict[str, object]) -> None:
    with pytest.raises(InvalidError, match="allow-privileged"):
        parse(content)


@pytest.mark.parametrize(
    "volumes",
    [
        ["/srv/www:/www:ro"],
        ["./files:/files"],
        ["data:/data"],
        ["/data"],
        [{"type": "bind", "source": "/srv/www", "target": "/www", "read_only": True}],
        [{"type": "bind", "source": "./files", "target": "/files"}],
        [{"type": "volume", "source": "data", "target": "/data"}],
        [{"type": "tmpfs", "target": "/tmp", "tmpfs": {"size": 1000}}],
    ],
    ids=str,
)
def test_directories_and_volumes_can_be_mounted(volumes: list[object], tmp_path: Path) -> None:
    place = Place(str(tmp_path), (str(tmp_path / "agent"),))
    kinds = {"data": None, "share": {"driver_opts": {"type": "nfs", "o": "addr=10.0.0.1", "device": ":/export"}}}
    text = json.dumps({**with_service(volumes=volumes), "volumes": kinds})
    parse_project(text, at="compose", variables={}, allow_privileged=False, place=place)


@pytest.mark.parametrize("keys", [{"volumes": ["./out:/x"]}, {"env_file": "out/environment"}], ids=str)
def test_no_link_leads_out_of_the_project(keys: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/etc")
    with pytest.raises(InvalidError, match="below the project's directory"):
        parse_project(
            json.dumps(with_service(**keys)),
            at="compose",
            variables={},
            allow_privileged=False,
            place=Place(str(tmp_path)),
        )


def test_a_project_that_stands_for_too_much_is_refused() -> None:
    names = "abcdefghijklmnop"
    lines = ["x-a: &a [1, 1]"]
    lines += [f"x-{name}: &{name} [*{before}, *{before}]" for before, name in pairwise(names)]
    with pytest.raises(InvalidError, match="must not stand for more than"):
        parse("\n".join([*lines, "services: {web: {image: a}}"]))


@pytest.mark.parametrize("text", ["a: &a [*a]", "[" * 5000, "a: 1\na: 2", f"a: {'x' * (1 << 20)}"], ids=range(4))
def test_a_hostile_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidError):
        parse(text)


def test_variables_are_replaced() -> None:
    content = with_service(image="${REPO:-r}/${IMAGE}:$TAG", command="echo $$HOME ${NOT-x${TAG}} ${TAG:+yes} ${NOT}.")
    service = parse(content, IMAGE="a", TAG="2").services["web"]
    assert service["image"] == "r/a:2"
    assert service["command"] == "echo $HOME x2 yes ."


def test_a_variable_that_is_only_named_gets_its_value() -> None:
    service = parse(with_service(environment=["A", "B=b", "MISSING"]), A="$x").services["web"]
    assert service["environment"] == {"A": "$x", "B": "b"}


def test_what_yaml_takes_for_a_number_or_a_date_stays_text() -> None:
    service = parse("services: {web: {image: a, ports: [22:80], labels: [2026-01-31]}}").services["web"]
    assert (service["ports"], service["labels"]) == (["22:80"], ["2026-01-31"])


def test_every_service_gets_labels_limits_and_no_restart_policy() -> None:
    keys = {
        "restart": "always",
        "deploy": {"restart_policy": {"condition": "any"}, "replicas": 2},
        "labels": ["mine=1"],
        "x-podman.rootfs": "/",
        "ulimits": {"nofile": 5},
    }
    web = complete(with_service(**keys))["services"]["web"]
    assert (web["restart"], web["deploy"]) == ("no", {"replicas": 2})
    assert web["labels"] == {"mine": "1", "shoal.run": "web-1"}
    assert web["environment"] == {"SHOAL_RUN_ID": "web-$$1"}
    assert (web["mem_limit"], web["cpus"], web["ulimits"]) == (str(64 << 20), "1.5", {"nofile": 5})
    assert "x-podman.rootfs" not in web


def test_a_service_keeps_the_limits_that_it_has() -> None:
    web = complete(with_service(mem_limit="16m", deploy={"resources": {"limits": {"cpus": "0.5"}}}))["services"]["web"]
    assert (web["mem_limit"], web.get("cpus")) == ("16m", None)


def test_volumes_and_networks_are_labelled_except_those_of_others() -> None:
    content = {
        "services": {"web": SERVICE},
        "volumes": {"data": None, "theirs": {"external": True}},
        "networks": {"back": {"labels": ["a=b"]}},
    }
    rendered = complete(content)
    assert rendered["volumes"] == {"data": {"labels": {"shoal.workload": "web"}}, "theirs": {"external": True}}
    assert rendered["networks"] == {
        "back": {"labels": {"a": "b", "shoal.workload": "web"}},
        "default": {"labels": {"shoal.workload": "web"}},
    }


def test_a_service_that_needs_itself_is_refused() -> None:
    """Those that need one of them do not, and two ways to one service are no circle."""
    needs = {
        "a": ["b"],
        "b": ["c"],
        "c": ["a"],
        "outside": ["a"],
        "left": ["base"],
        "right": ["base", "left"],
        "base": [],
    }
    services = {name: {**SERVICE, "depends_on": each} for name, each in needs.items()}
    with pytest.raises(InvalidError, match="must not need itself") as raised:
        parse({"services": {**services, "own": {**SERVICE, "links": ["own"]}}})
    assert {each.field for each in raised.value.problems} == {
        f"compose.services.{name}" for name in ("a", "b", "c", "own")
    }


def test_what_a_service_refers_to_is_in_the_project() -> None:
    web = {
        "depends_on": {"db": {"condition": "service_started"}},
        "links": ["db:it"],
        "volumes_from": ["db"],
        "extends": {"service": "db"},
        "pid": "service:db",
        "networks": ["default", "inner"],
        "secrets": ["key"],
        "configs": [{"source": "word"}],
        "volumes": ["data:/data", "/scratch", {"type": "tmpfs", "target": "/tmp"}, {"target": "/more"}],
    }
    parts = {"networks": {"inner": None}, "secrets": {"key": {"file": "key"}}, "configs": {"word": {"content": "x"}}}
    tool = {**SERVICE, "profiles": ["debug"]}
    services = {"web": {**SERVICE, **web}, "db": SERVICE, "debug": {**tool, "depends_on": ["tool"]}, "tool": tool}
    assert parse({"services": services, **parts, "volumes": {"data": None}}).services.keys() == {"web", "db"}


def test_a_service_with_a_profile_is_left_out() -> None:
    content = {"name": "theirs", "services": {"web": SERVICE, "debug": {**SERVICE, "profiles": ["debug"]}}}
    rendered = complete(content)
    assert list(rendered["services"]) == ["web"]
    assert "name" not in rendered


@pytest.mark.parametrize(
    ("name", "start"),
    [("shoal-n1-web", "shoal-n1-web"), ("shoal-N1-web", "shoal-n1-web-"), ("shoal-n.1-web", "shoal-n-1-web-")],
)
def test_the_name_of_a_project_fits_compose(name: str, start: str) -> None:
    assert project_name(name).startswith(start)
    assert (project_name(name) == name) == (name == start)


def test_long_names_stay_different() -> None:
    first, second = project_name(f"shoal-{'n' * 100}-a"), project_name(f"shoal-{'n' * 100}-b")
    assert first != second
    assert max(len(first), len(second)) <= 63
