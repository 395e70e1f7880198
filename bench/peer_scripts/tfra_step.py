"""Lookup and Adagrad step of TensorFlow Recommenders Addons: batches and rows in, millions of ids a second out."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped]

with contextlib.redirect_stdout(sys.stderr):  # it greets
    import tensorflow_recommenders_addons as tfra  # type: ignore[import-not-found]

DIM, PASSES, CHUNK = 16, 5, 1 << 16


def scatter(numbers: np.ndarray) -> np.ndarray:
    """The ids of the batches, as `bench.tables.stage.scatter` makes them."""
    word = numbers.astype(np.uint64)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((word ^ (word >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


def main() -> None:
    """Measure."""
    batches = np.load(sys.argv[1])
    rows = int(sys.argv[2])
    de = tfra.dynamic_embedding
    table = de.get_variable(
        "t", key_dtype=tf.int64, value_dtype=tf.float32, dim=DIM, init_size=rows * 2, initializer=0.0
    )
    optimizer = de.DynamicEmbeddingOptimizer(tf.keras.optimizers.legacy.Adagrad(0.05))
    for start in range(0, rows, CHUNK):
        ids = scatter(np.arange(start, min(start + CHUNK, rows)))
        table.upsert(ids, np.zeros((ids.size, DIM), np.float32))
    gradient = tf.constant(np.random.default_rng(2).normal(scale=0.01, size=(batches.shape[1], DIM)), tf.float32)
    shadow = de.shadow_ops.ShadowVariable(table, name="shadow")

    @tf.function  # type: ignore[untyped-decorator]
    def step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            found = de.shadow_ops.embedding_lookup(shadow, ids)
            loss = tf.reduce_sum(found * gradient)
        optimizer.apply_gradients([(tape.gradient(loss, shadow), shadow)])

    tensors = [tf.constant(each) for each in batches]
    step(tensors[0])
    rates = []
    for _ in range(PASSES):
        started = time.perf_counter()
        for ids in tensors:
            step(ids)
        rates.append(batches.size / (time.perf_counter() - started) / 1e6)
    print(json.dumps({"rate": statistics.median(rates)}))


main()
