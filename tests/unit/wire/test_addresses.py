"""host:port, in all the ways that people write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidError
from shoal.wire.addresses import Address, parse_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8085", "127.0.0.1", 8085),
        ("localhost:1", "localhost", 1),
        ("node-1.example.org:65535", "node-1.example.org", 65535),
        ("example.org.:80", "example.org.", 80),
        ("[::1]:50051", "::1", 50051),
        ("[fe80::1:2]:1", "fe80::1:2", 1),
        ("my_service:80", "my_service", 80),
    ],
)
def test_valid_addresses(text, host, port):
    address = parse_address(text)
    assert (address.host, address.port) == (host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "", ":", "host", "host:", ":80", "host:0", "host:65536", "host:-1", "host:+1", "host: 80", "host:80 ", "::1:80",
        "[::1]", "[::1]:", "[::g]:1", "[]:1", "[1.2.3.4]:1", "a/b:1", "a..b:1", "-a:1", "a b:1", "host:8٠",
        "http://host:80", "h\x00st:1", "ho\nst:1", "host:80\n", "x" * 300 + ":1",
    ],
)  # fmt: skip
def test_invalid_addresses_name_field_value_and_rule(text):
    with pytest.raises(InvalidError) as caught:
        parse_address(text, field="grpc_endpoint")
    (found,) = caught.value.problems
    assert found.field == "grpc_endpoint"
    assert "host:port" in found.rule


@pytest.mark.parametrize(
    ("text", "dialled"),
    [
        (":0", "127.0.0.1:0"),
        ("0.0.0.0:8085", "127.0.0.1:8085"),
        ("[::]:8085", "[::1]:8085"),
        ("10.0.0.5:8085", "10.0.0.5:8085"),
        ("[::1]:0", "[::1]:0"),
    ],
)
def test_a_listening_address_can_be_connected_to(text, dialled):
    assert str(parse_address(text, listening=True).dialable()) == dialled


def test_a_port_can_be_put_in_later():
    assert Address("::", 0).is_wildcard
    assert str(Address("::", 0).with_port(80)) == "[::]:80"


@given(st.text())
def test_any_text_is_an_address_or_invalid(text):
    try:
        address = parse_address(text)
    except InvalidError:
        return
    assert parse_address(str(address)) == address
