"""Parsing: how many rows a second become columns, beside TensorFlow's kernel with equal features.

A row has 26 features of one to three ids each, 13 of one float each, and a label. Ours come as Instances, as
ExampleBatches and as CSV; TensorFlow's as tf.Examples. All on one thread, and counted by the time of the processor,
because a machine with other work lets nobody count by the clock.
"""

from __future__ import annotations

import json
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.areas import Note
from bench.figures import Against, Figure, at_least
from bench.tables.peers import TENSORFLOW_PARSING
from shoal.core.errors import UnavailableError
from shoal.records.bad_records import BadRecords
from shoal.records.formats.payloads import Payloads
from shoal.records.formats.tfrecords import write_tfrecords
from shoal.records.parsing.engines import make_parser
from shoal.records.parsing.schema import RowSchema, floats, ids
from shoal.records.parsing.tables import read_csv
from shoal.wire.pb.idl.matrix.proto.example_pb2 import Example, ExampleBatch
from shoal.wire.pb.idl.matrix.proto.proto_parser_pb2 import Instance

SPARSE, DENSE = 26, 13
ROWS = 8192
BATCH = 1024
SECONDS = 3.0
_WITHIN = 600.0

_PEER = "tensorflow"
_ROW = "26 features of 1 to 3 ids, 13 of one float, a label; rows for each second of one processor"
_KINDS = {"instance": "Instances", "example": "Examples", "example_batch": "ExampleBatches of 1,024", "csv": "CSV"}

FIGURES = (
    *(
        Figure(
            f"parse_{name}", "rows/s", f"{kind} to Arrow columns: {_ROW}.", against=Against(_PEER, "parse_tf_example")
        )
        for name, kind in _KINDS.items()
    ),
    Figure("parse_tf_example", "rows/s", f"tf.Examples by `tf.io.parse_example`: {_ROW}.", optional=True),
    *(
        Figure(
            f"parse_{name}_of_tensorflow",
            "",
            f"`parse_{name}` divided by `parse_tf_example`.",
            bar=at_least(2),
            quotient=(f"parse_{name}", "parse_tf_example"),
            optional=True,
        )
        for name in ("instance", "example_batch", "csv")
    ),
)


class Rows:
    """Random values for some rows, the same for every format."""

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(7)
        self.count = count
        self.ids = [
            [rng.integers(1, 1 << 47, each).tolist() for each in rng.integers(1, 4, count)] for _ in range(SPARSE)
        ]
        self.floats = [rng.random(count, np.float32).tolist() for _ in range(DENSE)]

    def instances(self) -> Iterator[bytes]:
        """As Instances."""
        for row in range(self.count):
            made = Instance(label=[1.0])
            for number, column in enumerate(self.ids):
                made.feature.add(name=f"fc_sparse_{number}", fid=column[row])
            for number, values in enumerate(self.floats):
                made.feature.add(name=f"f_dense_{number}", float_value=[values[row]])
            yield made.SerializeToString()

    def examples(self) -> Iterator[bytes]:
        """As Examples."""
        for row in range(self.count):
            made = Example(label=[1.0])
            for number, column in enumerate(self.ids):
                made.named_feature.add(name=f"fc_sparse_{number}").feature.fid_v2_list.value.extend(column[row])
            for number, values in enumerate(self.floats):
                made.named_feature.add(name=f"f_dense_{number}").feature.float_list.value.append(values[row])
            yield made.SerializeToString()

    def batches(self) -> Iterator[bytes]:
        """As ExampleBatches."""
        for start in range(0, self.count, BATCH):
            rows = range(start, min(start + BATCH, self.count))
            made = ExampleBatch(batch_size=len(rows))
            for number, column in enumerate(self.ids):
                named = made.named_feature_list.add(name=f"fc_sparse_{number}")
                for row in rows:
                    named.feature.add().fid_v2_list.value.extend(column[row])
            for number, values in enumerate(self.floats):
                named = made.named_feature_list.add(name=f"f_dense_{number}")
                for row in rows:
                    named.feature.add().float_list.value.append(values[row])
            labels = made.named_feature_list.add(name="__LABEL__")
            for _ in rows:
                labels.feature.add().float_list.value.append(1.0)
            yield made.SerializeToString()

    def csv(self) -> bytes:
        """As CSV with a line of names."""
        names = ["label", *(f"fc_sparse_{n}" for n in range(SPARSE)), *(f"f_dense_{n}" for n in range(DENSE))]
        lines = [",".join(names)]
        for row in range(self.count):
            cells = ["|".join(map(str, column[row])) for column in self.ids]
            lines.append(",".join(["1.0", *cells, *(str(values[row]) for values in self.floats)]))
        return ("\n".join(lines) + "\n").encode()

    def tf_examples(self) -> Iterator[bytes]:
        """As tf.Examples, written out: nothing here needs TensorFlow."""
        for row in range(self.count):
            features = [
                _feature(f"sparse_{number}", 3, b"".join(map(_varint, column[row])))
                for number, column in enumerate(self.ids)
            ]
            features += [
                _feature(f"dense_{number}", 2, struct.pack("<f", values[row]))
                for number, values in enumerate(self.floats)
            ]
            features.append(_feature("label", 2, struct.pack("<f", 1.0)))
            yield _sized(1, b"".join(features))


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*made, value))


def _sized(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _feature(name: str, kind: int, values: bytes) -> bytes:
    return _sized(1, _sized(1, name.encode()) + _sized(2, _sized(kind, _sized(1, values))))


def measure(note: Note) -> dict[str, float]:
    """Every figure once."""
    made = Rows(ROWS)
    found = measure_ours(made, seconds=SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        records = str(Path(folder) / "rows.tfrecord")
        write_tfrecords(records, made.tf_examples())
        asked = {"records": records, "batch": BATCH, "seconds": SECONDS, "sparse": SPARSE, "dense": DENSE}
        try:
            found["parse_tf_example"] = TENSORFLOW_PARSING.run([json.dumps(asked)], within=_WITHIN)["rows_per_cpu_s"]
        except UnavailableError as error:
            note(f"TensorFlow could not be installed, so parsing stands alone: {error}")
    return found


def measure_ours(made: Rows, *, seconds: float) -> dict[str, float]:
    """The figures without the peer."""
    columns = tuple(ids(f"fc_sparse_{number}") for number in range(SPARSE))
    columns += tuple(floats(f"f_dense_{number}", size=1) for number in range(DENSE))
    schema = RowSchema(columns, weight=False)
    found = {
        "parse_instance": _rate(_parsing(Instance, schema, list(made.instances())), made.count, seconds),
        "parse_example": _rate(_parsing(Example, schema, list(made.examples())), made.count, seconds),
        "parse_example_batch": _rate(_parsing(ExampleBatch, schema, list(made.batches())), made.count, seconds),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        path.write_bytes(made.csv())
        found["parse_csv"] = _rate(lambda: [None for _ in read_csv(str(path), schema.arrow)], made.count, seconds)
    return found


def _parsing(message: type[Any], schema: RowSchema, records: list[bytes]) -> Callable[[], Any]:
    parser = make_parser(message, schema)
    size = BATCH if message is not ExampleBatch else 1
    parts = [Payloads.of(records[start : start + size]) for start in range(0, len(records), size)]
    return lambda: [parser.parse(part, BadRecords()) for part in parts]


def _rate(work: Callable[[], Any], rows: int, seconds: float) -> float:
    work()
    done, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        work()
        done += rows
    return done / (time.process_time() - began)
