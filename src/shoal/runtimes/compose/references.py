"""What the services of a project refer to has to be there. Called by `shoal.runtimes.compose.rules`.

Compose commands find out in the middle of a start, or make something of their own: a volume that carries no labels of
the workload, and so is never removed with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shoal.core.errors import Problem, problem

#: Values of keys such as `network_mode` that name a service.
_OF_A_SERVICE = "service:"
_NAMESPACE_KEYS = ("ipc", "network_mode", "pid")
_VOLUME_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def reference_problems(service: Mapping[str, Any], at: str, content: Mapping[str, Any]) -> Iterator[Problem]:
    """What a service names and the project does not have."""
    services = content["services"]
    is_started = not service.get("profiles")
    for field, name in _services_named(service):
        if name not in services:
            yield problem(f"{at}.{field}", name, "must name a service of this project")
        elif is_started and _profiles(services[name]):
            yield problem(f"{at}.{field}", name, "must name a service that is started, without a profile")
    for field, kind, name in _parts_named(service):
        known = content.get(kind)
        if not (isinstance(known, Mapping) and name in known) and (kind, name) != ("networks", "default"):
            yield problem(f"{at}.{field}", name, f"must be one of the {kind} of this project")


def cycle_problems(services: Mapping[str, Any], at: str) -> Iterator[Problem]:
    """Services that wait for themselves: nobody can start them."""
    needs = {
        str(name): {needed for _, needed in _services_named(service)} if isinstance(service, Mapping) else set()
        for name, service in services.items()
    }
    for name in needs:
        seen: set[str] = set()
        pending = [name]
        while pending and name not in seen:
            fresh = needs.get(pending.pop(), set()) - seen
            seen |= fresh
            pending += fresh
        if name in seen:
            yield problem(f"{at}.{name}", name, "must not need itself, also not by way of other services")


def _profiles(service: object) -> object:
    return service.get("profiles") if isinstance(service, Mapping) else None


def _services_named(service: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The services that a service needs, with the field that names each."""
    for name in _items(service, "depends_on"):
        yield "depends_on", str(name)
    for link in _items(service, "links"):
        yield "links", str(link).partition(":")[0]
    for each in _items(service, "volumes_from"):
        if not str(each).startswith("container:"):
            yield "volumes_from", str(each).partition(":")[0]
    extends = service.get("extends")
    if isinstance(extends, Mapping):
        if not extends.get("file"):  # which is refused
            yield "extends", str(extends.get("service"))
    elif extends:
        yield "extends", str(extends)
    for key in _NAMESPACE_KEYS:
        value = str(service.get(key) or "")
        if value.startswith(_OF_A_SERVICE):
            yield key, value.removeprefix(_OF_A_SERVICE)


def _parts_named(service: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The networks, configs, secrets and volumes that a service names: the field, the kind, and the name."""
    for name in _items(service, "networks"):
        yield "networks", "networks", str(name)
    for kind in ("configs", "secrets"):
        for each in _items(service, kind):
            yield kind, kind, str(each.get("source") if isinstance(each, Mapping) else each)
    for index, mount in enumerate(_items(service, "volumes")):
        if name := _volume_of(mount):
            yield f"volumes[{index}]", "volumes", name


def _items(service: Mapping[str, Any], key: str) -> Iterable[Any]:
    """What a key has; nothing for a value of another shape, which is a problem of its own."""
    value = service.get(key)
    return value if isinstance(value, list | Mapping) else ()


def _volume_of(mount: object) -> str:
    """The volume of a mount; empty for a directory of the node, and for a volume without a name."""
    if isinstance(mount, Mapping):
        name = str(mount.get("source") or "") if (mount.get("type") or "volume") == "volume" else ""
    else:
        source, found, _ = str(mount).partition(":")
        name = source if found else ""
    return name if _VOLUME_NAME.fullmatch(name) else ""
