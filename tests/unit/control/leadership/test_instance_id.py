"""A control plane's name: the same in every life, and of one process at a time."""

import shutil

import pytest

from shoal.control.leadership import instance_id as names
from shoal.control.leadership.instance_id import InstanceId
from shoal.core.entropy import SeededEntropy
from shoal.core.errors import PreconditionError


def test_a_name_is_made_once(tmp_path):
    first = InstanceId(tmp_path / "data", SeededEntropy(1))
    first.save()
    assert first.text
    assert InstanceId(tmp_path / "data", SeededEntropy(2)).text == first.text
    assert InstanceId(tmp_path / "other", SeededEntropy(2)).text != first.text


def test_nobody_else_uses_it_meanwhile(tmp_path):
    first, second = InstanceId(tmp_path, SeededEntropy(1)), InstanceId(tmp_path, SeededEntropy(1))
    first.hold()
    with pytest.raises(PreconditionError, match=r"in use by process \d+"):
        second.hold()
    first.release()
    first.release()
    second.hold()
    second.release()


def test_a_copy_of_the_directory_has_another_name(tmp_path):
    first = InstanceId(tmp_path / "data", SeededEntropy(1))
    first.save()
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    assert InstanceId(tmp_path / "copy", SeededEntropy(1)).text != first.text


def test_after_a_start_of_the_machine_it_is_another_life(tmp_path, monkeypatch):
    first = InstanceId(tmp_path, SeededEntropy(1))
    first.save()
    monkeypatch.setattr(names, "boot_id", lambda: "another")
    assert InstanceId(tmp_path, SeededEntropy(1)).text != first.text
    monkeypatch.setattr(names, "boot_id", lambda: "")
    assert InstanceId(tmp_path, SeededEntropy(1)).text != first.text
