"""A compose project as a workload: read, checked and completed. Pure; called by `shoal.runtimes.compose.runtime`.

Compose commands accept misspelled keys in silence, so they are checked here, before anything is touched. Shoal adds
labels by which an agent finds its own containers, volumes and networks, limits, and variables that tell a service who
it is. It takes away restart policies, because the agent restarts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import InvalidError, problem
from shoal.model.resources import Resources
from shoal.runtimes.compose.interpolation import escape, interpolate
from shoal.runtimes.compose.members import stop_waves
from shoal.runtimes.compose.reading import read_yaml
from shoal.runtimes.compose.rules import BOOLEANS, Place, project_problems

_MIB = 1 << 20
#: The engine's log of one container; the agent copies it into its own files.
_LOGGING = {"driver": "json-file", "options": {"max-size": "10m"}}


@dataclass(frozen=True, slots=True)
class Project:
    """A checked project: no variable is left in it."""

    content: Mapping[str, Any]
    #: Of a project from a repository: the commit, and the files and directories that it has.
    commit: str = ""
    tracked: frozenset[str] = frozenset()

    @property
    def services(self) -> Mapping[str, Mapping[str, Any]]:
        """The services that are started: those without a profile."""
        return {name: service for name, service in self.content["services"].items() if not service.get("profiles")}

    @property
    def images(self) -> tuple[tuple[str, str], ...]:
        """Image and pull policy of each service that is not built."""
        wanted = {
            (str(service["image"]), str(service.get("pull_policy") or "missing"))
            for service in self.services.values()
            if service.get("image") and not service.get("build")
        }
        return tuple(sorted(wanted))

    @property
    def is_built(self) -> bool:
        """Whether a service has to be built."""
        return any(service.get("build") for service in self.services.values())

    @property
    def stop_waves(self) -> tuple[tuple[str, ...], ...]:
        """The services in the order in which they are stopped."""
        return stop_waves(self.services)

    @property
    def stop_signals(self) -> dict[str, str]:
        """The signal that stops a service, of those that have one of their own."""
        return {name: str(each["stop_signal"]) for name, each in self.services.items() if each.get("stop_signal")}


@dataclass(frozen=True, slots=True)
class Additions:
    """What is added to every service of one run."""

    #: On every service; `shared_labels` also on volumes and networks, where only those of the owner and workload fit.
    labels: Mapping[str, str]
    shared_labels: Mapping[str, str]
    environment: Mapping[str, str]
    limits: Resources = Resources()
    #: Where a service has none: engines pass on those of their own service, which a sandbox may refuse.
    ulimits: Mapping[str, tuple[int, int]] | None = None


def parse_project(
    text: str, *, at: str, variables: Mapping[str, str], allow_privileged: bool, place: Place | None = None
) -> Project:
    """Read a compose file and replace its variables. Raises `InvalidError` with every rule that it breaks."""
    loaded = read_yaml(text, at=at)
    content = _replaced(loaded, variables, at)
    problems = list(project_problems(content, at, place or Place(), allow_privileged=allow_privileged))
    if problems or not isinstance(content, dict):
        raise InvalidError(problems)
    plain = {key: value for key, value in content.items() if not key.startswith("x-")}
    plain["services"] = {
        name: _with_values(
            {key: value for key, value in service.items() if not key.startswith("x-")}, variables=variables
        )
        for name, service in plain["services"].items()
    }
    project = Project(plain)
    if not project.services:
        raise InvalidError([problem(f"{at}.services", None, "must have a service without a profile")])
    return project


def render(project: Project, additions: Mapping[str, Additions]) -> dict[str, Any]:
    """The project as the compose command gets it. `additions` has an entry for each service that is started."""
    shared = next(iter(additions.values())).shared_labels
    services = {name: _completed(project.services[name], added) for name, added in additions.items()}
    rendered: dict[str, Any] = {
        key: value for key, value in project.content.items() if key not in ("name", "version", "services")
    }
    volumes = {name: _labelled(value, shared) for name, value in (rendered.get("volumes") or {}).items()}
    networks = {name: _labelled(value, shared) for name, value in (rendered.get("networks") or {}).items()}
    networks.setdefault("default", {"labels": dict(shared)})
    rendered.update({"services": services, "networks": networks})
    if volumes:
        rendered["volumes"] = volumes
    return {key: _escaped(value) for key, value in rendered.items()}


def project_name(name: str) -> str:
    """A project's name in the letters that compose commands accept. Two names never become one."""
    plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_") else "-" for letter in name)
    plain = plain.lower()
    if plain == name and len(plain) <= 63:
        return plain
    return f"{plain[:54]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _replaced(value: object, variables: Mapping[str, str], at: str) -> object:
    """`value` with the variables of every text in it replaced, and copied: aliases share nothing afterwards."""
    if isinstance(value, str):
        return interpolate(value, variables, at=at) if "$" in value else value
    if isinstance(value, dict):
        return {key: _replaced(each, variables, f"{at}.{key}") for key, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each, variables, f"{at}[{index}]") for index, each in enumerate(value)]
    return value


def _with_values(service: dict[str, Any], *, variables: Mapping[str, str]) -> dict[str, Any]:
    """Variables that a service only names get their values, and texts that stand for true or false become that."""
    environment = service.get("environment") or {}
    if isinstance(environment, list):
        pairs = [str(each).partition("=") for each in environment]
        environment = {name: value if found else None for name, found, value in pairs}
    values = {
        str(name): variables.get(str(name)) if value is None else _plain(value) for name, value in environment.items()
    }
    for key in BOOLEANS & service.keys():
        if isinstance(service[key], str):
            service[key] = service[key].strip().lower() == "true"
    if isinstance(service.get("extends"), str):
        service["extends"] = {"service": service["extends"]}
    return {**service, "environment": {name: value for name, value in values.items() if value is not None}}


def _completed(service: Mapping[str, Any], added: Additions) -> dict[str, Any]:
    completed = dict(service)
    labels = completed.get("labels") or {}
    if isinstance(labels, list):
        labels = {name: value for name, _, value in (str(each).partition("=") for each in labels)}
    completed["labels"] = {**{str(name): _plain(value) for name, value in labels.items()}, **added.labels}
    completed["environment"] = {**completed["environment"], **added.environment}
    completed["restart"] = "no"
    completed["logging"] = _LOGGING
    completed.pop("profiles", None)
    deploy = dict(completed.get("deploy") or {})
    deploy.pop("restart_policy", None)
    given = dict((deploy.get("resources") or {}).get("limits") or {})
    if added.limits.memory_mb and not given.get("memory") and not completed.get("mem_limit"):
        completed["mem_limit"] = str(added.limits.memory_mb * _MIB)
    if added.limits.cpu_millicores and not given.get("cpus") and not completed.get("cpus"):
        completed["cpus"] = str(added.limits.cpu_millicores / 1000)
    if deploy:
        completed["deploy"] = deploy
    if added.ulimits:
        defaults = {name: {"soft": soft, "hard": hard} for name, (soft, hard) in added.ulimits.items()}
        completed["ulimits"] = {**defaults, **(completed.get("ulimits") or {})}
    return completed


def _labelled(value: Any, labels: Mapping[str, str]) -> Any:
    """A volume or network with labels; one that belongs to somebody else stays as it is."""
    if isinstance(value, Mapping) and value.get("external"):
        return value
    given = (value or {}).get("labels") or {}
    if isinstance(given, list):
        given = {name: text for name, _, text in (str(each).partition("=") for each in given)}
    return {**(value or {}), "labels": {**given, **labels}}


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Mapping):
        return {escape(str(key)): _escaped(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_escaped(each) for each in value]
    return value


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
