"""Which control plane is talked to, and how."""

from __future__ import annotations

import pytest

from shoal.cli.session import Access, exit_code_of, read_addresses
from shoal.core.errors import DeadlineError, InvalidError, NotFoundError, UnsupportedError, problem


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


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost:1", "[::1]:1", "127.3.2.1"])
def test_on_this_machine_nothing_has_to_be_said_about_security(address):
    assert Access(address).checked()


def test_elsewhere_it_has_to_be_said():
    with pytest.raises(InvalidError, match="is not on this machine") as caught:
        Access("127.0.0.1:8085,10.0.0.1:8085").checked()
    assert "--insecure" in caught.value.hint
    assert Access("10.0.0.1:8085", insecure=True).checked() == ("10.0.0.1:8085",)


def test_certificates_are_checked_and_then_refused_plainly(tmp_path):
    there = tmp_path / "ca.pem"
    there.write_text("x")
    with pytest.raises(InvalidError) as caught:
        Access(ca=str(there), cert=str(tmp_path / "no"), key=str(tmp_path)).checked()
    assert [each.field for each in caught.value.problems] == ["--cert", "--key"]
    with pytest.raises(UnsupportedError, match="certificates"):
        Access(ca=str(there)).checked()


def test_exit_codes():
    assert exit_code_of(InvalidError([problem("x", 1, "y")])) == 2
    assert exit_code_of(DeadlineError("late")) == 4
    assert exit_code_of(NotFoundError("node", "n")) == 1
