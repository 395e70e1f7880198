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
from shoal.agent.settings import AgentSettings
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


def test_agents_find_the_control_plane_by_its_service() -> None:
    (service,) = [each for path in MANIFESTS for each in load_yaml(path) if each["kind"] == "Service"]
    found = dict(pods())
    (container,) = found["shoal-agent"]["spec"]["template"]["spec"]["containers"]
    control = parse_command_line(container["args"])["control"]
    metadata = service["metadata"]
    assert control == f"{metadata['name']}.{metadata['namespace']}.svc:{service['spec']['ports'][0]['port']}"
    assert service["spec"]["selector"] == found["shoal-control"]["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize("path", [*MANIFESTS, DEPLOY / "compose.yaml", DEPLOY / "Dockerfile"], ids=lambda p: p.name)
def test_what_the_remarks_say_to_type_is_right(path: Path) -> None:
    remarks = "\n".join(line[1:].strip() for line in path.read_text().splitlines() if line.startswith("#"))
    for words in shell_lines(remarks):
        assert parse_command_line(words) is not None


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
    assert final["EXPOSE"].words == ["8085", "8084", "50051"]
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
