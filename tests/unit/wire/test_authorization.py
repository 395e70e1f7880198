"""The table of who may call what is complete, and its conditions are what they should be."""

from __future__ import annotations

import pytest

from shoal.core.errors import DeniedError, UnauthenticatedError
from shoal.model.identity import Identity, Role, workload_identity
from shoal.wire import health, methods, reflection
from shoal.wire.methods import AgentControl, AgentService, methods_of
from shoal.wire.pb.persys.control.v1 import control_pb2 as control
from shoal.wire.trust.authorization import RULES, Policy, Rule

POLICY = Policy("blue")
AGENT = Identity(Role.AGENT, "blue", "n1")
OPERATOR = Identity(Role.OPERATOR, "blue", "ada")
CONTROL = Identity(Role.CONTROL, "blue", "c1")
WORKLOAD = workload_identity("blue", job="clicks", node="n1")


def every_method():
    services = [value for value in vars(methods).values() if isinstance(value, type) and methods_of(value)]
    assert {AgentControl, AgentService} <= set(services)
    return [method for service in services for method in methods_of(service)]


def test_every_method_has_a_rule_and_every_rule_a_method():
    known = {health.CHECK.path, health.WATCH.path, reflection.SERVER_REFLECTION_INFO.path}
    assert set(RULES) == {method.path for method in every_method()} | known


@pytest.mark.parametrize("path", RULES)
def test_every_condition_is_for_a_role_that_is_let_in(path):
    assert set(RULES[path].conditions) <= RULES[path].roles


@pytest.mark.parametrize("method", every_method(), ids=lambda method: method.path)
def test_nobody_without_an_identity_is_let_in(method):
    with pytest.raises(UnauthenticatedError):
        POLICY.admit(method, None)


@pytest.mark.parametrize("role", [Role.AGENT, Role.CONTROL, Role.OPERATOR])
@pytest.mark.parametrize("method", every_method(), ids=lambda method: method.path)
def test_nobody_of_another_cluster_is_let_in(method, role):
    with pytest.raises(UnauthenticatedError, match="'red'"):
        POLICY.admit(method, Identity(role, "red", "n1"))


@pytest.mark.parametrize("identity", [AGENT, OPERATOR, CONTROL, WORKLOAD], ids=lambda identity: identity.role.value)
def test_a_method_without_a_rule_is_open_to_nobody(identity):
    with pytest.raises(DeniedError):
        Policy("blue", {}).admit(AgentControl.LIST_NODES, identity)


@pytest.mark.parametrize(
    ("method", "identity", "needed"),
    [
        (AgentControl.APPLY_WORKLOAD, AGENT, "the role operator"),
        (AgentControl.REGISTER_NODE, OPERATOR, "the role agent"),
        (AgentService.APPLY_WORKLOAD, OPERATOR, "the role control"),
        (AgentControl.APPLY_GROUP, AGENT, "one of the roles operator, workload"),
    ],
)
def test_a_refusal_names_the_role_that_is_needed(method, identity, needed):
    with pytest.raises(DeniedError, match=needed) as caught:
        POLICY.admit(method, identity)
    assert str(identity) in caught.value.message
    assert caught.value.facts["role"] == identity.role


@pytest.mark.parametrize("method", [AgentControl.REGISTER_NODE, AgentControl.HEARTBEAT])
@pytest.mark.parametrize("node_id", ["n2", "", "N1", "n1 ", "n1/x"])
def test_an_agent_speaks_for_its_own_node_only(method, node_id):
    POLICY.check_request(method, AGENT, method.request(node_id="n1"))
    with pytest.raises(DeniedError, match="own node only"):
        POLICY.check_request(method, AGENT, method.request(node_id=node_id))


@pytest.mark.parametrize("group_id", ["other", "", "clicks/n1"])
def test_a_workload_changes_its_own_group_only(group_id):
    method = AgentControl.APPLY_GROUP
    POLICY.check_request(method, WORKLOAD, control.ApplyGroupRequest(group_id="clicks"))
    POLICY.check_request(method, OPERATOR, control.ApplyGroupRequest(group_id=group_id))
    with pytest.raises(DeniedError, match="own group only"):
        POLICY.check_request(method, WORKLOAD, control.ApplyGroupRequest(group_id=group_id))


def test_a_rule_can_be_given_for_a_method_of_ones_own():
    policy = Policy("blue", {AgentControl.LIST_NODES.path: Rule(frozenset({Role.AGENT}))})
    assert policy.admit(AgentControl.LIST_NODES, AGENT) is AGENT
