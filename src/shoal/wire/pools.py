"""Descriptor pools for the messages of other programs, apart from the one that every library of a process shares.

Protobuf refuses two different files that define one name. TensorFlow registers `tensorflow.TensorProto` and the like in
the default pool when it is imported; the messages of `proto/tensorflow` have the same names and fewer fields. Monolith
does the same with its data and tables (`proto/idl`, `proto/monolith/native_training`). Ours are registered here, so
that a process may import both in any order. Used by the generated code, as `scripts/generate_protos.py` writes it, and
by callers of `google.protobuf.text_format`, which looks for the type of an `Any` in a pool.
"""

from __future__ import annotations

from google.protobuf import any_pb2, descriptor_pool, wrappers_pb2

TENSORFLOW = descriptor_pool.DescriptorPool()
MONOLITH = descriptor_pool.DescriptorPool()

for _file in (any_pb2.DESCRIPTOR, wrappers_pb2.DESCRIPTOR):
    TENSORFLOW.AddSerializedFile(_file.serialized_pb)
