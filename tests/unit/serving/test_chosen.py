"""The versions of `latest_once`: kept by every later agent, chosen again only with a reason."""

from __future__ import annotations

import json

import pytest

from shoal.core.errors import ShoalError
from shoal.serving.models.chosen import FILE_NAME, ChosenVersions, forget


@pytest.fixture
def base(tmp_path):
    (tmp_path / "exports" / "9").mkdir(parents=True)
    return tmp_path / "exports"


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def test_a_version_is_kept_by_this_agent_and_the_next(base, data):
    first = ChosenVersions.load(data)
    assert first.choose("m:ps_0", str(base)) == 9
    (base / "10").mkdir()
    assert first.choose("m:ps_0", str(base)) == 9
    again = ChosenVersions.load(data)
    assert [again.choose("m:ps_0", str(base)) for _ in range(2)] == [9, 9]
    assert json.loads((data / FILE_NAME).read_text()) == {"models": {"m:ps_0": {"base_path": str(base), "version": 9}}}


def test_a_directory_without_versions_chooses_nothing(base, data):
    assert ChosenVersions.load(data).choose("m", str(base / "missing")) is None
    assert not (data / FILE_NAME).exists()


def test_a_version_that_was_removed_is_replaced_by_the_next_agent(base, data):
    first = ChosenVersions.load(data)
    first.choose("m", str(base))
    (base / "9").rmdir()
    assert first.choose("m", str(base)) == 9  # its model server has it
    again = ChosenVersions.load(data)
    # Nothing is there, as when a file system is not mounted yet: the version is not forgotten.
    assert again.choose("m", str(base)) is None
    (base / "9").mkdir()
    (base / "10").mkdir()
    assert again.choose("m", str(base)) == 9
    (base / "9").rmdir()
    assert ChosenVersions.load(data).choose("m", str(base)) == 10
    assert ChosenVersions.load(data).choose("m", str(base)) == 10


def test_another_directory_is_another_choice(base, data, tmp_path):
    ChosenVersions.load(data).choose("m", str(base))
    other = tmp_path / "other"
    (other / "3").mkdir(parents=True)
    assert ChosenVersions.load(data).choose("m", str(other)) == 3


def test_a_model_that_left_is_chosen_again(base, data):
    chosen = ChosenVersions.load(data)
    for name in ("a", "b"):
        chosen.choose(name, str(base))
    (base / "10").mkdir()
    chosen.keep_only({"b"})
    again = ChosenVersions.load(data)
    assert [again.choose(name, str(base)) for name in ("a", "b")] == [10, 9]


def test_everything_is_chosen_again_when_told_so(base, data):
    forget(data)
    ChosenVersions.load(data).choose("m", str(base))
    (base / "10").mkdir()
    forget(data)
    assert ChosenVersions.load(data).choose("m", str(base)) == 10


def test_a_directory_that_cannot_be_read_changes_nothing(base, data):
    ChosenVersions.load(data).choose("m", str(base))
    (base / "9").rmdir()
    base.rmdir()
    base.write_text("not a directory")
    assert ChosenVersions.load(data).choose("m", str(base)) == 9
    with pytest.raises(ShoalError):
        ChosenVersions.load(data).choose("n", str(base))


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"models": 1}', b'{"models": {"m": {"version": "x"}}}', b"\xff"]
)
def test_a_damaged_file_has_chosen_nothing(base, data, damage, caplog):
    (data / FILE_NAME).write_bytes(damage)
    chosen = ChosenVersions.load(data)
    assert "cannot be read" in caplog.text
    assert chosen.choose("m", str(base)) == 9
    assert ChosenVersions.load(data).choose("m", str(base)) == 9


def test_serving_goes_on_when_the_file_cannot_be_written(base, tmp_path, caplog):
    (tmp_path / "data").write_text("not a directory")
    chosen = ChosenVersions(tmp_path / "data" / FILE_NAME)
    assert [chosen.choose("m", str(base)) for _ in range(2)] == [9, 9]
    assert "cannot be written" in caplog.text
