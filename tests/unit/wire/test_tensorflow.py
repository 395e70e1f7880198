"""TensorFlow's messages have its names and numbers, and stay out of the pool that TensorFlow itself uses."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool, text_format

from shoal.wire import tensorflow as methods
from shoal.wire.methods import methods_of
from shoal.wire.pb.monolith.serving import agent_service_pb2 as agent_pb
from shoal.wire.pb.tensorflow import framework_pb2 as tf
from shoal.wire.pb.tensorflow import serving_pb2 as pb
from shoal.wire.pools import TENSORFLOW

# Another definition of the same names in the default pool, as the import of TensorFlow makes it.
TENSORFLOW_ITSELF = """
from google.protobuf import descriptor_pb2, descriptor_pool
for name, package, message in (
    ("tensorflow/core/framework/tensor.proto", "tensorflow", "TensorProto"),
    ("tensorflow/framework.proto", "tensorflow", "TensorShapeProto"),
    ("tensorflow_serving/apis/model.proto", "tensorflow.serving", "ModelSpec"),
):
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
    field = file.message_type.add(name=message).field.add(name="theirs", number=77, type=5, label=1)
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
"""
OURS = """
from shoal.wire.pb.tensorflow import framework_pb2, serving_pb2
assert framework_pb2.TensorProto(int64_val=[1, 2]).SerializeToString() == bytes([0x52, 2, 1, 2])
"""


@pytest.mark.parametrize(
    "order", [(TENSORFLOW_ITSELF, OURS), (OURS, TENSORFLOW_ITSELF)], ids=["theirs first", "ours first"]
)
def test_a_process_may_import_tensorflow_too(order):
    subprocess.run([sys.executable, "-c", "\n".join(order)], check=True)


def test_the_default_pool_does_not_know_the_names():
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("tensorflow.serving.ModelSpec")
    assert TENSORFLOW.FindMessageTypeByName("tensorflow.serving.ModelSpec") is pb.ModelSpec.DESCRIPTOR


GOLDEN = Path(__file__).parents[2] / "golden" / "discovery" / "messages.txt"
VECTORS = [line.split("\t") for line in GOLDEN.read_text().splitlines() if line[0] != "#"]


@pytest.mark.parametrize(("name", "text", "encoded"), VECTORS)
def test_bytes_are_those_of_monoliths_and_tensorflows_programs(name, text, encoded):
    message_type = next(
        getattr(module, name.rpartition(".")[2])
        for module in (agent_pb, pb, tf)
        if name.startswith(f"{module.DESCRIPTOR.package}.") and hasattr(module, name.rpartition(".")[2])
    )
    assert message_type.DESCRIPTOR.full_name == name
    message = text_format.Parse(text, message_type())
    assert message.SerializeToString(deterministic=True).hex() == encoded
    assert message_type.FromString(bytes.fromhex(encoded)) == message
    if message_type.__module__.startswith("shoal."):  # ours are passed between processes
        assert pickle.loads(pickle.dumps(message)) == message


def test_a_value_of_any_type_is_named_as_tensorflow_names_it():
    adapter = pb.SavedModelBundleSourceAdapterConfig()
    adapter.legacy_config.enable_model_warmup = True
    made = pb.PlatformConfigMap()
    made.platform_configs["tensorflow"].source_adapter_config.Pack(adapter)
    text = text_format.MessageToString(made, descriptor_pool=TENSORFLOW)
    assert "[type.googleapis.com/tensorflow.serving.SavedModelBundleSourceAdapterConfig]" in text
    assert text_format.Parse(text, pb.PlatformConfigMap(), descriptor_pool=TENSORFLOW) == made


@pytest.mark.parametrize("service", [methods.ModelService, methods.PredictionService])
def test_every_rpc_is_in_the_table(service):
    described = pb.DESCRIPTOR.services_by_name[service.NAME.rpartition(".")[2]]
    assert described.full_name == service.NAME
    table = {method.name: (method.request.DESCRIPTOR, method.response.DESCRIPTOR) for method in methods_of(service)}
    assert table == {method.name: (method.input_type, method.output_type) for method in described.methods}
