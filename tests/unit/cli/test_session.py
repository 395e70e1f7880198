"""Which control plane is talked to, and how."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.cli.connection.profile import Profile, find_profile, write_profile
from shoal.cli.connection.session import Connection, exit_code_of, read_addresses
from shoal.core.errors import DeadlineError, InvalidError, NotFoundError, problem
from shoal.wire.trust.access import Access


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("127.0.0.1:8085", ("127.0.0.1:8085",)),
        ("10.0.0.1", ("10.0.0.1:8085",)),
        ("a.example:1, b.example:2", ("a.example:1", "b.example:2")),
        ("[::1]:9", ("[::1]:9",)),
        ("[::1]", ("[::1]:8085",)),
        ("h:1,h:1", ("h:1",)),
    ],
)
def test_addresses(given, expected):
    assert read_addresses(given) == expected


def test_every_bad_address_is_named():
    with pytest.raises(InvalidError) as caught:
        read_addresses("h:0,ok:1,h:99999,,a b:1")
    assert len(caught.value.problems) == 4
    assert "--control: must be HOST:PORT" in str(caught.value.problems[0])


@pytest.fixture
def files(tmp_path):
    paths = {name: str(tmp_path / f"{name}.pem") for name in ("ca", "cert", "key")}
    for path in paths.values():
        Path(path).write_text("x")
    return paths


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("address", [None, "127.0.0.1:1", "localhost:1", "10.0.0.1:8085"])
def test_it_has_to_be_said_how_to_talk(address, files):
    with pytest.raises(InvalidError, match="--ca: is required, with cert and key") as caught:
        Connection(address).resolved()
    assert "--insecure" in str(caught.value)
    assert "shoal up" in caught.value.hint
    where = (address or "127.0.0.1:8085",)
    assert Connection(address, insecure=True).resolved() == (where, Access(insecure=True))
    assert Connection(address, **files).resolved() == (where, Access(**files))


def test_what_is_said_must_make_sense(tmp_path, files):
    with pytest.raises(InvalidError) as caught:
        Connection("h:0", ca=files["ca"], cert=str(tmp_path / "no")).resolved()
    assert [each.field for each in caught.value.problems] == ["--control", "--key", "--cert"]
    with pytest.raises(InvalidError, match="one or the other"):
        Connection(insecure=True, **files).resolved()


def test_certificates_that_contradict_are_named_with_where_they_come_from(monkeypatch, files):
    monkeypatch.setenv("SHOAL_CERT", files["cert"])
    monkeypatch.setenv("SHOAL_KEY", files["key"])
    with pytest.raises(InvalidError) as caught:
        Connection(insecure=True, **files).resolved()
    [found] = caught.value.problems
    assert str(found) == (
        "--insecure: must not be given together with certificates (--ca, from the environment SHOAL_CERT, SHOAL_KEY): "
        "one or the other"
    )
    assert caught.value.hint == "`unset SHOAL_CERT SHOAL_KEY`, or leave --insecure out"


def test_the_profile_of_a_local_fleet_says_what_was_not_said(elsewhere, files):
    folder = elsewhere / ".shoal"
    folder.mkdir()
    write_profile(folder, Profile("127.0.0.1:7777", **files))
    addresses, access = Connection().resolved()
    assert addresses == ("127.0.0.1:7777",)
    assert Path(access.cert).read_text() == "x"
    assert Connection("127.0.0.1:1").resolved() == (("127.0.0.1:1",), access)
    assert Connection(insecure=True).resolved() == (("127.0.0.1:8085",), Access(insecure=True))
    assert Connection(**files).resolved() == (("127.0.0.1:8085",), Access(**files))


def test_the_profile_is_found_from_folders_below_the_nearest_first(elsewhere, files, monkeypatch):
    for place, address in ((elsewhere, "127.0.0.1:7777"), (elsewhere / "a", "127.0.0.1:8888")):
        (place / ".shoal").mkdir(parents=True)
        write_profile(place / ".shoal", Profile(address, **files))
    below = elsewhere / "b" / "c"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    addresses, access = Connection().resolved()
    assert addresses == ("127.0.0.1:7777",)
    assert Path(access.cert).read_text() == "x"
    (elsewhere / "a" / "d").mkdir()
    monkeypatch.chdir(elsewhere / "a" / "d")
    assert Connection().resolved()[0] == ("127.0.0.1:8888",)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_a_profile_of_another_user_counts_nowhere(elsewhere, files, monkeypatch):
    (elsewhere / ".shoal").mkdir()
    write_profile(elsewhere / ".shoal", Profile("127.0.0.1:7777", **files))
    os.chown(elsewhere / ".shoal" / "client.toml", 12345, 12345)
    with pytest.raises(InvalidError, match="must be yours"):
        find_profile()
    (elsewhere / "below").mkdir()
    monkeypatch.chdir(elsewhere / "below")
    assert find_profile() is None


def test_a_current_folder_that_was_deleted_has_no_profile(elsewhere, monkeypatch):
    gone = elsewhere / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert find_profile() is None


def test_a_profile_that_others_may_have_written_is_not_taken(elsewhere, files):
    folder = elsewhere / ".shoal"
    folder.mkdir()
    write_profile(folder, Profile("127.0.0.1:7777", **files))
    path = folder / "client.toml"
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o620)
    with pytest.raises(InvalidError, match="must be yours"):
        Connection().resolved()


@pytest.mark.parametrize("text", ["control = 1", "= =", 'control = "h:1"\nca = "a"\ncert = "b"', "\xff"])
def test_a_broken_profile_is_said_to_be_one(elsewhere, text):
    folder = elsewhere / ".shoal"
    folder.mkdir()
    (folder / "client.toml").write_bytes(text.encode("latin-1"))
    (folder / "client.toml").chmod(0o600)
    with pytest.raises(InvalidError, match=r"client\.toml"):
        Connection().resolved()


def test_exit_codes():
    assert exit_code_of(InvalidError([problem("x", 1, "y")])) == 2
    assert exit_code_of(DeadlineError("late")) == 4
    assert exit_code_of(NotFoundError("node", "n")) == 1
