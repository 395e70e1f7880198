"""What a guest is configured with at its first boot, as the parts of a cloud-init seed. Pure.

The user's own parts are kept. User-data gets a part of ours when disks are to be mounted: both become one multi-part
document, and cloud-init appends our lists to the user's. Meta-data gets what the guest should know about itself;
network-config is made from the spec's addresses unless the user has written one. Called by
`shoal.runtimes.vm.runtime`.
"""

from __future__ import annotations

import email.errors
import email.message
import email.policy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from typing import Any

import yaml

from shoal.model.workloads import CloudInit, FailureReason
from shoal.runtimes.base import RunError
from shoal.runtimes.vm.command_line import GuestNetwork, user_network

#: All parts together, as the contract says.
MAX_BYTES = 256 * 1024
#: The names that cloud-init looks for.
USER_DATA, META_DATA, NETWORK_CONFIG, VENDOR_DATA = "user-data", "meta-data", "network-config", "vendor-data"
_CLOUD_CONFIG = "#cloud-config"
#: How our part is merged into the user's: lists are appended, everything else stays as the user has it.
_MERGE = [{"name": "list", "settings": ["append"]}, {"name": "dict", "settings": ["no_replace", "recurse_list"]}]
_BOUNDARY = "=====shoal-user-data====="


@dataclass(frozen=True, slots=True)
class GuestMount:
    """A disk that the guest makes a file system on, once, and mounts."""

    #: As in `GuestDisk.serial`.
    serial: str
    mount_point: str
    file_system: str = "ext4"
    read_only: bool = False
    #: It has no file system yet: a blank disk.
    is_blank: bool = True


def seed_parts(
    given: CloudInit | None,
    *,
    workload_id: str,
    mounts: Sequence[GuestMount],
    networks: Sequence[GuestNetwork],
    identity: Mapping[str, str],
) -> dict[str, str]:
    """The parts of the seed; empty when there is nothing to configure. Raises `RunError` for parts that are wrong."""
    given_parts = _checked(given or CloudInit())
    network_config = given_parts[NETWORK_CONFIG] or _network_config(networks)
    if given is None and not mounts and not network_config:
        return {}
    parts = {
        USER_DATA: _user_data(given_parts[USER_DATA], mounts),
        NETWORK_CONFIG: network_config,
        VENDOR_DATA: given_parts[VENDOR_DATA],
    }
    # The id changes with what is configured, so an update configures the guest again and a restart does not.
    digest = hashlib.sha256(repr((sorted(parts.items()), given_parts[META_DATA])).encode()).hexdigest()
    meta = {
        "instance-id": f"{workload_id}-{digest[:12]}",
        "local-hostname": workload_id.replace("_", "-").replace(".", "-"),
        **(_mapping(META_DATA, given_parts[META_DATA]) or {}),
        "shoal": dict(identity),
    }
    parts[META_DATA] = json.dumps(meta, indent=1)
    return {name: text for name, text in parts.items() if text or name == USER_DATA}


def _checked(given: CloudInit) -> dict[str, str]:
    parts = {
        USER_DATA: given.user_data,
        META_DATA: given.meta_data,
        NETWORK_CONFIG: given.network_config,
        VENDOR_DATA: given.vendor_data,
    }
    size = sum(len(text.encode()) for text in parts.values())
    if size > MAX_BYTES:
        raise _invalid("cloud_init", f"has {size} bytes; all parts together must not be larger than {MAX_BYTES} bytes")
    for name in (META_DATA, NETWORK_CONFIG):
        _mapping(name, parts[name])
    for name in (USER_DATA, VENDOR_DATA):
        if parts[name].startswith(_CLOUD_CONFIG):
            _mapping(name, parts[name])
    return parts


def _mapping(name: str, text: str) -> dict[str, Any] | None:
    """A part that has to be a YAML mapping; None when it is empty."""
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise _invalid(name, f"is not YAML: {' '.join(str(error).split())}") from error
    if found is None:
        return None
    if not isinstance(found, dict):
        raise _invalid(name, "must be a YAML mapping")
    return found


def _user_data(given: str, mounts: Sequence[GuestMount]) -> str:
    if not mounts:
        return given
    ours = f"{_CLOUD_CONFIG}\n{yaml.safe_dump(_mount_config(mounts), sort_keys=False)}"
    if not given.strip():
        return ours
    document = _multipart(given)
    document.attach(_text_part(ours, "text/cloud-config"))
    return document.as_string(policy=email.policy.compat32.clone(max_line_length=0))


def _multipart(given: str) -> MIMEMultipart:
    """The user's data as a document that parts can be added to."""
    document = MIMEMultipart(boundary=_BOUNDARY)
    if given.lstrip().lower().startswith(("content-type: multipart", "mime-version:")):
        parsed = email.message_from_string(given)
        if not parsed.is_multipart():
            raise _invalid(USER_DATA, "is not a multi-part document, though it begins like one")
        for part in parsed.get_payload():
            if isinstance(part, email.message.Message):
                document.attach(part)
    else:
        # cloud-init finds out by the first line what a part of plain text is.
        document.attach(_text_part(given, "text/plain"))
    return document


def _text_part(text: str, content_type: str) -> MIMEText:
    part = MIMEText(text, content_type.partition("/")[2], "utf-8")
    del part["MIME-Version"]
    return part


def _mount_config(mounts: Sequence[GuestMount]) -> dict[str, Any]:
    devices = {mount.serial: f"/dev/disk/by-id/virtio-{mount.serial}" for mount in mounts}
    config: dict[str, Any] = {
        "fs_setup": [
            {"device": devices[mount.serial], "filesystem": mount.file_system, "partition": "none", "overwrite": False}
            for mount in mounts
            if mount.is_blank
        ],
        "mounts": [
            [
                *(devices[mount.serial], mount.mount_point, mount.file_system if mount.is_blank else "auto"),
                *("ro,nofail" if mount.read_only else "defaults,nofail", "0", "2"),
            ]
            for mount in mounts
        ],
    }
    return {**{name: value for name, value in config.items() if value}, "merge_how": _MERGE}


def _network_config(networks: Sequence[GuestNetwork]) -> str:
    """Version 1 of the format, which every cloud-init and every renderer knows. Empty: the guest decides."""
    config = []
    for network in networks:
        subnets: list[dict[str, Any]] = []
        if network.address is not None:
            static: dict[str, Any] = {
                "type": "static6" if network.address.version == 6 else "static",
                "address": str(network.address),
            }
            if not network.bridge and not network.tap and network.address.version == 4:
                found = user_network(network)
                static |= {"gateway": str(found.gateway), "dns_nameservers": [str(found.name_server)]}
            subnets.append(static)
        if network.dhcp:
            subnets.append({"type": "dhcp"})
        if subnets:
            config.append({"type": "physical", "name": network.name, "mac_address": network.mac, "subnets": subnets})
    return yaml.safe_dump({"version": 1, "config": config}, sort_keys=False) if config else ""


def _invalid(part: str, rule: str) -> RunError:
    return RunError(f"{part} {rule}", failure=FailureReason.INVALID_SPEC)
