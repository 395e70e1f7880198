from shoal.records.bad_records import BadRecord as BadRecord
from shoal.records.bad_records import BadRecords as BadRecords
from shoal.records.bad_records import OnBad as OnBad
from shoal.records.feature_list import FeatureList as FeatureList
from shoal.records.feature_list import load_feature_list as load_feature_list
from shoal.records.formats.compression import Compression as Compression
from shoal.records.formats.documents import DocumentFormat as DocumentFormat
from shoal.records.formats.documents import load_message as load_message
from shoal.records.formats.documents import write_message as write_message
from shoal.records.formats.frames import FrameFormat as FrameFormat
from shoal.records.formats.frames import PayloadType as PayloadType
from shoal.records.formats.frames import write_frames as write_frames
from shoal.records.formats.payloads import Payloads as Payloads
from shoal.records.formats.reading import RecordFormat as RecordFormat
from shoal.records.formats.reading import framed as framed
from shoal.records.formats.reading import read_messages as read_messages
from shoal.records.formats.reading import read_payloads as read_payloads
from shoal.records.formats.reading import tfrecord as tfrecord
from shoal.records.formats.tfrecords import write_tfrecords as write_tfrecords
from shoal.records.patterns import Shard as Shard
from shoal.records.patterns import dated_patterns as dated_patterns
from shoal.records.patterns import find_files as find_files
from shoal.wire.pb.idl.matrix.proto.example_pb2 import Example as Example
from shoal.wire.pb.idl.matrix.proto.example_pb2 import ExampleBatch as ExampleBatch
from shoal.wire.pb.idl.matrix.proto.line_id_pb2 import LineId as LineId
from shoal.wire.pb.idl.matrix.proto.proto_parser_pb2 import Instance as Instance

__all__: list[str]
