"""The part of the registry for discovery: names in the tree, and what nodes hold."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from shoal.discovery.documents import read_record
from shoal.discovery.grants import read_paths
from shoal.discovery.mirror.records import PublishedModel
from shoal.discovery.models.exports import load_export
from shoal.discovery.models.records import parse_binding, parse_container, parse_saved_model
from shoal.discovery.replicas import paths
from shoal.discovery.servers import parse_servers
from shoal.testing.fuzz import JSON_VALUES, ParserCase, changed_bytes, changed_text, changed_values
from tests.fuzz.inputs import blobs, file_named, flipped_bytes, texts, with_folder
from tests.peers.tools_suite import saved_model

PUBLISHED = {
    "shard_id": 1,
    "replica_id": 0,
    "model_name": "m",
    "num_ps": 4,
    "total_publish_num": 2,
    "sub_models": {"entry": "/d/entry/1"},
    "ptype": 1,
    "is_spec": False,
}
BYTES = json.dumps(PUBLISHED).encode()

GRAPH = saved_model("m:ps_0")

DISCOVERY_PARSERS: dict[str, ParserCase] = {
    "shoal.discovery.documents.read_record": ParserCase(
        lambda given: read_record(PublishedModel, given, at="/n"),
        blobs
        | changed_bytes(BYTES)
        | (JSON_VALUES | changed_values(PUBLISHED)).map(lambda each: json.dumps(each).encode()),
        good=(BYTES,),
    ),
    "shoal.discovery.grants.read_paths": ParserCase(
        read_paths, blobs | changed_bytes(b"/gip\n/a/b\n"), (), (b"/gip\n",)
    ),
    "shoal.discovery.models.exports.load_export": ParserCase(
        with_folder(file_named("entry/1/saved_model.pb"), lambda folder: load_export(str(folder))),
        blobs | changed_bytes(GRAPH) | flipped_bytes(GRAPH),
        good=(GRAPH,),
    ),
    "shoal.discovery.models.exports.load_export of our own": ParserCase(
        with_folder(file_named("entry/1/export.json"), lambda folder: load_export(str(folder))),
        blobs | JSON_VALUES.map(lambda each: json.dumps(each).encode()),
        good=(b'{"model_name": "m"}',),
    ),
    "shoal.discovery.models.records.parse_binding": ParserCase(
        parse_binding, texts | changed_text("ps_0:p;lf;default:fd00::7"), (), ("ps_0:c:i",)
    ),
    "shoal.discovery.models.records.parse_container": ParserCase(
        parse_container, texts | changed_text("p;lf;default:pod-1"), (), ("c:i",)
    ),
    "shoal.discovery.models.records.parse_saved_model": ParserCase(
        parse_saved_model, texts | changed_text("m:ps_0"), good=("m:entry",)
    ),
    "shoal.discovery.replicas.paths.parse_location": ParserCase(
        paths.parse_location, texts | changed_text("lf:default"), (), ("lf:default",)
    ),
    "shoal.discovery.replicas.paths.parse_replica_name": ParserCase(
        paths.parse_replica_name, texts | changed_text("00000000012"), (), ("12",)
    ),
    "shoal.discovery.replicas.paths.parse_task_name": ParserCase(
        paths.parse_task_name, texts | changed_text("ps:12"), (), ("ps:0",)
    ),
    "shoal.discovery.replicas.paths.parse_task_path": ParserCase(
        paths.parse_task_path,
        st.lists(texts | changed_text("ps:12") | changed_text("lf:default"), max_size=3).map(tuple),
        (),
        (("lf:default", "ps:0"),),
    ),
    "shoal.discovery.servers.parse_servers": ParserCase(
        parse_servers,
        texts | changed_text("10.0.0.1:2181,[::1]:2181/top"),
        (ValueError,),
        ("10.0.0.1:2181,[::1]:2181/top",),
    ),
}
