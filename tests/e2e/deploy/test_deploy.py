"""What is in deploy/ fits the program: every command line, every path, every key that matters."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.agent.settings import JOIN_PORT, AgentSettings
from shoal.control.settings import ControlSettings
from shoal.core.config import load_settings
from tests.e2e.deploy.reading import (
    DEPLOY,
    ROOT,
    Instruction,
    NoCommandLineError,
    load_yaml,
    parse_command_line,
    read_dockerfile,
    read_unit,
    remarked_script,
    shell_lines,
)

pytestmark = pytest.mark.e2e

MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


# ---------------------------------------------------------------------------------------------------------
# The reader itself


def test_a_command_line_that_the_program_does_not_know_is_found_out() -> None:
    assert parse_command_line(["agent", "--node-id=n1"])["node_id"] == "n1"
    with pytest.raises(NoCommandLineError, match="No such option"):
        parse_command_line(["agent", "--no-such-flag=1"])
    with pytest.raises(NoCommandLineError, match="No such command"):
        parse_command_line(["certs", "forge"])


# ---------------------------------------------------------------------------------------------------------
# systemd


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_is_one_for_systemd(path: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    # It looks for the program, which is not installed there.
    program = Path(sys.executable).with_name("shoal")
    copy = tmp_path / path.name
    copy.write_text(path.read_text().replace("/usr/local/bin/shoal", str(program)))
    answer = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert (answer.returncode, answer.stdout + answer.stderr) == (0, "")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_the_program_and_starts_it_again(path: Path) -> None:
    service = read_unit(path)["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    parsed = parse_command_line(arguments)
    role = path.stem.removeprefix("shoal-")
    assert program.endswith("/shoal")
    assert arguments[0] == role
    assert service["Restart"] == "on-failure"
    assert parsed["config"] == f"/etc/shoal/{role}.toml"
    assert (DEPLOY / "systemd" / f"{role}.toml").exists()
    assert service["StateDirectoryMode"] == "0700"


def test_the_agents_unit_leaves_its_workloads_alone() -> None:
    service = read_unit(DEPLOY / "systemd" / "shoal-agent.service")["Service"]
    assert service["KillMode"] == "process"
    assert service["Delegate"] == "yes"
    assert service["OOMPolicy"] == "continue"
    # What would put the workloads under the rules of the agent is not set.
    assert not {"NoNewPrivileges", "ProtectHome", "PrivateTmp", "ProtectSystem", "MemoryMax", "User"} & set(service)


@pytest.mark.parametrize(("name", "settings"), [("control", ControlSettings), ("agent", AgentSettings)])
def test_the_settings_beside_a_unit_are_read(name: str, settings: type[Any], tmp_path: Path) -> None:
    path = DEPLOY / "systemd" / f"{name}.toml"
    loaded = load_settings(settings, flags={}, env={}, env_names={}, file=str(path))
    unit = read_unit(DEPLOY / "systemd" / f"shoal-{name}.service")["Service"]
    assert loaded.data_dir == f"/var/lib/{unit['StateDirectory']}"
    assert not loaded.insecure
    for given in (loaded.ca, loaded.cert, loaded.key):
        assert given.startswith(f"/etc/shoal/{name}/")
    # And so is what is commented out.
    whole = tmp_path / "whole.toml"
    whole.write_text(re.sub(r"^# (?=[a-z_]+ = )", "", path.read_text(), flags=re.MULTILINE))
    offered = load_settings(settings, flags={}, env={}, env_names={}, file=str(whole))
    if name == "control":
        assert offered.database.startswith("postgresql://")
        assert offered.advertise


def put_in_place(name: str, root: Path, owner: str) -> None:
    """Type what the remarks of a unit say, with `root` for /, but for what talks to systemd."""
    lines = [line for line in remarked_script(DEPLOY / "systemd" / name).splitlines() if line.startswith("install ")]
    script = "\n".join(lines).replace(" /etc/", f" {root}/etc/").replace("-o shoal -g shoal", owner)
    answer = subprocess.run(["sh", "-euc", script], cwd=root, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_the_user_of_the_control_plane_is_made_and_owns_its_key(tmp_path: Path) -> None:
    unit = read_unit(DEPLOY / "systemd" / "shoal-control.service")["Service"]
    program = Path(sys.executable).with_name("shoal")
    (tmp_path / "deploy").symlink_to(DEPLOY)
    for line in ("init", "issue --role control", "issue --role agent --node-id machine-1"):
        subprocess.run([program, "certs", *line.split()], cwd=tmp_path, check=True, capture_output=True)
    # Numbers in place of names: the user is one of the tree below, not of this machine.
    owner = f"-o {os.getuid()} -g {os.getgid()}"
    uid = os.getuid()
    if shutil.which("systemd-sysusers") is not None and uid == 0:
        (tmp_path / "etc").mkdir()
        command = ["systemd-sysusers", f"--root={tmp_path}", str(DEPLOY / "systemd" / "shoal.sysusers")]
        subprocess.run(command, check=True, capture_output=True)
        (made,) = [line.split(":") for line in (tmp_path / "etc" / "passwd").read_text().splitlines()]
        assert made[0] == unit["User"] == unit["Group"]
        assert made[5] == f"/var/lib/{unit['StateDirectory']}"
        assert made[6].endswith("/nologin")
        uid = int(made[2])
        owner = f"-o {uid} -g {made[3]}"
    put_in_place("shoal-control.service", tmp_path, owner)
    put_in_place("shoal-agent.service", tmp_path, owner)

    sysusers = (tmp_path / "etc/sysusers.d/shoal.conf").read_text()
    assert re.search(rf"^u {unit['User']} ", sysusers, re.MULTILINE)
    for name, settings, who in (("control", ControlSettings, uid), ("agent", AgentSettings, os.getuid())):
        assert (tmp_path / f"etc/systemd/system/shoal-{name}.service").exists()
        config = tmp_path / f"etc/shoal/{name}.toml"
        loaded = load_settings(settings, flags={}, env={}, env_names={}, file=str(config))
        for file in (loaded.ca, loaded.cert, loaded.key):
            found = (tmp_path / file.removeprefix("/")).stat()
            assert (found.st_uid, found.st_mode & 0o777) == (who, 0o400), file
        assert config.stat().st_mode & 0o077 == 0, "there may be a key in it"
        assert config.stat().st_uid == who


# ---------------------------------------------------------------------------------------------------------
# compose


def test_the_compose_file_hangs_together() -> None:
    (project,) = load_yaml(DEPLOY / "compose.yaml")
    services = project["services"]
    assert {"postgres", "control", "agent-1", "agent-2"} <= set(services)
    for name, service in services.items():
        for needed in service.get("depends_on", ()):
            assert needed in services, f"{name} depends on {needed}"
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in project["volumes"], f"{name}: {volume}"
        if "build" in service:
            context = (DEPLOY / service["build"]["context"]).resolve()
            assert (context / service["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert "user" not in services["control"], "the control plane needs no root"
    assert services["agent-1"]["init"] is True


def test_every_command_line_of_the_compose_file_is_one() -> None:
    (project,) = load_yaml(DEPLOY / "compose.yaml")
    parsed = {}
    for name, service in project["services"].items():
        if service.get("image") != "shoal":
            continue
        command = service["command"]
        lines = list(shell_lines(command[0])) if "entrypoint" in service else [command]
        assert lines, name
        parsed[name] = [parse_command_line(line) for line in lines]
    (control,) = parsed["control"]
    for name in ("agent-1", "agent-2"):
        (agent,) = parsed[name]
        assert agent["control"] == control["advertise"]
        assert agent["node_id"] == name
    issued = {(each["role"].value, each["node_id"]) for each in parsed["certificates"] if "role" in each}
    assert issued == {("control", None), ("agent", "agent-1"), ("agent", "agent-2"), ("operator", None)}


# ---------------------------------------------------------------------------------------------------------
# Kubernetes


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in MANIFESTS:
        for document in load_yaml(path):
            if "template" in document["spec"]:
                yield document["metadata"]["name"], document


def test_there_are_two_control_planes_and_an_agent_on_every_machine() -> None:
    found = dict(pods())
    assert found["shoal-control"]["kind"] == "Deployment"
    assert found["shoal-control"]["spec"]["replicas"] == 2
    assert found["shoal-control"]["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
    agents = found["shoal-agent"]
    assert agents["kind"] == "DaemonSet"
    assert agents["spec"]["template"]["spec"]["hostPID"] is True
    volumes = {each["name"]: each for each in agents["spec"]["template"]["spec"]["volumes"]}
    assert "hostPath" in volumes["data"]
    assert "secret" in volumes["certificates"]


@pytest.mark.parametrize(("name", "manifest"), list(pods()), ids=lambda value: value if isinstance(value, str) else "")
def test_a_manifest_hangs_together(name: str, manifest: dict[str, Any]) -> None:
    assert manifest["metadata"]["namespace"] == "shoal"
    template = manifest["spec"]["template"]
    assert template["metadata"]["labels"] == manifest["spec"]["selector"]["matchLabels"]
    (container,) = template["spec"]["containers"]
    env = {each["name"] for each in container["env"]}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(container["args"]))) <= env
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    for probe in ("readinessProbe", "livenessProbe"):
        if probe in container:
            assert container[probe]["httpGet"]["port"] in ports
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert set(mounts) == {each["name"] for each in template["spec"]["volumes"]}
    values = {"NODE_NAME": "machine-1", "POD_IP": "10.0.0.7"}
    arguments = [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], each) for each in container["args"]]
    parsed = parse_command_line(arguments)
    assert parsed["data_dir"] == mounts["data"]
    for flag in ("ca", "cert", "key"):
        assert parsed[flag].startswith("/etc/shoal/")
    annotations = template["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(ports["http"])


def the_service() -> dict[str, Any]:
    (service,) = [each for path in MANIFESTS for each in load_yaml(path) if each["kind"] == "Service"]
    return service


def test_agents_find_the_control_plane_by_its_service() -> None:
    service = the_service()
    found = dict(pods())
    (container,) = found["shoal-agent"]["spec"]["template"]["spec"]["containers"]
    control = parse_command_line(container["args"])["control"]
    metadata = service["metadata"]
    assert control == f"{metadata['name']}.{metadata['namespace']}.svc:{service['spec']['ports'][0]['port']}"
    assert service["spec"]["selector"] == found["shoal-control"]["spec"]["template"]["metadata"]["labels"]


def test_agents_that_join_find_the_port_for_it() -> None:
    """As the remarks have it: a token in place of the three files, and the port where the control planes let in."""
    found = dict(pods())
    (agent,) = found["shoal-agent"]["spec"]["template"]["spec"]["containers"]
    (control,) = found["shoal-control"]["spec"]["template"]["spec"]["containers"]
    arguments = [each for each in agent["args"] if not each.startswith(("--ca=", "--cert=", "--key="))]
    control_addresses = (parse_command_line(arguments)["control"],)
    (address,) = AgentSettings(data_dir="/d", control=control_addresses, join="x").join_addresses
    service = the_service()
    ports = {each["port"]: each["targetPort"] for each in service["spec"]["ports"]}
    host, _, port = address.rpartition(":")
    assert host == f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    served = parse_command_line([*control["args"], "--ca-key=/etc/shoal/ca-key.pem"])
    assert served["join_port"] is None, "it is at the usual one"
    assert int(port) == JOIN_PORT == ControlSettings(data_dir="/d").join_port
    assert {each["name"]: each["containerPort"] for each in control["ports"]}[ports[JOIN_PORT]] == JOIN_PORT


@pytest.mark.parametrize(
    "path", [*MANIFESTS, *UNITS, DEPLOY / "compose.yaml", DEPLOY / "Dockerfile"], ids=lambda p: p.name
)
def test_what_the_remarks_say_to_type_is_right(path: Path) -> None:
    remarks = "\n".join(line[1:].strip() for line in path.read_text().splitlines() if line.startswith("#"))
    inline = "\n".join(re.findall(r"`(shoal \w+ \w+ [^`]*)`", remarks))
    for words in shell_lines(f"{remarks}\n{inline}"):
        assert parse_command_line(words) is not None


# In place of kubectl: knows two machines, and writes down which files a secret was made of.
KUBECTL = """#!/bin/sh -eu
case "$*" in
  "get nodes -o name") echo node/machine-1; echo node/machine-2 ;;
  *"create secret generic"*--from-file=*) ls "${7#--from-file=}" > "secrets/$6" ;;
  *"create secret generic"*--from-literal=*) : > "secrets/$6" ;;
  *"delete secret"*) rm "secrets/$5" ;;
  "apply -f "*) test -f "$3" ;;
  "create namespace shoal") ;;
  *) echo "kubectl $*: not foreseen" >&2; exit 1 ;;
esac
"""

# Everything but what needs a control plane.
SHOAL = """#!/bin/sh -eu
[ "$1 $2" = "token create" ] || exec {program} "$@"
"""


def test_what_the_remarks_of_the_manifests_say_can_be_typed(tmp_path: Path) -> None:
    """In a shell, first those of the control plane: every folder and every file is there when it is needed."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in (("kubectl", KUBECTL), ("shoal", SHOAL.format(program=Path(sys.executable).with_name("shoal")))):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    place = tmp_path / "place"
    (place / "secrets").mkdir(parents=True)
    (place / "deploy").symlink_to(DEPLOY)
    for name in ("control.yaml", "agents.yaml"):
        answer = subprocess.run(
            ["sh", "-euc", remarked_script(DEPLOY / "kubernetes" / name)],
            cwd=place,
            env={**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
    secrets = {path.name: set(path.read_text().split()) for path in (place / "secrets").iterdir()}
    assert set(secrets) >= {"shoal-database", "shoal-secret-key", "shoal-join-token"}
    found = dict(pods())
    for name, more in (("shoal-control", ["--ca-key=/etc/shoal/ca-key.pem"]), ("shoal-agent", [])):
        pod = found[name]["spec"]["template"]["spec"]
        (secret,) = [each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each]
        given = parse_command_line([*pod["containers"][0]["args"], *more])
        for flag in ("ca", "cert", "key", "ca_key"):
            if given.get(flag):
                path = given[flag].replace("$(NODE_NAME)", "machine-2")
                assert path.removeprefix("/etc/shoal/") in secrets[secret], path


# ---------------------------------------------------------------------------------------------------------
# The image


def dockerfile() -> list[list[Instruction]]:
    """The instructions of each stage."""
    stages: list[list[Instruction]] = []
    for instruction in read_dockerfile(DEPLOY / "Dockerfile"):
        if instruction.word == "FROM":
            stages.append([])
        stages[-1].append(instruction)
    return stages


def test_the_image_is_made_from_what_is_there() -> None:
    stages = dockerfile()
    names = {stage[0].words[2] for stage in stages if len(stage[0].words) > 2}
    for stage in stages:
        assert stage[0].words[0] == "python:3.11-slim"
        for copy in (each for each in stage if each.word == "COPY"):
            if "from" in copy.flags:
                assert copy.flags["from"] in names
                continue
            for source in copy.plain[:-1]:
                assert (ROOT / source).exists(), source


def test_the_image_runs_the_program_without_root() -> None:
    final = {each.word: each for each in dockerfile()[-1]}
    users = [each.rest for each in dockerfile()[-1] if each.word == "USER"]
    assert users == ["shoal"]
    assert final["ENTRYPOINT"].words == ["shoal"]
    assert final["STOPSIGNAL"].rest == "SIGTERM"
    assert final["EXPOSE"].words == ["8085", "8084", str(JOIN_PORT), "50051"]
    assert "PID 1" in (DEPLOY / "Dockerfile").read_text()


def test_the_commands_that_build_the_image_do(tmp_path: Path) -> None:
    """The same lines with the same files, without a network: what is needed is borrowed from this environment."""
    build, final = dockerfile()
    source, wheels, home = tmp_path / "source", tmp_path / "wheels", tmp_path / "environment"
    source.mkdir()
    for copy in (each for each in build if each.word == "COPY"):
        *given, target = copy.plain
        for name in given:
            path = ROOT / name
            if path.is_dir():
                shutil.copytree(path, source / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(path, source / target)
    (make_wheel,) = [each.rest for each in build if each.word == "RUN"]
    own = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # "0" and not "1": pip reads this variable the wrong way round.
    _shell(make_wheel, wheels, cwd=source, PATH=own, PIP_NO_BUILD_ISOLATION="0", PIP_NO_INDEX="1")
    for copy in (each for each in final if each.word == "COPY" and "from" not in each.flags):
        shutil.copy(ROOT / copy.plain[0], wheels)

    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    (install,) = [each.rest for each in final if each.word == "RUN" and "pip install" in each.rest]
    fresh = f"{home / 'bin'}:{os.environ['PATH']}"
    _shell(install, wheels, cwd=tmp_path, PATH=fresh, PIP_NO_INDEX="1", PIP_NO_DEPS="1")
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    answer = subprocess.run(
        [str(home / "bin" / "shoal"), "--version"], capture_output=True, text=True, check=True, cwd=tmp_path, env={}
    )
    assert shoal.__version__ in answer.stdout


def _shell(line: str, wheels: Path, *, cwd: Path, **env: str) -> None:
    assert "/wheels" in line
    quiet = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "PYTHON"))}
    answer = subprocess.run(
        ["sh", "-euc", line.replace("/wheels", str(wheels))],
        cwd=cwd,
        env={**quiet, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
