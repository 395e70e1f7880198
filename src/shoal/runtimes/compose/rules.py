"""The rules of a compose project. Called by `shoal.runtimes.compose.project`. Only links are looked up on disk.

Two kinds: a project has to be one (known keys, shapes, bounds), and without `--allow-privileged` it may not reach the
host beyond what a container of its own can (namespaces of the host, capabilities, devices, files of the machine).
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import Problem, problem
from shoal.runtimes.compose.references import cycle_problems, reference_problems
from shoal.runtimes.host_paths import is_protected

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
_MOUNT_KEYS = frozenset({"type", "source", "target", "read_only", "consistency", "bind", "volume", "tmpfs"})
_MOUNT_TYPES = ("bind", "tmpfs", "volume")
#: File systems that a volume of the driver `local` may have; the first three can be a directory of the machine.
_VOLUME_TYPES = ("", "none", "bind", "tmpfs", "nfs", "nfs4", "cifs")
_BIND_TYPES = _VOLUME_TYPES[:3]
_ALLOW = "this agent does not allow it (--allow-privileged)"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a project lies: its directory, and the paths that its agent protects besides those of every machine."""

    folder: str = ""
    protected: tuple[str, ...] = ()


def project_problems(content: object, at: str, place: Place, *, allow_privileged: bool) -> Iterator[Problem]:
    """Every rule that a project breaks."""
    if not isinstance(content, dict):
        yield problem(at, None, "must be a mapping with the key services")
        return
    yield from _key_problems(content, _TOP_KEYS, at)
    for kind in ("networks", "volumes", "configs", "secrets"):
        yield from _part_problems(content.get(kind), f"{at}.{kind}", place, allow_privileged=allow_privileged)
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
        yield from reference_problems(service, where, content)
        if not allow_privileged:
            yield from _host_problems(service, where, place)
    yield from cycle_problems(services, f"{at}.services")


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


def _part_problems(parts: object, at: str, place: Place, *, allow_privileged: bool) -> Iterator[Problem]:
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
            if at.endswith(".volumes"):
                yield from _volume_problems(part, where, place)
            if part.get("file"):
                yield from _path_problems(part["file"], f"{where}.file", place, is_bind=False)


def _volume_problems(volume: dict[str, Any], at: str, place: Place) -> Iterator[Problem]:
    """Rules of a volume of the project: it is the engine's own, or a directory that a bind may show."""
    external = volume.get("external")
    for name in (volume.get("name"), external.get("name") if isinstance(external, dict) else None):
        if name and _NAME.fullmatch(str(name)) is None:
            yield problem(f"{at}.name", name, f"must be the name of a volume; {_ALLOW}")
    if volume.get("driver") not in (None, "", "local"):
        yield problem(f"{at}.driver", volume["driver"], f"must be local; {_ALLOW}")
    options = volume.get("driver_opts") or {}
    if not isinstance(options, dict) or not options.keys() <= {"type", "device", "o"}:
        yield problem(f"{at}.driver_opts", None, f"must have the keys type, device and o alone; {_ALLOW}")
        return
    kind, device = str(options.get("type") or ""), str(options.get("device") or "")
    if kind not in _VOLUME_TYPES:
        yield problem(f"{at}.driver_opts.type", kind, f"must be one of {', '.join(_VOLUME_TYPES[1:])}; {_ALLOW}")
    is_bind = kind in _BIND_TYPES or any("bind" in word for word in str(options.get("o") or "").split(","))
    if (device.startswith("/") or (device and is_bind)) and is_protected(device, place.protected):
        yield problem(f"{at}.driver_opts.device", device, _ALLOW)


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
    deploy = service.get("deploy")
    replicas = service.get("scale") or (deploy.get("replicas") if isinstance(deploy, dict) else None)
    if replicas is not None and not (str(replicas).isdecimal() and int(replicas) <= MAX_REPLICAS):
        yield problem(f"{at}.scale", replicas, f"must be a number up to {MAX_REPLICAS}")


def _host_problems(service: dict[str, Any], at: str, place: Place) -> Iterator[Problem]:
    for key in _HOST_KEYS:
        value = service.get(key)
        if value and str(value).strip().lower() != "false":
            yield problem(f"{at}.{key}", None, _ALLOW)
    if str(service.get("image") or "").startswith("-"):  # a command would take it for an option
        yield problem(f"{at}.image", service["image"], f"must be the name of an image; {_ALLOW}")
    for key in _NAMESPACE_KEYS:
        value = str(service.get(key) or "")
        if value == "host" or value.startswith(("container:", "ns:")):
            yield problem(f"{at}.{key}", value, _ALLOW)
    for index, mount in enumerate(_list(service, "volumes")):
        yield from _mount_problems(mount, f"{at}.volumes[{index}]", place)
    for index, each in enumerate(_list(service, "volumes_from")):
        if str(each).startswith("container:"):
            yield problem(f"{at}.volumes_from[{index}]", each, _ALLOW)
    yield from _file_problems(service, at, place)


def _mount_problems(mount: object, at: str, place: Place) -> Iterator[Problem]:
    """Rules of a mount of a service, in its long or its short form."""
    if isinstance(mount, dict):
        kind, source = str(mount.get("type") or "volume"), str(mount.get("source") or "")
        if kind not in _MOUNT_TYPES:
            yield problem(f"{at}.type", kind, f"must be one of {', '.join(_MOUNT_TYPES)}; {_ALLOW}")
            return
        # Commands join the fields with commas and colons: one in a field would begin the next.
        if not mount.keys() <= _MOUNT_KEYS or any(each in text for text in _texts(mount) for each in ",:"):
            known = ", ".join(sorted(_MOUNT_KEYS))
            yield problem(at, None, f"must have no other keys than {known}, and no comma or colon; {_ALLOW}")
            return
    else:
        source, found, rest = str(mount).partition(":")
        if "," in source or "," in rest.partition(":")[0]:
            yield problem(at, mount, f"must have no comma in a path; {_ALLOW}")
            return
        source = source if found else ""
        kind = "bind" if source.startswith((".", "/", "~")) else "volume"
    if kind == "bind":
        yield from _path_problems(source, at, place, is_bind=True)
    elif source and _NAME.fullmatch(source) is None:
        yield problem(at, source, f"must be the name of a volume; {_ALLOW}")


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _file_problems(service: dict[str, Any], at: str, place: Place) -> Iterator[Problem]:
    """Rules of the files that a compose command reads."""
    files = service.get("env_file") or []
    for each in files if isinstance(files, list) else [files]:
        path = each.get("path") if isinstance(each, dict) else each
        yield from _path_problems(path, f"{at}.env_file", place, is_bind=False)
    build = service.get("build")
    if isinstance(build, str):
        build = {"context": build}
    if isinstance(build, dict):
        for key in ("context", "dockerfile"):
            if build.get(key):
                yield from _path_problems(build[key], f"{at}.build.{key}", place, is_bind=False)
        if build.get("privileged") or build.get("entitlements") or build.get("additional_contexts") or build.get("ssh"):
            yield problem(f"{at}.build", None, _ALLOW)


def _path_problems(path: object, at: str, place: Place, *, is_bind: bool) -> Iterator[Problem]:
    """Rules of a path of the machine: files are below the project, a bind may not show the machine itself."""
    text = str(path)
    if ".." in text.split("/") or text.startswith("~") or "\0" in text:
        yield problem(at, text, f"must be below the project's directory, or an absolute path; {_ALLOW}")
    elif not text.startswith("/"):
        folder = os.path.realpath(place.folder)
        # A service that can write there could have made a link.
        if place.folder and os.path.commonpath((folder, os.path.realpath(f"{folder}/{text}"))) != folder:
            yield problem(at, text, f"must be below the project's directory; {_ALLOW}")
    elif not is_bind:
        yield problem(at, text, f"must be below the project's directory; {_ALLOW}")
    elif is_protected(text, place.protected):
        yield problem(at, text, _ALLOW)


def _list(service: dict[str, Any], key: str) -> list[Any]:
    value = service.get(key)
    return value if isinstance(value, list) else []
