"""Identities are written in one way, and read back as what they were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidError
from shoal.core.ids import IDENTIFIER, is_identifier
from shoal.model.identity import (
    CONTROL_PLANE,
    Identity,
    Peer,
    Role,
    own_server_name,
    parse_identity,
    workload_identity,
)

names = st.from_regex(IDENTIFIER.pattern, fullmatch=True).filter(is_identifier)
identities = st.one_of(
    st.builds(Identity, st.sampled_from([Role.AGENT, Role.CONTROL, Role.OPERATOR]), names, names),
    st.builds(lambda cluster, job, node: workload_identity(cluster, job=job, node=node), names, names, names),
)


@given(identities)
def test_an_identity_is_read_back(identity):
    assert parse_identity(identity.uri) == identity


@given(
    st.text()
    | st.from_regex(r"shoal://[a-z./-]{0,6}/(agent|workload|control|root|)/[a-z./%?#:@-]{0,9}", fullmatch=True)
)
def test_whatever_is_read_is_written_the_same_way(text):
    try:
        identity = parse_identity(text)
    except InvalidError:
        return
    assert identity.uri == text
    assert all(is_identifier(part) for part in (identity.cluster, *identity.name.split("/")))


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "shoal://",
        "shoal://c",
        "shoal://c/agent",
        "shoal://c/agent/",
        "shoal:///agent/n1",
        "shoal://c/agent/n1/",
        "shoal://c/agent/n1/more",
        "shoal://c/agent/n1?x=1",
        "shoal://c/agent/n1#x",
        "shoal://c/agent/n%31",
        "shoal://user@c/agent/n1",
        "shoal://c:1/agent/n1",
        "shoal://c/AGENT/n1",
        "SHOAL://c/agent/n1",
        "spiffe://c/agent/n1",
        "shoal://c/root/n1",
        "shoal://c/agent/../n1",
        "shoal://c/agent/..",
        "shoal://c/workload/job",
        "shoal://c/workload/job/node/more",
        "shoal://c/agent/n1\n",
        " shoal://c/agent/n1",
        "shoal://c/agent/" + "n" * 129,
    ],
)
def test_anything_else_is_no_identity(uri):
    with pytest.raises(InvalidError):
        parse_identity(uri)


@pytest.mark.parametrize(
    "fields",
    [
        {"role": Role.AGENT, "cluster": "c", "name": "a/b"},
        {"role": Role.AGENT, "cluster": "", "name": "n1"},
        {"role": Role.AGENT, "cluster": "c", "name": "n1", "job": "j"},
        {"role": Role.WORKLOAD, "cluster": "c", "name": "n1"},
        {"role": Role.WORKLOAD, "cluster": "c", "name": "j/n2", "job": "j", "node": "n1"},
    ],
)
def test_one_that_breaks_a_rule_cannot_be_made(fields):
    with pytest.raises(InvalidError):
        Identity(**fields)


# ---------------------------------------------------------------------------------------------------------
# The host names that say who a server is


@given(identities, identities)
def test_two_servers_share_a_name_only_if_a_caller_may_take_them_for_each_other(one, other):
    first, second = own_server_name(one), own_server_name(other)
    if first is None or first != second:
        return
    assert one.role is other.role
    assert one.cluster == other.cluster
    match one.role:
        case Role.WORKLOAD:
            assert one.job == other.job
        case Role.AGENT:
            assert one.name == other.name


@given(identities)
def test_a_server_name_can_be_a_host_name(identity):
    name = own_server_name(identity)
    if identity.role is Role.OPERATOR:
        assert name is None
        return
    assert name == name.lower()
    assert len(name) <= 253
    assert all(0 < len(label) <= 63 for label in name.split("."))


def test_server_names_are_readable_where_they_can_be():
    assert CONTROL_PLANE.server_name("blue") == "control.blue.shoal"
    assert Peer(Role.AGENT, "node-1").server_name("blue") == "node-1.node.blue.shoal"
    assert own_server_name(workload_identity("blue", job="clicks", node="n1")) == "clicks.job.blue.shoal"


@pytest.mark.parametrize("node_id", ["Node-1", "a.b", "a_b", "x-1", "n" * 64])
def test_names_that_a_host_cannot_have_are_hashed(node_id):
    name = Peer(Role.AGENT, node_id).server_name("blue")
    assert name.startswith("x-")
    assert name.endswith(".node.blue.shoal")
    assert node_id.lower() not in name


def test_a_peer_accepts_only_whom_it_means():
    agent, control = Identity(Role.AGENT, "c", "n1"), Identity(Role.CONTROL, "c", "any")
    assert Peer(Role.AGENT, "n1").accepts(agent, cluster="c")
    assert not Peer(Role.AGENT, "n2").accepts(agent, cluster="c")
    assert not Peer(Role.AGENT, "n1").accepts(agent, cluster="d")
    assert CONTROL_PLANE.accepts(control, cluster="c")
    assert not CONTROL_PLANE.accepts(agent, cluster="c")


@pytest.mark.parametrize(("role", "name"), [(Role.OPERATOR, "o"), (Role.WORKLOAD, "j"), (Role.AGENT, "")])
def test_only_those_who_serve_can_be_peers(role, name):
    with pytest.raises(InvalidError):
        Peer(role, name)
