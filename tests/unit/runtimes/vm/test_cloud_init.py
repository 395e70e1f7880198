"""The parts of a cloud-init seed."""

from __future__ import annotations

import contextlib
import email
import ipaddress
import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.workloads import CloudInit, FailureReason
from shoal.runtimes.base import RunError
from shoal.runtimes.vm.cloud_init import GuestMount, seed_parts
from shoal.runtimes.vm.command_line import GuestNetwork

MAC = "52:54:00:00:00:01"
DATA = GuestMount("disk1", "/data")


def parts(given: CloudInit | None = None, **fields: Any) -> dict[str, str]:
    networks = fields.pop("networks", (GuestNetwork(MAC),))
    options = {"workload_id": "web_1", "mounts": (), "identity": {"SHOAL_RUN_ID": "r"}, **fields}
    return seed_parts(given, networks=networks, **options)


def test_a_guest_that_asks_for_nothing_has_no_seed() -> None:
    assert parts() == {}


def test_user_data_alone_is_kept_to_the_letter() -> None:
    text = "#!/bin/sh\necho 'as it is'\n"
    assert parts(CloudInit(user_data=text))["user-data"] == text


def test_meta_data_has_an_id_a_name_and_the_identity() -> None:
    meta = json.loads(parts(CloudInit())["meta-data"])
    assert meta["local-hostname"] == "web-1"
    assert meta["shoal"] == {"SHOAL_RUN_ID": "r"}
    given_meta = json.loads(parts(CloudInit(meta_data="instance-id: mine\ncolor: green"))["meta-data"])
    assert (given_meta["instance-id"], given_meta["color"]) == ("mine", "green")


def test_the_id_changes_with_the_configuration_and_not_with_the_run() -> None:
    ids = [
        json.loads(parts(CloudInit(user_data=text), identity={"SHOAL_RUN_ID": run})["meta-data"])["instance-id"]
        for text, run in (("a", "r1"), ("a", "r2"), ("b", "r1"))
    ]
    assert ids[0] == ids[1] != ids[2]


def test_a_mount_without_user_data_is_plain_cloud_config() -> None:
    text = parts(mounts=(DATA,))["user-data"]
    assert text.startswith("#cloud-config\n")
    config = yaml.safe_load(text)
    device = "/dev/disk/by-id/virtio-disk1"
    assert config["fs_setup"] == [{"device": device, "filesystem": "ext4", "partition": "none", "overwrite": False}]
    assert config["mounts"] == [[device, "/data", "ext4", "defaults,nofail", "0", "2"]]


def test_a_disk_with_an_image_is_mounted_as_it_is() -> None:
    mount = GuestMount("disk1", "/data", read_only=True, is_blank=False)
    config = yaml.safe_load(parts(mounts=(mount,))["user-data"])
    assert "fs_setup" not in config
    assert config["mounts"][0][2:4] == ["auto", "ro,nofail"]


MULTIPART = """\
Content-Type: multipart/mixed; boundary="B"
MIME-Version: 1.0

--B
Content-Type: text/x-shellscript

#!/bin/sh
echo one
--B
Content-Type: text/cloud-config

#cloud-config
packages: [curl]
--B--
"""


@pytest.mark.parametrize(
    ("user_data", "expected"),
    [
        ("#cloud-config\nmounts: [[a, b]]\n", ["#cloud-config\nmounts: [[a, b]]\n"]),
        ("#!/bin/sh\necho café\n", ["#!/bin/sh\necho café\n"]),
        (MULTIPART, ["#!/bin/sh\necho one", "#cloud-config\npackages: [curl]"]),
    ],
    ids=["cloud-config", "script", "multipart"],
)
def test_the_users_data_survives_beside_our_mounts(user_data: str, expected: list[str]) -> None:
    document = email.message_from_string(parts(CloudInit(user_data=user_data), mounts=(DATA,))["user-data"])
    found = [part.get_payload(decode=True).decode() for part in document.walk() if not part.is_multipart()]
    assert found[:-1] == expected
    ours = yaml.safe_load(found[-1])
    assert ours["mounts"][0][1] == "/data"
    assert ours["merge_how"][0] == {"name": "list", "settings": ["append"]}


def test_addresses_go_into_network_config() -> None:
    networks = (
        GuestNetwork(MAC, address=ipaddress.ip_interface("10.0.2.77/24")),
        GuestNetwork("52:54:00:00:00:02", bridge="br0", address=ipaddress.ip_interface("10.9.0.5/16")),
        GuestNetwork("52:54:00:00:00:03", name="lan", number=2, dhcp=True),
    )
    config = yaml.safe_load(parts(networks=networks)["network-config"])
    assert config["version"] == 1
    assert [each["mac_address"][-2:] for each in config["config"]] == ["01", "02", "03"]
    assert config["config"][2]["name"] == "lan"
    assert [each["subnets"] for each in config["config"]] == [
        [{"type": "static", "address": "10.0.2.77/24", "gateway": "10.0.2.2", "dns_nameservers": ["10.0.2.3"]}],
        [{"type": "static", "address": "10.9.0.5/16"}],
        [{"type": "dhcp"}],
    ]


def test_a_network_config_of_the_user_comes_first() -> None:
    given_parts = parts(CloudInit(network_config="version: 2\n"), networks=(GuestNetwork(MAC, dhcp=True),))
    assert given_parts["network-config"] == "version: 2\n"


@pytest.mark.parametrize(
    "given_parts",
    [
        CloudInit(user_data="#cloud-config\na: ["),
        CloudInit(user_data="#cloud-config\n- a\n"),
        CloudInit(vendor_data="#cloud-config\na: ["),
        CloudInit(meta_data="- a"),
        CloudInit(network_config="{"),
        CloudInit(user_data="x" * (256 * 1024), meta_data="a: b"),
    ],
    ids=["syntax", "no mapping", "vendor-data", "meta-data", "network-config", "size"],
)
def test_what_cloud_init_could_not_read_is_refused(given_parts: CloudInit) -> None:
    with pytest.raises(RunError) as raised:
        parts(given_parts)
    assert (raised.value.failure, raised.value.transient) == (FailureReason.INVALID_SPEC, False)


@given(
    st.text(max_size=60), st.text(max_size=60), st.sampled_from(["", "#cloud-config\n", "Content-Type: multipart\n"])
)
def test_any_text_is_taken_or_refused(user_data: str, meta_data: str, prefix: str) -> None:
    with contextlib.suppress(RunError):
        parts(CloudInit(user_data=prefix + user_data, meta_data=meta_data), mounts=(DATA,))
