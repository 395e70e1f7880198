"""What the machine has and uses."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from shoal.agent.node.probes import (
    PROBES,
    CpuProbe,
    DiskProbe,
    Reading,
    default_node_id,
    detect_capacity,
    detect_host_id,
    make_probes,
    parse_memory,
)
from shoal.core.ids import is_identifier
from shoal.model.resources import Resources


@pytest.mark.parametrize(
    ("text", "megabytes"),
    [
        ("2048", 2048),
        ("512MB", 512),
        ("4GB", 4096),
        ("4g", 4096),
        ("4GiB", 4096),
        ("1t", 1048576),
        ("4096k", 4),
        (" 7 mb ", 7),
    ],
)
def test_amounts_of_memory(text, megabytes):
    assert parse_memory(text) == megabytes


@pytest.mark.parametrize("text", ["", "0", "lots", "-1", "4.5GB", "1kb", "9" * 13, "4XB"])
def test_what_is_no_amount_of_memory(text):
    with pytest.raises(ValueError, match="must be an amount of memory"):
        parse_memory(text)


def test_what_was_given_counts(tmp_path):
    def never():
        raise AssertionError

    found = detect_capacity(cpu=2.5, memory_mb=100, disk_gb=7, slots=3, data_dir=tmp_path, limits=never)
    assert found == Resources(2500, 100, 7, 3)


def test_what_the_cgroup_allows_comes_before_the_machine(tmp_path):
    found = detect_capacity(data_dir=tmp_path, limits=lambda: (1, 1))
    assert (found.cpu_millicores, found.memory_mb, found.slots) == (1, 1, 1)


def test_without_limits_the_machine_counts(tmp_path):
    found = detect_capacity(data_dir=tmp_path / "not" / "yet", limits=lambda: (None, None))
    assert found.cpu_millicores >= 1000
    assert found.cpu_millicores % 1000 == 0
    assert found.memory_mb > 100
    assert found.slots == found.cpu_millicores // 1000


def test_only_what_is_missing_is_found_out(tmp_path):
    found = detect_capacity(cpu=0.5, data_dir=tmp_path, limits=lambda: (9, 123))
    assert (found.cpu_millicores, found.memory_mb, found.slots) == (500, 123, 1)


def test_every_probe_reads(tmp_path):
    probes = make_probes(tmp_path)
    assert set(probes) == set(PROBES) == {"cpu", "memory", "disk"}
    for probe in probes.values():
        assert 0 <= probe.read().percent <= 100
    assert probes["memory"].read().used > 0


class Times(NamedTuple):
    user: float
    idle: float
    iowait: float
    guest: float  # part of user already


def test_the_processors_are_measured_against_the_call_before(tmp_path):
    probe = CpuProbe(tmp_path)
    probe._cores = 4
    samples = iter([Times(10, 9, 1, 5), Times(13, 9, 2, 7), Times(13, 9, 2, 7)])
    probe._times = lambda: next(samples)
    probe.read()
    assert probe.read() == Reading(percent=75.0, used=3000)
    assert probe.read() == Reading()


def test_a_disk_that_is_gone_reads_as_nothing():
    assert DiskProbe(Path("/nowhere/at/all")).read() == Reading()


def test_agents_on_one_running_machine_say_the_same(tmp_path):
    boot, machine = tmp_path / "proc/sys/kernel/random/boot_id", tmp_path / "etc/machine-id"
    boot.parent.mkdir(parents=True)
    machine.parent.mkdir()
    assert detect_host_id(tmp_path) == ""
    boot.write_text("boot-1\n")
    without = detect_host_id(tmp_path)
    machine.write_text("machine-1\n")
    first = detect_host_id(tmp_path)
    assert len({without, first}) == 2
    assert first == detect_host_id(tmp_path)
    assert "machine-1" not in first
    boot.write_text("boot-2\n")
    assert detect_host_id(tmp_path) != first


@pytest.mark.parametrize(
    ("hostname", "node_id"),
    [
        ("web-1.example.com", "web-1.example.com"),
        ("my host!", "my-host"),
        ("..", "node"),
        ("", "node"),
        ("a..b", "a.b"),
        ("x" * 300, "x" * 128),
        ("-a_", "a"),
    ],
)
def test_a_machines_name_as_a_node_id(hostname, node_id):
    assert default_node_id(hostname) == node_id
    assert is_identifier(node_id)
