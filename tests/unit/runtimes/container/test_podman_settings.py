from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from shoal.runtimes.container.engine.podman_settings import EXIT_COMMAND_DELAY, merge_settings, service_settings

DEFAULTS = """
[containers]
default_ulimits = ["nofile=1024:1024"]
log_size_max = -1
[engine]
events_logger = "file"
[engine.service_destinations.own]
uri = "ssh://somewhere"
"""
MACHINE = """
[engine]
events_logger = "none"
[network]
default_subnet_pools = [{"base" = "10.89.0.0/16", "size" = 24}]
[engine.service_destinations.other]
uri = "ssh://elsewhere \\"quoted\\" \u00fc"
"""


def test_later_files_add_to_earlier_ones() -> None:
    assert tomllib.loads(merge_settings([DEFAULTS, MACHINE])) == {
        "containers": {"default_ulimits": ["nofile=1024:1024"], "log_size_max": -1},
        "engine": {
            "events_logger": "none",
            "exit_command_delay": EXIT_COMMAND_DELAY,
            "service_destinations": {
                "own": {"uri": "ssh://somewhere"},
                "other": {"uri": 'ssh://elsewhere "quoted" \u00fc'},
            },
        },
        "network": {"default_subnet_pools": [{"base": "10.89.0.0/16", "size": 24}]},
    }


def test_a_delay_that_the_machine_has_stays() -> None:
    found = tomllib.loads(merge_settings(["[engine]\nexit_command_delay = 77"]))
    assert found == {"engine": {"exit_command_delay": 77}}


def test_the_file_that_the_agent_was_given_is_the_only_one(tmp_path: Path) -> None:
    given = tmp_path / "containers.conf"
    given.write_text("[containers]\ntz = 'local'")
    found = tomllib.loads(service_settings({"CONTAINERS_CONF": str(given)}))
    assert found == {"containers": {"tz": "local"}, "engine": {"exit_command_delay": EXIT_COMMAND_DELAY}}


def test_broken_settings_are_left_to_podman(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = tmp_path / "containers.conf"
    given.write_text("[containers")
    assert service_settings({"CONTAINERS_CONF": str(given)}) == ""
    assert "settings of Podman cannot be read" in caplog.text
