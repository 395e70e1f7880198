"""The messages are Monolith's, field by field: names, numbers, types, defaults. The golden file changes for nobody."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.descriptor import FieldDescriptor

from shoal.wire import pools
from shoal.wire.pb.idl.matrix.proto import example_pb2, feature_pb2, line_id_pb2, proto_parser_pb2
from shoal.wire.pb.monolith.native_training import monolith_checkpoint_state_pb2
from shoal.wire.pb.monolith.native_training.data.transform import transform_config_pb2
from shoal.wire.pb.monolith.native_training.model_export import export_pb2

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "records" / "messages.txt"
FILES = (
    line_id_pb2, feature_pb2, proto_parser_pb2, example_pb2, export_pb2, monolith_checkpoint_state_pb2,
    transform_config_pb2,
)  # fmt: skip
TYPES = {
    value: name.removeprefix("TYPE_").lower() for name, value in vars(FieldDescriptor).items() if name[:5] == "TYPE_"
}


def described():
    lines = []
    for module in FILES:
        for _, message in sorted(module.DESCRIPTOR.message_types_by_name.items()):
            lines.append(f"{message.full_name}")
            for field in message.fields:
                kind = (
                    (field.message_type or field.enum_type).full_name if field.message_type or field.enum_type else ""
                )
                words = [TYPES[field.type], kind]
                words += ["repeated"] * field.is_repeated + ["packed"] * bool(field.is_repeated and field.is_packed)
                words += [f"= {field.default_value}"] * bool(field.has_default_value)
                words += ["in a oneof"] * (field.containing_oneof is not None)
                lines.append(f"  {field.number:3} {field.name}: {' '.join(filter(None, words))}".rstrip())
        for enum in module.DESCRIPTOR.enum_types_by_name.values():
            lines.append(f"{enum.full_name}: {', '.join(f'{value.name} {value.number}' for value in enum.values)}")
    return "\n".join(lines) + "\n"


def test_the_fields_are_monoliths():
    assert described() == GOLDEN.read_text()


def test_they_are_in_a_pool_of_their_own():
    assert example_pb2.DESCRIPTOR.pool is pools.MONOLITH
    assert export_pb2.DESCRIPTOR.pool is pools.MONOLITH


def test_golden_bytes():
    line = line_id_pb2.LineId(uid=1, req_time=2, actions=[1, 2], special_strategies=[3], sample_rate=0.5)
    assert line.SerializeToString().hex() == "110100000000000000180232020102dd010000003fb80203"
    feature = example_pb2.Feature(fid_v2_list=example_pb2.FidList(value=[1]))
    assert feature.SerializeToString().hex() == "120a0a080100000000000000"
