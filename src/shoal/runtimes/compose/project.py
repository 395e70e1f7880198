"""The rules of a compose project, and what Shoal adds to it. Pure; called by `shoal.runtimes.compose.runtime`.

Compose commands accept misspelled keys in silence, so they are checked here, before anything is touched.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from shoal.core.errors import InvalidError, Problem, problem

MAX_SERVICES = 100
_TOP_KEYS = frozenset({"name", "version", "services", "networks", "volumes", "configs", "secrets", "include"})
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
# fmt: on


def parse_project(text: str, *, at: str, allow_privileged: bool) -> dict[str, Any]:
    """Read a compose file. Raises `InvalidError` with every rule that it breaks."""
    try:
        loaded = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidError([problem(at, None, f"must be YAML: {error}")]) from error
    problems = list(_problems(loaded, at, allow_privileged=allow_privileged))
    if problems:
        raise InvalidError(problems)
    return dict(loaded)


def override_for(project: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """What is laid over the user's file: our labels on every service, so that an agent finds what is its own."""
    return {"services": {name: {"labels": dict(labels)} for name in project["services"]}}


def service_names(project: Mapping[str, Any]) -> tuple[str, ...]:
    """The services of a project, in their order."""
    return tuple(project["services"])


def _problems(loaded: object, at: str, *, allow_privileged: bool) -> Iterator[Problem]:
    if not isinstance(loaded, dict):
        yield problem(at, None, "must be a mapping with the key services")
        return
    for key in loaded:
        if key not in _TOP_KEYS and not str(key).startswith("x-"):
            yield problem(f"{at}.{key}", None, _unknown(str(key), _TOP_KEYS))
    services = loaded.get("services")
    if not isinstance(services, dict) or not services:
        yield problem(f"{at}.services", None, "must have at least one service")
        return
    if len(services) > MAX_SERVICES:
        yield problem(f"{at}.services", len(services), f"must not be more than {MAX_SERVICES}")
        return
    for name, service in services.items():
        yield from _service_problems(service, f"{at}.services.{name}", allow_privileged=allow_privileged)


def _service_problems(service: object, at: str, *, allow_privileged: bool) -> Iterator[Problem]:
    if not isinstance(service, dict):
        yield problem(at, None, "must be a mapping")
        return
    for key in service:
        if key not in _SERVICE_KEYS and not str(key).startswith("x-"):
            yield problem(f"{at}.{key}", None, _unknown(str(key), _SERVICE_KEYS))
    if not service.get("image") and not service.get("build") and not service.get("extends"):
        yield problem(at, None, "must have an image or a build")
    if service.get("privileged") and not allow_privileged:
        yield problem(f"{at}.privileged", True, "this agent runs no privileged containers (--allow-privileged)")


def _unknown(key: str, known: frozenset[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return "is not a key of compose files" + (f"; did you mean {near[0]}?" if near else "")
