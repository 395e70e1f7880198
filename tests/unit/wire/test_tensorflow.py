"""TensorFlow's messages have its names and numbers, and stay out of the pool that TensorFlow itself uses."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
from google.protobuf import descriptor_pool, text_format

from shoal.wire import tensorflow as methods
from shoal.wire.methods import methods_of
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


def model_config() -> pb.ModelConfig:
    config = pb.ModelConfig(name="m", base_path="/d", model_platform="tensorflow", version_labels={"stable": 7})
    config.model_version_policy.specific.versions.extend([7, 300])
    return config


def spec() -> pb.ModelSpec:
    made = pb.ModelSpec(name="m", signature_name="s")
    made.version.value = 5
    return made


@pytest.mark.parametrize(
    ("message", "encoded"),
    [
        (spec(), "0a016d120208051a0173"),
        (pb.ModelSpec(name="m", version_label="stable"), "0a016d2206737461626c65"),
        (model_config(), "0a016d12022f64220a74656e736f72666c6f773a08b206050a0307ac02420a0a06737461626c651007"),
        (
            pb.ModelVersionStatus(version=1, state="AVAILABLE", status=pb.StatusProto(error_code=5, error_message="x")),
            "0801101e1a050805120178",
        ),
        (
            tf.TensorProto(
                dtype="DT_STRING",
                tensor_shape=tf.TensorShapeProto(dim=[tf.TensorShapeProto.Dim(size=2)]),
                string_val=[b"a", b"bc"],
            ),
            "080712041202080242016142026263",
        ),
        (tf.TensorProto(dtype="DT_FLOAT", float_val=[1.0]), "08012a040000803f"),
        (
            pb.ReloadConfigRequest(
                config=pb.ModelServerConfig(model_config_list=pb.ModelConfigList(config=[pb.ModelConfig(name="m")]))
            ),
            "0a070a050a030a016d",
        ),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_bytes_are_those_of_tensorflow(message, encoded):
    assert message.SerializeToString(deterministic=True).hex() == encoded
    assert type(message).FromString(bytes.fromhex(encoded)) == message
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
