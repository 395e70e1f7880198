"""The public face is small, and changing it is a decision: it changes here, too."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import shoal
import shoal.discovery
import shoal.records
import shoal.tables
import shoal.topics
from shoal.core.errors import ShoalError

PUBLIC = [
    "AggregatingState",
    "App",
    "CheckpointSettings",
    "Dataflow",
    "FlowSettings",
    "FunctionContext",
    "KeyedState",
    "ListState",
    "MapState",
    "Operator",
    "PlanError",
    "ProcessFunction",
    "Record",
    "ReducingState",
    "ShoalError",
    "Stream",
    "Topic",
    "ValueState",
    "__version__",
    "col",
    "count",
    "fn",
    "lit",
    "session",
    "sliding",
    "tumbling",
]


TOPICS = [
    "FencedError",
    "Fsync",
    "KafkaSettings",
    "KafkaTopics",
    "LocalLogSettings",
    "LocalTopics",
    "LogFullError",
    "Member",
    "OffsetOutOfRangeError",
    "Reader",
    "RebalancedError",
    "Reset",
    "Retention",
    "TopicPartition",
    "Topics",
    "Writer",
    "codec",
    "ensure_topic",
    "records",
    "start_offsets",
]


RECORDS = [
    "BadRecord",
    "BadRecords",
    "CloseHook",
    "Column",
    "Compression",
    "CsvFormat",
    "DocumentFormat",
    "Engine",
    "Example",
    "ExampleBatch",
    "FeatureList",
    "FrameFormat",
    "Instance",
    "LineId",
    "OnBad",
    "PayloadType",
    "Payloads",
    "RecordFormat",
    "RowSchema",
    "Shard",
    "WritableFile",
    "dated_patterns",
    "find_files",
    "floats",
    "framed",
    "ids",
    "ints",
    "list_versions",
    "load_feature_list",
    "load_message",
    "make_parser",
    "open_export",
    "read_columns",
    "read_csv",
    "read_messages",
    "read_parquet",
    "read_payloads",
    "texts",
    "tfrecord",
    "write_export",
    "write_frames",
    "write_message",
    "write_tfrecords",
]


DISCOVERY = [
    "AgentResource",
    "EmbeddedTree",
    "Endpoint",
    "LeaderChannel",
    "ModelState",
    "RemoteStore",
    "ServerType",
    "ServingAgentClient",
    "ZookeeperSettings",
    "ZookeeperStore",
    "follow",
    "resolve",
]


TABLES = [
    "AdmissionSettings",
    "EmbeddingTable",
    "Entries",
    "ExpirySettings",
    "FilterKind",
    "HeapMemory",
    "Memory",
    "NotFinite",
    "SharedMemory",
    "SharedTableReader",
    "SliceSettings",
    "TableKind",
    "TableSettings",
    "TableStatistics",
    "TimeBasis",
]


def test_the_public_names() -> None:
    assert sorted(shoal.__all__) == sorted(PUBLIC)
    assert all(getattr(shoal, name) is not None for name in PUBLIC)


def test_what_they_are() -> None:
    assert shoal.ShoalError is ShoalError
    assert shoal.__version__ == importlib.metadata.version("shoal")


def test_nothing_else_looks_public() -> None:
    program = (
        "import shoal, types\n"
        "names = {n for n in dir(shoal) if not isinstance(vars(shoal).get(n), types.ModuleType)} - {'annotations'}\n"
        "print(sorted(n for n in names if not n.startswith('_')))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == str(sorted(name for name in PUBLIC if not name.startswith("_")))


def test_a_stream_program_needs_one_import() -> None:
    program = (
        "from shoal import App, Stream, col, count, fn, lit, session, sliding, tumbling\n"
        "stream = Stream.from_dicts([{'a': 1}]).filter(col('a') > lit(0)).select(b=fn.abs(col('a')))\n"
        "print(stream.schema.names, App('x').id, tumbling(seconds=1).size, count(3).size)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "['b'] x 1000000 3"


@pytest.mark.parametrize(
    ("module", "public"),
    [(shoal.topics, TOPICS), (shoal.discovery, DISCOVERY), (shoal.records, RECORDS), (shoal.tables, TABLES)],
)
def test_the_public_names_of_a_package(module: ModuleType, public: list[str]) -> None:
    assert sorted(module.__all__) == public
    assert all(getattr(module, name) is not None for name in public)
    assert [name for name in dir(module) if name in public] == public
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(module, "nothing")  # noqa: B009  so that no type checker minds


def test_a_client_of_discovery_needs_no_kazoo() -> None:
    program = "from shoal.discovery import ServingAgentClient; import sys; print('kazoo' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


def test_a_local_log_needs_no_kafka_client() -> None:
    program = "from shoal.topics import LocalTopics, records; import sys; print('confluent_kafka' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("module", "public"),
    [
        (shoal, PUBLIC),
        (shoal.topics, TOPICS),
        (shoal.discovery, DISCOVERY),
        (shoal.records, RECORDS),
        (shoal.tables, TABLES),
    ],
)
def test_type_checkers_are_told_the_same_names(module: ModuleType, public: list[str]) -> None:
    stub = Path(str(module.__file__)).with_suffix(".pyi").read_text(encoding="utf-8")
    told = set(re.findall(r" as (\w+)$", stub, flags=re.MULTILINE)) | set(
        re.findall(r"^(\w+):", stub, flags=re.MULTILINE)
    )
    assert told - {"__all__"} == set(public)
