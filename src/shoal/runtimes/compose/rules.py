"""The rules of a compose project. Pure; called by `shoal.runtimes.compose.project`.

Two kinds: a project has to be one (known keys, shapes, bounds), and without `--allow-privileged` it may not reach the
host beyond what a container of its own can (namespaces of the host, capabilities, devices, files of the machine).
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from shoal.core.errors import Problem, problem

MAX_SERVICES = 100
MAX_REPLICAS = 100
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_TOP_KEYS = frozenset({"name", "version", "services", "networks", "volumes", "configs", "secrets"})
# fmt: off
_SERVICE_KEYS = frozenset((
    "annotations", "attach", "blkio_config", "build", "cap_add", "cap_drop", "cgroup", "cgroup_parent", "command",
    "configs", "container_name", "cpu_count", "cpu_percent", "cpu_period", "cpu_quota", "cpu_rt_period",
    "cpu_rt_runtime", "cpu_shares", "cpus", "cpuset", "credential_spec", "depends_on", "deploy", "develop",
    "device_cgroup_rules", "devices", "dns", "dns_opt", "dns_search", "domainname", "entrypoint", "env_file",
    "environment", "expose", "extends", "external_links", "extra_hosts", "gpus", "group_add", "healthcheck",
    "hostname", "image", "init", "ipc", "isolation", "labels", "links", "logging", "mac_address", "mem_limit",
    "mem_reservation", "mem_swappiness", "memswap_limit", "network_mode", "networks", "oom_kill_disable",
    "oom_score_adj", "pid", "pids_limit", "platform", "ports", "privileged", "profiles", "pull_policy", "read_only",
    "restart", "runtime", "scale", "secrets", "security_opt", "shm_size", "stdin_open", "stop_grace_period",
    "stop_signal", "storage_opt", "sysctls", "tmpfs", "tty", "ulimits", "user", "userns_mode", "uts", "volumes",
    "volumes_from", "working_dir",
))
#: What the value of a key may be; keys that are not here are left to the compose command.
_SHAPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("build", "command", "entrypoint", "env_file", "extends", "tmpfs", "dns"), (str, list, dict)),
    **dict.fromkeys(("environment", "labels", "networks", "depends_on", "sysctls", "annotations"), (list, dict)),
    **dict.fromkeys(("cap_add", "cap_drop", "configs", "devices", "device_cgroup_rules", "expose", "external_links",
                     "group_add", "links", "ports", "profiles", "secrets", "security_opt", "volumes", "volumes_from"),
                    (list,)),
    **dict.fromkeys(("deploy", "healthcheck", "logging", "ulimits"), (dict,)),
    **dict.fromkeys(("container_name", "hostname", "image", "network_mode", "pid", "ipc", "userns_mode", "uts",
                     "cgroup", "cgroup_parent", "pull_policy", "runtime", "working_dir"), (str,)),
}
_SHAPE_NAMES: Mapping[type, str] = {str: "text", list: "a list", dict: "a mapping"}
#: Keys whose value is true or false. A variable may have stood there, so a text is accepted.
BOOLEANS = frozenset({"init", "oom_kill_disable", "privileged", "read_only", "stdin_open", "tty"})
# fmt: on
#: Reach the host or another container, whatever the value is.
_HOST_KEYS = (
    *("cap_add", "cgroup_parent", "credential_spec", "device_cgroup_rules", "devices", "gpus", "oom_kill_disable"),
    *("privileged", "runtime", "security_opt", "sysctls", "oom_score_adj", "external_links"),
)
#: Reach it with some values.
_NAMESPACE_KEYS = ("cgroup", "ipc", "network_mode", "pid", "userns_mode", "uts")
_HOST_PATHS = ("/boot", "/dev", "/proc", "/run", "/sys", "/var/lib/containers", "/var/lib/docker", "/var/run")
_ALLOW = "this agent does not allow it (--allow-privileged)"


def project_problems(content: object, at: str, *, allow_privileged: bool) -> Iterator[Problem]:
    """Every rule that a project breaks."""
    if not isinstance(content, dict):
        yield problem(at, None, "must be a mapping with the key services")
        return
    yield from _key_problems(content, _TOP_KEYS, at)
    for kind in ("networks", "volumes", "configs", "secrets"):
        yield from _part_problems(content.get(kind), f"{at}.{kind}", allow_privileged=allow_privileged)
    services = content.get("services")
    if not isinstance(services, dict) or not services:
        yield problem(f"{at}.services", None, "must have at least one service")
        return
    if len(services) > MAX_SERVICES:
        yield problem(f"{at}.services", len(services), f"must not be more than {MAX_SERVICES}")
        return
    for name, service in services.items():
        where = f"{at}.services.{name}"
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            yield problem(where, name, "must be letters, digits, dots, dashes or underscores, at most 63")
        if not isinstance(service, dict):
            yield problem(where, None, "must be a mapping")
            continue
        yield from _service_problems(service, where, services)
        if not allow_privileged:
            yield from _host_problems(service, where)


def _key_problems(value: dict[Any, Any], known: frozenset[str], at: str) -> Iterator[Problem]:
    for key in value:
        if not isinstance(key, str):
            yield problem(at, key, "must be text where a key is expected")
        elif key == "include":
            yield problem(f"{at}.include", None, "is not supported: an included file is not checked")
        elif key not in known and not key.startswith("x-"):
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            yield problem(f"{at}.{key}", None, f"is not a key of compose files{hint}")


def _part_problems(parts: object, at: str, *, allow_privileged: bool) -> Iterator[Problem]:
    """Rules of the networks, volumes, configs and secrets of a project."""
    if parts is None:
        return
    if not isinstance(parts, dict):
        yield problem(at, None, "must be a mapping")
        return
    for name, part in parts.items():
        where = f"{at}.{name}"
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            yield problem(where, name, "must be letters, digits, dots, dashes or underscores, at most 63")
        if part is not None and not isinstance(part, dict):
            yield problem(where, None, "must be a mapping")
        elif part and not allow_privileged:
            options = part.get("driver_opts")
            if isinstance(options, dict) and options.get("device"):
                yield from _path_problems(options["device"], f"{where}.driver_opts.device", is_bind=True)
            if part.get("file"):
                yield from _path_problems(part["file"], f"{where}.file", is_bind=False)


def _service_problems(service: dict[str, Any], at: str, services: dict[str, Any]) -> Iterator[Problem]:
    yield from _key_problems(service, _SERVICE_KEYS, at)
    for key, kinds in _SHAPES.items():
        if service.get(key) is not None and not isinstance(service[key], kinds):
            names = " or ".join(_SHAPE_NAMES[kind] for kind in kinds)
            yield problem(f"{at}.{key}", None, f"must be {names}")
    for key in BOOLEANS:
        value = service.get(key)
        if value is not None and not isinstance(value, bool) and str(value).strip().lower() not in ("true", "false"):
            yield problem(f"{at}.{key}", value, "must be true or false")
    if not service.get("image") and not service.get("build") and not service.get("extends"):
        yield problem(at, None, "must have an image or a build")
    extends = service.get("extends")
    if isinstance(extends, dict) and extends.get("file"):
        yield problem(f"{at}.extends.file", None, "is not supported: the other file is not checked")
    elif extends:
        parent = extends.get("service") if isinstance(extends, dict) else extends
        if parent not in services:
            yield problem(f"{at}.extends", parent, "must name a service of this project")
    needed = service.get("depends_on") or ()
    for name in needed if isinstance(needed, list | dict) else ():
        if not isinstance(name, str) or name not in services:
            yield problem(f"{at}.depends_on", name, "must name a service of this project")
    deploy = service.get("deploy")
    replicas = service.get("scale") or (deploy.get("replicas") if isinstance(deploy, dict) else None)
    if replicas is not None and not (str(replicas).isdecimal() and int(replicas) <= MAX_REPLICAS):
        yield problem(f"{at}.scale", replicas, f"must be a number up to {MAX_REPLICAS}")


def _host_problems(service: dict[str, Any], at: str) -> Iterator[Problem]:
    for key in _HOST_KEYS:
        value = service.get(key)
        if value and str(value).strip().lower() != "false":
            yield problem(f"{at}.{key}", None, _ALLOW)
    for key in _NAMESPACE_KEYS:
        value = str(service.get(key) or "")
        if value == "host" or value.startswith(("container:", "ns:")):
            yield problem(f"{at}.{key}", value, _ALLOW)
    for index, mount in enumerate(_list(service, "volumes")):
        source = _bind_source(mount)
        if source:
            yield from _path_problems(source, f"{at}.volumes[{index}]", is_bind=True)
    for index, each in enumerate(_list(service, "volumes_from")):
        if str(each).startswith("container:"):
            yield problem(f"{at}.volumes_from[{index}]", each, _ALLOW)
    yield from _file_problems(service, at)


def _file_problems(service: dict[str, Any], at: str) -> Iterator[Problem]:
    """Rules of the files that a compose command reads."""
    files = service.get("env_file") or []
    for each in files if isinstance(files, list) else [files]:
        yield from _path_problems(each.get("path") if isinstance(each, dict) else each, f"{at}.env_file", is_bind=False)
    build = service.get("build")
    if isinstance(build, str):
        build = {"context": build}
    if isinstance(build, dict):
        for key in ("context", "dockerfile"):
            if build.get(key):
                yield from _path_problems(build[key], f"{at}.build.{key}", is_bind=False)
        if build.get("privileged") or build.get("entitlements") or build.get("additional_contexts") or build.get("ssh"):
            yield problem(f"{at}.build", None, _ALLOW)


def _path_problems(path: object, at: str, *, is_bind: bool) -> Iterator[Problem]:
    """Rules of a path of the machine: files are below the project, a bind may not show the machine itself."""
    text = str(path)
    if ".." in text.split("/") or text.startswith("~"):
        yield problem(at, text, f"must be below the project's directory, or an absolute path; {_ALLOW}")
    elif text.startswith("/"):
        normal = posixpath.normpath(text)
        if not is_bind:
            yield problem(at, text, f"must be below the project's directory; {_ALLOW}")
        elif normal.strip("/") == "" or any(normal == each or normal.startswith(f"{each}/") for each in _HOST_PATHS):
            yield problem(at, text, _ALLOW)


def _bind_source(mount: object) -> str:
    """The path of the machine that a mount shows; empty for a volume."""
    if isinstance(mount, dict):
        return str(mount.get("source") or "") if mount.get("type", "volume") == "bind" else ""
    source, found, _ = str(mount).partition(":")
    return source if found and source.startswith((".", "/", "~")) else ""


def _list(service: dict[str, Any], key: str) -> list[Any]:
    value = service.get(key)
    return value if isinstance(value, list) else []
