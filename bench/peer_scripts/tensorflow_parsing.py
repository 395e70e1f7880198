"""Parses tf.Examples by TensorFlow's own kernel, `tf.io.parse_example`, on one thread. Prints one line of JSON.

    python tensorflow_parsing.py '{"records": "/tmp/x.tfrecord", "batch": 1024, "seconds": 3.0}'

The file holds serialized tf.Examples with the features `sparse_N` (ids) and `dense_N` (one float each), and `label`.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import tensorflow as tf  # type: ignore[import-untyped]


def main() -> None:
    """Parse the same batches again and again, and count rows for each second of this process."""
    given = json.loads(sys.argv[1])
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    features = {f"sparse_{number}": tf.io.RaggedFeature(tf.int64) for number in range(given["sparse"])}
    features |= {f"dense_{number}": tf.io.FixedLenFeature([1], tf.float32) for number in range(given["dense"])}
    features["label"] = tf.io.FixedLenFeature([1], tf.float32)
    batches = list(tf.data.TFRecordDataset(given["records"]).batch(given["batch"], drop_remainder=True))
    parse = tf.function(lambda records: tf.io.parse_example(records, features))
    first = parse(batches[0])
    checksum = int(tf.reduce_sum(first["sparse_0"].flat_values % 1000))
    rows, began, used = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < given["seconds"]:
        for batch in batches:
            parse(batch)
            rows += given["batch"]
    wall, cpu = time.perf_counter() - began, time.process_time() - used
    print(json.dumps({"rows_per_s": rows / wall, "rows_per_cpu_s": rows / cpu, "checksum": checksum}))


if __name__ == "__main__":
    main()
