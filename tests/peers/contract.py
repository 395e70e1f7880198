"""The published contracts alone, as a foreign program has them: every message without what Shoal adds to it.

The descriptors are copied, cut down to the published RPCs and to fields below 100, and put into a pool of their own. So
whatever a scripted peer sends can hold nothing else, and whatever it is sent is read as it would read it: what it does
not know is left aside.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from shoal.wire.pb.persys.agent.v1 import agent_pb2
from shoal.wire.pb.persys.control.v1 import control_pb2

#: From here on numbers are Shoal's own.
FIRST_OWN = 100

CONTROL_RPCS = (
    "RegisterNode", "Heartbeat", "ApplyWorkload", "DeleteWorkload", "RetryWorkload", "SubmitAutomationSuggestion",
    "ListNodes", "GetNode", "ListWorkloads", "GetWorkload", "GetClusterSummary", "ControlStream",
)  # fmt: skip
AGENT_RPCS = ("ApplyWorkload", "DeleteWorkload", "GetWorkloadStatus", "ListWorkloads", "HealthCheck", "ListActions")


def _published(module: Any, service: str, rpcs: tuple[str, ...]) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    file.dependency[:] = ["google/protobuf/timestamp.proto"]
    (offered,) = [each for each in file.service if each.name == service]
    kept = [method for method in offered.method if method.name in rpcs]
    assert {method.name for method in kept} == set(rpcs)
    del offered.method[:]
    offered.method.extend(kept)
    for enum in file.enum_type:
        values = [value for value in enum.value if value.number < FIRST_OWN]
        del enum.value[:]
        enum.value.extend(values)
    for message in file.message_type:
        _cut(message)
    needed = _reachable(file, [name for method in kept for name in (method.input_type, method.output_type)])
    messages = [message for message in file.message_type if message.name in needed]
    del file.message_type[:]
    file.message_type.extend(messages)
    return file


def _cut(message: descriptor_pb2.DescriptorProto) -> None:
    """Leave out the fields that are not published, and the oneofs that are empty without them."""
    fields = [field for field in message.field if field.number < FIRST_OWN]
    used = sorted({field.oneof_index for field in fields if field.HasField("oneof_index")})
    oneofs = [message.oneof_decl[index] for index in used]
    for field in fields:
        if field.HasField("oneof_index"):
            field.oneof_index = used.index(field.oneof_index)
    del message.field[:]
    message.field.extend(fields)
    del message.oneof_decl[:]
    message.oneof_decl.extend(oneofs)


def _reachable(file: descriptor_pb2.FileDescriptorProto, types: list[str]) -> set[str]:
    by_name = {f".{file.package}.{message.name}": message for message in file.message_type}
    found: set[str] = set()
    while types:
        message = by_name.get(types.pop())
        if message is None or message.name in found:
            continue
        found.add(message.name)
        nested = [field for inner in message.nested_type for field in inner.field]
        types.extend(field.type_name for field in [*message.field, *nested] if field.type_name)
    return found


def _classes(pool: descriptor_pool.DescriptorPool, file: descriptor_pb2.FileDescriptorProto) -> SimpleNamespace:
    found = pool.FindFileByName(file.name)
    names: dict[str, Any] = {
        name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.message_types_by_name.items()
    }
    for enum in found.enum_types_by_name.values():
        names.update((value.name, value.number) for value in enum.values)
    return SimpleNamespace(**names, NAME=f"{file.package}.{file.service[0].name}", DESCRIPTOR=found)


_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
_FILES = (
    _published(control_pb2, "AgentControl", CONTROL_RPCS),
    _published(agent_pb2, "AgentService", AGENT_RPCS),
)
for _file in _FILES:
    _POOL.AddSerializedFile(_file.SerializeToString())

#: The messages and enum values of persys.control.v1 and persys.agent.v1.
control, agent = (_classes(_POOL, each) for each in _FILES)
