"""The programs that the dataflow engine is compared with, each in an environment of its own."""

from __future__ import annotations

from bench.peers import Peer

BYTEWAX = Peer(
    "bytewax",
    ("bytewax==0.21.1", "confluent-kafka==2.16.1", "orjson==3.13.0", "pyarrow==26.0.1"),
    "bytewax_jobs.py",
    optional=True,
)
FLINK = Peer(
    "flink",
    ("apache-flink==2.3.0", "setuptools==75.8.0"),
    "flink_jobs.py",
    jars=("org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2",),
    optional=True,
)
QUIX = Peer("quix", ("quixstreams==3.28.1", "confluent-kafka==2.12.2"), "quix_jobs.py", optional=True)
#: No engine at all: the client's loop as one would write it by hand.
LOOP = Peer("loop", ("confluent-kafka==2.16.1", "orjson==3.13.0"), "kafka_loop.py")

ALL = (LOOP, BYTEWAX, QUIX, FLINK)
