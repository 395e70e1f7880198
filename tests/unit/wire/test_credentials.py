"""Certificate files: private, replaced without a gap, and never a mixed pair."""

from __future__ import annotations

import logging
import stat
from datetime import UTC, datetime, timedelta

import pytest

from shoal.core.errors import InvalidError, NotFoundError, PreconditionError
from shoal.model.identity import Identity, Role
from shoal.wire.trust import credentials
from shoal.wire.trust.authority import Pair, issue, make_authority
from shoal.wire.trust.credentials import (
    CredentialPaths,
    CredentialWatch,
    load_authority,
    read_credentials,
    write_authority,
    write_credentials,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
AGENT = Identity(Role.AGENT, "blue", "n1")


@pytest.fixture(scope="module")
def authority():
    return make_authority("blue", now=NOW)


@pytest.fixture(scope="module")
def pairs(authority):
    return [issue(authority, AGENT, now=NOW, lifetime=timedelta(days=days)) for days in (10, 20)]


class Killed(BaseException):
    """The process is gone."""


# ---------------------------------------------------------------------------------------------------------
# Authorities


def test_an_authority_is_kept_in_private_files(tmp_path, authority):
    directory = tmp_path / "certs"
    write_authority(directory, authority)
    assert {path.name: stat.S_IMODE(path.lstat().st_mode) for path in directory.iterdir()} == {
        "ca.pem": 0o600,
        "ca-key.pem": 0o600,
    }
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    again, trusted = load_authority(directory)
    assert (again.certificate, trusted) == (authority.certificate, authority.pem)


@pytest.mark.parametrize("name", ["ca.pem", "ca-key.pem"])
def test_an_authority_is_never_replaced(tmp_path, authority, name):
    (tmp_path / name).write_bytes(b"precious")
    with pytest.raises(PreconditionError, match="not replaced"):
        write_authority(tmp_path, authority)
    assert (tmp_path / name).read_bytes() == b"precious"
    assert len(list(tmp_path.iterdir())) == 1


def test_where_there_is_no_authority_there_is_a_hint(tmp_path):
    with pytest.raises(NotFoundError) as caught:
        load_authority(tmp_path)
    assert "certs init" in caught.value.hint


# ---------------------------------------------------------------------------------------------------------
# Pairs


def test_what_is_written_is_read_back_from_private_files(tmp_path, authority, pairs):
    paths = write_credentials(tmp_path / "n1", ca=authority.pem, pair=pairs[0])
    found = read_credentials(paths, now=NOW)
    assert (found.ca, found.cert, found.key) == (authority.pem, pairs[0].cert, pairs[0].key)
    assert (found.identity, found.not_after) == (AGENT, NOW + timedelta(days=10))
    assert "PRIVATE" not in repr(found)
    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in (tmp_path / "n1").iterdir()}
    assert modes == {"ca.pem": 0o600, "cert.pem": 0o600, "key.pem": 0o600}
    assert stat.S_IMODE((tmp_path / "n1").stat().st_mode) == 0o700


@pytest.mark.parametrize("survived", range(4))
def test_a_replacement_that_is_killed_at_any_step_leaves_a_pair(tmp_path, monkeypatch, authority, pairs, survived):
    paths = write_credentials(tmp_path, ca=authority.pem, pair=pairs[0])
    steps = 0

    def killed_when_due(step):
        def do(*arguments, **named):
            nonlocal steps
            if steps == survived:
                raise Killed
            steps += 1
            step(*arguments, **named)

        return do

    with monkeypatch.context() as patch:
        for name in ("write_private", "move_private"):
            patch.setattr(credentials, name, killed_when_due(getattr(credentials, name)))
        with pytest.raises(Killed):
            write_credentials(tmp_path, ca=authority.pem, pair=pairs[1])
    found = read_credentials(paths, now=NOW)
    assert Pair(found.cert, found.key) == pairs[0 if survived < 3 else 1]
    write_credentials(tmp_path, ca=authority.pem, pair=pairs[1])
    assert Pair(found.cert, found.key) in pairs
    assert read_credentials(paths, now=NOW).key == pairs[1].key
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca.pem", "cert.pem", "key.pem"]


def test_a_reader_between_two_renames_has_a_pair(tmp_path, monkeypatch, authority, pairs):
    """Whatever a writer does between any two reads, the reader ends up with one pair."""
    paths = write_credentials(tmp_path, ca=authority.pem, pair=pairs[0])
    reading = credentials.read_private
    for when in range(12):
        reads = 0

        def read(path, when=when):
            nonlocal reads
            reads += 1
            if reads == when:
                write_credentials(tmp_path, ca=authority.pem, pair=pairs[when % 2])
            return reading(path)

        monkeypatch.setattr(credentials, "read_private", read)
        found = read_credentials(paths, now=NOW)
        assert Pair(found.cert, found.key) in pairs


def test_a_pair_that_does_not_belong_together_is_refused(tmp_path, authority, pairs):
    paths = write_credentials(tmp_path, ca=authority.pem, pair=pairs[0])
    paths.key.write_bytes(pairs[1].key)
    with pytest.raises(InvalidError, match="do not belong together"):
        read_credentials(paths, now=NOW)


def test_everything_that_is_missing_is_said_at_once(tmp_path):
    with pytest.raises(InvalidError) as caught:
        read_credentials(CredentialPaths.within(tmp_path), now=NOW)
    assert [each.field for each in caught.value.problems] == ["--ca", "--cert", "--key"]


def test_files_that_are_something_else_are_refused(tmp_path, authority, pairs):
    paths = write_credentials(tmp_path, ca=authority.pem, pair=pairs[0])
    paths.ca.write_text("what?")
    paths.key.write_text("what?")
    with pytest.raises(InvalidError) as caught:
        read_credentials(paths, now=NOW)
    assert [each.field for each in caught.value.problems] == ["--ca", "--key"]
    write_credentials(tmp_path, ca=authority.pem, pair=Pair(authority.pem, authority.key_pem))
    with pytest.raises(InvalidError, match="says who this is"):
        read_credentials(paths, now=NOW)


def test_an_expired_certificate_is_refused_with_its_date(tmp_path, authority, pairs):
    paths = write_credentials(tmp_path, ca=authority.pem, pair=pairs[0])
    with pytest.raises(InvalidError, match="2026-03-11"):
        read_credentials(paths, now=NOW + timedelta(days=10))


# ---------------------------------------------------------------------------------------------------------
# Watching


def test_a_watch_takes_what_is_new(tmp_path, authority, pairs):
    paths = write_credentials(tmp_path, ca=authority.pem, pair=pairs[0])
    watch = CredentialWatch(paths, now=lambda: NOW)
    first = watch.look()
    assert watch.look() is first
    assert watch.version == 1
    write_credentials(tmp_path, ca=authority.pem, pair=pairs[1])
    assert watch.look().cert == pairs[1].cert
    assert watch.version == 2
    write_credentials(tmp_path, ca=authority.pem, pair=pairs[1])
    watch.look()
    assert watch.version == 2


def test_files_replaced_one_by_one_are_taken_when_they_belong_together(tmp_path, caplog, authority, pairs):
    paths = write_credentials(tmp_path, ca=authority.pem, pair=pairs[0])
    watch = CredentialWatch(paths, now=lambda: NOW)
    with caplog.at_level(logging.WARNING):
        paths.cert.write_bytes(pairs[1].cert)
        assert watch.look().cert == pairs[0].cert
        assert watch.look().cert == pairs[0].cert
        assert len([record for record in caplog.records if "cannot be used" in record.message]) == 1
        paths.key.write_bytes(pairs[1].key)
        assert watch.look().cert == pairs[1].cert


def test_files_that_vanish_or_break_leave_the_old_ones_in_use(tmp_path, authority, pairs):
    paths = write_credentials(tmp_path, ca=authority.pem, pair=pairs[0])
    watch = CredentialWatch(paths, now=lambda: NOW)
    for path in (paths.ca, paths.cert, paths.key):
        path.unlink()
        assert watch.look().cert == pairs[0].cert
    write_credentials(tmp_path, ca=authority.pem, pair=pairs[1])
    assert watch.look().cert == pairs[1].cert


def test_somebody_elses_files_are_not_taken(tmp_path, caplog, authority, pairs):
    paths = write_credentials(tmp_path, ca=authority.pem, pair=pairs[0])
    watch = CredentialWatch(paths, now=lambda: NOW)
    other = issue(authority, Identity(Role.OPERATOR, "blue", "eve"), now=NOW)
    write_credentials(tmp_path, ca=authority.pem, pair=other)
    assert watch.look().identity == AGENT
    assert "operator/eve" in caplog.text


def test_expired_files_do_not_replace_good_ones(tmp_path, authority, pairs):
    now = NOW
    paths = write_credentials(tmp_path, ca=authority.pem, pair=pairs[1])
    watch = CredentialWatch(paths, now=lambda: now)
    now = NOW + timedelta(days=15)
    write_credentials(tmp_path, ca=authority.pem, pair=pairs[0])
    assert watch.look().cert == pairs[1].cert


def test_a_key_that_others_can_read_is_warned_of(tmp_path, caplog, authority, pairs):
    paths = write_credentials(tmp_path, ca=authority.pem, pair=pairs[0])
    CredentialWatch(paths, now=lambda: NOW)
    assert not caplog.records
    paths.key.chmod(0o640)
    CredentialWatch(paths, now=lambda: NOW)
    assert "chmod 600" in caplog.text
