"""Versions apart understand each other: what an earlier one sent means the same now, and the other way round."""

from __future__ import annotations

import importlib
import pkgutil
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, json_format, text_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given
from hypothesis import strategies as st

from scripts.record_version import contract
from shoal.testing.messages import messages
from shoal.wire import pb
from shoal.wire.methods import AgentControl, AgentService, Credentials, Enrollment, Jobs, Secrets, methods_of
from tests.services.versions import RecordedVersion, recorded_versions

VERSIONS = recorded_versions()
SERVICES = (AgentControl, AgentService, Credentials, Enrollment, Jobs, Secrets)
METHODS = {f"{m.service}.{m.name}": m for service in SERVICES for m in methods_of(service)}
EVERY = pytest.mark.parametrize("version", VERSIONS, ids=str)


def meaning(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def canonical(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


def unknown_fields(message: Message) -> Iterator[str]:
    """The paths of fields that the class does not know."""
    for each in UnknownFieldSet(message):
        yield f"{message.DESCRIPTOR.full_name}.{each.field_number}"
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for part in value if field.is_repeated else [value]:
            yield from unknown_fields(part)


def known_part(message: Message, old: Descriptor) -> Message:
    """The message without the fields and members that the old class has not got."""
    kept = type(message)()
    kept.CopyFrom(message)
    _prune(kept, old)
    return kept


def _prune(message: Message, old: Descriptor) -> None:
    for field, value in message.ListFields():
        before = old.fields_by_number.get(field.number)
        if before is None:
            message.ClearField(field.name)
        elif field.message_type is None and field.has_presence and not before.has_presence:
            if value == field.default_value:
                message.ClearField(field.name)  # the old class did not tell a default from nothing
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for part in value if field.is_repeated else [value]:
                _prune(part, before.message_type)


def test_the_first_version_is_recorded() -> None:
    assert [version.folder.name for version in VERSIONS][:1] == ["1"]
    assert {message.method for message in VERSIONS[0].messages()} >= {
        "persys.control.v1.AgentControl.RegisterNode",
        "persys.control.v1.AgentControl.Heartbeat",
        "persys.control.v1.AgentControl.ApplyWorkload",
        "persys.control.v1.AgentControl.ApplyGroup",
        "persys.agent.v1.AgentService.ApplyWorkload",
        "persys.agent.v1.AgentService.DeleteWorkload",
    }


@EVERY
def test_what_was_sent_then_means_the_same_now(version: RecordedVersion) -> None:
    for recorded in version.messages():
        method = METHODS[recorded.method]
        expected = method.request if recorded.side == "request" else method.response
        assert expected.DESCRIPTOR.full_name == recorded.name
        message = expected.FromString(recorded.data)
        assert meaning(message) == recorded.means
        assert list(unknown_fields(message)) == []


@EVERY
def test_nothing_of_the_contract_was_changed_or_taken_away(version: RecordedVersion) -> None:
    now = {file.name: _shape(file) for file in _files_now()}
    for file in version.contract().file:
        lost = _shape(file) - now[file.name]
        assert not lost, f"{file.name}: {sorted(lost)[:5]}"


@EVERY
def test_the_contract_of_a_version_has_every_file_that_its_program_had(version: RecordedVersion) -> None:
    with tarfile.open(version.folder / "program.tar.xz") as program:
        names = [name.removeprefix("shoal/wire/pb/") for name in program.getnames() if name.endswith("_pb2.py")]
    assert {file.name for file in version.contract().file} == {name.replace("_pb2.py", ".proto") for name in names}


def test_the_next_version_is_recorded_with_every_file_that_there_is() -> None:
    recorded = text_format.Parse(contract(), descriptor_pb2.FileDescriptorSet())
    assert {file.name for file in recorded.file} == {file.name for file in _files_now()}


@pytest.mark.parametrize("name", ["shoal/v1/enrollment.proto", "shoal/v1/secrets.proto", "shoal/v1/run.proto"])
def test_a_field_with_another_number_is_found_out(name: str) -> None:
    (file,) = [each for each in VERSIONS[-1].contract().file if each.name == name]
    changed = descriptor_pb2.FileDescriptorProto()
    changed.CopyFrom(file)
    message = next(each for each in changed.message_type if each.field)
    message.field[0].number += 1000
    assert {lost[:2] for lost in _shape(file) - _shape(changed)} == {(message.name, message.field[0].number - 1000)}


@EVERY
@given(data=st.data())
def test_what_is_sent_now_is_understood_then(version: RecordedVersion, data: st.DataObject) -> None:
    method = data.draw(st.sampled_from(sorted(METHODS)))
    then = {f"{s.full_name}.{m.name}": m for s in _services(version) for m in s.methods}
    if method not in then:
        return  # a method that is new is answered with UNIMPLEMENTED by those who do not have it
    for now, before in (
        (METHODS[method].request, then[method].input_type),
        (METHODS[method].response, then[method].output_type),
    ):
        sent = data.draw(messages(now))
        read = version.message_class(before.full_name).FromString(sent.SerializeToString())
        understood = type(sent).FromString(_without_unknown(read))
        # By their bytes: a number that is none is not even equal to itself.
        assert canonical(understood) == canonical(known_part(sent, before))


def _without_unknown(message: Message) -> bytes:
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    return known.SerializeToString()


def _services(version: RecordedVersion) -> Iterator[Any]:
    for file in version.contract().file:
        yield from version.pool().FindFileByName(file.name).services_by_name.values()


def _files_now() -> Iterator[descriptor_pb2.FileDescriptorProto]:
    """Of every module that was generated: a new proto is held to its numbers without being named here."""
    for found in pkgutil.walk_packages(pb.__path__, f"{pb.__name__}."):
        if found.name.endswith("_pb2"):
            file = descriptor_pb2.FileDescriptorProto()
            importlib.import_module(found.name).DESCRIPTOR.CopyToProto(file)
            yield file


def _shape(file: descriptor_pb2.FileDescriptorProto) -> set[tuple[Any, ...]]:
    """Everything that the other side relies on: fields, values, methods."""
    shape: set[tuple[Any, ...]] = set()
    for message in file.message_type:
        shape.add((message.name,))
        shape.update((message.name, f.number, f.name, f.type, f.label, f.type_name) for f in message.field)
        for nested in message.nested_type:
            inner = f"{message.name}.{nested.name}"
            shape.update((inner, f.number, f.name, f.type, f.label, f.type_name) for f in nested.field)
    for enum in file.enum_type:
        shape.update((enum.name, value.number, value.name) for value in enum.value)
    for service in file.service:
        shape.update(
            (service.name, m.name, m.input_type, m.output_type, m.client_streaming, m.server_streaming)
            for m in service.method
        )
    return shape
