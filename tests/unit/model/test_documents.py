from __future__ import annotations

from datetime import timedelta
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from shoal.core.errors import InvalidError
from shoal.core.shape import to_mapping
from shoal.model.documents import (
    GroupDocument,
    WorkloadDocument,
    document_fields,
    read_document,
    workload_schema,
    write_document,
)
from shoal.model.workloads import Failover, ProcessSpec, WorkloadSpec, WorkloadType
from tests.strategies import documents, workload_specs

WEB: dict[str, Any] = {
    "id": "web",
    "type": "process",
    "process": {"command": ["python3", "-m", "http.server"]},
    "resources": {"cpu_millicores": 100, "memory_mb": 64},
}


def rules(given_value: object, at: str = "") -> dict[str, str]:
    with pytest.raises(InvalidError) as raised:
        read_document(given_value, at=at)
    return {each.field: each.rule for each in raised.value.problems}


def test_a_workload() -> None:
    document = read_document({**WEB, "kind": "workload", "revision": None, "desired_state": "Stopped"})
    assert isinstance(document, WorkloadDocument)
    assert document.id == "web"
    assert document.revision == ""
    assert document.desired_state == "Stopped"
    assert document.spec.process == ProcessSpec(command=("python3", "-m", "http.server"))


def test_a_group() -> None:
    document = read_document({"kind": "group", "id": "g", "members": [WEB, {**WEB, "id": "web-2"}]})
    assert isinstance(document, GroupDocument)
    assert [member.id for member in document.members] == ["web", "web-2"]


def test_everything_wrong_with_a_workload_is_reported_at_once() -> None:
    found = rules(
        {"id": "../x", "typ": "process", "revison": "1", "desired_state": "Deleted", "process": {"command": []}, 5: 6},
        at="web.yaml[0]",
    )
    assert set(found) == {
        "web.yaml[0].id",
        "web.yaml[0].typ",
        "web.yaml[0].type",
        "web.yaml[0].revison",
        "web.yaml[0].desired_state",
        "web.yaml[0].process.command",
        "web.yaml[0].5",
    }
    assert "did you mean revision" in found["web.yaml[0].revison"]
    assert "did you mean type" in found["web.yaml[0].typ"]


@pytest.mark.parametrize(
    ("field", "meant"),
    [("restart", "did you mean process.restart?"), ("comand", "known are "), ("env", "did you mean process.env?")],
)
def test_a_field_of_the_kind_that_is_one_level_too_high_is_told_so(field: str, meant: str) -> None:
    found = rules({"id": "web", "type": "process", "process": {"command": ["true"]}, field: {}})
    assert set(found) == {field}
    assert meant in found[field]


def test_everything_wrong_with_a_group_is_reported_at_once() -> None:
    found = rules(
        {
            "kind": "group",
            "member": 1,
            "members": [
                WEB,
                WEB,
                {"kind": "group", "id": "inner"},
                {"id": "x"},
                7,
                {**WEB, "id": "y", "slots": "many"},
            ],
        }
    )
    assert set(found) == {
        "id",
        "member",
        "members[1].id",
        "members[2].kind",
        "members[3].type",
        "members[4]",
        "members[5].slots",
    }


@pytest.mark.parametrize("wrong", [None, "x", [], 5])
def test_what_is_no_document(wrong: object) -> None:
    assert rules(wrong) == {"document": "must be a mapping"}


@pytest.mark.parametrize("members", [None, [], {}, "web"])
def test_a_group_has_members(members: object) -> None:
    assert set(rules({"kind": "group", "id": "g", "members": members})) == {"members"}


def test_a_group_is_bounded() -> None:
    found = rules({"kind": "group", "id": "g", "members": [WEB] * 5000})
    assert set(found) == {"members"}


def test_an_unknown_kind() -> None:
    assert rules({"kind": "pod"}) == {"kind": "must be workload or group"}


# ---------------------------------------------------------------------------------------------------------
# Schemas


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", list(WorkloadType))
def test_each_schema_is_one_and_knows_its_kind_only(kind: WorkloadType) -> None:
    schema = workload_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert {other.value for other in WorkloadType} & set(schema["properties"]) == {kind.value}
    others = {other.value for other in WorkloadType if other is not kind}
    assert set(schema["properties"]) == set(document_fields()) - others


VALIDATORS = {kind: jsonschema.Draft202012Validator(workload_schema(kind)) for kind in WorkloadType}


def test_an_example_validates() -> None:
    VALIDATORS[WorkloadType.PROCESS].validate(WEB)
    VALIDATORS[WorkloadType.PROCESS].validate({**WEB, "kind": "workload", "revision": "1", "desired_state": "Running"})


@given(workload_specs())
def test_what_is_accepted_validates_and_the_other_kinds_do_not(spec: WorkloadSpec) -> None:
    document = {"id": "x", **without_nulls(to_mapping(spec))}
    assert read_document(document) == WorkloadDocument(id="x", spec=spec)
    for kind, validator in VALIDATORS.items():
        assert validator.is_valid(document) == (kind is spec.type)


@pytest.mark.parametrize(
    "change",
    [
        {"id": ".."},
        {"id": None},
        {"type": "vm"},
        {"slots": -1},
        {"colour": "red"},
        {"process": {"command": []}},
        {"process": {"command": ["x"], "ports": [{"name": "Web"}]}},
        {"process": {"command": ["x"], "env": {"1A": ""}}},
        {"process": {"command": ["x"], "stop": {"grace": "soon"}}},
        {"resources": {"memory_mb": "64"}},
    ],
)
def test_a_schema_refuses_what_is_refused(change: dict[str, Any]) -> None:
    wrong = {**WEB, **change}
    assert not VALIDATORS[WorkloadType.PROCESS].is_valid(wrong)
    assert rules(wrong)


def test_what_becomes_of_it_when_its_node_is_lost() -> None:
    document = read_document({**WEB, "failover": {"policy": "stop", "after": "90s", "migrate": "after"}})
    assert isinstance(document, WorkloadDocument)
    assert document.spec.failover == Failover("stop", timedelta(seconds=90), "after")
    assert rules({**WEB, "failover": {"policy": "stop"}}).keys() == {"failover.after"}
    assert rules({**WEB, "failover": {"policy": "hope"}}).keys() == {"failover.policy"}


@pytest.mark.parametrize("word", ["never", "no", False])
def test_never_is_a_word_for_the_policy_that_yaml_takes_for_false(word):
    process = read_document(
        {"id": "a", "type": "process", "process": {"command": ["true"], "restart": {"policy": word}}}
    )
    assert process.spec.process.restart.policy == "no"
    container = read_document({"id": "a", "type": "container", "container": {"image": "x", "restart_policy": word}})
    assert container.spec.container.restart_policy == "no"


def test_the_schemas_know_never():
    assert "never" in str(workload_schema(WorkloadType.PROCESS)["properties"]["process"]["properties"]["restart"])
    container = workload_schema(WorkloadType.CONTAINER)["properties"]["container"]
    assert "never" in container["properties"]["restart_policy"]["enum"]


@settings(max_examples=25, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(documents())
def test_a_document_is_read_as_it_was_written(document):
    assert read_document(write_document(document)) == document


def test_what_is_written_has_no_defaults():
    plain = {"id": "web", "type": "process", "process": {"command": ["sleep", "60"], "restart": {"policy": "never"}}}
    assert write_document(read_document(plain)) == plain


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (
            {"type": "process", "process": {"command": ["x"], "restart": {"policy": "sometimes"}}},
            "process.restart.policy",
        ),
        ({"type": "container", "container": {"image": "x", "restart_policy": "maybe"}}, "container.restart_policy"),
    ],
)
def test_the_rule_on_a_restart_policy_names_never(given, field):
    with pytest.raises(InvalidError) as caught:
        read_document({"id": "web", **given})
    [found] = caught.value.problems
    assert found.field == field
    assert "never" in found.rule
    assert " no" not in found.rule
