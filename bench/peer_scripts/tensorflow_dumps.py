"""Reads and writes TFRecord files with stock TensorFlow, for the tests of dumps. Prints one line of JSON.

`write FOLDER` reads `entries.json` (hex of payloads) in the folder and writes them as `plain-00000-of-00001`, and
compressed as `packed-00000-of-00001` with `packed.meta-00000-of-00001` from `counts.json`. `read PATH COMPRESSION`
prints the hex of every record.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf  # type: ignore[import-untyped]


def write(folder: Path) -> dict[str, int]:
    """Write the three files."""
    entries = [bytes.fromhex(each) for each in json.loads((folder / "entries.json").read_text())]
    counts = [bytes.fromhex(each) for each in json.loads((folder / "counts.json").read_text())]
    for name, records, kind in (("plain", entries, ""), ("packed", entries, "SNAPPY"), ("packed.meta", counts, "")):
        path = str(folder / f"{name}-00000-of-00001")
        # The writer of datasets, because that of `tf.io` does not know the word SNAPPY.
        tf.data.experimental.TFRecordWriter(path, kind).write(tf.data.Dataset.from_tensor_slices(records))
    return {"written": len(entries)}


def read(path: str, compression: str) -> list[str]:
    """Every record of a file."""
    return [each.numpy().hex() for each in tf.data.TFRecordDataset(path, compression_type=compression)]


if __name__ == "__main__":
    if sys.argv[1] == "write":
        print(json.dumps(write(Path(sys.argv[2]))))
    else:
        print(json.dumps(read(sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "")))
